"""Calls of checkpoints to TaskManagers, and the figures of each checkpoint under way.

    Cut ──► a call for each TaskManager ──answered──► watched until the checkpoint completes or is given up
              ├─ failed: Declined
              └─ no answer within QUICK_S: reported to the execution machine; it ends the process after `cut_timeout`

Calls to an incarnation go out in order, beside the calls of batches. News (completed, given up) may be lost: the next
checkpoint's news repeats it. News that hangs would hold up the next cut, so it has the cut's time limit. All methods
except `under_way` are called on the control thread.
"""

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from functools import partial

from holdfast import failpoints
from holdfast.checkpoint import events
from holdfast.checkpoint.ahead import StoreAhead
from holdfast.checkpoint.demand import NotifyRefused
from holdfast.checkpoint.events import Event
from holdfast.checkpoint.outcomes import Outcome
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, TaskManagerLost, is_outage
from holdfast.execution.calls import Step
from holdfast.formats.handles import MadeBase
from holdfast.formats.history import CheckpointStats
from holdfast.ids import CheckpointId, Epoch, ProcessId, Role, RunNumber
from holdfast.jobmaster.checkpoints.gathered import CarriedPart
from holdfast.jobmaster.checkpoints.stats import Watch
from holdfast.jobmaster.processes.calls import Round, when_done
from holdfast.jobmaster.processes.taskmanagers import QUICK_S, Lane, TaskManagers
from holdfast.printable import logger
from holdfast.protocol.taskmanager import Acknowledgement, TaskManagerGateway

log = logger(__name__)

LAST_NEWS_S_MAX = 1.0
"""Bound in seconds for which the end of a query waits for calls under way. A TaskManager that misses the news of the
last checkpoint ends with the query anyway."""


@dataclass
class _Calls:
    """The calls of a checkpoint's step to all of its TaskManagers."""

    step: Step
    checkpoint_id: CheckpointId
    began_s: float
    asked: Round
    are_reported: bool = False
    """True once the calls that take long were reported to the execution machine."""


class CheckpointCalls:
    """Makes the calls of checkpoints to TaskManagers. `post` takes the events of declined checkpoints."""

    def __init__(
        self,
        task_managers: TaskManagers,
        clock: Clock,
        epoch: Epoch,
        post: Callable[[Event], None],
    ) -> None:
        self._task_managers = task_managers
        self._clock = clock
        self._epoch = epoch
        self._post = post
        self._watched: dict[int, Watch] = {}
        self._under_way: list[_Calls] = []
        """Calls of which some may have no answer yet, oldest first."""
        self._bases: dict[int, list[MadeBase]] = {}
        self.run = RunNumber(0)
        """The run number whose calls TaskManagers accept."""

    def hand_on(self, task_manager: int, base: object) -> None:
        """Give a TaskManager a table that a follower has stored, with the news of the next completed checkpoint."""
        assert isinstance(base, MadeBase), "as it was offered"
        self._bases.setdefault(task_manager, []).append(base)

    @property
    def under_way(self) -> bool:
        """True while a cut checkpoint has not ended."""
        return bool(self._watched)

    # --- cuts ---------------------------------------------------------------------------------------------------------

    def cut(self, command: events.Cut) -> None:
        failpoints.hit("jobmaster.cut.before")
        addresses = {each.task_manager: each.address for each in self._task_managers.routes()}
        taking_part = {each: addresses.get(each, "") for each in command.task_managers}
        watch = Watch(self._clock.monotonic(), self._clock.now(), command.trigger, command.batch, taking_part)
        self._watched[command.checkpoint_id] = watch
        run, checkpoint_id, batch = self.run, command.checkpoint_id, command.batch
        processes = [ProcessId(Role.TASK_MANAGER, *each) for each in command.task_managers.items()]
        heard = partial(self._cut_answered, checkpoint_id, watch)
        asked = Round(processes, lambda _, gateway: gateway.cut(run, checkpoint_id, batch), heard)
        self._begin(Step.CUT, checkpoint_id, asked)

    def _begin(self, step: Step, checkpoint_id: CheckpointId, asked: Round) -> None:
        self._under_way = [each for each in self._under_way if not each.asked.done.done()]
        self._under_way.append(_Calls(step, checkpoint_id, self._clock.monotonic(), asked))
        self._task_managers.begin(asked, Lane.CHECKPOINTS)

    def _cut_answered(
        self, checkpoint_id: CheckpointId, watch: Watch, process: ProcessId, error: Exception | None
    ) -> None:
        """Called on the thread of the call."""
        if error is None:
            watch.answered(process.number, self._clock.monotonic())
            return
        # The end of a TaskManager is a loss, which has a budget of its own; it is no failure of a checkpoint.
        soft = isinstance(error, TaskManagerLost)
        declined = events.Declined(
            checkpoint_id, process.number, process.incarnation, str(error), soft, is_outage(error)
        )
        self._post(declined)

    def cuts_done(self, promise: "Future[None]") -> None:
        """Complete the promise once all cuts that were ordered before have been answered."""
        when_done(self._answers(Step.CUT), promise)

    def report_slow(self) -> None:
        """Report cuts and news that have no answer yet to the execution machine, each once."""
        now_s = self._clock.monotonic()
        for each in self._under_way:
            if now_s - each.began_s < QUICK_S:
                return
            if not each.are_reported:
                each.are_reported = True
                about = f"checkpoint {each.checkpoint_id}"
                self._task_managers.calls.pending(each.asked, each.step, about, each.began_s)

    def _answers(self, step: Step) -> "list[Future[None]]":
        """Futures of the calls of a step, each kept once all TaskManagers have answered."""
        return [each.asked.done for each in self._under_way if each.step is step]

    # --- ends ---------------------------------------------------------------------------------------------------------

    def acknowledged(self, ack: Acknowledgement) -> None:
        watch = self._watched.get(ack.checkpoint_id)
        if watch is not None:
            watch.acknowledged(ack)

    def parts(self, command: StoreAhead) -> dict[int, CarriedPart]:
        """Return parts that came with the acknowledgements of a checkpoint, keyed by TaskManager."""
        watch = self._watched.get(command.checkpoint_id)
        return {} if watch is None else watch.parts(command.carried_parts)

    def take_parts(self, command: events.StoreAndRecord) -> dict[int, CarriedPart]:
        """Take out the parts that came with the acknowledgements of a checkpoint, keyed by TaskManager."""
        watch = self._watched.get(command.checkpoint_id)
        return {} if watch is None else watch.take_parts(command.carried_parts)

    def completed(self, command: events.NotifyCompleted) -> CheckpointStats:
        """Tell TaskManagers that a checkpoint completed; returns its figures."""
        now_s = self._clock.monotonic()
        watch = self._watched.pop(command.checkpoint_id, None) or Watch(now_s, batch=command.batch)
        outcome, behind = Outcome.COMPLETED, command.position.behind
        stats = watch.ended(command.checkpoint_id, self._epoch, now_s, outcome, command.number, behind=behind)
        run = self.run
        checkpoint_id, parts = command.checkpoint_id, command.parts
        bases, self._bases = self._bases, {}

        def complete(task_manager: int, gateway: TaskManagerGateway) -> None:
            gateway.complete(run, checkpoint_id, parts.get(task_manager, ""), bases.get(task_manager, ()))

        self._tell_all(checkpoint_id, complete)
        return stats

    def aborted(self, command: events.NotifyAborted) -> CheckpointStats:
        """Tell TaskManagers that a checkpoint was given up; returns its figures."""
        watch = self._watched.pop(command.checkpoint_id, None) or Watch(self._clock.monotonic())
        run = self.run
        self._tell_all(command.checkpoint_id, lambda _, gateway: gateway.abort_checkpoint(run, command.checkpoint_id))
        return self._not_completed(watch, command, command.outcome)

    def refused(self, command: NotifyRefused) -> CheckpointStats:
        """Return the figures of a checkpoint that was refused before its cut."""
        watch = Watch(self._clock.monotonic(), self._clock.now(), command.trigger)
        return self._not_completed(watch, command, Outcome.REFUSED)

    def _not_completed(
        self, watch: Watch, command: NotifyRefused | events.NotifyAborted, outcome: Outcome
    ) -> CheckpointStats:
        now_s, (counted, reason) = self._clock.monotonic(), (command.counted, command.reason)
        return watch.ended(command.checkpoint_id, self._epoch, now_s, outcome, counted=counted, reason=reason)

    def _tell_all(self, checkpoint_id: CheckpointId, call: Callable[[int, TaskManagerGateway], None]) -> None:
        self._begin(Step.NEWS, checkpoint_id, Round(self._task_managers.holders(), call, _log_untold))

    def close(self) -> None:
        """Wait a moment for news under way; a call that hangs does not keep the query."""
        wait_for(self._answers(Step.NEWS), LAST_NEWS_S_MAX)


def _log_untold(process: ProcessId, error: Exception | None) -> None:
    """Log why a TaskManager was not informed. The notice of the next checkpoint repeats the news."""
    if isinstance(error, HoldfastError):
        log.info("%s was not told: %s", process.name, error)
    elif error is not None:
        log.error("%s was not told, because the call failed", process.name, exc_info=error)
