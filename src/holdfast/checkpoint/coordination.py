"""The coordinator's parts, and how a pending checkpoint ends without a record.

    pending ──► aborted: declined, timed out, subsumed, no record, or a failover began
            └─► recorded (`recording.py`)

Invariant: the outcome of an abort alone decides if it counts as a failure; everybody who asked for it gets an answer.
Does not own: when to cut (`cutting.py`), records (`recording.py`), the handling of events (`coordinator.py`).
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
    """The parts of the coordinator, and the commands of its present answer."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._phase = CoordinatorPhase.DEPLOYING
        self._failover_ordered = False
        self._base_wanted = False
        self._committing = False
        self._now_s = 0.0
        self._wall_s = 0.0
        self._job_s = 0.0
        self._ended_s: float | None = None
        self._run = RunNumber(0)
        self._live: dict[int, Incarnation] = {}
        self._last_id = CheckpointId(0)
        self._demand = Demand()
        self._pending = PendingCheckpoints()
        self._failures = FailureManager()
        self._registry = ObjectRegistry()
        self._records = RetainedRecords()
        self._publication = Publication()
        self._ledger = Ledger()
        self._finishing = Finishing()
        self._parts = RecordedParts()
        self._commands: list[ev.Command] = []

    @property
    def _unrecorded_progress(self) -> BatchNumber | None:
        """The last batch with progress, if the newest record of this epoch is of an earlier cut."""
        found = [self._ledger.unrecorded_progress, self._finishing.progress(self._publication.backlog())]
        return max((each for each in found if each is not None), default=None)

    def _abort(self, pending: PendingCheckpoint, reason: str, outcome: Outcome, outage: bool = False) -> None:
        self._pending.remove(pending.checkpoint_id)
        self._registry.release(PendingHolder(pending.checkpoint_id))
        self._ended_s = self._now_s
        if outcome is not Outcome.SUBSUMED:
            self._demand.event_time.failed()
        if outcome.counts or outcome.is_soft:
            self._failures.failed(pending.checkpoint_id, reason, counted=outcome.counts)
        self._commands.append(ev.NotifyAborted(pending.checkpoint_id, reason, outcome, outage))
        self._commands += [ev.CheckOwnership()] if outcome.counts else []
        self._resolve(pending.requests, f"checkpoint {pending.checkpoint_id} failed: {reason}", outcome.is_soft)

    def _resolve(self, requests: list[str], failure: str | None = None, soft: bool = False) -> None:
        self._commands += [ev.Resolve(request, self._records.newest, failure, soft) for request in requests]

    def _drop_staged(self, committables: dict[str, list[bytes]]) -> None:
        self._commands += [ev.DropStaged(sink, each) for sink, each in sorted(committables.items())]
