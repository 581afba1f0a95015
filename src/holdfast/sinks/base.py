"""What a sink is: it stages in tasks, and publishes in the JobMaster after a checkpoint completed.

Staged output is invisible. `stage` returns *committables* (msgspec structs, encoded), which the
checkpoint's record holds until they are published. `publish` is idempotent per number and called in
order of numbers, possibly again after a crash, possibly by a JobMaster that has been replaced. A start may declare the
sink with other settings than the start that staged a group; so each group is stored with its *layout*, the settings
that decide how it is published, and is published by those.
A sink does not own the lifetime of staged files: the JobMaster says when they may go (`discard`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.storage import names
from holdfast.storage.names import StagedName
from holdfast.storage.store import ObjectStore

Gone = Callable[[StagedName], bool]
"""Whether nobody can come to name what is staged under that name, who does not name it already."""


@dataclass(frozen=True)
class SinkContext:
    """What `prepare` is told at `start()`, on the driver."""

    job_id: str
    sink: str
    store: ObjectStore
    key_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageContext:
    """Where and under which names a task stages. `attempt` is new for every attempt at a task."""

    job_id: str
    sink: str
    epoch: int
    run: int
    batch: int
    unit: int
    attempt: str
    store: ObjectStore

    @property
    def folder(self) -> str:
        """The folder of this run's staged files in the job's storage (see `storage/names.py`)."""
        return names.staging_folder(self.job_id, self.epoch, self.run)


@dataclass(frozen=True)
class PublishContext:
    """What `publish` and `discard` may use."""

    job_id: str
    sink: str
    store: ObjectStore
    schema: pa.Schema
    key_columns: tuple[str, ...] = ()
    layout: bytes = b""
    """What `Sink.layout` gave when the group was stored."""


@dataclass
class Sink(ABC):
    """A sink as the user declares it: settings only; it is cloudpickled to tasks for `stage`."""

    name: str | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def kind(self) -> str:
        """`delta`, `parquet`, …: the default name is kind plus declaration order."""

    @property
    def target(self) -> tuple[str, Mapping[str, str]] | None:
        """The URL of the folder that the sink writes to, and its storage options; None where it has no folder."""
        return None

    def prepare(self, schema: pa.Schema, context: SinkContext) -> None:
        """Check or make the target at `start()`. Raises `JobRefused` naming every difference."""
        return

    def refused(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        """The numbers of rows that the sink could never show, each with the reason: bad records, staged nowhere."""
        return {}

    @abstractmethod
    def stage(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> list[bytes]:
        """Take all the rows of one unit; invisible until published. Runs in a task. No rows: no committables."""

    def is_snapshot_available(self) -> SnapshotAvailability:
        """Say whether a checkpoint may be cut now; called in the JobMaster after each batch was committed.

        It must answer at once. `SOFT_FAILURE.because(reason)` puts a checkpoint that is due off to a later batch.
        """
        return SnapshotAvailability.AVAILABLE

    def layout(self, context: PublishContext) -> bytes:
        """The settings by which groups of this start are to be published, whatever later starts declare."""
        return b""

    @abstractmethod
    def publish(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        """Make one group visible; nothing happens for a number already published, or for a group without committables.

        `committables` may be more than fit into memory: each iteration reads them anew, a portion at a time.
        Runs in a thread of its own beside the stream, never twice at once for one sink in one JobMaster; but an
        older JobMaster may run it at the same time. Raises `PublishFailed` or `CorruptObject` where trying again
        cannot help, `StorageError` or another `OSError` where it can.
        """

    def sweep(self, gone: Gone, named: Collection[bytes], context: PublishContext) -> None:
        """Delete what this job staged at the sink's own target, where it is `gone`, but for what `named` needs.

        Called after a takeover, and now and then while the job runs, with every committable that somebody may still
        publish. What was staged in the job's storage is the JobMaster's to clean up, not this call's.
        """
        return

    def discard(self, committables: Iterable[bytes], context: PublishContext) -> None:
        """Delete the staged files of committables that no record names any more (published, or never recorded).

        A sink whose staged files *are* its published ones deletes nothing here.
        """
        return
