"""The state that the coordinator's rules share, and how a pending checkpoint ends without a record.

    pending ──► aborted: declined, timed out, subsumed, no record, or a failover began
            └─► recorded (`recording.py`)

Invariants: only the outcome of an abort decides if the abort counts as a failure. Every request for a checkpoint gets
an answer. Does not own: when to cut (`cutting.py`), records (`recording.py`), the handling of events
(`coordinator.py`).
"""

from enum import Enum

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.demand import Demand
from holdfast.checkpoint.failures import FailureManager
from holdfast.checkpoint.finishing import Finishing
from holdfast.checkpoint.ledger import Ledger
from holdfast.checkpoint.missing import RecordedParts
from holdfast.checkpoint.outcomes import Outcome
from holdfast.checkpoint.pending import PendingCheckpoint, PendingCheckpoints
from holdfast.checkpoint.publication import Publication
from holdfast.checkpoint.records import RetainedRecords
from holdfast.checkpoint.registry import ObjectRegistry, PendingHolder
from holdfast.ids import BatchNumber, CheckpointId, Incarnation, RunNumber
from holdfast.settings import CheckpointConfig


class CoordinatorPhase(Enum):
    DEPLOYING = "deploying"
    RUNNING = "running"
    INCOMPLETE = "incomplete"
    JOINING = "joining"
    FAILING = "failing"


class Coordination:
    """The state that the rules of cuts, records and events share, and the commands of the current answer."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.config = config
        self.phase = CoordinatorPhase.DEPLOYING
        self.failover_ordered = False
        self.base_wanted = False
        self.committing = False
        self.now_s = 0.0
        self.wall_s = 0.0
        self.job_s = 0.0
        self.ended_s: float | None = None
        self.run = RunNumber(0)
        self.live: dict[int, Incarnation] = {}
        self.last_id = CheckpointId(0)
        self.demand = Demand()
        self.pending = PendingCheckpoints()
        self.failures = FailureManager()
        self.registry = ObjectRegistry()
        self.records = RetainedRecords()
        self.publication = Publication()
        self.ledger = Ledger()
        self.finishing = Finishing()
        self.parts = RecordedParts()
        self.commands: list[ev.Command] = []

    @property
    def unrecorded_progress(self) -> BatchNumber | None:
        """The last batch with progress, if the newest record of this epoch is of an earlier cut."""
        found = [self.ledger.unrecorded_progress, self.finishing.progress(self.publication.backlog())]
        return max((each for each in found if each is not None), default=None)

    def abort(self, pending: PendingCheckpoint, reason: str, outcome: Outcome, outage: bool = False) -> None:
        self.pending.remove(pending.checkpoint_id)
        self.registry.release(PendingHolder(pending.checkpoint_id))
        self.ended_s = self.now_s
        if outcome is not Outcome.SUBSUMED:
            self.demand.event_time.failed()
        if outcome.counts or outcome.is_soft:
            self.failures.failed(pending.checkpoint_id, reason, counted=outcome.counts)
        self.commands.append(ev.NotifyAborted(pending.checkpoint_id, reason, outcome, outage))
        self.commands += [ev.CheckOwnership()] if outcome.counts else []
        self.resolve(pending.requests, f"checkpoint {pending.checkpoint_id} failed: {reason}", outcome.is_soft)

    def resolve(self, requests: list[str], failure: str | None = None, soft: bool = False) -> None:
        self.commands += [ev.Resolve(request, self.records.newest, failure, soft) for request in requests]

    def drop_staged(self, committables: dict[str, list[bytes]]) -> None:
        self.commands += [ev.DropStaged(sink, each) for sink, each in sorted(committables.items())]
