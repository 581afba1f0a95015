"""The JobMaster's TaskManagers: calling all of them, and the routes to them.

Code shared with senders (starts, incarnations, registrations, heartbeats, ends) is in `processes`. This module tells
the execution machine which TaskManagers serve, have ended or do not answer, and which calls take long.
"""

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.errors import TaskManagerLost
from holdfast.execution import events
from holdfast.execution.calls import Step
from holdfast.execution.placement import weak_point
from holdfast.ids import Incarnation, ProcessId, Role
from holdfast.jobmaster.calls import CallReporter, CallThread
from holdfast.jobmaster.cluster import Cluster
from holdfast.jobmaster.processes import HEARTBEAT_TIMEOUT_S, Processes, Serving
from holdfast.protocol.taskmanager import ExchangeRoute, TaskManagerGateway
from holdfast.storage.copying import CopiedObject, CopyOrder

QUICK_S = 1.0
"""Seconds within which an answered call is not reported: most calls take milliseconds."""

T = TypeVar("T")
Answer = Future[Any]
Call = Callable[[int, TaskManagerGateway], T]


class Lane(Enum):
    """Calls of a lane to an incarnation go out in turn; the lanes do not wait for each other."""

    BATCHES = "batches"
    CHECKPOINTS = "checkpoints"
    COPIES = "copies"


class TaskManagers(Processes[TaskManagerGateway]):
    """The job's TaskManagers. Thread-safe. `tell` takes each fact once, from any thread."""

    def __init__(
        self,
        cluster: Cluster,
        count: int,
        needed: int,
        clock: Clock,
        tell: Callable[[events.Event], None],
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        def connect(process: ProcessId, address: str) -> TaskManagerGateway:
            return cluster.gateway(ExchangeRoute(process.number, process.incarnation, address))

        super().__init__(Role.TASK_MANAGER, count, cluster, clock, connect, self._ended, heartbeat_timeout_s)
        self.calls = CallReporter(tell)
        self._tell = tell
        self._threads: dict[tuple[ProcessId, Lane], CallThread] = {}
        self._open: dict[ProcessId, dict[Answer, None]] = {}
        """Unanswered calls of each process, in the order in which they began."""
        self._deployed: Mapping[int, int] = {}
        self._needed = needed

    # --- facts --------------------------------------------------------------------------------------------------------

    def _now_serves(self, serving: Serving[TaskManagerGateway]) -> None:
        self._tell(events.Registered(serving.process))

    def _is_silent(self, process: ProcessId) -> None:
        self._tell(events.Unreachable(process, f"it was silent for {self._heartbeat_timeout_s:.0f} s", True))

    def _ended(self, process: ProcessId, reason: str) -> None:
        """Fail the unanswered calls of a TaskManager that has ended."""
        with self._changed:
            unanswered = self._open.pop(process, {})
            threads = [self._threads.pop((process, lane), None) for lane in Lane]
        for answer in unanswered:
            _settle(answer, error=TaskManagerLost(f"{process.name} ended: {reason}"))
        for thread in threads:
            if thread is not None:
                thread.end()
        self._tell(events.Lost(process, reason))

    def _explained(self, process: ProcessId, reason: str) -> None:
        super()._explained(process, reason)
        self._tell(events.LossExplained(process, reason))

    # --- who serves ---------------------------------------------------------------------------------------------------

    def routes(self) -> list[ExchangeRoute]:
        """Routes of the TaskManagers that serve, by number, standbys too."""
        with self._changed:
            serving = [self._serving[index] for index in sorted(self._serving)]
            return [ExchangeRoute(each.process.number, each.process.incarnation, each.address) for each in serving]

    def deployed(self) -> list[ExchangeRoute]:
        """Routes of the TaskManagers that hold places and serve."""
        return [each for each in self.routes() if self._deployed.get(each.task_manager) == each.incarnation]

    def holders(self) -> list[ProcessId]:
        """The TaskManagers that hold places and serve."""
        return [ProcessId(Role.TASK_MANAGER, each.task_manager, each.incarnation) for each in self.deployed()]

    def weak_point(self) -> str | None:
        """Name the executor whose loss standbys could not make up for."""
        with self._changed:
            serving = list(self._serving.values())
        holders = {each.process.number: each.executor for each in serving if self._holds_place(each.process)}
        standbys = {each.process.number: each.executor for each in serving if not self._holds_place(each.process)}
        return weak_point(holders, standbys)

    @property
    def standby(self) -> int:
        """Number of TaskManagers that serve and hold no place."""
        return len(self.routes()) - len(self.deployed())

    @property
    def missing(self) -> bool:
        """True if a place has no TaskManager that serves."""
        return len(self._serving) < self._needed

    def take_dead(self, live: Collection[Incarnation]) -> list[Incarnation]:
        """Incarnations that ended since the last call. Those that the caller still takes for `live` come next time."""
        with self._changed:
            dead = [process.incarnation for process in self._dead if process.incarnation not in live]
            self._dead = [process for process in self._dead if process.incarnation in live]
            return dead

    def gateway(self, task_manager: int) -> TaskManagerGateway:
        """Gateway of a TaskManager. Raises `TaskManagerLost` if it does not serve."""
        return self._serves(task_manager).gateway

    def _serves(self, task_manager: int) -> Serving[TaskManagerGateway]:
        with self._changed:
            found = self._serving.get(task_manager)
            if found is None:
                reason = self._reasons.get(task_manager, "does not serve")
                raise TaskManagerLost(f"TaskManager {task_manager}: {reason}")
            return found

    # --- calls --------------------------------------------------------------------------------------------------------

    def deploying(self, live: Mapping[int, Incarnation]) -> None:
        """Direct calls to these incarnations from now on, by number: any other incarnation has no state, and counts as
        lost or as standby."""
        self._deployed = live

    def on_all(self, step: Step, about: str, call: Call[T]) -> list[T]:
        """Call all that hold places side by side, wait for every answer, raise the first error.

        The end of a TaskManager counts as its answer, even if the call succeeded.
        """
        serving = [self._serves(index) for index in sorted(self._deployed)]
        answers = self._ask(serving, step, about, call)
        errors = [error for error in (answer.exception() for answer in answers) if error is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, TaskManagerLost)), errors[0])
        return [answer.result() for answer in answers]

    def on_present(self, step: Step, about: str, call: Callable[[int, TaskManagerGateway], T]) -> dict[int, T]:
        """Call all that hold places and serve; the answers by number. Who does not answer is given up and left out.

        Raises the first error other than `TaskManagerLost`.
        """
        with self._changed:
            serving = [each for _, each in sorted(self._serving.items()) if self._holds_place(each.process)]
        answers = self._ask(serving, step, about, call)
        found: dict[int, T] = {}
        for each, answer in zip(serving, answers, strict=True):
            error = answer.exception()
            if error is None:
                found[each.process.number] = answer.result()
            elif isinstance(error, TaskManagerLost):
                self.give_up(each.process, str(error))
            else:
                raise error
        return found

    def left_out(self, task_manager: int, reason: str) -> None:
        """Give up a TaskManager that somebody could not reach: nothing that it still does counts."""
        with self._changed:
            found = self._serving.get(task_manager)
        if found is not None and self._holds_place(found.process):
            self.give_up(found.process, reason)

    def _holds_place(self, process: ProcessId) -> bool:
        return self._deployed.get(process.number) == process.incarnation

    def _ask(
        self,
        serving: list[Serving[TaskManagerGateway]],
        step: Step,
        about: str,
        call: Callable[[int, TaskManagerGateway], T],
    ) -> list[Answer]:
        """Call them side by side, and wait for every answer."""
        began_s = time.monotonic()
        answers = [self._begin(each, call) for each in serving]
        wait_for(answers, QUICK_S)
        for each, answer in zip(serving, answers, strict=True):
            if not answer.done():
                self.calls.pending(answer, step, about, began_s, each.process)
        wait_for(answers)
        return answers

    def order(self, process: ProcessId, call: Callable[[TaskManagerGateway], None]) -> Answer:
        """Begin a call of a checkpoint to that incarnation; return at once.

        The answer is an error if the incarnation does not serve, ends before it answers, or refuses.
        """
        with self._changed:
            serving = self._serving.get(process.number)
        if serving is None or serving.process != process:
            answer: Answer = Future()
            answer.set_exception(TaskManagerLost(f"{process.name}: {self._reasons.get(process.number, 'has ended')}"))
            return answer
        return self._begin(serving, lambda _, gateway: call(gateway), Lane.CHECKPOINTS)

    def copy(self, number: int, order: CopyOrder) -> list[CopiedObject]:
        """Have a TaskManager copy objects, beside its other work. Raises `TaskManagerLost` once it has ended."""
        serving, began_s = self._serves(number), time.monotonic()
        answer = self._begin(serving, lambda _, gateway: gateway.copy(order), Lane.COPIES)
        self.calls.pending(answer, Step.COPY, f"the savepoint {order.target}", began_s, serving.process)
        copies: list[CopiedObject] = answer.result()
        return copies

    def _begin(self, serving: Serving[TaskManagerGateway], call: Call[T], lane: Lane = Lane.BATCHES) -> Answer:
        """Begin a call on the incarnation's own thread: a call that never returns does not delay calls to others."""
        answer: Answer = Future()
        process = serving.process
        with self._changed:
            lives = self._serving.get(process.number) is serving and not self._stopping
            lives = lives and (lane is not Lane.BATCHES or self._deployed.get(process.number) == process.incarnation)
            if lives:
                self._open.setdefault(process, {})[answer] = None
                thread = self._threads.get((process, lane))
                if thread is None:
                    thread = self._threads[process, lane] = CallThread(f"holdfast-{lane.value}-{process.number}")
                thread.submit(partial(self._call, serving, call, answer, lane))
        if not lives:
            _settle(answer, error=TaskManagerLost(f"{process.name} has ended, or was started anew"))
        return answer

    def _call(self, serving: Serving[TaskManagerGateway], call: Call[T], answer: Answer, lane: Lane) -> None:
        try:
            result = call(serving.process.number, serving.gateway)
        except TaskManagerLost as error:
            if lane is Lane.BATCHES:
                self._tell(events.Unreachable(serving.process, f"it does not answer: {error}"))
            _settle(answer, error=error)
        except Exception as error:
            _settle(answer, error=error)
        else:
            _settle(answer, result)
        with self._changed:
            self._open.get(serving.process, {}).pop(answer, None)

    def stop(self) -> None:
        super().stop()
        with self._changed:
            threads, self._threads = self._threads, {}
            unanswered = [answer for answers in self._open.values() for answer in answers]
        for answer in unanswered:
            _settle(answer, error=TaskManagerLost("the query ends"))
        for thread in threads.values():
            thread.end()


def _settle(answer: Answer, result: object = None, error: Exception | None = None) -> None:
    """Settle an answer, unless it is settled already."""
    with suppress(InvalidStateError):
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
