"""The execution machine decides what to deploy, which batch to run or try again, when to restart, and when to end.

It is pure: `handle(event) -> list[Command]` is the only mutator, and there is no I/O, clock or thread. `events.py`
lists events and commands. Each phase except GATHERING, WAITING and CHOOSING has work in flight, which a single event
ends:

    GATHERING ──all places held──► DEPLOYING ──Deployed──► PLANNING ──EndReached──► FINISHING ──Finished──► ENDED
     ▲     ▲                            │                    │    ▲
     │     └────────DeployFailed────────┘        BatchPlanned│    └──BatchCommitted──────┐
     │                                                       ▼                           │
     │BaseChosen                   UNDOING ◄─BatchFailed─ RUNNING ──BatchProcessed──► COMMITTING
     │                                └──────Undone──────────▲
    CHOOSING ◄─restart─┬─ DRAINING        a process was lost or a failover asked for: the work in flight ends first
                       ├─ WAITING         a process did not answer: its loss must be noticed first
                       └─ CommitFailed, UndoFailed
    ENDING     a user stops the query, or an error ends it: the work in flight ends first
    LEAVING    a batch has no further attempt: it is undone first
    JOINING    a replacement is deployed between two batches, while the others keep their state (`on_loss="drop"`)
    WAITING    also after a batch failed because a store or disk was missing; the batch is then undone and run again
    HANDING_OVER ──HandedOver──► CHOOSING ──BaseChosen──► RESCALING    another layout of the job, between two
               batches: those that gain subtasks have their state, the others keep theirs (`rescaling.py`)

Invariants
----------
- At most one piece of work is in flight, and a restart waits for its end: no work on a batch runs beside a restart.
- A run number is used for a single deployment or a single attempt at a batch, and never again. Run numbers only grow.
- A batch is committed once, and only if every deployed TaskManager still lives, as far as is known, or is left out.
- Restarts without a completed checkpoint in between, losses of a process within a window, and attempts at a batch are
  bounded: no series of retries lasts forever.
- After `End` no command is given.

Parts: `course` (the work in flight, waits, the end), `supervision` (which processes live, calls), `places` (which
process holds which subtasks), `restarts` (the budget), `absences` (which TaskManagers are left out), `rescaling`
(another number of places), `failover` (why the job goes back), `reactions` (to errors). This file tells the complete
story of a job, so it is longer than others.

Does not own: positions, plans, checkpoints, units of senders, connections, which rows are dropped.
"""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast import errors
from holdfast.execution import events as ev
from holdfast.execution import moves, reactions
from holdfast.execution.absences import Absences
from holdfast.execution.course import Course
from holdfast.execution.failover import UNKNOWN, Cause, Failover, Why
from holdfast.execution.phases import Phase
from holdfast.execution.places import Places, choose
from holdfast.execution.reactions import Reaction
from holdfast.execution.rescaling import Rescaling
from holdfast.execution.restarts import Restarts
from holdfast.execution.supervision import Supervision
from holdfast.ids import BatchNumber, JournalNumber, ProcessId, Role
from holdfast.settings import FailoverConfig, OnLoss

GOING_ON = (Phase.PLANNING, Phase.RUNNING, Phase.COMMITTING, Phase.UNDOING, Phase.FINISHING)
"""The phases in which a TaskManager may be left out."""


class Machine:
    """The execution rules of a job during a single epoch. Called by a single thread at a time."""

    def __init__(self, config: FailoverConfig, on_loss: OnLoss = OnLoss.REWIND) -> None:
        self._config = config
        self._on_loss = on_loss
        self._supervision = Supervision(config)
        self._restarts = Restarts(config)
        self._absences = Absences(config)
        self._places, self._rescaling = Places(), Rescaling()
        self._rescale_waits: moves.RescaleAsked | None = None
        """A rescale that waits until the job has moved away from machines that are about to be removed."""
        self._follows: Mapping[int, int] = {}
        """The standby that follows the state of each place, by place."""
        self._commands: list[ev.Command] = []
        """The commands to return for the current event. The course appends its own commands here."""
        self._course = Course(self._commands)
        self._has_run = False
        self._base: JournalNumber | None = None
        self._joins = False
        """True while a deployment concerns replacements only."""
        self._attempt = 0
        self._combine = True
        self.paused_by: frozenset[str] = frozenset()
        """The sinks that lag so far behind that no batch may be planned."""
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            **self._handlers_of_moves(),
            ev.Started: self._on_started,
            ev.Tick: self._on_tick,
            ev.SendersStay: self._on_senders_stay,
            ev.Registered: self._on_registered,
            ev.StandbysFollow: self._on_standbys_follow,
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

    @property
    def phase(self) -> Phase:
        return self._course.phase

    def handle(self, event: ev.Event) -> list[ev.Command]:
        """Handle an event; return the commands that follow from it, in the order in which to execute them."""
        self._commands.clear()
        if self.phase is not Phase.ENDED and self._course.take(event):
            self._handlers[type(event)](event)
            self._add_the_end()
        return list(self._commands)

    def _add_the_end(self) -> None:
        if self.phase is Phase.ENDED:
            self._end_moves("the query ended")
            self._commands.append(self._course.the_end)

    def validate(self) -> None:
        """Check the invariants; for tests. Raises AssertionError."""
        self._supervision.validate()
        self._course.validate()
        if self.phase in GOING_ON:
            assert self._places.still_held(self._supervision.live(), self._absences.since_s), (
                f"{self._places} was deployed, {self._supervision.live()} lives"
            )
        assert self._attempt <= self._config.batch_attempts, f"attempt {self._attempt}"
        if self.phase is not Phase.ENDED and self._course.error is None:
            assert self._restarts.count <= self._config.restarts_max, f"{self._restarts.count} restarts"

    # --- time and processes -------------------------------------------------------------------------------------------

    def _on_started(self, event: ev.Started) -> None:
        if self.phase is Phase.IDLE:
            self._course.now_s = event.now_s
            self._base = event.base
            self._places = Places(parallelism=event.parallelism)
            for role, count in event.wanted.items():
                self._supervision.want(role, count, event.now_s)
            self._supervision.want_standby(event.standby, event.now_s)
            self._gather()

    def _on_tick(self, event: ev.Tick) -> None:
        self._course.tick(event.now_s, self._supervision.left_behind)
        if self.phase is Phase.ENDED:
            return
        self._commands += self._supervision.look(self._course.now_s, self._course.run)
        if not self._course.is_ending:
            self._look_at_absent()
            self._start_due()
            self._deploy_if_complete()
            self._look_at_moves()

    def _start_due(self) -> None:
        error = self._supervision.not_started(self._course.now_s)
        if error is not None:
            self._course.end_with(error)
        else:
            self._commands += self._supervision.start_due(self._course.now_s)

    def _on_senders_stay(self, event: ev.SendersStay) -> None:
        self._commands += self._supervision.keep_senders(event.numbers, self._course.now_s)

    def _on_registered(self, event: ev.Registered) -> None:
        self._supervision.registered(event)
        self._deploy_if_complete()
        self._look_who_joins()
        self._look_at_moves()

    def _on_standbys_follow(self, event: ev.StandbysFollow) -> None:
        self._follows = event.by_place

    def _on_lost(self, event: ev.Lost) -> None:
        loss = self._supervision.lost(event, self._course.now_s)
        if loss is None or self._course.is_ending:
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
        if self._course.cause is not None:
            self._course.cause = self._course.cause.explained(event.process, event.reason)

    def _is_needed(self, process: ProcessId) -> bool:
        """True unless the process is a standby, without which the job can continue."""
        return not self._places.holders or self._places.hold(process.number, process.incarnation)

    def _on_unreachable(self, event: ev.Unreachable) -> None:
        self._commands += self._supervision.unreachable(event)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _on_stop_asked(self, event: ev.StopAsked) -> None:
        if not self._course.is_ending:
            self._course.end_with(None)

    def _on_failed(self, event: ev.Failed) -> None:
        if not self._course.is_ending:
            self._course.end_with(event.error)

    def _exhausted(self, count: str, cause: Cause) -> None:
        if self._has_run:
            self._course.end_with(errors.RestartsExhausted(f"{count}; the last cause: {cause}"))
        else:
            self._course.end_with(
                errors.JobRefused(f"TaskManagers keep ending while they start: {count}; the last cause: {cause}")
            )

    # --- deployment ---------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait until a TaskManager serves for each place, then deploy."""
        self._course.phase = Phase.GATHERING
        self._commands += self._supervision.start_due(self._course.now_s)
        self._deploy_if_complete()

    def _deploy_if_complete(self) -> None:
        if self.phase is not Phase.GATHERING or self._course.now_s < self._restarts.not_before_s:
            return
        places = choose(self._supervision.places, self._places, self._supervision.live(), self._follows)
        if places is None:
            return
        self._places = places
        cause, self._course.cause = self._course.cause if self._has_run else None, None
        failover = None if cause is None else Failover((cause,))
        rewind = self._on_loss is not OnLoss.RESTART
        self._course.begin(Phase.DEPLOYING, self._deploy(places, failover, rewind))

    def _deploy(
        self, places: Places, failover: Failover | None = None, rewind: bool = True, moving: bool = False
    ) -> ev.Deploy:
        run, live = self._course.next_run(), dict(places.live)
        return ev.Deploy(run, self._base, live, places.holders, failover, rewind, moving, places.parallelism)

    def _on_deployed(self, event: ev.Deployed) -> None:
        if self._joins:
            self._joined()
            return
        if self._rescaling.handed_over is not None:
            self._moved()
            return
        if self.phase is Phase.DEPLOYING:
            self._restarts.deployed()
            self._has_run = True
            self._rescaling.again()
            self._commands.append(ev.AnnounceDeployed(self._course.run, dict(self._places.live)))
        self._go_on(self._plan, self._deploy_again)

    def _on_deploy_failed(self, event: ev.DeployFailed) -> None:
        if self._joins:
            reaction = reactions.to_deployment(event.error, False, event.outage is not None)
            self._join_failed(reaction, f"a replacement could not join: {event.error}", event.error)
            return
        if self._rescaling.handed_over is not None:
            self._rescaling.failed(str(event.error))
            # The TaskManagers of the previous layout need not wait until a loss among the others is noticed.
            ends = reactions.to_batch(event.error) is Reaction.END
            reaction = Reaction.END if ends else Reaction.RETRY
            self._join_failed(reaction, f"the job could not be rescaled: {event.error}", event.error)
            return
        reaction = reactions.to_deployment(event.error, not self._has_run, event.outage is not None)
        if self.phase is Phase.ENDING:
            self._course.end()
        elif reaction is Reaction.END or (event.outage is not None and event.outage.is_over):
            self._course.end_with(event.error)
        elif self.phase is Phase.DRAINING:
            self._deploy_again()
        elif reaction is Reaction.LOST:
            self._course.await_loss(Cause(Why.FAILED, str(event.error)), self._deploy_again, self._deploy_again)
        elif event.outage is not None:
            self._course.cause = Cause(Why.OUTAGE, str(event.error))
            self._restarts.pause(event.outage.pause_s, self._course.now_s)
            self._gather()
        else:
            self._course.cause = Cause(Why.FAILED, str(event.error))
            self._course.log(self._restarts.deploy_failed(str(event.error), self._course.now_s))
            self._deploy_again()

    def _deploy_again(self) -> None:
        """Deploy the same base once more: it stays chosen until every TaskManager is deployed."""
        if self._may_restart():
            self._gather()

    # --- restarts -----------------------------------------------------------------------------------------------------

    def _on_failover_asked(self, event: ev.FailoverAsked) -> None:
        self._give_up(event.cause)

    def _give_up(self, cause: Cause) -> None:
        """Mark the deployment as unusable: restart as soon as the work in flight has ended."""
        if self.phase in (Phase.GATHERING, Phase.CHOOSING, Phase.DRAINING):
            self._course.cause = self._course.cause or cause
        elif self.phase is Phase.WAITING:
            self._course.cause = cause
            self._course.noticed()
        elif not self._course.is_ending and self._course.work is not None:
            self._course.cause = cause
            self._restarts.next_is_free = cause.why is Why.OUTAGE
            self._course.phase = Phase.DRAINING
            self._commands += [ev.Interrupt(), ev.Cancel(self._course.run)]

    def _restart(self) -> None:
        """Go back to the newest checkpoint."""
        if self._absences:
            self._course.log("the rows dropped since the last checkpoint are processed again")
        self._absences.everybody_goes_back()
        self._rescaling.again()
        if not self._may_restart():
            return
        self._course.batch = None
        self._course.log(f"restarting from the last checkpoint: {self._course.cause}")
        self._course.phase = Phase.CHOOSING
        self._commands.append(ev.AskBase(Failover((self._course.cause or UNKNOWN,))))

    def _may_restart(self) -> bool:
        if self._restarts.another():
            return True
        count = f"{self._restarts.count} restarts without a completed checkpoint in between"
        self._exhausted(count, self._course.cause or UNKNOWN)
        return False

    def _on_base_chosen(self, event: ev.BaseChosen) -> None:
        if self.phase is Phase.CHOOSING and self._rescaling.handed_over is not None:
            self._base = event.base
            self._move(event.batch)
        elif self.phase is Phase.CHOOSING:
            self._base = event.base
            self._gather()
        elif self._absences.awaits_base:
            self._base = event.base
            self._absences.base_chosen(event.batch)
            self._look_who_joins()

    def _on_checkpoint_completed(self, event: ev.CheckpointCompleted) -> None:
        self._restarts.checkpoint_completed()
        self._supervision.proved()

    def _go_on(self, following: Callable[[], None], restart: Callable[[], None] | None = None) -> None:
        """Call `following`, the next step, unless the query should end, or has to restart first."""
        if self.phase is Phase.ENDING:
            self._course.end()
        elif self.phase is Phase.DRAINING:
            (restart or self._restart)()
        else:
            following()

    # --- going on without a TaskManager -------------------------------------------------------------------------------

    def _may_leave_out(self) -> bool:
        """True if the job may continue without one more TaskManager."""
        within = self._absences.may_grow(len(self._places.holders))
        return self._on_loss is OnLoss.DROP and self.phase in GOING_ON and within

    def _leave_out(self, process: ProcessId, cause: Cause) -> None:
        """Continue without a TaskManager that was lost."""
        self._absences.add(process.number, cause, self._course.now_s)
        self._course.log(f"{cause}; the job goes on and drops the rows for its subtasks until a replacement joins")
        reason = str(Failover(tuple(self._absences.causes)))
        self._commands.append(ev.LeaveOut(reason, frozenset(self._absences.since_s)))
        self._look_who_joins()

    def _joinable(self) -> Places | None:
        """The places with the replacements in them; None until every replacement serves and the base is known."""
        return self._replaced() if self._absences.base_is_known else None

    def _replaced(self) -> Places | None:
        if not self._absences:
            return None
        return choose(self._supervision.places, self._places, self._supervision.live(), self._follows)

    def _look_who_joins(self) -> None:
        """Ask for the base once replacements serve; end the wait for rows if they can join."""
        if self._replaced() is not None and not self._absences.base_is_asked:
            self._absences.base_is_asked = True
            self._commands.append(ev.AskBase(Failover(tuple(self._absences.causes), joining=())))
        if self.phase is Phase.PLANNING and self._joinable() is not None:
            self._commands.append(ev.Interrupt())

    def _join(self, places: Places) -> None:
        before, self._places = self._places, places
        joining = tuple(each for each, incarnation in places.live.items() if not before.hold(each, incarnation))
        self._joins = True
        self._course.begin(Phase.JOINING, self._deploy(places, Failover(tuple(self._absences.causes), joining)))

    def _joined(self) -> None:
        """Note that the replacements hold their places: no TaskManager is absent any more."""
        self._joins = False
        if self.phase is Phase.JOINING:
            self._absences.clear()
            self._commands.append(ev.AnnounceDeployed(self._course.run, dict(self._places.live)))
        self._go_on(self._plan)

    def _join_failed(self, reaction: Reaction, text: str, error: Exception) -> None:
        self._joins = False
        cause = Cause(Why.FAILED, text)
        if self.phase is Phase.ENDING:
            self._course.end()
        elif reaction is Reaction.END:
            self._course.end_with(error)
        elif self.phase is Phase.DRAINING:
            self._restart()
        elif reaction is Reaction.LOST:
            self._course.await_loss(cause, self._restart, self._restart)
        else:
            self._course.cause = cause
            self._restart()

    def _look_at_absent(self) -> None:
        """Send every TaskManager back to the last checkpoint if one has been missing for too long."""
        if self.phase not in GOING_ON:
            return
        overdue = self._absences.overdue(self._course.now_s)
        if overdue is not None:
            self._give_up(overdue)

    # --- another layout -----------------------------------------------------------------------------------------------

    def _handlers_of_moves(self) -> dict[type[Any], Callable[[Any], None]]:
        return {
            moves.RescaleAsked: self._on_rescale_asked,
            moves.Leaving: self._on_leaving,
            moves.MovesFollow: self._on_moves_follow,
            moves.HandedOver: self._on_handed_over,
            moves.NotHandedOver: self._on_not_handed_over,
        }

    def _on_rescale_asked(self, event: moves.RescaleAsked) -> None:
        if self._course.is_ending:
            self._commands.append(moves.EndMoves(self._places, "the query ends"))
        elif self._rescaling.asked is None:
            self._rescaling.begin(event)
            self._supervision.grow(event.task_managers, self._course.now_s)
            self._start_due()
            self._look_at_moves()
        elif self._rescaling.asked.away:
            self._rescale_waits = event

    def _on_leaving(self, event: moves.Leaving) -> None:
        if not self._course.is_ending and self._supervision.leaves(event, self._course.now_s):
            self._start_due()
            self._look_at_moves()

    def _leave_machines(self) -> None:
        """Begin to move away from machines that are about to be removed. Their standbys have been replaced."""
        asked, leaving = self._rescaling.asked, self._supervision.leaving
        has_to = not leaving.isdisjoint(self._places.holders)
        if asked is None and has_to:
            count, parallelism = len(self._places.holders), self._places.parallelism
            self._rescaling.begin(moves.RescaleAsked(count, parallelism, float("inf"), away=True))
        elif asked is None and leaving:
            self._commands += self._supervision.settle(self._places.holders)
        elif asked is not None and asked.away and not has_to:
            self._end_moves(None)  # the machines about to be removed are empty

    def _look_at_moves(self) -> None:
        """Order the standbys' following as soon as every TaskManager serves; abandon a rescale that takes too long."""
        if self._course.is_ending:
            return
        over = self._rescaling.over(self._course.now_s)
        if over is not None:
            self._supervision.stay()
            self._commands += self._supervision.settle(self._places.holders)
            self._end_moves(over)
        elif self.phase in GOING_ON:
            self._leave_machines()
            supervision = self._supervision
            self._commands += self._rescaling.target(
                self._places, supervision.live(), supervision.staying(), self._follows
            )
            self._hand_over_soon()

    def _on_moves_follow(self, event: moves.MovesFollow) -> None:
        if self._rescaling.follow(event.holders, event.parallelism):
            self._hand_over_soon()

    def _hand_over_soon(self) -> None:
        """End the wait for rows, if the job may hand over."""
        if self.phase is Phase.PLANNING and self._rescaling.is_due(self._supervision.live(), self._course.now_s):
            self._commands.append(ev.Interrupt())

    def _on_not_handed_over(self, event: moves.NotHandedOver) -> None:
        self._rescaling.put_off(event.reason, self._course.now_s)
        self._go_on(self._plan)

    def _on_handed_over(self, event: moves.HandedOver) -> None:
        self._go_on(lambda: self._ask_for_moves(event.batch))

    def _ask_for_moves(self, batch: BatchNumber) -> None:
        """Ask for the base of the new layout. No checkpoint is cut until the new layout is deployed."""
        self._rescaling.handed_over = batch
        self._course.phase = Phase.CHOOSING
        self._commands.append(ev.AskBase(Failover((Cause(Why.RESCALED, "the job is rescaled"),), joining=())))

    def _move(self, base: BatchNumber) -> None:
        """Deploy the new layout. If a TaskManager that should gain subtasks was lost meanwhile, keep the previous
        layout."""
        places, live = self._rescaling.places, self._supervision.live()
        if self._course.cause is not None or not self._places.still_held(live):
            self._restart()
        elif places is None or not places.still_held(live) or base != self._rescaling.handed_over:
            self._rescaling.again()
            self._commands.append(ev.AnnounceDeployed(self._course.run, dict(self._places.live)))
            self._plan()
        else:
            self._course.begin(Phase.RESCALING, self._deploy(places, moving=True))

    def _moved(self) -> None:
        """Adopt the deployed layout, unless a TaskManager of it was lost."""
        places = self._rescaling.places
        if places is None or self.phase is not Phase.RESCALING or not places.still_held(self._supervision.live()):
            text = "a TaskManager was lost while the job was rescaled"
            self._rescaling.failed(text)
            self._course.cause = self._course.cause or Cause(Why.LOST, text)
            self._go_on(self._restart) if self._course.is_ending else self._restart()
            return
        self._places = places
        before = len(self._commands)
        self._commands += self._supervision.settle(places.holders)
        self._end_moves(None)
        ended = self._commands[before:]
        # The next batch is planned first, since the pause ends with it.
        self._commands[before:] = [ev.AnnounceDeployed(self._course.run, dict(places.live), moved=True)]
        self._plan()
        self._commands += ended

    def _end_moves(self, error: str | None) -> None:
        asked, waits, self._rescale_waits = self._rescaling.asked, self._rescale_waits, None
        if asked is not None:
            self._rescaling.end()
            self._commands.append(moves.EndMoves(self._places, error, asked.away))
        if waits is not None:
            self._on_rescale_asked(waits)

    # --- planning and finishing ---------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._course.batch = None
        if self._absences.base_is_too_old:
            text = "broadcast state has changed since the checkpoint from which a replacement would join"
            self._course.cause = Cause(Why.LAGGING, text)
            self._restart()
            return
        places = self._joinable()
        if places is not None:
            self._join(places)
        elif not self._absences and self._rescaling.is_due(self._supervision.live(), self._course.now_s):
            self._course.begin(Phase.HANDING_OVER, moves.HandOver())
        else:
            self._course.begin(Phase.PLANNING, ev.PlanBatch(self.paused_by))

    def _on_sinks_lag(self, event: ev.SinksLag) -> None:
        self.paused_by = event.sinks
        if self.phase is Phase.PLANNING:
            self._commands.append(ev.Interrupt())

    def _on_interrupted(self, event: ev.Interrupted) -> None:
        self._go_on(self._plan)

    def _on_work_failed(self, event: ev.WorkFailed) -> None:
        self._course.end() if self._course.is_ending else self._course.end_with(event.error)

    def _on_end_reached(self, event: ev.EndReached) -> None:
        self._go_on(lambda: self._course.begin(Phase.FINISHING, ev.Finish()))

    def _on_finished(self, event: ev.Finished) -> None:
        self._course.end(complete=True)

    # --- batches ------------------------------------------------------------------------------------------------------

    def _on_batch_planned(self, event: ev.BatchPlanned) -> None:
        self._course.batch, self._attempt = event.batch, 1
        self._go_on(self._run_batch)

    def _run_batch(self) -> None:
        assert self._course.batch is not None
        self._course.begin(Phase.RUNNING, ev.RunBatch(self._course.run, self._course.batch, self._combine))

    def _on_batch_processed(self, event: ev.BatchProcessed) -> None:
        if self.phase is not Phase.RUNNING:
            self._commands.append(ev.Abandon(event.batch))
        self._go_on(lambda: self._course.begin(Phase.COMMITTING, ev.Commit(self._course.run, event.batch)))

    def _on_batch_committed(self, event: ev.BatchCommitted) -> None:
        if event.broadcast:
            self._absences.broadcast_changed(event.batch)
        self._go_on(self._plan)

    def _on_batch_failed(self, event: ev.BatchFailed) -> None:
        self._commands.append(ev.Abandon(event.batch))
        reaction, cause = reactions.to_batch(event.error), Cause(Why.FAILED, str(event.error))
        if self.phase is Phase.ENDING:
            self._course.end()
        elif reaction is Reaction.END:
            self._course.end_with(event.error)
        elif reaction is Reaction.LEAVE:
            self._course.leave(event.error)
        elif self.phase is Phase.DRAINING:
            self._restart()
        elif reaction is Reaction.LOST and self._places.holders:
            self._course.await_loss(cause, self._restart, lambda: self._try_again(event.error, reaction))
        elif event.outage is not None:
            again = (lambda: self._course.leave(event.error)) if event.outage.is_over else self._undo
            self._course.wait(event.outage.pause_s, cause, self._restart, again)
        else:
            self._try_again(event.error, reaction)

    def _try_again(self, error: Exception, reaction: Reaction) -> None:
        """Run the same batch under a new run number, once every TaskManager has undone it."""
        if self._attempt == self._config.batch_attempts:
            self._course.leave(error)
            return
        self._course.log(f"batch {self._course.batch}, attempt {self._attempt}: {error}; trying again")
        self._attempt += 1
        if reaction is Reaction.ROWS:
            self._combine = False
        self._undo()

    def _undo(self) -> None:
        self._course.cause = None
        self._course.begin(Phase.UNDOING, ev.Undo(self._course.next_run()))

    def _on_undone(self, event: ev.Undone) -> None:
        if self.phase is Phase.LEAVING:
            self._course.end()
        else:
            self._go_on(self._run_batch)

    def _on_undo_failed(self, event: ev.UndoFailed) -> None:
        if self.phase is Phase.LEAVING:
            self._course.log(f"the batch in flight could not be undone: {event.error}")
            self._course.end()
        else:
            self._restart_after(f"a batch was not undone: {event.error}", event.error)

    def _on_commit_failed(self, event: ev.CommitFailed) -> None:
        self._commands.append(ev.Abandon(event.batch))
        self._restart_after(f"a commit was not answered: {event.error}", event.error)

    def _restart_after(self, text: str, error: Exception) -> None:
        """Restart because the state that the TaskManagers hold is unknown."""
        reaction, cause = reactions.to_batch(error), Cause(Why.FAILED, text)
        if self.phase in (Phase.ENDING, Phase.DRAINING):
            self._go_on(self._restart)
        elif reaction is Reaction.END:
            self._course.end_with(error)
        elif reaction is Reaction.LOST:
            self._course.await_loss(cause, self._restart, self._restart)
        else:
            self._course.cause = cause
            self._restart()
