"""Interface of sinks: a sink stages in tasks, and publishes in the JobMaster after a checkpoint completed.

Staged output is invisible. `stage` returns *committables* (msgspec structs, encoded), which the checkpoint's record
holds until they are published. `publish` is idempotent per number and called in order of numbers, possibly again after
a crash, possibly by a JobMaster that has been replaced. A start may declare the sink with other settings than the start
that staged a group. Each group is therefore stored and published with its *layout*, the settings that decide how it is
published. A sink does not own the lifetime of staged files: the JobMaster decides when they are deleted (`discard`).
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.hidden import hide_url
from holdfast.ids import BatchNumber, Epoch, RunNumber
from holdfast.storage import names
from holdfast.storage.names import StagedName
from holdfast.storage.store import ObjectStore

Gone = Callable[[StagedName], bool]
"""Function that returns True if no process can come to name the staged object any more, unless it is named already."""


class Owner(NamedTuple):
    """The owner of staged files: the sink of a job. Files of other owners may be at the same target."""

    sink: str
    job: str | None
    """None: a record of an earlier release, which did not name its job, holds the committables."""

    @property
    def digest(self) -> str:
        """Digest that is part of the names of files outside of the job's own folders."""
        return hashlib.blake2b(f"{self.job}/{self.sink}".encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class SinkContext:
    """Facts for `prepare`, which runs on the driver at `start()`."""

    job_id: str
    sink: str
    store: ObjectStore
    key_columns: tuple[str, ...] = ()
    has_watermark: bool = False
    """True if there is a watermark for all rows of the sink."""

    @property
    def owner(self) -> Owner:
        return Owner(self.sink, self.job_id)


@dataclass(frozen=True)
class StageContext:
    """Place and names for a task's staged files. `attempt` is new for every attempt at a task."""

    job_id: str
    sink: str
    epoch: Epoch
    run: RunNumber
    batch: BatchNumber
    unit: int
    attempt: str
    store: ObjectStore

    @property
    def folder(self) -> str:
        """The folder of this run's staged files in the job's storage (see `storage/names.py`)."""
        return names.staging_folder(self.job_id, self.epoch, self.run)

    @property
    def owner(self) -> Owner:
        return Owner(self.sink, self.job_id)


@dataclass(frozen=True)
class PublishContext:
    """Facts for `publish` and `discard`."""

    job_id: str
    sink: str
    store: ObjectStore
    schema: pa.Schema
    key_columns: tuple[str, ...] = ()
    layout: bytes = b""
    """Result of `Sink.layout` at the time when the group was stored."""
    watermark_us: int | None = None
    """Watermark of the group's last batch: rows of later groups are not earlier, except for late rows. None: no
    watermark."""

    @property
    def owner(self) -> Owner:
        return Owner(self.sink, self.job_id)


@dataclass(repr=False)
class Sink(ABC):
    """A sink as the user declares it: settings only; it is cloudpickled to tasks for `stage`. `name`: unique in the
    job."""

    name: str | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        shown = [(each.name, getattr(self, each.name)) for each in fields(self) if each.repr]
        said = [f"{name}={hide_url(repr(value)) if isinstance(value, str) else value!r}" for name, value in shown]
        return f"{type(self).__name__}({', '.join(said)})"

    @property
    @abstractmethod
    def kind(self) -> str:
        """`delta`, `parquet`, …: the default name is kind plus declaration order."""

    @property
    def target(self) -> tuple[str, Mapping[str, str]] | None:
        """URL of the folder that the sink writes to, and its storage options; None if it has no folder."""
        return None

    @property
    def stable_text(self) -> str:
        """Text that distinguishes the sink from others of its kind, and is the same at every start."""
        return self.kind if self.target is None else f"{self.kind} {self.target[0]}"

    def prepare(self, schema: pa.Schema, context: SinkContext) -> None:
        """Check or create the target for rows of `schema` at `start()`. `context`: the sink's means. Raises
        `JobRefused` naming every difference."""
        return

    def last_number(self, context: SinkContext) -> int | None:
        """Return the highest number under which the target has output of this job's sink, even only a part of a group;
        0: there is no output; None: the sink cannot tell. Asked on the driver at `start()`, after `prepare`: a number
        above the storage's newest checkpoint shows that the storage was set back. Raises `StorageError` or another
        `OSError` if the target does not answer.
        """
        return None

    def refused(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        """Return the numbers of rows that the sink could never publish, each with the reason: they become bad records
        and are not staged."""
        return {}

    @abstractmethod
    def stage(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> list[bytes]:
        """Stage all rows of a unit, its `batches`; invisible until published. Runs in a task, whose means are in
        `context`.
        Without rows there are no committables."""

    def is_snapshot_available(self) -> SnapshotAvailability:
        """Decide if a checkpoint may be cut now; called in the JobMaster after each committed batch. It must answer at
        once. `SOFT_FAILURE.because(reason)` postpones a due checkpoint to a later batch.
        """
        return SnapshotAvailability.AVAILABLE

    @property
    def awaited_us(self) -> int | None:
        """The watermark, in microseconds, at which even a group without committables makes the sink finish output.
        None: nothing is left to finish. A sink for which this is not None before its first publication gets groups
        without committables when the watermark reaches that time. It is asked after a publication, on the publication's
        thread.
        """
        return None

    def layout(self, context: PublishContext) -> bytes:
        """Settings by which groups of this start are published, even if later starts declare others. `context`: as of
        `publish`."""
        return b""

    @abstractmethod
    def publish(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        """Make a group visible. A number that was published already changes nothing, and a group without committables
        only finishes output up to its watermark (`awaited_us`).

        `committables` may be more than fit into memory: each iteration reads them anew, a portion at a time. Runs in a
        thread of its own beside the stream, never twice at once for the same sink in a JobMaster. An older JobMaster
        may run it at the same time. Raises `PublishFailed` or `CorruptObject` if another attempt cannot succeed, and
        `StorageError` or another `OSError` if it may.
        """

    def sweep(self, gone: Gone, named: Collection[bytes], context: PublishContext) -> None:
        """Delete this job's staged files at the sink's own target that are `gone` and that no committable in `named`
        needs.

        Called after a takeover, and now and then while the job runs, with every committable that may still be
        published. Files staged in the job's storage are cleaned up by the JobMaster, not here.
        """
        return

    def discard(self, committables: Iterable[bytes], context: PublishContext) -> None:
        """Delete the staged files of committables that no record names any more (published, or never recorded).

        `context`: as of `publish`.

        A sink whose staged files *are* its published ones deletes nothing here.
        """
        return
