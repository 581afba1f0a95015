"""The seam between a subtask and a keyed operator. Spark-free and I/O-free."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.ids import BatchNumber
from holdfast.schema import StreamKind
from holdfast.sources.base import BadRow
from holdfast.state.table import StateTable
from holdfast.watermarks import END_US

ALL_TIMES_US = (1 << 62) - 1
"""Later than any event time: as a watermark it closes every window and lets every row leave."""

NewTable = Callable[[pa.Schema, pa.Schema, int], StateTable]
"""Makes an empty table from key schema, value schema and the number of key groups."""


COMBINED_INPUT = -1
"""The input number of rows that a `Combiner` made; a sender sends them before its other rows."""


class TableSchema(NamedTuple):
    keys: pa.Schema
    values: pa.Schema


@dataclass(frozen=True)
class BatchContext:
    """The facts about a batch that its plan fixes."""

    batch: BatchNumber
    batch_time_us: int
    operator: str
    subtask: int
    watermark_us: int | None = None
    closed_us: int | None = None
    """The watermark of the previous batch: windows that end by then are closed."""

    @property
    def closes_us(self) -> int | None:
        """The time up to which windows close and rows leave in this batch: the watermark, or `ALL_TIMES_US` once the
        input is complete; None: no window closes and no row leaves."""
        return ALL_TIMES_US if self.watermark_us == END_US else self.watermark_us


def before(context: BatchContext) -> BatchContext:
    """Return the same batch, with the watermark of the batch before."""
    return replace(context, watermark_us=context.closed_us)


class Timers(msgspec.Struct, frozen=True, gc=False):
    """The next times at which an operator has work even if no rows come, by event time and by processing time.

    `fired` counts the timers that fired in the batch, `expired` the values that were removed.
    """

    event_us: int | None
    processing_us: int | None
    fired: int
    expired: int = 0


class OutputRows(Protocol):
    """Rows that an operator puts out, in order. A list, or rows that are partly on the local disk.

    An operator appends large output in pieces, so that a piece at a time is in memory.
    """

    def append(self, rows: pa.RecordBatch, /) -> None: ...
    def clear(self) -> None: ...
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class BatchRoom:
    """The memory that a batch may fill in an operator, which takes a large batch in pieces."""

    piece_bytes: int = 1 << 62
    """Bytes of input rows to take together. A higher value makes fewer steps, which take more memory."""
    check: Callable[[], None] = lambda: None
    """Raises `StateTooLarge` if the state is too large already; called between pieces."""


UNBOUNDED = BatchRoom()


@dataclass(frozen=True)
class OperatorResult:
    output: OutputRows
    bad: list[BadRow] = field(default_factory=list)
    timers: "Timers | None" = None
    late: int = 0
    """Number of rows that came too late."""
    late_rows: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    """Late rows of each input, if they are emitted as a separate stream."""


@dataclass(frozen=True)
class Opening:
    """Facts that an operator is given when it opens: the key groups that it owns, and the tables that every subtask
    loads in full.

    `whole` has the rows of all subtasks in the stored schema, as of the checkpoint, by table; none before the first
    checkpoint.
    """

    key_groups: range
    whole: Mapping[str, pa.RecordBatch] = field(default_factory=dict)


class Operator(ABC):
    """A subtask's instance of an operator: owns its state tables; every call is inside a transaction on them.

    `tables` maps table names ("state" for the value-like states and aggregates) to tables. The caller begins,
    commits and undoes the tables; `process` only reads and changes rows.
    """

    tables: dict[str, StateTable]
    new_output: Callable[[], OutputRows] = list
    """Makes an empty collection for the output of a batch; the owner of the operator sets it."""
    room: BatchRoom = UNBOUNDED
    """The memory for the batch; the owner of the operator sets it."""

    def open(self, opening: Opening) -> None:  # noqa: B027 (most operators have nothing to do)
        """Prepare for tables that now hold the state of a checkpoint, because they were restored or rewound. No batch
        is in flight.

        Raises `UserFunctionError`.
        """

    @abstractmethod
    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        """Process all rows of a batch for this subtask, as (input number, rows), in order. Called once a batch.

        Raises `BadRecord` (bad_records="fail"), `UserFunctionError` or `RowsNeeded`; the caller undoes the tables.
        """

    @property
    def copies_of_a_row(self) -> int:
        """Bound on the number of copies that the operator keeps of each input row, one for each window."""
        return 1

    def is_snapshot_available(self) -> SnapshotAvailability:
        """Say whether a checkpoint may be cut after the batch that was committed last. Asked after each commit."""
        return SnapshotAvailability.AVAILABLE

    @property
    def memory_bytes(self) -> int:
        """Bytes that the operator holds between batches beside its tables."""
        return 0

    def close(self) -> None:
        return None


class Combiner(ABC):
    """Combines a sender's rows to fewer rows before they are sent to an operator. No key is null.

    Both methods return the rows to send now, as (input number, rows), in order: first combined rows of
    `COMBINED_INPUT`, then perhaps rows as they came. Both have the same meaning to the operator.
    """

    @abstractmethod
    def take(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]: ...

    @abstractmethod
    def finish(self) -> list[tuple[int, pa.RecordBatch]]: ...


@dataclass(frozen=True)
class EventTime:
    """The event time of an operator's input, whose sources have a watermark.

    `names` are the columns of the sources that hold it. `column` is the input's column of that name; None if steps
    before the operator dropped or renamed it. `zoned` is True if values have a time zone.
    """

    names: tuple[str, ...]
    column: str | None
    zoned: bool = True


@dataclass(frozen=True)
class OperatorInput:
    """Rows that an operator takes, as declared: their schema, the columns of their key, their event time."""

    schema: pa.Schema
    key_columns: tuple[str, ...]
    event_time: EventTime | None = None
    """The event time of the rows; None if a source has no watermark."""
    window: Any = None
    """The window among the keys (`windows.declared`), if any."""
    window_place: int = 0
    """Number of key columns that were declared before the window."""
    broadcast: str = ""
    """Name of the broadcast state that the rows make, which are sent to every subtask; empty: rows go by key."""

    kind: StreamKind = "append"

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(column) for column in self.key_columns])


class OperatorSpec(ABC):
    """A keyed operator as declared; pure settings; cloudpickled to TaskManagers.

    `inputs[n]` describes the rows that are sent to it as input number n.
    """

    name: str
    takes: ClassVar[tuple[StreamKind, ...]] = ("append",)
    """The kinds of streams that may be inputs, except inputs that make broadcast states."""

    @property
    def output_kind(self) -> StreamKind:
        return "append"

    @property
    @abstractmethod
    def inputs(self) -> tuple[OperatorInput, ...]: ...

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The key columns of the operator's output."""
        return self.inputs[0].key_columns

    @property
    def declared_keys(self) -> tuple[str, ...]:
        """The keys of the operator's state as declared; stored state belongs to them."""
        return self.key_columns

    def check_stored(self, tables: Mapping[str, pa.Schema]) -> None:
        """Check that stored tables of these schemas, whose names and types fit, mean what the operator takes them for.

        Raises
        ------
        JobRefused
            The operator would misread the stored rows.
        """
        return

    @property
    @abstractmethod
    def output_schema(self) -> pa.Schema: ...

    @property
    def grows(self) -> str:
        """The reason why state grows forever even with few keys, and the remedy; empty if it does not grow."""
        return ""

    @property
    def late_schemas(self) -> dict[int, pa.Schema]:
        """The schemas of the inputs whose late rows are emitted as separate streams."""
        return {}

    @property
    def output_delay_us(self) -> int:
        """Microseconds by which output may be behind the watermark, because windows stay open for so long after their
        end."""
        return 0

    @property
    def output_window(self) -> Any:
        """The window to which the output's `window_start` belongs (`windows.declared.GivenWindow`); None: there is no
        window."""
        return None

    @property
    def start_behind_us(self) -> int | None:
        """Microseconds by which the output's `window_start` may be behind the watermark; None: any number."""
        return 0

    @property
    def tables_everywhere(self) -> frozenset[str]:
        """Names of the tables that every subtask has in full, with equal rows; other tables are divided by key
        group."""
        return frozenset()

    @property
    def tables_read_whole(self) -> tuple[str, ...]:
        """Names of the tables whose rows of all subtasks each subtask loads when it opens."""
        return ()

    @property
    def calls_no_user(self) -> bool:
        """True if no function of a user runs inside, so that the operator may be warmed with made-up rows."""
        return False

    @property
    def is_timed(self) -> bool:
        """True if the operator may have work without rows: timers to fire, expired state to remove."""
        return False

    def combiner(self, combine: bool, closed_us: int | None) -> Combiner | None:
        """Return the combiner through which a sender's rows pass before they are sent; None: they are sent unchanged.

        `combine`: whether rows may be combined. `closed_us`: the operator's watermark in the batch before.
        """
        return None

    @abstractmethod
    def table_schemas(self) -> dict[str, TableSchema]:
        """Schema of each table; known at `start()`, compared with the stored schema."""

    def described_tables(self) -> dict[str, TableSchema]:
        """The tables by which a restart recognises an unnamed operator: they are the same in every version."""
        return self.table_schemas()

    @abstractmethod
    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        """A fresh instance with empty tables, made by `new_table`: the state backend decides where rows are."""
