"""The execution machine decides what to deploy, which batch to run or try again, when to restart, and when to end.

Pure: `handle(event) -> list[Command]` is the only mutator; no I/O, clock or thread. `events.py` lists events and
commands. Each phase but GATHERING, WAITING and CHOOSING has work in flight, which a single event ends:

    GATHERING ──all places held──► DEPLOYING ──Deployed──► PLANNING ──EndReached──► FINISHING ──Finished──► ENDED
     ▲     ▲                            │                    │    ▲
     │     └────────DeployFailed────────┘        BatchPlanned│    └──BatchCommitted──────┐
     │                                                       ▼                           │
     │BaseChosen                   UNDOING ◄─BatchFailed─ RUNNING ──BatchProcessed──► COMMITTING
     │                                └──────Undone──────────▲
    CHOOSING ◄─restart─┬─ DRAINING        a process was lost or a failover asked for: the work in flight is to end first
                       ├─ WAITING         a process did not answer: its loss is to be noticed first
                       └─ CommitFailed, UndoFailed
    ENDING     a user stops the query, or an error ends it: the work in flight is to end first
    LEAVING    a batch has no further attempt: it is undone first
    JOINING    a replacement is deployed between two batches, while the others keep their state (`dropping.py`)
    WAITING    also if a batch failed for want of a store or a disk; then it is undone and run again

Invariants
----------
- At most a single work is in flight, and a restart waits for its end: nothing of a batch goes on beside a restart.
- A run number is used for a single deployment or a single attempt at a batch, and never again; it only grows.
- A batch is committed once, and only if everybody who was deployed still lives, as far as is known, or is left out.
- Restarts without a completed checkpoint in between, losses of a process within a window, and attempts at a batch are
  bounded: no storm goes on for ever.
- After `End` no command is given.

Reading order: `course.py` (work in flight, the end) ◄── `deployments.py` (base, restarts) ◄── `dropping.py` (batches
without somebody) ◄── `batches.py` (run, commit, undo) ◄── this module (events, time, processes). Each adds its rules to
the module before.

Does not own: positions, plans, checkpoints, units of senders, connections.
"""

from collections.abc import Callable
from typing import Any

from holdfast.execution import events as ev
from holdfast.execution.batches import Batches
from holdfast.execution.phases import WORK_OF, Phase
from holdfast.ids import ProcessId, Role
from holdfast.settings import FailoverConfig, OnLoss


class Machine(Batches):
    """The execution rules of a job during a single epoch. Called by a single thread at a time."""

    def __init__(self, config: FailoverConfig, on_loss: OnLoss = OnLoss.REWIND) -> None:
        super().__init__(config, on_loss)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.Started: self._on_started,
            ev.Tick: self._on_tick,
            ev.ProcessesWanted: self._on_wanted,
            ev.Registered: self._on_registered,
            ev.Lost: self._on_lost,
            ev.LossExplained: self._on_loss_explained,
            ev.Unreachable: self._on_unreachable,
            ev.CallBegan: self._supervision.call_began,
            ev.CallEnded: self._supervision.call_ended,
            ev.AtWork: self._supervision.at_work,
            ev.Deployed: self._on_deployed,
            ev.DeployFailed: self._on_deploy_failed,
            ev.BatchPlanned: self._on_batch_planned,
            ev.EndReached: self._on_end_reached,
            ev.Interrupted: self._on_interrupted,
            ev.WorkFailed: self._on_work_failed,
            ev.BatchProcessed: self._on_batch_processed,
            ev.BatchFailed: self._on_batch_failed,
            ev.BatchCommitted: self._on_batch_committed,
            ev.CommitFailed: self._on_commit_failed,
            ev.Undone: self._on_undone,
            ev.UndoFailed: self._on_undo_failed,
            ev.Finished: self._on_finished,
            ev.SinksLag: self._on_sinks_lag,
            ev.CheckpointCompleted: self._on_checkpoint_completed,
            ev.FailoverAsked: self._on_failover_asked,
            ev.BaseChosen: self._on_base_chosen,
            ev.StopAsked: self._on_stop_asked,
            ev.Failed: self._on_failed,
        }

    def handle(self, event: ev.Event) -> list[ev.Command]:
        """Handle an event; return the commands that follow from it, in their order."""
        if self.phase is Phase.ENDED:
            return []
        self._commands = []
        self._handlers[type(event)](event)
        return self._commands

    def validate(self) -> None:
        """Check the invariants; for tests. Raises AssertionError."""
        self._supervision.validate()
        wanted = WORK_OF.get(self.phase, self._work)
        assert self._work is wanted, f"{self._work} is in flight, expected {wanted}"
        assert self.phase is not Phase.DRAINING or self._work, "draining, but nothing is in flight"
        assert self.phase is not Phase.ENDING or self._work, "ending, but nothing is in flight"
        assert self.phase is not Phase.DRAINING or self._cause, "draining without a cause"
        undisturbed = (Phase.PLANNING, Phase.RUNNING, Phase.COMMITTING, Phase.UNDOING, Phase.FINISHING)
        if self.phase in undisturbed:
            assert self._places.still_held(self._supervision.live(), self._absent), (
                f"{self._places} was deployed, {self._supervision.live()} lives"
            )
        has_batch = self.phase in (Phase.RUNNING, Phase.COMMITTING, Phase.UNDOING)
        assert not has_batch or self._batch is not None, "no batch"
        assert self._attempt <= self._config.batch_attempts, f"attempt {self._attempt}"
        if self.phase is not Phase.ENDED:
            assert self._restarts.count <= self._config.restarts_max or self._error, f"{self._restarts.count} restarts"

    # --- time and processes -------------------------------------------------------------------------------------------

    def _on_started(self, event: ev.Started) -> None:
        if self.phase is Phase.IDLE:
            self._now_s = event.now_s
            self._base = event.base
            for role, count in event.wanted.items():
                self._supervision.want(role, count, event.now_s)
            self._supervision.want_standby(event.standby, event.now_s)
            self._gather()

    def _on_tick(self, event: ev.Tick) -> None:
        self._now_s = max(self._now_s, event.now_s)
        if self.phase in (Phase.ENDING, Phase.LEAVING) and self._now_s >= self._until_s:
            work = self._work and self._work.value
            self._log(f"the query ends before its work has: {work}{self._supervision.left_behind(self._now_s)}")
            self._end()
            return
        self._cancel_due()
        if self.phase is Phase.WAITING and self._now_s >= self._until_s:
            self._unnoticed()
        self._commands += self._supervision.look(self._now_s, self._run)
        if not self._is_ending:
            self._look_at_absent()
            self._start_due()
            self._deploy_if_complete()

    def _start_due(self) -> None:
        error = self._supervision.not_started(self._now_s)
        if error is not None:
            self._end_with(error)
        else:
            self._commands += self._supervision.start_due(self._now_s)

    def _on_wanted(self, event: ev.ProcessesWanted) -> None:
        self._supervision.want(event.role, event.count, self._now_s)

    def _on_registered(self, event: ev.Registered) -> None:
        self._supervision.registered(event)
        self._deploy_if_complete()
        self._look_who_joins()

    def _on_lost(self, event: ev.Lost) -> None:
        loss = self._supervision.lost(event, self._now_s)
        if loss is None or self._is_ending:
            return
        is_dispensable = loss.process.role is Role.TASK_MANAGER and self._supervision.is_complete
        if loss.over_budget is not None and not is_dispensable:
            self._exhausted(loss.over_budget, loss.cause)
            return
        self._commands += loss.commands
        self._start_due()
        if loss.process.role is not Role.TASK_MANAGER or not self._is_needed(loss.process):
            return
        if self._may_leave_out():
            self._leave_out(loss.process, loss.cause)
        else:
            self._give_up(loss.cause)

    def _on_loss_explained(self, event: ev.LossExplained) -> None:
        if self._cause is not None:
            self._cause = self._cause.explained(event.process, event.reason)

    def _is_needed(self, process: ProcessId) -> bool:
        """True unless the process was a standby: the job goes on without it."""
        return not self._places.holders or self._places.hold(process.number, process.incarnation)

    def _on_unreachable(self, event: ev.Unreachable) -> None:
        self._commands += self._supervision.unreachable(event)
