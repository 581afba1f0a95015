"""Cuts: the demand for a checkpoint, and the decision to cut at this batch boundary.

    wanted ──progress, nobody refuses, a free place, the pause over──► Cut ──► pending
       ├──a pending checkpoint covers all that was committed──► attached to it
       └──somebody refuses──► NotifyRefused; wanted again at the next boundary

Invariants: a cut is at the last committed batch, and never waits for a running batch. No cut is taken without progress.
Does not own: the rules of triggers (`triggers.py`) and of refusals (`demand.py`).
"""

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.coordination import Coordination, CoordinatorPhase
from holdfast.checkpoint.demand import BY_POLICY, NotifyRefused
from holdfast.checkpoint.pending import PendingCheckpoint
from holdfast.checkpoint.recording import Recording
from holdfast.ids import CheckpointId


class Cutting:
    """Rules of cuts; `shared`: what all rules share."""

    def __init__(self, shared: Coordination, recording: Recording) -> None:
        self._shared = shared
        self._recording = recording
        self.at_commit = False

    def serve(self) -> None:
        """Serve requests and the policy, if a cut is possible at all."""
        incomplete = self._shared.phase is CoordinatorPhase.INCOMPLETE and self._shared.parts.stand_in(
            self._shared.live
        )
        may_cut = self._shared.phase is CoordinatorPhase.RUNNING or incomplete
        if may_cut and not self._shared.failover_ordered and not self._shared.committing:
            self._serve_requests()
            self._serve_policy()

    def _serve_requests(self) -> None:
        """Answer, attach to a pending checkpoint that covers all that was committed, or cut; otherwise wait."""
        if not self._shared.demand.requests:
            return
        wanted = self._shared.unrecorded_progress
        covering = None if wanted is None else self._shared.pending.covering(wanted)
        if wanted is None and self._recording.again is None:  # else the newest record is about to get another number
            self._shared.resolve(self._shared.demand.take_requests())
        elif wanted is None:
            return
        elif covering is not None:
            covering.requests += self._shared.demand.take_requests()
        elif self._shared.demand.refusals:
            if self._shared.demand.refuse_requests():
                self._refuse(self._shared.demand.asked_by)
        elif len(self._shared.pending) < self._shared.config.max_concurrent:
            self._cut(trigger=self._shared.demand.asked_by, requests=self._shared.demand.take_requests())

    def _serve_policy(self) -> None:
        """Cut if the policy's trigger is due, or is due soon and a batch was committed just now.

        The trigger stays due until there is progress, one more checkpoint may be pending, the pause is over, and no
        part refuses. A trigger that comes due while an earlier trigger is refused replaces it, and is refused again.
        """
        last = self._shared.ledger.last
        watermark_us = None if last is None else last.position.watermark_us
        due_s = self._shared.demand.due_s(
            self._shared.config.trigger, self._shared.wall_s, watermark_us, at_commit=self.at_commit
        )
        if due_s is None and not self._shared.demand.is_held:
            return
        wanted = self._shared.unrecorded_progress
        if wanted is None or self._shared.pending.covering(wanted) is not None:
            return
        if len(self._shared.pending) >= self._shared.config.max_concurrent:
            return
        if (
            self._shared.ended_s is not None
            and self._shared.now_s - self._shared.ended_s < self._shared.config.min_pause_s
        ):
            return
        if due_s is not None:
            self._shared.demand.answered(due_s)
        if not self._shared.demand.refusals:
            self._cut([], BY_POLICY)
        elif self._shared.demand.refuse_policy(due_s is not None):
            self._refuse(BY_POLICY)

    def _refuse(self, trigger: str) -> None:
        """Refuse a cut at this boundary, under a checkpoint id of its own, so that the refusal counts once."""
        self._shared.last_id = CheckpointId(self._shared.last_id + 1)
        refusals = self._shared.demand.refusals
        refused = NotifyRefused(self._shared.last_id, trigger, refusals, counted=any(each.hard for each in refusals))
        self._shared.failures.triggered(self._shared.now_s)
        self._shared.failures.failed(refused.checkpoint_id, refused.reason, counted=refused.counted)
        self._shared.commands.append(refused)

    def _cut(self, requests: list[str], trigger: str) -> None:
        last = self._shared.ledger.last
        assert last is not None, "there is progress, so there is a last batch"
        self._shared.last_id = CheckpointId(self._shared.last_id + 1)
        self._shared.demand.is_held = False
        live = {each: self._shared.live[each] for each in sorted(self._shared.live.keys() - self._shared.parts.missing)}
        pending = PendingCheckpoint(
            self._shared.last_id, last.batch, last.position, self._shared.run, live, self._shared.now_s, requests
        )
        pending.absence = self._shared.parts.absence
        self._shared.pending.add(pending)
        self._shared.failures.triggered(self._shared.now_s)
        self._shared.commands.append(ev.Cut(self._shared.last_id, self._shared.run, last.batch, dict(live), trigger))
