"""Cuts: who wants a checkpoint, and whether it is cut at this batch boundary.

    wanted ──progress, nobody refuses, a free place, the pause over──► Cut ──► pending
       ├──a pending checkpoint covers all that was committed──► attached to it
       └──somebody refuses──► NotifyRefused; wanted again at the next boundary

Invariants: a cut is at the last committed batch, and never waits for a running batch. No cut is taken without progress.
Does not own: the rules of triggers (`triggers.py`) and of refusals (`demand.py`).
"""

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.coordination import CoordinatorPhase
from holdfast.checkpoint.demand import BY_POLICY, NotifyRefused
from holdfast.checkpoint.pending import PendingCheckpoint
from holdfast.checkpoint.recording import Recording
from holdfast.ids import CheckpointId
from holdfast.settings import CheckpointConfig


class Cutting(Recording):
    """Rules of cuts, on top of the rules of records."""

    def __init__(self, config: CheckpointConfig) -> None:
        super().__init__(config)
        self._at_commit = False

    def _serve(self) -> None:
        """Serve requests and the policy, where a cut is possible at all."""
        incomplete = self._phase is CoordinatorPhase.INCOMPLETE and self._parts.stand_in(self._live)
        may_cut = self._phase is CoordinatorPhase.RUNNING or incomplete
        if may_cut and not self._failover_ordered and not self._committing:
            self._serve_requests()
            self._serve_policy()

    def _serve_requests(self) -> None:
        """Answer, attach to a pending checkpoint that covers all that was committed, or cut; otherwise wait."""
        if not self._demand.requests:
            return
        wanted = self._unrecorded_progress
        covering = None if wanted is None else self._pending.covering(wanted)
        if wanted is None and self._again is None:  # else the newest record is about to have another number
            self._resolve(self._demand.take_requests())
        elif wanted is None:
            return
        elif covering is not None:
            covering.requests += self._demand.take_requests()
        elif self._demand.refusals:
            if self._demand.refuse_requests():
                self._refuse(self._demand.asked_by)
        elif len(self._pending) < self._config.max_concurrent:
            self._cut(trigger=self._demand.asked_by, requests=self._demand.take_requests())

    def _serve_policy(self) -> None:
        """Cut if the policy's trigger is due, or is due soon and a batch was committed just now.

        The trigger stays due until there is progress, a free place and the pause is over, and nobody refuses. A trigger
        that comes due while an earlier trigger is refused takes its place, and is refused anew.
        """
        last = self._ledger.last
        watermark_us = None if last is None else last.position.watermark_us
        due_s = self._demand.due_s(self._config.trigger, self._wall_s, watermark_us, at_commit=self._at_commit)
        if due_s is None and not self._demand.is_held:
            return
        wanted = self._unrecorded_progress
        if wanted is None or self._pending.covering(wanted) is not None:
            return
        if len(self._pending) >= self._config.max_concurrent:
            return
        if self._ended_s is not None and self._now_s - self._ended_s < self._config.min_pause_s:
            return
        if due_s is not None:
            self._demand.answered(due_s)
        if not self._demand.refusals:
            self._cut([], BY_POLICY)
        elif self._demand.refuse_policy(due_s is not None):
            self._refuse(BY_POLICY)

    def _refuse(self, trigger: str) -> None:
        """Refuse a cut at this boundary, under a checkpoint id of its own, so that the refusal counts once."""
        self._last_id = CheckpointId(self._last_id + 1)
        refusals = self._demand.refusals
        refused = NotifyRefused(self._last_id, trigger, refusals, counted=any(each.hard for each in refusals))
        self._failures.triggered(self._now_s)
        self._failures.failed(refused.checkpoint_id, refused.reason, counted=refused.counted)
        self._commands.append(refused)

    def _cut(self, requests: list[str], trigger: str) -> None:
        last = self._ledger.last
        assert last is not None, "there is progress, so there is a last batch"
        self._last_id = CheckpointId(self._last_id + 1)
        self._demand.is_held = False
        live = {each: self._live[each] for each in sorted(self._live.keys() - self._parts.missing)}
        pending = PendingCheckpoint(self._last_id, last.batch, last.position, self._run, live, self._now_s, requests)
        pending.absence = self._parts.absence
        self._pending.add(pending)
        self._failures.triggered(self._now_s)
        self._commands.append(ev.Cut(self._last_id, self._run, last.batch, dict(live), trigger))
