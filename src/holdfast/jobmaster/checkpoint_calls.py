"""Calls of checkpoints to TaskManagers, and the figures of each checkpoint under way.

    Cut ──► a call for each TaskManager ──answered──► watched until the checkpoint completes or is given up
              ├─ failed: Declined
              └─ no answer within QUICK_S: the execution machine knows, and ends the process after `cut_timeout`

Calls to an incarnation go out in order, beside the calls of batches. News (completed, given up) may be lost: the next
checkpoint's news repeats it. News that hangs would hold up the next cut, so it has the cut's limit. Methods are called
on the control thread, but for `under_way`.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast import failpoints
from holdfast.checkpoint import events
from holdfast.checkpoint.demand import NotifyRefused
from holdfast.checkpoint.events import Event
from holdfast.checkpoint.outcomes import Outcome
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, TaskManagerLost
from holdfast.execution.calls import Step
from holdfast.formats.history import CheckpointStats
from holdfast.ids import CheckpointId, Epoch, ProcessId, Role, RunNumber
from holdfast.jobmaster.checkpoint_stats import Watch
from holdfast.jobmaster.taskmanagers import QUICK_S, TaskManagers
from holdfast.jobmaster.waiters import when_done
from holdfast.protocol.taskmanager import Acknowledgement, TaskManagerGateway

log = logging.getLogger(__name__)

LAST_NEWS_S_MAX = 1.0
"""Bound in seconds on the wait of a query's end for calls under way; a TaskManager that misses the news of the last
checkpoint ends with the query anyway."""


@dataclass(frozen=True)
class _Call:
    """A call to a single TaskManager about a checkpoint."""

    step: Step
    checkpoint_id: CheckpointId
    process: ProcessId
    began_s: float
    answer: "Future[Any]"


class CheckpointCalls:
    """Tells TaskManagers of checkpoints. `post` takes what they decline."""

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
        self._cuts: list[Future[None]] = []
        self._quick: deque[_Call] = deque()
        """Calls that were made a moment ago, oldest first."""
        self._news: list[Future[Any]] = []
        self.run = RunNumber(0)
        """The run whose calls TaskManagers take."""

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
        self._cuts = [each for each in self._cuts if not each.done()]
        for task_manager, incarnation in command.task_managers.items():
            self._cut_one(command, ProcessId(Role.TASK_MANAGER, task_manager, incarnation), watch)

    def _cut_one(self, command: events.Cut, process: ProcessId, watch: Watch) -> None:
        checkpoint_id, run, batch = command.checkpoint_id, self.run, command.batch
        answer = self._task_managers.order(process, lambda gateway: gateway.cut(run, checkpoint_id, batch))
        self._cuts.append(answer)
        self._quick.append(_Call(Step.CUT, checkpoint_id, process, time.monotonic(), answer))
        answer.add_done_callback(partial(self._cut_answered, command, process, watch))

    def _cut_answered(self, command: events.Cut, process: ProcessId, watch: Watch, answer: "Future[Any]") -> None:
        """Called on the thread of the call."""
        error = answer.exception()
        if error is not None:
            incarnation = process.incarnation
            # The end of a TaskManager is a loss, which has a budget of its own, and no failure of checkpoints.
            soft = isinstance(error, TaskManagerLost)
            self._post(events.Declined(command.checkpoint_id, process.number, incarnation, str(error), soft))
            return
        watch.answered(process.number, self._clock.monotonic())

    def cuts_done(self, promise: "Future[None]") -> None:
        """Keep the promise once the cuts ordered so far are answered."""
        when_done(self._cuts, promise)

    def report_slow(self) -> None:
        """Report cuts and news that have no answer yet to the execution machine, each once."""
        now_s = time.monotonic()
        while self._quick and now_s - self._quick[0].began_s >= QUICK_S:
            call = self._quick.popleft()
            if not call.answer.done():
                about = f"checkpoint {call.checkpoint_id}"
                self._task_managers.calls.pending(call.answer, call.step, about, call.began_s, call.process)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def acknowledged(self, ack: Acknowledgement) -> None:
        watch = self._watched.get(ack.checkpoint_id)
        if watch is not None:
            watch.acknowledged(ack)

    def completed(self, command: events.NotifyCompleted) -> CheckpointStats:
        """Tell TaskManagers that a checkpoint completed; returns its figures."""
        now_s = self._clock.monotonic()
        watch = self._watched.pop(command.checkpoint_id, None) or Watch(now_s, batch=command.batch)
        outcome, behind = Outcome.COMPLETED, command.position.behind
        stats = watch.ended(command.checkpoint_id, self._epoch, now_s, outcome, command.number, behind=behind)
        run = self.run
        self._tell_all(command.checkpoint_id, lambda gateway: gateway.complete(run, command.checkpoint_id))
        return stats

    def aborted(self, command: events.NotifyAborted) -> CheckpointStats:
        """Tell TaskManagers that a checkpoint was given up; returns its figures."""
        watch = self._watched.pop(command.checkpoint_id, None) or Watch(self._clock.monotonic())
        run = self.run
        self._tell_all(command.checkpoint_id, lambda gateway: gateway.abort_checkpoint(run, command.checkpoint_id))
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

    def _tell_all(self, checkpoint_id: CheckpointId, call: Callable[[TaskManagerGateway], None]) -> None:
        self._news = [each for each in self._news if not each.done()]
        began_s = time.monotonic()
        for process in self._task_managers.holders():
            told = self._task_managers.order(process, call)
            self._quick.append(_Call(Step.NEWS, checkpoint_id, process, began_s, told))
            told.add_done_callback(partial(_log_untold, process))
            self._news.append(told)

    def close(self) -> None:
        """Wait a moment for news under way; a call that hangs does not keep the query."""
        wait_for(self._news, LAST_NEWS_S_MAX)


def _log_untold(process: ProcessId, told: "Future[Any]") -> None:
    error = told.exception()
    if isinstance(error, HoldfastError):
        log.info("%s was not told: %s", process.name, error)
