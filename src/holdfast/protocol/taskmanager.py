"""Messages between JobMaster, senders and TaskManagers: plain msgspec structs, sent as msgpack.

`TaskManagerGateway` is implemented twice: by the TaskManager itself (tests, the testing kit) and by a
Flight client that calls a remote TaskManager. Every call but `copy` carries the run number; a number below the last run
seen raises `StaleCall`.
"""

from collections.abc import Iterator
from typing import Protocol

import msgspec
import pyarrow as pa

from holdfast.availability import Refusal
from holdfast.changelog_config import DEFAULTS, ChangelogSettings
from holdfast.formats.handles import TableHandle
from holdfast.formats.history import SubtaskPart
from holdfast.functions.operator import Timers
from holdfast.ids import (
    FIRST_BATCH,
    NO_CHECKPOINT,
    BatchNumber,
    CheckpointId,
    Epoch,
    Incarnation,
    JobId,
    JournalNumber,
    ProcessId,
    RunNumber,
)
from holdfast.protocol.live_reads import StateRead, StateRows
from holdfast.protocol.streams import Streams
from holdfast.sources.base import BadRow
from holdfast.storage.copying import CopiedObject, CopyOrder


class SubtaskDeployment(msgspec.Struct, frozen=True):
    """A subtask to host, and the handles to restore it from (filtered by the subtask's own key groups)."""

    operator: str
    subtask: int
    key_group_start: int
    key_group_stop: int
    restore: list[TableHandle] = []


class BaseCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint that a deployment starts from: its id within its epoch, and the last batch of it."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    batch: BatchNumber


class Deployment(msgspec.Struct, frozen=True):
    """Everything a TaskManager needs to (re)start its subtasks; replaces all subtasks that it hosted before."""

    job_id: JobId
    epoch: Epoch
    run: RunNumber
    task_manager: int
    incarnation: Incarnation
    program: bytes
    """`graph.program.Program`, cloudpickled; travels only, never stored."""
    max_parallelism: int
    subtasks: list[SubtaskDeployment]
    first_batch: BatchNumber = FIRST_BATCH
    """Batches below it belong to an earlier deployment."""
    base: BaseCheckpoint | None = None
    """The checkpoint to restore; None: the job starts from the beginning."""
    changelog: ChangelogSettings = DEFAULTS
    rewind: bool = True
    """True: state of the base that is still in memory is used; False: it is restored."""
    whole: list[TableHandle] = []
    """Handles of the tables that every subtask loads in full when it opens."""
    shared: list[str] = []
    """Objects, of those that these handles refer to, in which other TaskManagers have something, too."""
    moves: bool = False
    """True: nothing was committed since the base. Subtasks that are hosted already stay as they are."""


class FollowOrder(msgspec.Struct, frozen=True):
    """Take the subtasks of these places to a checkpoint, beside the TaskManagers that hold the places."""

    job_id: JobId
    epoch: Epoch
    task_manager: int
    incarnation: Incarnation
    program: bytes
    """See `Deployment.program`."""
    max_parallelism: int
    places: list[list[SubtaskDeployment]]
    """The subtasks of each place, without handles; places that are not named any more are let go."""
    number: JournalNumber
    """Number of the checkpoint's record."""
    base: BaseCheckpoint
    manifests: list[str]
    writers: list[JobId]
    """The jobs that may have written the manifests; empty if any job may."""
    drop_state: list[str] = []
    """Operators whose state was given up."""
    beside: bool = False
    """True: the TaskManager may hold a place, and is to gain these subtasks beside its own."""


class FollowAnswer(msgspec.Struct, frozen=True):
    """Progress of the followers in a standby."""

    numbers: list[JournalNumber | None]
    """The record that each place of the order has reached; None: it holds none."""
    bytes_read: int = 0
    """Bytes read from the store by all calls."""
    memory_bytes: int = 0
    left_out: str = ""
    """Why places are not followed; empty if all are."""


class ExchangeTag(msgspec.Struct, frozen=True):
    """Names a stream from a sender's attempt to a TaskManager."""

    job_id: str
    run: RunNumber
    batch: BatchNumber
    incarnation: Incarnation
    level: int
    unit: int
    attempt: str


class ExchangeRoute(msgspec.Struct, frozen=True):
    """The address at which tasks reach a TaskManager."""

    task_manager: int
    incarnation: Incarnation
    address: str


class ExchangeRoutes(msgspec.Struct, frozen=True):
    """The addresses and owners with which a task reaches all TaskManagers. `owners[i]` is the TaskManager that hosts
    subtask i of every operator."""

    job_id: str
    routes: list[ExchangeRoute]
    owners: list[int]
    max_parallelism: int
    drop: bool = False
    """True: rows for owners that have no address, or do not answer, are dropped and counted; False: an error."""

    @property
    def parallelism(self) -> int:
        return len(self.owners)


class SectionRows(msgspec.Struct, frozen=True, array_like=True):
    """The next `rows` rows of a record batch in a stream belong to `subtask`; a list of them is its metadata."""

    subtask: int
    rows: int


class StreamTag(msgspec.Struct, frozen=True):
    """The descriptor of a DoPut stream: an attempt's rows for a single operator input of a TaskManager."""

    exchange: ExchangeTag
    operator: str
    input: int


class OutputTicket(msgspec.Struct, frozen=True):
    """The ticket of a DoGet stream."""

    incarnation: Incarnation
    run: RunNumber
    batch: BatchNumber
    operator: str
    subtask: int


class ProcessRequest(msgspec.Struct, frozen=True):
    """Process a level of a batch: the operators of that level, from the attempts that count, in unit order.

    Inputs are processed in the order of `streams`. Totals that differ from the rows that arrived are refused.
    """

    run: RunNumber
    batch: BatchNumber
    batch_time_us: int
    level: int
    streams: Streams
    watermarks: dict[str, int] = {}
    """Event times of operators, in microseconds."""
    closed: dict[str, int] = {}
    """Watermarks of operators in the batch before, in microseconds."""


class SubtaskResult(msgspec.Struct, frozen=True, gc=False):
    operator: str
    subtask: int
    rows_in: int
    rows_out: int
    bad: tuple[BadRow, ...] = ()
    timers: Timers | None = None
    late: int = 0
    """Number of rows that came too late."""
    late_out: dict[str, int] = {}
    """Number of late rows that are put out as streams, by the name of the output."""


class ProcessResult(msgspec.Struct, frozen=True):
    subtasks: list[SubtaskResult]


class CommitAnswer(msgspec.Struct, frozen=True, gc=False):
    """A batch is committed: the metrics of now (`holdfast.metrics`), and who refuses a cut after this batch."""

    metrics: dict[str, float]
    refusals: list[Refusal] = []


class Acknowledgement(msgspec.Struct, frozen=True, gc=False):
    """A TaskManager's part of a checkpoint is stored, or comes along as `part`. Repeated until answered.

    `objects`: names that the manifest refers to (the manifest's own object included); with `since` those that the
    acknowledgement of that checkpoint did not have, and `gone` those that only it had (`protocol.named`);
    `held`: further names that its live logs and materializations hold.
    """

    checkpoint_id: CheckpointId
    task_manager: int
    incarnation: Incarnation
    batch: BatchNumber
    manifest: str
    objects: list[str]
    held: list[str]
    incremental_bytes: int = 0
    full_bytes: int = 0
    materialized_bytes: int = 0
    """The part of `full_bytes` that tables take; the rest is logs."""
    sync_ms: float = 0.0
    async_ms: float = 0.0
    sequence: int = 0
    """Grows with every acknowledgement the incarnation composes; a repetition keeps its number."""
    retries: int = 0
    hedges: int = 0
    subtasks: dict[str, SubtaskPart] = {}
    """Parts of the subtasks, by "operator, key groups"."""
    gone: list[str] = []
    since: int | None = None
    """The checkpoint from whose acknowledgement `objects` differ; None: they are whole."""
    part: bytes = b""
    """New logs, and behind them the manifest, for the JobMaster to store; `manifest` is empty then."""
    manifest_start: int = 0
    """The offset of the manifest in `part`."""
    informed: CheckpointId = NO_CHECKPOINT
    """The newest checkpoint of which the TaskManager knew where such a part of its lies."""


class Decline(msgspec.Struct, frozen=True):
    """A TaskManager could not do its part of a checkpoint. `soft` ones are not counted as failures.

    `outage`: a store or a disk is away.
    """

    checkpoint_id: CheckpointId
    task_manager: int
    incarnation: Incarnation
    reason: str
    soft: bool = False
    outage: bool = False


class Registration(msgspec.Struct, frozen=True):
    """A TaskManager or a sender serves at `address`. Repeated until answered.

    `nonce` belongs to the process: Spark may run a task again by itself, under the same incarnation and perhaps at the
    same address, and that second process has lost the state of the first process.
    """

    process: ProcessId
    address: str
    nonce: str
    executor: str = ""
    """The machine, and the process on it that hosts this process; processes that die together have the same value."""


class CopyingGateway(Protocol):
    """A call that every long-running process supports, TaskManager or sender, at any time."""

    def copy(self, order: CopyOrder) -> list[CopiedObject]:
        """Copy stored objects, and return their sizes and checksums. May be repeated: an object is written whole.

        Raises `StorageError` if an object cannot be read or written, `TaskManagerLost` or `SenderLost` if the process
        cannot be reached.
        """
        ...


class TaskManagerGateway(CopyingGateway, Protocol):
    """The calls of the JobMaster to a TaskManager. Raises `TaskManagerLost` where it cannot be reached."""

    def deploy(self, deployment: Deployment) -> str:
        """Host the subtasks as of the base. Blocks until they can process.

        If the same subtasks are hosted already, may rewind and can go back that far in memory, they rewind. Otherwise
        the hosted subtasks are dropped, and new ones are built and restored.

        Returns
        -------
        The reason why subtasks that were to rewind did not reach back so far; empty if none was to, or all did.
        """
        ...

    def follow(self, order: FollowOrder) -> FollowAnswer:
        """Take followers to a checkpoint, in a TaskManager that holds no place; returns once they are there.

        A deployment of one of the places goes on from its follower. Raises `StorageError`, `CorruptObject` where an
        object is missing or damaged, `StaleCall` in a TaskManager that has been deployed.
        """
        ...

    def process(self, request: ProcessRequest) -> ProcessResult:
        """Blocks until all subtasks of the level have processed. On an error nothing is committed; call `undo`."""
        ...

    def commit(self, run: RunNumber, batch: BatchNumber) -> CommitAnswer:
        """Commit the batch, whose output senders have taken, and let its input and output go.

        Idempotent: answered again for a batch already committed.
        """
        ...

    def undo(self, run: RunNumber) -> None:
        """Undo the batch in flight, if any, and let go of its input and output; `run` is the new run number."""
        ...

    def cut(self, run: RunNumber, checkpoint_id: CheckpointId, batch: BatchNumber) -> None:
        """Start to persist the state as of `batch`, committed before; answered by an acknowledgement or a decline."""
        ...

    def complete(self, run: RunNumber, checkpoint_id: CheckpointId, part: str = "") -> None:
        """The checkpoint was recorded: truncate, release. `part`: the reference to the TaskManager's manifest, if that
        came with its acknowledgement."""
        ...

    def abort_checkpoint(self, run: RunNumber, checkpoint_id: CheckpointId) -> None:
        """The checkpoint will not complete. Deletes nothing."""
        ...

    def read_state(self, read: StateRead) -> StateRows:
        """Committed rows of a key, also while a batch is in flight. Raises `HoldfastError`."""
        ...


class RestoreProgress(msgspec.Struct, frozen=True):
    """Progress of a TaskManager's restore: subtasks, those of them that are restored, and bytes that were read.

    The last report of a restore, whatever came of it, has `restored` equal to `subtasks`.
    """

    process: ProcessId
    subtasks: int
    restored: int
    size_bytes: int


class Reception(Protocol):
    """How a process that the JobMaster started keeps in touch with it. An exception means: not answered, repeat."""

    def register(self, registration: Registration) -> bool:
        """False: this process is not wanted, end yourself and delete nothing. Idempotent."""
        ...

    def heartbeat(self, process: ProcessId) -> bool:
        """False: you are not wanted any more, end yourself and delete nothing."""
        ...


class JobMasterGateway(Reception, Protocol):
    """The calls of a TaskManager to the JobMaster. False / an exception means: not answered, repeat."""

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool: ...

    def decline(self, decline: Decline) -> bool: ...

    def restoring(self, progress: RestoreProgress) -> bool:
        """Tell people how far a long restore is; nothing depends on it."""
        ...


class OutputReader(Protocol):
    """The input of a pull task: the kept output of a subtask in a batch."""

    def output(self, run: RunNumber, batch: BatchNumber, operator: str, subtask: int) -> Iterator[pa.RecordBatch]: ...
