"""The interface of sources: an enumerator in the JobMaster plans reads, and tasks execute them.

A task never decides which rows it reads. A `SplitRead` fixes them, and the same `SplitRead` always gives the same
rows. Sources have no checkpoint logic of their own: the JobMaster asks them for offsets, and stores these.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.clock import Clock
from holdfast.expressions.nodes import SqlSettings
from holdfast.ids import Epoch, SplitPosition
from holdfast.schema import CHANGE_TYPE, StreamKind
from holdfast.sources.wanted import WantedRows
from holdfast.storage.store import ObjectStore

Offsets = dict[str, SplitPosition]
"""Positions by split, or by another name that the source chooses. Flat, and stored in the journal."""


class SplitRead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A contiguous piece `[start, stop)` of a split, read by a single task.

    `rows` is the expected or estimated number of rows; 0 if it is unknown. `detail` has further facts that only the
    source understands, such as a file's size; it is never stored. `is_skipped`: the task puts the rows aside as dead
    letters, because a user asked for that.
    """

    split: str
    start: SplitPosition
    stop: SplitPosition
    rows: int = 0
    detail: bytes = b""
    is_skipped: bool = False


@dataclass(frozen=True)
class SourcePlan:
    """A source's part of a batch: its reads, and the source's offsets after them.

    `availability` says whether a checkpoint may be cut at `to`. A source refuses boundaries inside of transactions and
    during a first full read. The next plan has its own answer.
    """

    to: Offsets
    reads: list[SplitRead]
    availability: SnapshotAvailability = SnapshotAvailability.AVAILABLE


@dataclass(frozen=True)
class BadRow:
    """A row that could not be read or processed, for a `reason`.

    `source`, `split`, `position`: where it was read. `payload`: the row as JSON, or the raw text. `operator`: the
    operator that refused it; "" if it could not be read.
    """

    source: str
    split: str
    position: str
    reason: str
    payload: str
    operator: str = ""


@dataclass(frozen=True)
class SourceBatch:
    """`rows` in the order in which they were read, and the `bad` ones beside them. If `position` is an int, row i has
    the position `position + i`."""

    rows: pa.RecordBatch
    position: SplitPosition
    bad: list[BadRow] = field(default_factory=list)
    newest: pa.Array | None = None
    """Event times that are at least as new as those of rows that were passed over; None: no row with any was."""


@dataclass(frozen=True)
class EnumeratorContext:
    """The means of the enumerator of a `source`: the job's store, the epoch in whose folder it stores objects, a clock.

    A name that was deleted, or whose put failed, must not be put again: an object that lands there later is deleted.
    """

    store: ObjectStore
    source: str
    epoch: Epoch
    clock: Clock
    available_now: bool = False
    """True if the query ends after the data available now: then the first `latest()` waits until it has seen all of
    it."""
    goes_back: bool = False
    """True if older checkpoints are retained, from which a later start may begin. Then `objects` also names the objects
    needed since the last `completed`, so that the retained records together name everything from the oldest of them
    on."""
    job_id: str = ""
    """The job's id, for names outside of its storage."""


class Enumerator(ABC):
    """The JobMaster's side of a source. Called by a single thread at a time."""

    @abstractmethod
    def initial(self) -> Offsets:
        """Return the offsets before the first row, with `starting=` applied."""

    @property
    def initial_varies(self) -> bool:
        """True if a later call of `initial` may give another answer, as with "latest". Then a checkpoint records the
        answer before the first row is read, so that a start after a crash begins at the same offsets.
        """
        return False

    def begin_look(self) -> Callable[[], bool]:
        """Begin to look for all data that is there now; the returned function tells whether `latest` includes all of
        it.

        It is for sources that store data in the background, whose `latest` includes only stored data. It may do I/O,
        but does not wait: batches continue meanwhile.
        """
        return lambda: True

    @abstractmethod
    def latest(self) -> Offsets:
        """Look for new data, and return offsets that include all of it. May do I/O.

        Everything that planning up to these offsets needs after a restart is stored, as an object that `objects`
        names, before this method returns. A call that fails changes nothing.
        """

    @abstractmethod
    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        """Return the next reads from `start`, not past `until`, of about `rows_max` rows and `bytes_max` bytes.

        Without new data, `reads` is empty and `to` equals `start`. `to` may also move without reads, over a range
        that has no rows. The same arguments give the same plan as long as nothing new is discovered.
        Several reads are better than a single large read, because several senders then share them.

        `until` may equal `start`: then only `SourcePlan.availability` matters, which may have changed.
        """

    def open_splits(self, offsets: Offsets) -> Collection[str]:
        """Return the splits that are assigned and not read to their end at `offsets`, as `SplitRead.split` names them.

        These splits hold the watermark back. By default each entry of the offsets is a split that never ends.
        """
        return list(offsets)

    def objects(self, offsets: Offsets) -> list[str]:
        """Return the names of the stored objects that a restart from `offsets` needs; the record names them too."""
        return []

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        """Begin at a checkpoint's `offsets`, which needs the `objects` that it names. Called once, before any other
        method, and only for a restart."""
        return

    def completed(self, offsets: Offsets) -> None:
        """Note that a checkpoint with these offsets was recorded: the job will not go back before them. It is called
        after `restore` with the checkpoint from which a start begins, then with later checkpoints (some may be left out
        if newer ones follow), and at the end with the last checkpoint. Offsets only move forward; the same offsets may
        come again. The objects that `objects` names belong to the enumerator. It may now delete those that only older
        offsets needed; an object then disappears together with the last record that names it.
        """
        return

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        """Return the rows (or units of the position) between `offsets` and the last `latest()`, per split."""
        return {}

    @property
    def message(self) -> str:
        """Return the reason why the source gives no rows at the moment; empty if there is no problem. Any thread may
        call it."""
        return ""

    def close(self) -> None:
        """Release all resources. May be called more than once, and after any failure."""
        return


class Source(ABC):
    """A source as the user declares it. It holds settings only, and travels to tasks by cloudpickle for `read`."""

    name: str | None = None
    kind: str = "source"
    splits_stand_alone: bool = False
    """True if the offsets have a position for each split, under the split's name in its reads, so that some splits may
    advance while another keeps its position."""

    @property
    def stable_text(self) -> str:
        """Text that distinguishes the source from others of its kind, and is the same at every start."""
        return self.kind if type(self).__repr__ is object.__repr__ else repr(self)

    def positions_of_splits(self, offsets: Offsets) -> Collection[str]:
        """Return the entries of offsets that are positions of splits, for a source with `splits_stand_alone`."""
        return list(offsets)

    _schema: Any = None
    """The schema that the source was given."""
    uses_spark: bool = False
    """True if the source runs its own Spark jobs beside the batches, so that a slot is kept free for it."""

    @property
    def passes_over(self) -> bool:
        """True if `read_wanted` passes over groups of rows of which none is wanted."""
        return False

    @property
    def endless(self) -> bool:
        """True if the source has no end and all its rows exist at once, so that `available_now` would never finish."""
        return False

    @property
    def divisible(self) -> bool:
        """True if a batch can be limited to some of the available rows; False if it always reads all of them."""
        return True

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the schema of the rows. Called by `start()` on the driver, before the source travels to tasks.

        Raises `JobRefused` if the schema cannot be known, or the source is known to be unreadable.
        """

    def with_expressions(self, settings: SqlSettings) -> "Source":
        """Return the source with its expressions in Spark's SQL under these settings. Raises `JobRefused`."""
        return self

    def declared_schema(self) -> pa.Schema | None:
        """Return the schema if it is known without reading data or asking a server; None: only `schema` can find it."""
        found: pa.Schema | None = self._schema
        return found

    @property
    def has_outputs(self) -> bool:
        """True if the source has no main stream, but several others."""
        return False

    def outputs(self) -> dict[str, pa.Schema]:
        """Return the schemas of further streams that the source has beside its main stream, by name (a table, say).

        All outputs are read by the same plans, so they advance together.
        """
        return {}

    def stream_kind(self, schema: pa.Schema) -> StreamKind:
        """Return the kind of the stream of this `schema`: of changes if it has the column `_change_type`."""
        return "changes" if CHANGE_TYPE in schema.names else "append"

    @abstractmethod
    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        """Return the enumerator of a start, on the driver. `context` has the objects that it may use, such as the job's
        store."""

    @abstractmethod
    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        """Yield the rows of a read in order, in Arrow batches of the declared schema. Runs in a task."""

    def read_columns(self, read: SplitRead, columns: Sequence[str]) -> Iterator[SourceBatch]:
        """Yield the rows of a read with these columns alone, in this order; otherwise as `read`.

        A source that stores columns separately does not read the other columns, so it does not notice a forbidden null
        in them.
        """
        for batch in self.read(read):
            yield replace(batch, rows=batch.rows.select(list(columns)))

    def read_output(
        self, output: str, read: SplitRead, store: ObjectStore, columns: Sequence[str] | None
    ) -> Iterator[SourceBatch]:
        """Yield the rows of `read` for an `output` ("": the main stream), with these `columns` alone if given.

        `store` is the job's storage.
        """
        return self.read(read) if columns is None else self.read_columns(read, columns)

    def read_wanted(
        self, read: SplitRead, store: ObjectStore, columns: Sequence[str] | None, wanted: WantedRows
    ) -> Iterator[SourceBatch]:
        """Yield the rows of `read` for the main stream, with these `columns` alone if given, as `read_output` does.

        Rows that are not `wanted` may be left out: a source with bounds of its rows need not read these. `store` is the
        job's storage.
        """
        return self.read_output("", read, store, columns)


@dataclass(frozen=True)
class SourceOutput:
    """A further stream of a source, as `Job.read` takes it."""

    source: Source
    output: str
    tells_truncations: bool = False
    """True if the rows come from `truncations.parted`: the job then turns truncations into deletes of the known
    rows."""
