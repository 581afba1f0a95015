"""What a source is: an enumerator in the JobMaster that plans, and reads in tasks that follow the plan.

A source never decides in a task what to read: a `SplitRead` fixes it, and reading the same
`SplitRead` again gives the same rows. Sources own no checkpoint logic; they are asked for offsets.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from holdfast.clock import Clock
from holdfast.storage.store import ObjectStore

Position = int | float | str | bool | None
Offsets = dict[str, Position]
"""Split (or another name the source chooses) → position. Flat, and stored in the journal."""


class SplitRead(msgspec.Struct, frozen=True):
    """One contiguous piece of one split, `[start, stop)`, read by one task.

    `rows` is the expected number of rows (an estimate where it is not known, at least 1);
    `detail` is for the source alone (a path, say), msgpack, never stored.
    """

    split: str
    start: Position
    stop: Position
    rows: int = 1
    detail: bytes = b""


@dataclass(frozen=True)
class SourcePlan:
    """A part of a batch: where the source stands after it, and the reads that get it there."""

    to: Offsets
    reads: list[SplitRead]


@dataclass(frozen=True)
class BadRow:
    """A row that could not be read or processed. `payload` is the row as JSON or the raw text."""

    source: str
    split: str
    position: str
    reason: str
    payload: str
    operator: str = ""


@dataclass(frozen=True)
class SourceBatch:
    """Rows read, in order. Row i stands at `position + i` where `position` is an int."""

    rows: pa.RecordBatch
    position: Position
    bad: list[BadRow] = field(default_factory=list)


@dataclass(frozen=True)
class EnumeratorContext:
    """What an enumerator may use: the job's store, the folder for discovery chunks of this epoch, the clock.

    A name that was deleted, or whose put failed, must not be put again: what lands there later is deleted.
    """

    store: ObjectStore
    source: str
    epoch: int
    clock: Clock


class Enumerator(ABC):
    """The JobMaster's side of a source. Called by one thread at a time."""

    @abstractmethod
    def initial(self) -> Offsets:
        """Offsets before the first row, with `starting=` applied."""

    @abstractmethod
    def latest(self) -> Offsets:
        """Look for new data; offsets that include all of it. May do I/O.

        What planning up to these offsets needs after a restart is stored (in `objects`) before this returns.
        """

    @abstractmethod
    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        """The next piece of work from `start`, not past `until`, of about `rows_max` rows and `bytes_max` bytes.

        Empty `reads` and `to == start` where nothing is new (`to` may move without reads where there are no rows).
        Deterministic for given arguments and discoveries.
        Should give several reads where it can, so that several senders share them.
        """

    def open_splits(self, offsets: Offsets) -> Collection[str]:
        """The splits that are assigned and not read to their end at `offsets`, by their names in `SplitRead.split`.

        They hold the watermark back. By default each entry of the offsets is a split that never ends.
        """
        return list(offsets)

    def objects(self, offsets: Offsets) -> list[str]:
        """Names of stored objects that a restart from `offsets` needs; they are named in the checkpoint's record."""
        return []

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        """Called once, before anything else, when the job restarts from a checkpoint."""
        return

    def completed(self, offsets: Offsets) -> None:
        """A checkpoint with these offsets was recorded: the job will not go back to before them.

        Called after `restore` with the checkpoint that a start begins from, then for each later one, unless a newer
        one comes first, and at the end of the start for its last one.
        What `objects` names is the enumerator's own: it may now delete what only older offsets needed. The object is
        gone once the records that name it are.
        """
        return

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        """Rows (or units of the position) between `offsets` and the last `latest()`, per split."""
        return {}

    def close(self) -> None:
        """Release what is held."""
        return


class Source(ABC):
    """A source as the user declares it: settings only; it is cloudpickled to tasks for `read`."""

    name: str | None = None
    kind: str = "source"

    @property
    def endless(self) -> bool:
        """Whether all of it is there from the beginning, without an end: `available_now` would never finish."""
        return False

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of the rows; called at `start()` on the driver, before the source is shipped to tasks.

        Raises `JobRefused` where it cannot be known.
        """

    @abstractmethod
    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        """The driver's side."""

    @abstractmethod
    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        """The rows of one read, in order, in Arrow batches of the declared schema. Runs in a task."""
