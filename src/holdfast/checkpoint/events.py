"""Events (facts for the coordinator) and commands (its orders), as frozen values.

`Coordinator.handle(event) -> list[Command]` is the only way in. The JobMaster feeds events one by one, executes the
commands, and reports their results as further events.

Order
-----
The commands of an answer come in this order, and must be *started* in this order. A command does not wait for the end
of the command before it, unless a line below says so (if order matters for safety, an event comes in between):

 1. NotifyCompleted, NotifyAborted, CheckOwnership, Resolve, DropStaged, AskFailover, FailQuery, RestoreFrom
 2. ExpireRecords          subsumed records. Their names are let go only after `RecordsExpired`
 3. Publish                at most 1 at a time for each sink, in order of numbers
 4. Cut, NotifyRefused     everybody has committed the batch that a Cut names; NotifyRefused: nothing was cut
 5. StoreAndRecord,        at most 1 unanswered at a time; until its answer, no 2, 5, 6, 7 is given
    RecordAgain, StoreAhead
 6. Discard                groups that are published and that no record names any more
 7. DeleteObjects          only names that no record, pending checkpoint, unpublished group and live log holds
 8. Gather, HandOn         Gather: at most 1 unanswered for each sink
 9. PausePlanning, ResumePlanning

Which event answers which command
---------------------------------
    Cut              Acknowledged | Declined from every TaskManager it names (silence is a time-out)
    StoreAndRecord   RecordWritten | RecordFailed | Superseded; no answer while that is unknown
    RecordAgain      RecordWritten | Superseded; no answer while that is unknown
    ExpireRecords    RecordsExpired | ExpireFailed
    Publish          Published | PublicationFailed
    Discard          Discarded | DiscardFailed
    DeleteObjects    ObjectsDeleted | DeleteFailed
    Gather           Gathered | GatherFailed
    CheckOwnership   Superseded; no answer if the storage still belongs to this job, or if that is unknown
    AskFailover      FailoverBegan, later TaskManagersChanged
    RestoreFrom      TaskManagersChanged, once everything is deployed again

Every event may also come late, twice or unasked, and raises nothing; only mistakes of the JobMaster do (`handle`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.availability import Refusal
from holdfast.checkpoint.ahead import StoreAhead
from holdfast.checkpoint.demand import NotifyRefused
from holdfast.checkpoint.gathering import Gather, GatherEvent
from holdfast.checkpoint.gathering import PausePlanning as PausePlanning
from holdfast.checkpoint.gathering import ResumePlanning as ResumePlanning
from holdfast.checkpoint.holding import HandOn, HoldEvent
from holdfast.checkpoint.missing import TaskManagersMissing as TaskManagersMissing
from holdfast.checkpoint.outcomes import Outcome
from holdfast.checkpoint.positions import BaseRecord as BaseRecord
from holdfast.checkpoint.positions import Group as Group
from holdfast.checkpoint.positions import Position as Position
from holdfast.checkpoint.updates import ConfigChanged as ConfigChanged
from holdfast.checkpoint.updates import SettingValue
from holdfast.ids import NO_CHECKPOINT, BatchNumber, CheckpointId, Incarnation, JournalNumber, RunNumber
from holdfast.settings import CheckpointConfig


@dataclass(frozen=True, slots=True)
class CoordinatorStarted:
    """The storage was taken over. The first event, once. Nothing is triggered before `TaskManagersChanged`."""

    now_s: float
    wall_s: float
    base: BaseRecord | None
    job_s: float | None = None


@dataclass(frozen=True, slots=True)
class CoordinatorTick:
    """Time passed: `now_s` monotonic; `wall_s` since the Unix epoch, for triggers; `job_s`, the job's, for retention.

    Only this event brings time, so a tick should precede every event that comes long after the last event.
    """

    now_s: float
    wall_s: float
    job_s: float | None = None


@dataclass(frozen=True, slots=True)
class TriggerRequested:
    """A request for a checkpoint of everything committed so far; a `Resolve` answers it.

    The minimum pause does not delay it. It waits while `max_concurrent` checkpoints are pending or the job is being
    deployed. This event also requests the final checkpoint of a job.
    """

    request_id: str


@dataclass(frozen=True, slots=True)
class CommitBegan:
    """A batch is about to be committed; no cut is taken until `CommitAcknowledged` or a failover. Only for jobs without
    a changelog, whose cuts capture the tables as they are.
    """


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The job is about to end in order; a `Resolve` answers soon.

    If the newest record has groups that are all published, its checkpoint is recorded again without them:
    otherwise the next start would publish them again. The same happens if the kept updates are not those of the record.
    """

    request_id: str


@dataclass(frozen=True, slots=True)
class CommitAcknowledged:
    """Every TaskManager answered the commit of `batch`.

    `progress`: sources moved or state changed. `committables`: the staged output of each sink, in unit order.
    `refusals`: the refusals of a cut after this batch.
    """

    batch: BatchNumber
    position: Position
    progress: bool
    committables: Mapping[str, list[bytes]]
    refusals: tuple[Refusal, ...] = ()
    broadcast: bool = False
    """True if the batch changed broadcast state."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A TaskManager stored its part of a checkpoint.

    `objects`: names in its manifest, and the manifest itself. `held`: further names that its live logs hold. `sequence`
    grows with every acknowledgement that the incarnation composes (a repetition keeps its number), so the latest `held`
    is known in whatever order acknowledgements arrive; `checkpoint_id` orders acknowledgements with equal numbers.
    `manifest` is empty if manifest and new log came with the acknowledgement, to be stored in the gathered object.
    `informed`: the newest checkpoint for which the TaskManager then knew where such a part of its own was stored.
    """

    checkpoint_id: CheckpointId
    task_manager: int
    incarnation: Incarnation
    batch: BatchNumber
    manifest: str
    objects: frozenset[str]
    held: frozenset[str]
    sequence: int = 0
    informed: CheckpointId = NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class Declined:
    """A TaskManager cannot do its part. A `soft` decline is no failure. `outage`: a store or disk is unreachable."""

    checkpoint_id: CheckpointId
    task_manager: int
    incarnation: Incarnation
    reason: str
    soft: bool = False
    outage: bool = False


@dataclass(frozen=True, slots=True)
class FailoverBegan:
    """The job, or only a replacement while batches continue, goes back to a checkpoint. Meanwhile nothing is cut."""

    reason: str
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class TaskManagersChanged:
    """Everything is deployed and can process under `run`; `live` names each TaskManager's incarnation (or is empty).

    Incarnations that are not in `live` are dead: the names that they held no longer count. After a failover it must not
    come before `RestoreFrom`.
    """

    run: RunNumber
    live: Mapping[int, Incarnation]
    moved: bool = False
    """True: they have other subtasks than at the newest checkpoint."""


@dataclass(frozen=True, slots=True)
class ObjectsFound:
    """Objects of dead incarnations, of resolved checkpoints, or given up by sources: they have no other owner now."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """The record is in the journal under `number`. `stored`: per sink, the reference to its new committables.
    `parts`: references to the manifests that came with acknowledgements, by TaskManager."""

    checkpoint_id: CheckpointId
    number: JournalNumber
    stored: Mapping[str, str]
    parts: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordFailed:
    """The record was certainly not written. `stored`: objects put for it. `outage`: the store is unreachable."""

    checkpoint_id: CheckpointId
    reason: str
    stored: frozenset[str] = frozenset()
    outage: bool = False


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another epoch's record was found in the journal. The coordinator gives no command after this event."""


@dataclass(frozen=True, slots=True)
class RecordsExpired:
    """Subsumed records were deleted."""

    numbers: frozenset[JournalNumber]


@dataclass(frozen=True, slots=True)
class ExpireFailed:
    """Records may or may not be deleted; they are expired again later."""

    numbers: frozenset[JournalNumber]


@dataclass(frozen=True, slots=True)
class Published:
    """The sink shows the group of that number."""

    sink: str
    number: JournalNumber
    awaited_us: int | None = None
    """Watermark at which the sink next has output to finish; None: it has nothing left to finish."""


@dataclass(frozen=True, slots=True)
class PublicationFailed:
    """A group was not published. `io`: the cause may pass, and the group is tried again later; else the query fails."""

    sink: str
    number: JournalNumber
    reason: str
    io: bool


@dataclass(frozen=True, slots=True)
class Discarded:
    """The staged files of that group were deleted."""

    sink: str
    number: JournalNumber


@dataclass(frozen=True, slots=True)
class DiscardFailed:
    """Some staged files of that group may be left; their deletion is tried again later."""

    sink: str
    number: JournalNumber


@dataclass(frozen=True, slots=True)
class ObjectsDeleted:
    """Objects were deleted."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeleteFailed:
    """Some of these objects may be left; they stay queued."""

    names: frozenset[str]


Event = (
    CoordinatorStarted
    | CoordinatorTick
    | ConfigChanged
    | TriggerRequested
    | CloseRequested
    | CommitBegan
    | CommitAcknowledged
    | Acknowledged
    | Declined
    | FailoverBegan
    | TaskManagersChanged
    | TaskManagersMissing
    | ObjectsFound
    | RecordWritten
    | RecordFailed
    | Superseded
    | RecordsExpired
    | ExpireFailed
    | Published
    | PublicationFailed
    | Discarded
    | DiscardFailed
    | ObjectsDeleted
    | DeleteFailed
    | GatherEvent
    | HoldEvent
)


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotifyCompleted:
    """Tell all TaskManagers, and sources, that the checkpoint was recorded. `parts`: see `RecordWritten`."""

    checkpoint_id: CheckpointId
    number: JournalNumber
    batch: BatchNumber
    position: Position
    parts: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Tell TaskManagers that a checkpoint will not complete. They delete nothing. `outage`: a store is unreachable."""

    checkpoint_id: CheckpointId
    reason: str
    outcome: Outcome
    outage: bool = False

    @property
    def counted(self) -> bool:
        return self.outcome.counts


@dataclass(frozen=True, slots=True)
class CheckOwnership:
    """Look in the journal for another JobMaster: a step failed in the way it does after a takeover and its clean-up."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Answer a request, or a `HoldNewest`: the checkpoint is recorded, or it failed.

    `number`: the newest record at that time; None if there never was anything to record. `failure`: the reason, or None
    if the request succeeded. `soft`: the checkpoint was declined softly, and may be requested again.
    """

    request_id: str
    number: JournalNumber | None
    failure: str | None = None
    soft: bool = False


@dataclass(frozen=True, slots=True)
class DropStaged:
    """Delete the staged files of committables that no record holds or will hold. Comes once, and has no answer."""

    sink: str
    committables: list[bytes]


@dataclass(frozen=True, slots=True)
class AskFailover:
    """Start a failover: report `FailoverBegan`. Nothing is triggered meanwhile."""

    reason: str


@dataclass(frozen=True, slots=True)
class FailQuery:
    """A sink refuses a group for good: end the query with an error. Not repeated."""

    sink: str
    number: JournalNumber
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreFrom:
    """The failover's base is chosen, no record is unanswered: restart from that record (None: from the beginning).

    It stays the newest record until `TaskManagersChanged`. Batches after it are planned again.
    """

    number: JournalNumber | None


@dataclass(frozen=True, slots=True)
class ExpireRecords:
    """Delete these checkpoint records from the journal."""

    numbers: list[JournalNumber]


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the committables stored as `object` under `number`. Idempotent; repeated after a failure or a restart."""

    sink: str
    number: JournalNumber
    object: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Have each TaskManager persist its state after `batch`. Without TaskManagers, it counts as acknowledged."""

    checkpoint_id: CheckpointId
    run: RunNumber
    batch: BatchNumber
    task_managers: dict[int, Incarnation]
    trigger: str


@dataclass(frozen=True, slots=True)
class StoreAndRecord:
    """Store `committables`, and the parts that came with acknowledgements, in a gathered object; then append the
    record, which completes the checkpoint.

    The record's groups, per sink: `carried`, in order, then the new group, under the record's own number. `config`: the
    settings in force.
    """

    checkpoint_id: CheckpointId
    run: RunNumber
    batch: BatchNumber
    position: Position
    manifests: list[str]
    carried: dict[str, list[Group]]
    committables: dict[str, list[bytes]]
    config: CheckpointConfig
    retains: tuple[JournalNumber, ...] = ()
    """Older records that are kept beside this record."""
    kept: Mapping[str, SettingValue] = field(default_factory=dict)
    """Updates of settings that later starts apply as well."""
    absence: TaskManagersMissing | None = None
    """The TaskManagers that are missing at this checkpoint, if any are."""
    older_manifests: tuple[str, ...] = ()
    """Members of `manifests` that belong to an older checkpoint."""
    carried_parts: tuple[tuple[int, Incarnation], ...] = ()
    """TaskManagers whose parts came with their acknowledgements, in order. Their entries in `manifests` are empty."""


@dataclass(frozen=True, slots=True)
class RecordAgain:
    """Append a record of the same checkpoint as record `number`, with its own id and the settings in force. `carried`:
    its groups, which are the groups of the checkpoint that are not published yet.
    """

    checkpoint_id: CheckpointId
    number: JournalNumber
    carried: dict[str, list[Group]]
    config: CheckpointConfig
    retains: tuple[JournalNumber, ...] = ()
    kept: Mapping[str, SettingValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete the staged files of the group stored as `object`; `DeleteObjects` deletes the object itself later."""

    sink: str
    number: JournalNumber
    object: str


@dataclass(frozen=True, slots=True)
class DeleteObjects:
    """Delete objects. Missing ones are fine."""

    names: list[str]


Command = (
    NotifyCompleted
    | NotifyRefused
    | NotifyAborted
    | CheckOwnership
    | Resolve
    | DropStaged
    | AskFailover
    | FailQuery
    | RestoreFrom
    | ExpireRecords
    | Publish
    | Cut
    | StoreAhead
    | StoreAndRecord
    | RecordAgain
    | Discard
    | DeleteObjects
    | Gather
    | HandOn
    | PausePlanning
    | ResumePlanning
)
