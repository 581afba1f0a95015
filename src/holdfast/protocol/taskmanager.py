"""Messages between JobMaster, senders and TaskManagers: plain msgspec structs, sent as msgpack.

`TaskManagerGateway` is implemented twice: by the TaskManager itself (for tests and the testing kit) and by a Flight
client that calls a remote TaskManager. Every call except `copy` carries the run number. A number below that of an
earlier call raises `StaleCall`.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from holdfast.availability import Refusal
from holdfast.changelog_config import DEFAULTS, ChangelogSettings
from holdfast.formats.handles import MadeBase, TableHandle
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
from holdfast.storage.counted import Requests


class SubtaskDeployment(msgspec.Struct, frozen=True):
    """A subtask to host, and the handles from which to restore it (restricted to the subtask's own key groups)."""

    operator: str
    subtask: int
    key_group_start: int
    key_group_stop: int
    restore: list[TableHandle] = []


class BaseCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint from which a deployment starts: its id within its epoch, and its last batch."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    batch: BatchNumber


class Deployment(msgspec.Struct, frozen=True):
    """Everything a TaskManager needs to (re)start its subtasks. They replace all subtasks that it hosted before."""

    job_id: JobId
    epoch: Epoch
    run: RunNumber
    task_manager: int
    incarnation: Incarnation
    program: bytes
    """`graph.program.Program`, cloudpickled. It is only sent, and never stored."""
    max_parallelism: int
    subtasks: list[SubtaskDeployment]
    first_batch: BatchNumber = FIRST_BATCH
    """Batches below it belong to an earlier deployment."""
    base: BaseCheckpoint | None = None
    """The checkpoint to restore; None: the job starts from the beginning."""
    changelog: ChangelogSettings = DEFAULTS
    rewind: bool = True
    """True: use the base's state if it is still in memory. False: restore it."""
    whole: list[TableHandle] = []
    """Handles of the tables that every subtask loads in full when it opens."""
    shared: list[str] = []
    """The objects among those of the handles that contain data of other TaskManagers too."""
    moves: bool = False
    """True: nothing was committed since the base, so subtasks that are hosted already stay as they are."""
    parallelism: int = 0
    """Number of subtasks of each operator; with another number, each subtask has other key groups."""


class FollowOrder(msgspec.Struct, frozen=True):
    """An order to bring followers of these places to a checkpoint, while other TaskManagers hold the places."""

    job_id: JobId
    epoch: Epoch
    task_manager: int
    incarnation: Incarnation
    program: bytes
    """See `Deployment.program`."""
    max_parallelism: int
    places: list[list[SubtaskDeployment]]
    """The subtasks of each place, without handles. Followers of places that are no longer named are dropped."""
    number: JournalNumber
    """Number of the checkpoint's record."""
    base: BaseCheckpoint
    manifests: list[str]
    writers: list[JobId]
    """The jobs that may have written the manifests; empty if any job may."""
    drop_state: list[str] = []
    """Operators whose state was dropped."""
    beside: bool = False
    """True: the TaskManager may hold a place, and will gain these subtasks in addition to its own."""
    changelog: ChangelogSettings | None = None
    """The settings by which the followers materialize the tables of the places; None: they do not."""


class FollowAnswer(msgspec.Struct, frozen=True):
    """Progress of the followers in a standby."""

    numbers: list[JournalNumber | None]
    """The number of the record that the follower of each ordered place has reached; None: there is no follower."""
    bytes_read: int = 0
    """Bytes read from the store by all calls."""
    memory_bytes: int = 0
    left_out: str = ""
    """The reason why some places are not followed; empty if all are."""


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
    """The addresses and owners by which a task reaches all TaskManagers. `owners[i]` is the TaskManager that hosts
    subtask i of every operator."""

    job_id: str
    routes: list[ExchangeRoute]
    owners: list[int]
    max_parallelism: int
    drop: bool = False
    """True: rows for owners that have no address or do not answer are dropped and counted. False: they are an error."""

    @property
    def parallelism(self) -> int:
        return len(self.owners)


class SectionRows(msgspec.Struct, frozen=True, array_like=True):
    """The next `rows` rows of a record batch belong to `subtask`. A list of these is the batch's metadata in a
    stream."""

    subtask: int
    rows: int


class StreamTag(msgspec.Struct, frozen=True):
    """The descriptor of a DoPut stream: an attempt's rows for one input of an operator in a TaskManager."""

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
    """A request to process one level of operators in a batch, with the rows of the accepted attempts, in unit order.

    Inputs are processed in the order of `streams`. The request is refused if its totals differ from the arrived rows.
    """

    run: RunNumber
    batch: BatchNumber
    batch_time_us: int
    level: int
    streams: Streams
    watermarks: dict[str, int] = {}
    """The operators' watermarks in this batch, in microseconds."""
    closed: dict[str, int] = {}
    """The operators' watermarks in the previous batch, in microseconds."""


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
    """Number of late rows that are output as streams, by the name of the output."""
    busy_s: float = 0.0
    """Seconds for which the subtask has processed."""


class ProcessResult(msgspec.Struct, frozen=True):
    subtasks: list[SubtaskResult]


class CommitAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer after a commit: the present metrics (`holdfast.metrics`), and who refuses a cut after this batch."""

    metrics: dict[str, float]
    refusals: list[Refusal] = []


class Acknowledgement(msgspec.Struct, frozen=True, gc=False):
    """A message that a TaskManager's part of a checkpoint is stored, or is sent along as `part`. Repeated until
    answered.

    `objects`: the names to which the manifest refers, and the manifest's own object. With `since`, `objects` has only
    the names that are new since the acknowledgement of that checkpoint, and `gone` has the names that only that one had
    (`protocol.named`). `held`: additional names that live logs and materializations hold.
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
    """The share of `full_bytes` that is tables, in bytes; the rest is logs."""
    sync_ms: float = 0.0
    async_ms: float = 0.0
    sequence: int = 0
    """Grows with every acknowledgement that the incarnation makes. A repetition keeps its number."""
    retries: int = 0
    hedges: int = 0
    subtasks: dict[str, SubtaskPart] = {}
    """Parts of the subtasks, by "operator, key groups"."""
    gone: list[str] = []
    since: int | None = None
    """The checkpoint to whose acknowledgement `objects` is the difference; None: `objects` has all names."""
    part: bytes = b""
    """New logs and, after them, the manifest, for the JobMaster to store. `manifest` is then empty."""
    manifest_start: int = 0
    """The offset of the manifest in `part`."""
    informed: CheckpointId = NO_CHECKPOINT
    """The newest checkpoint for which the TaskManager knew where the JobMaster stored its part."""


class Decline(msgspec.Struct, frozen=True):
    """A message that a TaskManager could not do its part of a checkpoint. A `soft` decline does not count as a failure.

    `outage`: a store cannot be reached, or a disk is full.
    """

    checkpoint_id: CheckpointId
    task_manager: int
    incarnation: Incarnation
    reason: str
    soft: bool = False
    outage: bool = False


class Registration(msgspec.Struct, frozen=True):
    """A message that a TaskManager or a sender serves at `address`. Repeated until answered.

    `nonce` identifies the process: Spark may run a task again on its own, under the same incarnation and perhaps at the
    same address, and that second process does not have the state of the first one.
    """

    process: ProcessId
    address: str
    nonce: str
    executor: str = ""
    """The machine, and the process on it that hosts this one. Processes that die together have the same value."""


class CopyingGateway(Protocol):
    """A call that every long-running process supports, TaskManager or sender, at any time."""

    def copy(self, order: CopyOrder) -> list[CopiedObject]:
        """Copy stored objects, and return their sizes and checksums. May be repeated: objects are only written in full.

        Raises `StorageError` if an object cannot be read or written, `TaskManagerLost` or `SenderLost` if the process
        cannot be reached.
        """
        ...


class TaskManagerGateway(CopyingGateway, Protocol):
    """The calls of the JobMaster to a TaskManager. Raises `TaskManagerLost` if it cannot be reached."""

    def deploy(self, deployment: Deployment) -> str:
        """Host the subtasks with the state of the base. Blocks until they can process.

        If the same subtasks are hosted already, may rewind, and can go back that far in memory, they rewind. Otherwise
        the hosted subtasks are dropped, and new ones are made and restored.

        Returns
        -------
        The reason why subtasks that should rewind could not go back so far; empty if no subtask should, or all did.
        """
        ...

    def follow(self, order: FollowOrder) -> FollowAnswer:
        """Bring followers to a checkpoint, in a TaskManager that holds no place. Returns when they have reached it.

        A deployment of one of the places continues from its follower. Raises `StorageError`, `CorruptObject` if an
        object is missing or damaged, and `StaleCall` in a TaskManager that has been deployed.
        """
        ...

    def process(self, request: ProcessRequest) -> ProcessResult:
        """Process a level, and block until all its subtasks have done so. After an error nothing is committed; call
        `undo`."""
        ...

    def commit(self, run: RunNumber, batch: BatchNumber) -> CommitAnswer:
        """Commit the batch, whose output the senders have read, and free its input and output.

        Idempotent: a repeated call for a committed batch gets an answer again.
        """
        ...

    def undo(self, run: RunNumber) -> None:
        """Undo the batch in flight, if any, and free its input and output. `run` is the new run number."""
        ...

    def cut(self, run: RunNumber, checkpoint_id: CheckpointId, batch: BatchNumber) -> None:
        """Start to persist the state after the committed `batch`. An acknowledgement or a decline follows."""
        ...

    def complete(
        self, run: RunNumber, checkpoint_id: CheckpointId, part: str = "", bases: Sequence[MadeBase] = ()
    ) -> None:
        """Note that the checkpoint was recorded: truncate logs and release objects. `part`: the reference to the
        TaskManager's manifest, if the acknowledgement contained it. `bases`: tables of this TaskManager that followers
        have materialized, for the next checkpoints to name."""
        ...

    def abort_checkpoint(self, run: RunNumber, checkpoint_id: CheckpointId) -> None:
        """Note that the checkpoint will not complete. This deletes nothing."""
        ...

    def read_state(self, read: StateRead) -> StateRows:
        """Return the committed rows of a key, even while a batch is in flight. Raises `HoldfastError`."""
        ...


class BaseOffer(msgspec.Struct, frozen=True):
    """A message that a standby has materialized a table. Repeated until answered; from the answer on the JobMaster owns
    the objects. `number` grows with every offer of the process. `reused`: objects of earlier materializations."""

    process: ProcessId
    number: int
    base: MadeBase
    reused: list[str]


class RestoreProgress(msgspec.Struct, frozen=True):
    """Progress of a TaskManager's restore: the number of subtasks, how many of them are restored, and the bytes read.

    The last report of a restore, successful or not, has `restored` equal to `subtasks`.
    """

    process: ProcessId
    subtasks: int
    restored: int
    size_bytes: int


class Reception(Protocol):
    """The calls by which a process reports to the JobMaster that started it. After an exception the caller repeats
    them."""

    def register(self, registration: Registration) -> bool:
        """Register a process. False: the process is not wanted, and must end without deleting anything. Idempotent."""
        ...

    def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
        """Report that a process lives, and the requests to stores that it has not told yet. False: it is not wanted any
        more, and must end without deleting anything."""
        ...


class JobMasterGateway(Reception, Protocol):
    """The calls of a TaskManager to the JobMaster. After False or an exception the caller repeats them."""

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool: ...

    def decline(self, decline: Decline) -> bool: ...

    def offer(self, offer: BaseOffer) -> bool:
        """Take a table that a follower has materialized, for its owner. Idempotent."""
        ...

    def restoring(self, progress: RestoreProgress) -> bool:
        """Report the progress of a long restore for people to see. Nothing depends on it."""
        ...


class OutputReader(Protocol):
    """A reader of a pull task's input: the output that a subtask kept in a batch."""

    def output(self, run: RunNumber, batch: BatchNumber, operator: str, subtask: int) -> Iterator[pa.RecordBatch]: ...
