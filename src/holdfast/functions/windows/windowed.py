"""Declarations that operators behind a windowed key share: keys, bounds, lateness, when they close."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.operator import OperatorInput, OperatorSpec
from holdfast.functions.rows.policies import BadRecords, LatePolicy
from holdfast.functions.windows.declared import WINDOW_END, WINDOW_START, AnyWindow, GivenWindow, Window, bounds_type
from holdfast.functions.windows.sending import ALL_FIELD, PANE_FIELD

WindowEmit = Literal["final", "changes"]


@dataclass(frozen=True)
class Windowing:
    """The way in which windows are kept.

    Parameters
    ----------
    emit : {"final", "changes"}
        A row for each key and window, when it closes; or a row in each batch that changed it, while it is open.
    bad_records : {"fail", "dead_letter"}
        The treatment of a row that a sum can't take, or for which a function raises.
    combine : bool
        Whether senders may combine rows.
    lateness_us : int
        Microseconds for which a window stays open past its end.
    late : {"drop", "dead_letter", "stream"}
        The treatment of a row whose windows are closed; it is counted in any case.
    """

    emit: WindowEmit = "final"
    bad_records: BadRecords = "fail"
    combine: bool = True
    lateness_us: int = 0
    late: LatePolicy = "drop"

    def __post_init__(self) -> None:
        if self.emit not in ("final", "changes"):
            raise SettingsError(f"emit={self.emit!r} is not allowed behind a window: 'final' (default) or 'changes'")
        if self.late not in ("drop", "dead_letter", "stream"):
            raise SettingsError(
                f"late={self.late!r} is not allowed: 'drop' (counted), 'dead_letter', or 'stream' (see Stream.late)"
            )


FINAL = Windowing()
"""The windowing of an operator for which nothing else was declared."""


class WindowedSpec(OperatorSpec):
    """An operator of a single input whose key has a window. Raises `JobRefused` when made."""

    name: str
    input: OperatorInput
    windowing: Windowing

    def check_input(self) -> None:
        """Refuse a window that can't be made of the input, or would never close."""
        schema, window = self.input.schema, self.window
        place = schema.get_field_index(window.column)
        if place < 0 or not pa.types.is_timestamp(schema.field(place).type):
            found = f"has type {schema.field(place).type}" if place >= 0 else f"is not among {', '.join(schema.names)}"
            raise JobRefused(f"operator {self.name!r}: {window}: column {window.column!r} {found}; give a timestamp")
        for column in (WINDOW_START, WINDOW_END):
            if column in self.input.key_columns:
                raise JobRefused(
                    f"operator {self.name!r}: key_by has a column {column!r} and {window}, whose output has a column "
                    "of that name too; rename the column before key_by"
                )
        if self.windowing.emit == "final" and self.input.event_time is None:
            raise JobRefused(
                f"operator {self.name!r}: {window} with emit='final' needs a watermark, without which no window would "
                "ever close: add .with_watermark(column, delay) right after read(), or take emit='changes'"
            )

    @property
    def window(self) -> AnyWindow:
        """The window among the keys."""
        assert isinstance(self.input.window, AnyWindow), "declared with a window"
        return self.input.window

    @property
    def lateness_us(self) -> int:
        """The time for which a window stays open after its end."""
        return self.windowing.lateness_us + self.window.behind_us

    @property
    @abstractmethod
    def result_fields(self) -> list[pa.Field]:
        """The columns of the output after the columns of the key."""

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def key_columns(self) -> tuple[str, ...]:
        place = self.input.window_place
        return (*self.input.key_columns[:place], *self.window.outputs, *self.input.key_columns[place:])

    @property
    def to_one(self) -> bool:
        """True if one subtask has all windows: they overlap, and there is no other key."""
        return not self.input.key_columns and isinstance(self.window, Window) and not self.window.tumbles

    @property
    def pane_keys(self) -> list[pa.Field]:
        """The key columns of panes: those of the key, and the pane's time."""
        return [*self.input.key_schema, *([ALL_FIELD] if self.to_one else []), PANE_FIELD]

    @property
    def declared_keys(self) -> tuple[str, ...]:
        place = self.input.window_place
        return (*self.input.key_columns[:place], str(self.window), *self.input.key_columns[place:])

    @property
    def bounds_type(self) -> pa.DataType:
        """The type of `window_start` and `window_end`."""
        return bounds_type(self.input.schema.field(self.window.column).type)

    @property
    def key_fields(self) -> list[pa.Field]:
        """The key columns of the output."""
        keys = {field.name: field for field in self.input.key_schema}
        keys |= {name: pa.field(name, self.bounds_type, nullable=False) for name in (WINDOW_START, WINDOW_END)}
        return [keys[name] for name in self.key_columns]

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.key_fields, *self.result_fields])

    @property
    def grows(self) -> str:
        if self.input.event_time is not None:
            return ""
        return (
            f"{self.window} has no watermark, so that windows stay in the state for ever: add .with_watermark(column, "
            "delay) right after read()"
        )

    @property
    def late_schemas(self) -> dict[int, pa.Schema]:
        return {0: self.input.schema} if self.windowing.late == "stream" else {}

    @property
    def output_delay_us(self) -> int:
        return self.lateness_us

    @property
    def output_window(self) -> GivenWindow | None:
        window = self.window
        if not isinstance(window, Window) or self.windowing.emit != "final" or WINDOW_START not in self.key_columns:
            return None
        return GivenWindow(WINDOW_START, window.size_us, window.slide_us, window.start_us)

    @property
    def start_behind_us(self) -> int | None:
        return self.window.size_us if isinstance(self.window, Window) else None

    @property
    def is_timed(self) -> bool:
        return True
