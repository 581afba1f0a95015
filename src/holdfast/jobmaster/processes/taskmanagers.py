"""The JobMaster's TaskManagers: calling all of them, and the routes to them.

Code shared with senders (starts, incarnations, registrations, heartbeats, ends) is in `processes`. This module tells
the execution machine which TaskManagers serve, have ended or do not answer, and which calls take long.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait as wait_for
from enum import Enum
from functools import partial
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import StateBroken, TaskManagerLost
from holdfast.execution import events
from holdfast.execution.calls import Step
from holdfast.execution.placement import weak_point
from holdfast.ids import Incarnation, ProcessId, Role
from holdfast.jobmaster.processes.calls import CallReporter, CallThread, Round
from holdfast.jobmaster.processes.cluster import Cluster
from holdfast.jobmaster.processes.processes import HEARTBEAT_TIMEOUT_S, Processes, Serving
from holdfast.protocol.taskmanager import ExchangeRoute, RestoreProgress, TaskManagerGateway
from holdfast.storage.copying import CopiedObject, CopyOrder

REPLACED_S = 5.0
"""Seconds that the replacement for a TaskManager on a departing machine may take to start, before a sender gives up its
slot for it. A higher value keeps more senders if Python starts slowly, and moves the state later."""
QUICK_S = 1.0
"""Seconds within which an answered call is not reported: most calls take milliseconds."""

T = TypeVar("T")
GatewayCall = Callable[[int, TaskManagerGateway], T]


class Lane(Enum):
    """Lane of calls: the calls of a lane to an incarnation go out in turn, and lanes do not wait for each other."""

    BATCHES = "batches"
    CHECKPOINTS = "checkpoints"
    COPIES = "copies"
    FOLLOWING = "following"


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
        self.calls = CallReporter(tell, clock)
        self._tell = tell
        self._threads: dict[tuple[ProcessId, Lane], CallThread] = {}
        self._open: dict[ProcessId, dict[Round, None]] = {}
        """The rounds in which each process has not answered, in the order in which they began."""
        self._deployed: Mapping[int, int] = {}
        self._needed = needed
        self.leave: Callable[[ProcessId], None] = lambda process: None
        """Called for each TaskManager whose machine is about to be removed."""
        self._restores: dict[ProcessId, RestoreProgress] = {}

    # --- facts --------------------------------------------------------------------------------------------------------

    def _now_serves(self, serving: Serving[TaskManagerGateway]) -> None:
        self._tell(events.Registered(serving.process))

    def _is_silent(self, process: ProcessId) -> None:
        self._tell(events.Unreachable(process, f"it was silent for {self._heartbeat_timeout_s:.0f} s", True))

    def _ended(self, process: ProcessId, reason: str) -> None:
        """Fail the unanswered calls of a TaskManager that has ended."""
        with self._changed:
            unanswered = self._open.pop(process, {})
            self._restores.pop(process, None)
            threads = [self._threads.pop((process, lane), None) for lane in Lane]
        for asked in unanswered:
            asked.settle(process, error=TaskManagerLost(f"{process.name} ended: {reason}"))
        for thread in threads:
            if thread is not None:
                thread.end()
        self._tell(events.Lost(process, reason))

    def _now_leaves(self, process: ProcessId, reason: str) -> None:
        self.leave(process)

    def _explained(self, process: ProcessId, reason: str) -> None:
        super()._explained(process, reason)
        self._tell(events.LossExplained(process, reason))

    def restoring(self, progress: RestoreProgress) -> bool:
        """Note the progress of a TaskManager's restore, until it ends. False: the TaskManager is not a current
        incarnation."""
        process = progress.process
        with self._changed:
            self._restores.pop(process, None)
            serving = self._serving.get(process.number)
            if serving is None or serving.process != process:
                return False
            if progress.restored < progress.subtasks:
                self._restores[process] = progress
            return True

    def restores(self) -> list[RestoreProgress]:
        """The restores under way, of the TaskManagers that have reported progress."""
        with self._changed:
            return list(self._restores.values())

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

    def standbys(self) -> list[ProcessId]:
        """The TaskManagers that serve and hold no place; none before the first deployment."""
        with self._changed:
            serving = [self._serving[index].process for index in sorted(self._serving)] if self._deployed else []
            return [each for each in serving if not self._holds_place(each)]

    @property
    def places(self) -> int:
        """Number of places in the layout that is deployed; 0 before the first deployment."""
        return len(self._deployed)

    @property
    def standby(self) -> int:
        """Number of TaskManagers that serve and hold no place."""
        return len(self.routes()) - len(self.deployed())

    @property
    def missing(self) -> bool:
        """True if a place has no serving TaskManager, or if a replacement for one on a departing machine does not
        start."""
        with self._changed:
            waiting = [number for number in self._started if number not in self._serving] if self._leaving else []
            late_s = self._clock.monotonic() - REPLACED_S
            return len(self._serving) < self._needed or any(self._heard_s[number] < late_s for number in waiting)

    def take_dead(self, live: Collection[Incarnation]) -> list[Incarnation]:
        """Return the incarnations that ended since the last call. Those that the caller still counts as `live` are
        returned by a later call."""
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
        self._deployed, self._needed = live, len(live)

    def on_all(self, step: Step, about: str, call: GatewayCall[T]) -> list[T]:
        """Call all TaskManagers that hold places side by side, wait for every answer, and raise the first error.

        The end of a TaskManager counts as its answer, even if the call succeeded.
        """
        processes = [self._serves(index).process for index in sorted(self._deployed)]
        asked = self._ask(processes, step, about, call)
        errors = [asked.errors[each] for each in processes if each in asked.errors]
        if errors:
            raise next((error for error in errors if not isinstance(error, TaskManagerLost)), errors[0])
        return [asked.results[each] for each in processes]

    def on_present(self, step: Step, about: str, call: GatewayCall[T]) -> dict[int, T]:
        """Call all TaskManagers that hold places and serve; return the answers by number. A TaskManager that ends
        before it answers is given up and left out.

        Raises the first error other than `TaskManagerLost`.
        """
        with self._changed:
            serving = [each.process for _, each in sorted(self._serving.items())]
        processes = [each for each in serving if self._holds_place(each)]
        asked = self._ask(processes, step, about, call)
        for each in processes:
            error = asked.errors.get(each)
            if isinstance(error, TaskManagerLost):
                self.give_up(each, str(error))
            elif error is not None:
                raise error
        return {each.number: asked.results[each] for each in processes if each in asked.results}

    def left_out(self, task_manager: int, reason: str) -> None:
        """Give up a TaskManager that another process could not reach: its work does not count any more."""
        with self._changed:
            found = self._serving.get(task_manager)
        if found is not None and self._holds_place(found.process):
            self.give_up(found.process, reason)

    def _holds_place(self, process: ProcessId) -> bool:
        return self._deployed.get(process.number) == process.incarnation

    def _ask(self, processes: Sequence[ProcessId], step: Step, about: str, call: GatewayCall[T]) -> Round:
        """Call processes side by side, and wait for every answer."""
        began_s = self._clock.monotonic()
        asked = self.begin(Round(processes, call), Lane.BATCHES)
        wait_for([asked.done], QUICK_S)
        self.calls.pending(asked, step, about, began_s)
        wait_for([asked.done])
        return asked

    def begin(self, asked: Round, lane: Lane) -> Round:
        """Begin the calls of a round; return the round at once.

        The answer of an incarnation is `TaskManagerLost` if it does not serve, or ends before it answers.
        """
        for process in asked.unanswered:
            self._begin(asked, process, lane)
        return asked

    def copy(self, number: int, order: CopyOrder) -> list[CopiedObject]:
        """Have a TaskManager copy objects, beside its other work. Raises `TaskManagerLost` once it has ended."""
        process, began_s = self._serves(number).process, self._clock.monotonic()
        asked = self.begin(Round([process], lambda _, gateway: gateway.copy(order)), Lane.COPIES)
        self.calls.pending(asked, Step.COPY, f"the savepoint {order.target}", began_s)
        wait_for([asked.done])
        if process in asked.errors:
            raise asked.errors[process]
        copies: list[CopiedObject] = asked.results[process]
        return copies

    def _begin(self, asked: Round, process: ProcessId, lane: Lane) -> None:
        """Begin a call on the incarnation's own thread: a call that never returns does not delay calls to others."""
        with self._changed:
            serving = self._serving.get(process.number)
            if serving is not None and serving.process == process and self._takes_calls(process, lane):
                self._open.setdefault(process, {})[asked] = None
                thread = self._threads.get((process, lane))
                if thread is None:
                    name = f"holdfast-{lane.value}-{process.number}"
                    thread = self._threads[process, lane] = CallThread(name, partial(self._call, lane))
                thread.submit(asked, serving)
                return
        reason = self._reasons.get(process.number, "has ended, or was started anew")
        asked.settle(process, error=TaskManagerLost(f"{process.name}: {reason}"))

    def _takes_calls(self, process: ProcessId, lane: Lane) -> bool:
        """False once the query ends. Calls of batches go only to TaskManagers that hold places."""
        return not self._stopping and (lane is not Lane.BATCHES or self._holds_place(process))

    def _call(self, lane: Lane, asked: Round, serving: Serving[TaskManagerGateway]) -> None:
        process = serving.process
        try:
            result = asked.call(process.number, serving.gateway)
        except TaskManagerLost as error:
            if isinstance(error, StateBroken):
                self._tell(events.Unreachable(process, str(error), True))
            elif lane is Lane.BATCHES:
                self._tell(events.Unreachable(process, f"it does not answer: {error}"))
            asked.settle(process, error=error)
        except Exception as error:
            asked.settle(process, error=error)
        else:
            asked.settle(process, result)
        with self._changed:
            self._open.get(process, {}).pop(asked, None)

    def stop(self) -> None:
        super().stop()
        with self._changed:
            threads, self._threads = self._threads, {}
            unanswered = [(process, asked) for process, rounds in self._open.items() for asked in rounds]
        for process, asked in unanswered:
            asked.settle(process, error=TaskManagerLost("the query ends"))
        for thread in threads.values():
            thread.end()
