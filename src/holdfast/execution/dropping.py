"""Batches that go on while a TaskManager is missing (`on_loss="drop"`), and the replacement that joins.

    a loss ──within the limits──► left out: batches and checkpoints go on without it
       │                     a replacement serves ─► AskBase, goes on ──BaseChosen──► at the next batch boundary
       │                                                                             JOINING ──Deployed──► `_plan`
       └─past a limit, or a further loss while a replacement joins──► a restart, in which everybody goes back

Invariants: nobody joins within a batch. Only the replacement is deployed, from a base that stays the newest checkpoint
meanwhile. A TaskManager is missing for a bounded time. Nobody joins from a base before a batch that changed broadcast
state: the replacement would know less of it than the others, so everybody goes back instead. Does not own: which rows
are dropped, and their count.
"""

from abc import ABC

from holdfast.execution import events as ev
from holdfast.execution import reactions
from holdfast.execution.deployments import Deployments
from holdfast.execution.failover import Cause, Failover, Why
from holdfast.execution.phases import Phase
from holdfast.execution.places import Places, choose
from holdfast.execution.reactions import Reaction
from holdfast.ids import ProcessId
from holdfast.settings import FailoverConfig, OnLoss

GOING_ON = (Phase.PLANNING, Phase.RUNNING, Phase.COMMITTING, Phase.UNDOING, Phase.FINISHING)
"""The phases in which a TaskManager may be left out."""


class Dropping(Deployments, ABC):
    """Deployments with TaskManagers that are left out for a while."""

    def __init__(self, config: FailoverConfig, on_loss: OnLoss) -> None:
        super().__init__(config, on_loss)
        self._config = config
        self._absent: dict[int, float] = {}
        """TaskManagers whose places nobody holds, and the time since when."""
        self._causes: list[Cause] = []
        self._base_is_asked = self._base_is_known = False
        self._base_batch = -1
        self._broadcast_batch = -1
        """The last committed batch that changed broadcast state, since everybody went back."""

    def _may_leave_out(self) -> bool:
        """True if the job may go on without a further TaskManager."""
        missing, places = len(self._absent) + 1, len(self._places.holders)
        within = missing < places and missing <= places * self._config.drop_ratio_max
        return self._on_loss is OnLoss.DROP and self.phase in GOING_ON and within

    def _leave_out(self, process: ProcessId, cause: Cause) -> None:
        """Go on without a TaskManager that was lost."""
        is_first = not self._absent
        self._absent[process.number] = self._now_s
        self._causes = [cause] if is_first else [*self._causes, cause]
        self._log(f"{cause}; the job goes on and drops the rows for its subtasks until a replacement joins")
        self._commands.append(ev.LeaveOut(str(Failover(tuple(self._causes))), frozenset(self._absent)))
        if is_first:
            self._base_is_asked = self._base_is_known = False
        self._look_who_joins()

    def _drop_base_chosen(self, event: ev.BaseChosen) -> None:
        if self._absent and self._base_is_asked and not self._base_is_known:
            self._base, self._base_batch, self._base_is_known = event.base, event.batch, True
            self._look_who_joins()

    def _joinable(self) -> Places | None:
        """The places with the replacements in them, once everybody is there, and the base is known."""
        return self._replaced() if self._base_is_known else None

    def _replaced(self) -> Places | None:
        if not self._absent:
            return None
        return choose(self._supervision.places, self._places, self._supervision.live())

    def _look_who_joins(self) -> None:
        """Ask for the base once replacements serve; end the wait for rows if they can join."""
        if self._replaced() is not None and not self._base_is_asked:
            self._base_is_asked = True
            self._commands.append(ev.AskBase(Failover(tuple(self._causes), joining=())))
        if self.phase is Phase.PLANNING and self._joinable() is not None:
            self._commands.append(ev.Interrupt())

    def _base_is_too_old(self) -> bool:
        """True if a replacement that joins from the base would lack broadcast state that the others have."""
        return bool(self._absent) and self._base_is_known and self._broadcast_batch > self._base_batch

    def _join(self, places: Places) -> None:
        before, self._places = self._places, places
        joining = tuple(each for each, incarnation in places.live.items() if not before.hold(each, incarnation))
        self._joins = True
        failover = Failover(tuple(self._causes), joining)
        deploy = ev.Deploy(self._next_run(), self._base, dict(places.live), places.holders, failover)
        self._begin(Phase.JOINING, deploy)

    def _joined(self) -> None:
        """The replacement holds its place: nobody is absent any more."""
        self._joins = False
        if self.phase is Phase.JOINING:
            self._absent.clear()
            self._commands.append(ev.AnnounceDeployed(self._run, dict(self._places.live)))
        self._go_on(self._plan)

    def _join_failed(self, event: ev.DeployFailed) -> None:
        self._joins = False
        reaction = reactions.to_deployment(event.error, False, event.outage is not None)
        cause = Cause(Why.FAILED, f"a replacement could not join: {event.error}")
        if self.phase is Phase.ENDING:
            self._end()
        elif reaction is Reaction.END:
            self._end_with(event.error)
        elif self.phase is Phase.DRAINING:
            self._restart()
        elif reaction is Reaction.LOST:
            self._await_loss(cause, self._restart, self._restart)
        else:
            self._cause = cause
            self._restart()

    def _look_at_absent(self) -> None:
        """A TaskManager that is missing for too long has everybody go back to the last checkpoint."""
        if self.phase not in GOING_ON:
            return
        for number, since_s in self._absent.items():
            if self._now_s - since_s > self._config.drop_timeout_s:
                limit = f"drop_timeout={self._config.drop_timeout!r}"
                self._give_up(Cause(Why.MISSING, f"TaskManager {number} was missing for longer than {limit}"))
                return

    def _restart(self) -> None:
        if self._absent:
            self._log("the rows dropped since the last checkpoint are processed again")
        self._absent.clear()
        self._broadcast_batch = -1
        super()._restart()
