"""Deployments and restarts: which checkpoint everybody goes to, when, and how often.

    GATHERING ──all places held──► DEPLOYING ──Deployed──► `_plan`
     ▲     ▲                            │
     │     └────────DeployFailed────────┘
     │BaseChosen
    CHOOSING ◄─restart─┬─ DRAINING   a process was lost or a failover asked for: the work in flight is to end first
                       └─ WAITING    a process did not answer: its loss is to be noticed first

Invariants: a restart waits for the end of the work in flight; restarts without a completed checkpoint in between are
bounded, and the base stays chosen until everything was deployed.
Does not own: the life of processes (`supervision.py`), batches.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from holdfast.execution import events as ev
from holdfast.execution import reactions
from holdfast.execution.course import Course
from holdfast.execution.failover import UNKNOWN, Cause, Failover, Why
from holdfast.execution.phases import Phase, Work
from holdfast.execution.places import Places, choose
from holdfast.execution.reactions import Reaction
from holdfast.execution.restarts import Restarts
from holdfast.execution.supervision import Supervision
from holdfast.ids import JournalNumber
from holdfast.settings import FailoverConfig, OnLoss


class Deployments(Course, ABC):
    """The course of a job with its deployments: the deployed base, and the reasons to deploy again."""

    def __init__(self, config: FailoverConfig, on_loss: OnLoss) -> None:
        super().__init__()
        self._on_loss = on_loss
        self._base: JournalNumber | None = None
        self._places = Places()
        self._joins = False
        """True while a deployment concerns replacements alone."""
        self._restarts = Restarts(config)
        self._supervision = Supervision(config)

    @abstractmethod
    def _plan(self) -> None:
        """Go on with the next batch."""

    @abstractmethod
    def _joined(self) -> None:
        """Go on after replacements were deployed."""

    @abstractmethod
    def _join_failed(self, event: ev.DeployFailed) -> None:
        """Go on after replacements were not deployed."""

    @abstractmethod
    def _drop_base_chosen(self, event: ev.BaseChosen) -> None:
        """Note the base of replacements that are still to come."""

    # --- deployment ---------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Deploy as soon as a TaskManager serves for each place."""
        self.phase = Phase.GATHERING
        self._commands += self._supervision.start_due(self._now_s)
        self._deploy_if_complete()

    def _deploy_if_complete(self) -> None:
        if self.phase is not Phase.GATHERING or self._now_s < self._restarts.not_before_s:
            return
        places = choose(self._supervision.places, self._places, self._supervision.live())
        if places is None:
            return
        self._places = places
        cause, self._cause = self._cause if self._has_run else None, None
        failover = None if cause is None else Failover((cause,))
        rewind = self._on_loss is not OnLoss.RESTART
        deploy = ev.Deploy(self._next_run(), self._base, dict(places.live), places.holders, failover, rewind)
        self._begin(Phase.DEPLOYING, deploy)

    def _on_deployed(self, event: ev.Deployed) -> None:
        if not self._is_over(Work.DEPLOY, event.run):
            return
        if self._joins:
            self._joined()
            return
        if self.phase is Phase.DEPLOYING:
            self._restarts.deployed()
            self._has_run = True
            self._commands.append(ev.AnnounceDeployed(self._run, dict(self._places.live)))
        self._go_on(self._plan, self._deploy_again)

    def _on_deploy_failed(self, event: ev.DeployFailed) -> None:
        if not self._is_over(Work.DEPLOY, event.run):
            return
        if self._joins:
            self._join_failed(event)
            return
        reaction = reactions.to_deployment(event.error, not self._has_run, event.outage is not None)
        if self.phase is Phase.ENDING:
            self._end()
        elif reaction is Reaction.END or (event.outage is not None and event.outage.is_over):
            self._end_with(event.error)
        elif self.phase is Phase.DRAINING:
            self._deploy_again()
        elif reaction is Reaction.LOST:
            self._await_loss(Cause(Why.FAILED, str(event.error)), self._deploy_again, self._deploy_again)
        elif event.outage is not None:
            self._cause = Cause(Why.OUTAGE, str(event.error))
            self._restarts.pause(event.outage.pause_s, self._now_s)
            self._gather()
        else:
            self._cause = Cause(Why.FAILED, str(event.error))
            self._log(self._restarts.deploy_failed(str(event.error), self._now_s))
            self._deploy_again()

    def _deploy_again(self) -> None:
        """The same base once more: it stays chosen until everything was deployed."""
        if self._may_restart():
            self._gather()

    # --- restarts -----------------------------------------------------------------------------------------------------

    def _on_failover_asked(self, event: ev.FailoverAsked) -> None:
        self._give_up(event.cause)

    def _give_up(self, cause: Cause) -> None:
        """Mark the deployment as no longer good: restart, once the work in flight has ended."""
        if self.phase in (Phase.GATHERING, Phase.CHOOSING, Phase.DRAINING):
            self._cause = self._cause or cause
        elif self.phase is Phase.WAITING:
            self._cause = cause
            self._noticed()
        elif not self._is_ending and self._work is not None:
            self._cause = cause
            self._restarts.next_is_free = cause.why is Why.OUTAGE
            self.phase = Phase.DRAINING
            self._commands += [ev.Interrupt(), ev.Cancel(self._run)]

    def _restart(self) -> None:
        """Back to the newest checkpoint."""
        if not self._may_restart():
            return
        self._batch = None
        self._log(f"restarting from the last checkpoint: {self._cause}")
        self.phase = Phase.CHOOSING
        self._commands.append(ev.AskBase(Failover((self._cause or UNKNOWN,))))

    def _may_restart(self) -> bool:
        if self._restarts.another():
            return True
        count = f"{self._restarts.count} restarts without a completed checkpoint in between"
        self._exhausted(count, self._cause or UNKNOWN)
        return False

    def _on_base_chosen(self, event: ev.BaseChosen) -> None:
        if self.phase is Phase.CHOOSING:
            self._base = event.base
            self._gather()
        else:
            self._drop_base_chosen(event)

    def _on_checkpoint_completed(self, event: ev.CheckpointCompleted) -> None:
        self._restarts.checkpoint_completed()
        self._supervision.proved()

    def _go_on(self, following: Callable[[], None], restart: Callable[[], None] | None = None) -> None:
        """Call `following`, the next step, unless the query is to end, or has to restart first."""
        if self.phase is Phase.ENDING:
            self._end()
        elif self.phase is Phase.DRAINING:
            (restart or self._restart)()
        else:
            following()
