"""Events (facts for the execution machine) and commands (its orders), as frozen values.

`Machine.handle(event) -> list[Command]` is the only way in. The JobMaster feeds events one by one, carries out the
commands in their order, and reports the outcome of each as a further event.

Which events answer which command
---------------------------------
    StartProcess        Registered, or Lost; after Registered, Lost
    EndProcess          Lost
    Deploy              Deployed | DeployFailed
    Plan                BatchPlanned | EndReached | Interrupted | WorkFailed
    RunBatch            BatchProcessed | BatchFailed
    Commit              BatchCommitted | CommitFailed; BatchFailed if certainly no TaskManager has committed
    Undo                Undone | UndoFailed
    Finish              Finished | Interrupted | WorkFailed
    FollowMoves         MovesFollow, once the TaskManagers have nearly all state that they gain
    HandOver            HandedOver | NotHandedOver | Interrupted | WorkFailed    (`moves.py` has both, and `EndMoves`)
    AskBase             BaseChosen
    AnnounceDeployed, EndMoves, LeaveOut, Abandon, Interrupt, Cancel, Log, End      no answer

WorkFailed answers the other kinds of work as well, if an unexpected error ended them.

Deploy, Plan, RunBatch, Commit, Undo, Finish and HandOver are *work*: at most a single work is in flight, and any of its
events above ends it. `Interrupt` and `Cancel` make the work in flight end soon; it still answers by its own events.

Every event may also come late, twice or unasked. An event about another run, batch or incarnation than the current one
changes nothing. BatchPlanned, EndReached, Interrupted, WorkFailed and BaseChosen name none of these; they come once for
each command.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.execution import moves
from holdfast.execution.calls import Step
from holdfast.execution.failover import Cause, Failover
from holdfast.ids import NO_BATCH, BatchNumber, Incarnation, JournalNumber, ProcessId, Role, RunNumber


@dataclass(frozen=True, slots=True)
class Outage:
    """Work failed because a store or a disk is unreachable. The attempt does not count, and the work is tried again
    after a pause. `is_over`: the outage has lasted for so long that the work is not tried again.
    """

    pause_s: float
    is_over: bool = False


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The storage was taken over. The first event, once. `base`: the checkpoint to start from, or None."""

    now_s: float
    wanted: Mapping[Role, int]
    """Number of processes to start of each role, without standbys."""
    base: JournalNumber | None
    standby: int = 0
    """Number of further TaskManagers to start, which take the places of lost TaskManagers."""
    parallelism: int = 1
    """Number of subtasks of each operator."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. Only this event brings time, so a tick should precede each event after a long pause."""

    now_s: float


@dataclass(frozen=True, slots=True)
class SendersStay:
    """The senders with these numbers are wanted from now on. Others are not started again; those that serve are ended
    without the machine."""

    numbers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Registered:
    """A process serves."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class StandbysFollow:
    """The standby that follows each place, by numbers: it takes the place if the holder is lost."""

    by_place: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Lost:
    """A process has ended, asked or unasked: nothing of it runs any more. `is_excused`: the loss does not count against
    the process, because a unit of a batch caused it (the unit itself counts as failed) or because it was announced
    before.
    """

    process: ProcessId
    reason: str
    is_excused: bool = False


@dataclass(frozen=True, slots=True)
class LossExplained:
    """The reason of a loss that was reported before its reason was known."""

    process: ProcessId
    reason: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A process did not answer, or was silent for too long. Its end has not been noticed.

    A process that did not answer has usually ended, and its `Lost` event has the reason. `is_cause`: the process lives,
    and is ended for this reason: it is silent, or its state is broken.
    """

    process: ProcessId
    reason: str
    is_cause: bool = False


@dataclass(frozen=True, slots=True)
class CallBegan:
    """A call that began at `began_s` has no answer yet. `about` says of which batch or level it is, for messages.

    Calls that are answered soon need not be reported.
    """

    number: int
    step: Step
    about: str
    began_s: float
    process: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call was answered, or failed."""

    number: int


@dataclass(frozen=True, slots=True)
class AtWork:
    """The senders that work on the current level, for messages. Reported only if the level takes long."""

    senders: tuple[ProcessId, ...]


@dataclass(frozen=True, slots=True)
class Deployed:
    """Every TaskManager of the deployment can process under `run`."""

    run: RunNumber


@dataclass(frozen=True, slots=True)
class DeployFailed:
    """One or more TaskManagers could not be deployed."""

    run: RunNumber
    error: Exception
    outage: Outage | None = None


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    """The planner has made a batch to run."""

    batch: BatchNumber


@dataclass(frozen=True, slots=True)
class EndReached:
    """A query that ends by itself has processed all available data."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Planning or finishing ended without a result, because of `Interrupt`."""


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """The work in flight failed for good: planning or finishing, or any work by an unexpected error."""

    error: Exception


@dataclass(frozen=True, slots=True)
class BatchProcessed:
    """Every operator has processed the batch and everything is staged; nothing is committed."""

    run: RunNumber
    batch: BatchNumber


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """The batch failed, and no TaskManager has committed it."""

    run: RunNumber
    batch: BatchNumber
    error: Exception
    outage: Outage | None = None


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """Every TaskManager answered the commit, and the coordinator was informed of it."""

    run: RunNumber
    batch: BatchNumber
    broadcast: bool = False
    """True if the batch had rows for a broadcast state, which every subtask must have."""


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """A TaskManager did not answer the commit: some may have committed, others not."""

    run: RunNumber
    batch: BatchNumber
    error: Exception


@dataclass(frozen=True, slots=True)
class Undone:
    """Every TaskManager has undone the batch in flight, and takes calls of `run`."""

    run: RunNumber


@dataclass(frozen=True, slots=True)
class UndoFailed:
    """A TaskManager, or several, did not answer the call to undo the batch."""

    run: RunNumber
    error: Exception


@dataclass(frozen=True, slots=True)
class Finished:
    """The last checkpoint was recorded and everything is published."""


@dataclass(frozen=True, slots=True)
class SinksLag:
    """All sinks with so many unpublished groups that no further batch should be planned."""

    sinks: frozenset[str]


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """A checkpoint was recorded: a restart does not lose the work up to it."""


@dataclass(frozen=True, slots=True)
class FailoverAsked:
    """The coordinator or another part wants the job to restart from its newest checkpoint."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class BaseChosen:
    """The checkpoint to restart from, or None. It stays the newest checkpoint until `AnnounceDeployed`."""

    base: JournalNumber | None
    batch: BatchNumber = NO_BATCH
    """The last batch of the checkpoint; -1 for the beginning."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A user stops the query."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Something outside of batches failed for good: another JobMaster took over, a sink refuses its output, the
    session is gone."""

    error: Exception


Event = (
    Started
    | Tick
    | SendersStay
    | Registered
    | StandbysFollow
    | Lost
    | LossExplained
    | Unreachable
    | CallBegan
    | CallEnded
    | AtWork
    | Deployed
    | DeployFailed
    | BatchPlanned
    | EndReached
    | Interrupted
    | WorkFailed
    | BatchProcessed
    | BatchFailed
    | BatchCommitted
    | CommitFailed
    | Undone
    | UndoFailed
    | Finished
    | SinksLag
    | CheckpointCompleted
    | FailoverAsked
    | BaseChosen
    | moves.RescaleAsked
    | moves.Leaving
    | moves.MovesFollow
    | moves.HandedOver
    | moves.NotHandedOver
    | StopAsked
    | Failed
)


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start a process under an incarnation that was never used before."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End the process of that incarnation. The command may come again until the end has been noticed."""

    process: ProcessId
    reason: str


@dataclass(frozen=True, slots=True)
class Deploy:
    """Have the TaskManager of each place take the state of the base; planning continues from the base."""

    run: RunNumber
    base: JournalNumber | None
    live: Mapping[int, Incarnation]
    """The TaskManagers that hold places, by number."""
    holders: tuple[int, ...] = ()
    """The TaskManager that holds each place."""
    failover: Failover | None = None
    """The cause of this deployment; None for the first deployment."""
    rewind: bool = True
    """True: TaskManagers that can go back to the base in memory may do so; False: all restore the base from the
    store."""
    moves: bool = False
    """True: nothing was committed since the base, so subtasks that stay keep their state, and the others move."""
    parallelism: int = 1
    """Number of subtasks of each operator, which the places share."""


@dataclass(frozen=True, slots=True)
class AnnounceDeployed:
    """Tell the coordinator that everything is deployed: checkpoints may be cut."""

    run: RunNumber
    live: Mapping[int, Incarnation]
    moved: bool = False
    """True: TaskManagers have other subtasks than at the newest checkpoint."""


@dataclass(frozen=True, slots=True)
class PlanBatch:
    """Wait for the next batch. While `paused_by` names sinks, plan no batch, and only answer callers that wait for the
    query."""

    paused_by: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Run the batch up to the point where everything is processed and staged. `combine`: senders may combine rows."""

    run: RunNumber
    batch: BatchNumber
    combine: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Have every TaskManager commit the batch, then tell the coordinator."""

    run: RunNumber
    batch: BatchNumber


@dataclass(frozen=True, slots=True)
class Undo:
    """Have every TaskManager undo the batch in flight and refuse calls of earlier runs."""

    run: RunNumber


@dataclass(frozen=True, slots=True)
class Abandon:
    """Delete the staged output of a batch that was not committed."""

    batch: BatchNumber


@dataclass(frozen=True, slots=True)
class Finish:
    """Take the last checkpoint and wait until everything is published."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End the waiting of the work in flight, for rows or for a checkpoint."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the tasks of a run, in senders and as Spark jobs."""

    run: RunNumber


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Tell the coordinator that batches continue without these TaskManagers; after a further loss, it lists all missing
    ones."""

    reason: str
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class AskBase:
    """Ask the coordinator for the checkpoint to go back to. The coordinator aborts pending checkpoints, and cuts none
    until everything is deployed."""

    failover: Failover


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the log; a warning, or for information only."""

    message: str
    warning: bool = True


@dataclass(frozen=True, slots=True)
class End:
    """End the query. The last command. `error`: why it failed, None otherwise. `complete`: it processed everything."""

    error: Exception | None
    complete: bool = False


Command = (
    StartProcess
    | EndProcess
    | Deploy
    | AnnounceDeployed
    | PlanBatch
    | RunBatch
    | Commit
    | Undo
    | Abandon
    | Finish
    | Interrupt
    | Cancel
    | AskBase
    | moves.FollowMoves
    | moves.HandOver
    | moves.EndMoves
    | LeaveOut
    | Log
    | End
)
