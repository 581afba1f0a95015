"""`left.key_by(…).join(right.key_by(…), …)` as declared: its checks, the columns of the output, the state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.joins.asof_operator import AsOfOperator
from holdfast.functions.joins.bounds import LEFT, RIGHT, SIDES, AsOf, Bounds, Forever, SameWindow
from holdfast.functions.joins.join_operator import JoinOperator
from holdfast.functions.joins.kept_rows import MATCHED, NUMBER, head_columns
from holdfast.functions.operator import NewTable, Operator, OperatorInput, OperatorSpec, TableSchema
from holdfast.functions.rows.policies import BadRecords, LatePolicy
from holdfast.functions.windows.declared import PANE, WINDOW_END, WINDOW_START, GivenWindow, bounds_type
from holdfast.functions.windows.sending import PANE_FIELD
from holdfast.state.keys import grouped_by
from holdfast.state.table import StateTable

How = Literal["inner", "left", "right", "outer", "semi", "anti", "asof"]
HEADS = "heads"
_EVENT_TIME = b"holdfast.event_time"
"""The metadata that marks the column of kept rows from which the join reads their event times."""


@dataclass(frozen=True)
class OutputColumn:
    """A column of the output: its source column on each side; None: the value comes from the other side alone."""

    field: pa.Field
    sources: tuple[str | None, str | None]


def check_how(how: str) -> None:
    """Raise `SettingsError` if there is no join of that kind."""
    if how not in get_args(How):
        raise SettingsError(f"join(how={how!r}): allowed are {', '.join(map(repr, get_args(How)))}")


@dataclass(frozen=True)
class JoinSpec(OperatorSpec):
    """Raises `JobRefused` when made.

    Parameters
    ----------
    suffix : str, optional
        The end of the names of the right side's columns if the left side has a column of that name.
    late : {"drop", "dead_letter", "stream"}
        The treatment of late rows; they are counted in any case.
    """

    name: str
    sides: tuple[OperatorInput, OperatorInput]
    bounds: Bounds
    how: How = "inner"
    suffix: str | None = None
    late: LatePolicy = "drop"
    bad_records: BadRecords = "fail"
    condition: Any = None
    """A bound condition on pairs of rows (`condition`): those for which it is not true do not meet."""

    takes_back: ClassVar[bool] = False
    """True if output is taken back once it does not hold any more."""

    def __post_init__(self) -> None:
        left, right = (side.key_schema.types for side in self.sides)
        if left != right:
            shown = [
                ", ".join(f"{field.name} {field.type}" for field in side.key_schema) or "no columns"
                for side in self.sides
            ]
            raise JobRefused(
                f"operator {self.name!r}: join of streams keyed by ({shown[LEFT]}) and ({shown[RIGHT]}): give both as "
                "many key columns, of the same types; cast them before key_by"
            )
        if not left:
            raise JobRefused(f"operator {self.name!r}: a join needs a key besides the window: add columns to key_by")
        if (
            not self.takes_back
            and isinstance(self.bounds, Forever)
            and (self.keeps_alone(LEFT) or self.keeps_alone(RIGHT))
        ):
            raise JobRefused(
                f"operator {self.name!r}: join(how={self.how!r}) gives rows that met no other, and without a bound of "
                "time that is never known: give within=, between= or ttl=, or changes=True, which takes rows back"
            )
        self._refuse_clashes()

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return self.sides

    @property
    def key_columns(self) -> tuple[str, ...]:
        return ()

    @property
    def declared_keys(self) -> tuple[str, ...]:
        left, right = self.sides
        return (*left.key_columns, f"{self.how} join of {', '.join(right.key_columns)} {self.bounds}")

    # The output of each kind of join.

    @property
    def gives_pairs(self) -> bool:
        """True if rows that meet are put out together."""
        return self.how not in ("semi", "anti")

    def keeps_alone(self, side: int) -> bool:
        """True if rows of that side that met no other are put out when they leave."""
        return self.how in (("left", "outer", "anti", "asof") if side == LEFT else ("right", "outer"))

    def marks(self, side: int) -> bool:
        """True if the state marks the rows of a side that met a row of the other side."""
        return self.gives_pairs and self.keeps_alone(side) and not isinstance(self.bounds, AsOf)

    def may_lack(self, side: int) -> bool:
        """True if a row of the output may lack that side."""
        return self.gives_pairs and self.keeps_alone(RIGHT if side == LEFT else LEFT)

    # The output.

    @property
    def merged(self) -> tuple[str, ...]:
        """Key columns that have the same name on both sides: they share a column of the output."""
        pairs = zip(*(self._keys_with_bounds(side) for side in self.sides), strict=False)
        return tuple(left for left, right in pairs if left == right)

    @property
    def output_columns(self) -> list[OutputColumn]:
        """The columns that come from the sides."""
        left, right = self.sides
        merged = self.merged if self.gives_pairs else ()
        columns = [
            OutputColumn(
                field if field.name in merged else self._shown(field, LEFT),
                (field.name, field.name if field.name in merged else None),
            )
            for field in left.schema
        ]
        if not self.gives_pairs:
            return columns
        for field in right.schema:
            if field.name not in merged:
                name = field.name
                if self.suffix is not None and name in left.schema.names:
                    name += self.suffix
                columns.append(OutputColumn(self._shown(field, RIGHT).with_name(name), (None, field.name)))
        return columns

    @property
    def shows_bounds(self) -> bool:
        """True if the window's bounds follow the columns of the sides, which do not have them yet."""
        windows = [side.window for side in self.sides]
        return self.windowed and not any(isinstance(window, GivenWindow) for window in windows)

    @property
    def bounds_fields(self) -> list[pa.Field]:
        """The columns with the window's bounds."""
        kind = bounds_type(self.sides[LEFT].schema.field(self.sides[LEFT].window.column).type)
        return [pa.field(name, kind, nullable=False) for name in (WINDOW_START, WINDOW_END)]

    @property
    def output_schema(self) -> pa.Schema:
        bounds = self.bounds_fields if self.shows_bounds else []
        return pa.schema([*(column.field for column in self.output_columns), *bounds])

    @property
    def late_schemas(self) -> dict[int, pa.Schema]:
        return {side: declared.schema for side, declared in enumerate(self.sides)} if self.late == "stream" else {}

    @property
    def output_delay_us(self) -> int:
        return self.bounds.delay_us()

    @property
    def start_behind_us(self) -> int | None:
        return None

    @property
    def is_timed(self) -> bool:
        return True

    @property
    def windowed(self) -> bool:
        """True if a window is part of the keys."""
        return isinstance(self.bounds, SameWindow)

    @property
    def grows(self) -> str:
        if not isinstance(self.bounds, Forever):
            return ""
        return (
            "the join keeps every row of both sides for ever: give it a bound of event time (within=, between=), or a "
            "time to live (ttl=)"
        )

    # The state.

    @property
    def calls_no_user(self) -> bool:
        return True

    def table_schemas(self) -> dict[str, TableSchema]:
        names = [*head_columns(LEFT), *head_columns(RIGHT)]
        heads = pa.schema([pa.field(name, pa.int64()) for name in names])
        return {HEADS: TableSchema(self.head_keys(LEFT), heads), **{SIDES[side]: self._rows(side) for side in (0, 1)}}

    def head_keys(self, side: int) -> pa.Schema:
        """The key columns of the heads, by a side's names."""
        keys = list(self.sides[side].key_schema)
        return grouped_by(pa.schema([*keys, PANE_FIELD] if self.windowed else keys), len(keys))

    def _rows(self, side: int) -> TableSchema:
        declared = self.sides[side]
        keys = pa.schema([*self.head_keys(side), pa.field(NUMBER, pa.int64())])
        times = [pa.field(name, pa.int64()) for name in self.bounds.columns(side)]
        flags = [pa.field(MATCHED, pa.bool_())] if self.marks(side) else []
        values = [field for field in declared.schema if field.name not in declared.key_columns]
        at = self.bounds.time_column(side)
        values = [field.with_metadata({_EVENT_TIME: b""}) if field.name == at else field for field in values]
        return TableSchema(grouped_by(keys, len(declared.key_columns)), pa.schema([*values, *times, *flags]))

    def check_stored(self, tables: Mapping[str, pa.Schema]) -> None:
        for side, name in enumerate(SIDES):
            wanted, stored = self.bounds.time_column(side), tables.get(name)
            if wanted is None or stored is None:
                continue
            marked = [field.name for field in stored if _EVENT_TIME in (field.metadata or {})]
            # State stored before the mark existed is accepted if it has a column of that name.
            unmarked = [column for column in stored.names if column == wanted]
            found = next(iter(marked or unmarked), None)
            if found != wanted:
                shown = f"in the column {found!r}" if found else f"in none of the columns {', '.join(stored.names)}"
                raise JobRefused(
                    f"operator {self.name!r}: the event time of its {name} rows is the column {wanted!r}, and that of "
                    f"its stored rows is {shown}. Keep the name of the column of with_watermark, give the operator "
                    f"another name, or give up its state with job.start(drop_state=[{self.name!r}])"
                )

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        made = AsOfOperator if isinstance(self.bounds, AsOf) else JoinOperator
        return made(self, max_parallelism, new_table)

    def _keys_with_bounds(self, side: OperatorInput) -> tuple[str, ...]:
        given = side.window.outputs if isinstance(side.window, GivenWindow) else ()
        return (*side.key_columns, *given)

    def _shown(self, field: pa.Field, side: int) -> pa.Field:
        return field.with_nullable(True) if self.may_lack(side) else field

    def _refuse_clashes(self) -> None:
        names = self.output_schema.names
        clashing = sorted({name for name in names if names.count(name) > 1})
        if clashing:
            remedy = "give join() another suffix=" if self.suffix is not None else "rename them, or give join() suffix="
            raise JobRefused(
                f"operator {self.name!r}: the output of the join would have several columns of the name "
                f"{', '.join(map(repr, clashing))}: {remedy}"
            )
        for side in self.sides:
            if PANE in side.schema.names:
                raise JobRefused(f"operator {self.name!r}: a column is called {PANE!r}; rename it")
