"""Batches: planned, run, committed, undone, tried again; and the last ones before the query ends by itself.

    PLANNING ──BatchPlanned──► RUNNING ──BatchProcessed──► COMMITTING ──BatchCommitted──► PLANNING
     │                          │    ▲                         │
     │EndReached       BatchFailed   │Undone             CommitFailed ──► a restart
     ▼                          ▼    │
    FINISHING ──Finished──►   UNDOING──UndoFailed──► a restart
    WAITING    where a batch failed for want of a store or a disk; then it is undone and run again

Invariants: a batch is committed once, and only where everybody who was deployed still lives; attempts are bounded.
Does not own: positions, plans, units of senders.
"""

from holdfast.execution import events as ev
from holdfast.execution import reactions
from holdfast.execution.dropping import Dropping
from holdfast.execution.failover import Cause, Why
from holdfast.execution.phases import Phase, Work
from holdfast.execution.reactions import Reaction
from holdfast.settings import FailoverConfig, OnLoss


class Batches(Dropping):
    """The course of a job with its batches."""

    def __init__(self, config: FailoverConfig, on_loss: OnLoss) -> None:
        super().__init__(config, on_loss)
        self._attempt = 0
        self._combine = True
        self.paused_by: frozenset[str] = frozenset()
        """Sinks that lag so far behind that no batch is planned."""

    # --- planning and finishing ---------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._batch = None
        if self._base_is_too_old():
            text = "broadcast state has changed since the checkpoint from which a replacement would join"
            self._cause = Cause(Why.LAGGING, text)
            self._restart()
            return
        places = self._joinable()
        if places is not None:
            self._join(places)
        else:
            self._begin(Phase.PLANNING, ev.PlanBatch(self.paused_by))

    def _on_sinks_lag(self, event: ev.SinksLag) -> None:
        self.paused_by = event.sinks
        if self.phase is Phase.PLANNING:
            self._commands.append(ev.Interrupt())

    def _on_interrupted(self, event: ev.Interrupted) -> None:
        if self._is_over(Work.PLAN) or self._is_over(Work.FINISH):
            self._go_on(self._plan)

    def _on_work_failed(self, event: ev.WorkFailed) -> None:
        if self._work is not None:
            self._work = None
            self._end() if self._is_ending else self._end_with(event.error)

    def _on_end_reached(self, event: ev.EndReached) -> None:
        if self._is_over(Work.PLAN):
            self._go_on(lambda: self._begin(Phase.FINISHING, ev.Finish()))

    def _on_finished(self, event: ev.Finished) -> None:
        if self._is_over(Work.FINISH):
            self._end(complete=True)

    # --- batches ------------------------------------------------------------------------------------------------------

    def _on_batch_planned(self, event: ev.BatchPlanned) -> None:
        if self._is_over(Work.PLAN):
            self._batch, self._attempt = event.batch, 1
            self._go_on(self._run_batch)

    def _run_batch(self) -> None:
        assert self._batch is not None
        self._begin(Phase.RUNNING, ev.RunBatch(self._run, self._batch, self._combine))

    def _on_batch_processed(self, event: ev.BatchProcessed) -> None:
        if not self._is_over(Work.RUN, event.run, event.batch):
            return
        if self.phase is not Phase.RUNNING:
            self._commands.append(ev.Abandon(event.batch))
        self._go_on(lambda: self._begin(Phase.COMMITTING, ev.Commit(self._run, event.batch)))

    def _on_batch_committed(self, event: ev.BatchCommitted) -> None:
        if self._is_over(Work.COMMIT, event.run, event.batch):
            if event.broadcast:
                self._broadcast_batch = event.batch
            self._go_on(self._plan)

    def _on_batch_failed(self, event: ev.BatchFailed) -> None:
        if not (self._is_over(Work.RUN, event.run, event.batch) or self._is_over(Work.COMMIT, event.run, event.batch)):
            return
        self._commands.append(ev.Abandon(event.batch))
        reaction, cause = reactions.to_batch(event.error), Cause(Why.FAILED, str(event.error))
        if self.phase is Phase.ENDING:
            self._end()
        elif reaction is Reaction.END:
            self._end_with(event.error)
        elif reaction is Reaction.LEAVE:
            self._leave(event.error)
        elif self.phase is Phase.DRAINING:
            self._restart()
        elif reaction is Reaction.LOST and self._places.holders:
            self._await_loss(cause, self._restart, lambda: self._try_again(event.error, reaction))
        elif event.outage is not None:
            again = (lambda: self._leave(event.error)) if event.outage.is_over else self._undo
            self._wait(event.outage.pause_s, cause, self._restart, again)
        else:
            self._try_again(event.error, reaction)

    def _try_again(self, error: Exception, reaction: Reaction) -> None:
        """Run the same batch under a new run number, once every TaskManager has undone it."""
        if self._attempt == self._config.batch_attempts:
            self._leave(error)
            return
        self._log(f"batch {self._batch}, attempt {self._attempt}: {error}; trying again")
        self._attempt += 1
        if reaction is Reaction.ROWS:
            self._combine = False
        self._undo()

    def _undo(self) -> None:
        self._cause = None
        self._begin(Phase.UNDOING, ev.Undo(self._next_run()))

    def _on_undone(self, event: ev.Undone) -> None:
        if not self._is_over(Work.UNDO, event.run):
            return
        if self.phase is Phase.LEAVING:
            self._end()
        else:
            self._go_on(self._run_batch)

    def _on_undo_failed(self, event: ev.UndoFailed) -> None:
        if not self._is_over(Work.UNDO, event.run):
            return
        if self.phase is Phase.LEAVING:
            self._log(f"the batch in flight could not be undone: {event.error}")
            self._end()
        else:
            self._restart_after(f"a batch was not undone: {event.error}", event.error)

    def _on_commit_failed(self, event: ev.CommitFailed) -> None:
        if not self._is_over(Work.COMMIT, event.run, event.batch):
            return
        self._commands.append(ev.Abandon(event.batch))
        self._restart_after(f"a commit was not answered: {event.error}", event.error)

    def _restart_after(self, text: str, error: Exception) -> None:
        """Mark the content of the TaskManagers as unknown: only a restart helps."""
        reaction, cause = reactions.to_batch(error), Cause(Why.FAILED, text)
        if self.phase in (Phase.ENDING, Phase.DRAINING):
            self._go_on(self._restart)
        elif reaction is Reaction.END:
            self._end_with(error)
        elif reaction is Reaction.LOST:
            self._await_loss(cause, self._restart, self._restart)
        else:
            self._cause = cause
            self._restart()
