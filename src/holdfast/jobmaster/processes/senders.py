"""Execution of units: in long-running senders, and as short Spark jobs if a leg needs Spark.

    run_level ──► rules (`execution.units`) ──Give──► a call ──► a reader of its answer ──UnitReported──► rules …

This module calls senders and waits for them. The rules assign units and count reports; the execution machine decides
when a sender is started again. Code shared with TaskManagers (incarnations, registrations, heartbeats, ends) is in
`processes`.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, SenderHung, SenderLost, StaleCall, TaskManagerLost
from holdfast.exchange.resident import Order, OrderCommon, SenderGateway
from holdfast.exchange.task import UnitResult
from holdfast.execution import events
from holdfast.execution import unit_events as rules
from holdfast.execution.units import Units
from holdfast.failure import Failure
from holdfast.graph.plan import Unit
from holdfast.graph.program import Program, SourceOrigin
from holdfast.graph.regions import regions_of
from holdfast.ids import ProcessId, Role, RunNumber
from holdfast.jobmaster.processes.cluster import Cluster, LevelRun
from holdfast.jobmaster.processes.processes import Processes, Serving
from holdfast.jobmaster.processes.readers import READERS_MIN, Readers
from holdfast.jobmaster.processes.taskmanagers import QUICK_S
from holdfast.printable import logger
from holdfast.settings import RegionConfig
from holdfast.storage.copying import CopiedObject, CopyOrder
from holdfast.storage.counted import Requests

log = logger(__name__)

WAITS_S_MAX = 5.0
"""Seconds that a sender or a short Spark job may take, until the job looks whether Spark has a slot for it. A higher
value lets units wait longer for a slot that does not come; a lower one looks more often while Python starts slowly."""
BROKEN_S_MAX = 0.3
"""Seconds for which the cluster may take to report why a sender has ended, after its answer broke off. With a higher
value, the units of an unreachable sender go to another sender later."""


@dataclass
class _Level:
    """A running level, which the batch loop's thread waits for."""

    run: LevelRun
    units: dict[int, Unit]
    common: msgspec.Raw
    """The part that all orders of the level share, encoded once."""
    look_s: float
    """Time of the next look at the senders at work."""
    at_work: tuple[ProcessId, ...] = ()
    """The senders that were last reported to the machine as being at work."""
    results: dict[int, UnitResult] = field(default_factory=dict)
    in_spark: list[Unit] = field(default_factory=list)
    """Units that senders cannot run, and a short Spark job must."""
    done: bool = False
    failure: Exception | None = None


class Senders(Processes[SenderGateway]):
    """The job's senders. Thread-safe. Without long-running senders (`cluster.residents` is 0), all units go as short
    Spark jobs."""

    def __init__(
        self,
        cluster: Cluster,
        program: Program,
        clock: Clock,
        tell: Callable[[events.Event], None],
        heartbeat_timeout_s: float,
        regions: RegionConfig | None = None,
        requests: Callable[[Requests], None] = lambda requests: None,
    ) -> None:
        count = cluster.residents
        self._regions = regions
        """Limits of units whose splits are regions; None: no unit fails without the others."""
        self._regional_sources = () if regions is None else regions_of(program).by_split
        super().__init__(Role.SENDER, count, cluster, clock, cluster.sender, self._lost, heartbeat_timeout_s)
        self._program = program
        self._tell_machine = tell
        self._requests = requests
        """Takes the requests to stores that senders have made."""
        self._lock = threading.Lock()
        self._reported = threading.Condition(self._lock)
        self._units = Units(count)
        self._level: _Level | None = None
        self._cancelled_run = 0
        self._complete_s = clock.monotonic()
        """The last time at which all senders that are to stay served."""
        self._in_spark_s = math.inf
        """Time at which the short Spark job that runs began."""
        self._excused: set[ProcessId] = set()
        """Senders whose loss does not count: a unit caused it, or their machine was announced to be removed."""
        self._readers = Readers(count)
        self._orders: deque[tuple[ProcessId, SenderGateway, Order]] = deque()
        """Orders that are given and whose calls have not begun."""

    @property
    def side_by_side(self) -> int:
        """The greatest number of units of a level that run at the same time."""
        return self._cluster.senders

    # --- levels -------------------------------------------------------------------------------------------------------

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        """Run the units of a level; return their outcomes, in unit order.

        Raises
        ------
        SenderLost
            Senders kept ending while they worked on a unit.
        TaskManagerLost
            The run was cancelled.
        """
        if run.request.run <= self._cancelled_run:
            raise _cancelled(run)
        in_python = [unit for unit in run.units if unit.leg in self._program.python_legs]
        if not self._cluster.residents or not in_python:
            return self._in_spark(run)
        common = msgspec.Raw(msgspec.msgpack.encode(OrderCommon(run.request, run.routes)))
        level = _Level(run, {unit.unit: unit for unit in in_python}, common, self._clock.monotonic() + QUICK_S)
        self._begin(level)
        try:
            others = [unit for unit in run.units if unit.unit not in level.units]
            results = self._in_spark(replace(run, units=others)) if others else []
            results += self._await(level)
        finally:
            self._leave(level)
        return sorted(results, key=lambda result: result.unit)

    def copy(self, number: int, order: CopyOrder) -> list[CopiedObject]:
        """Have a sender copy objects, beside its units. Raises `SenderLost` if it does not serve, or ends meanwhile."""
        with self._changed:
            serving = self._serving.get(number)
        if serving is None:
            raise SenderLost(f"sender {number} does not serve")
        return serving.gateway.copy(order)

    def cancel(self, run: RunNumber) -> None:
        """End a run: nobody waits for its units any more. Any thread may call this."""
        with self._lock:
            self._cancelled_run = max(self._cancelled_run, run)
            level = self._level
            if level is not None and level.run.request.run <= run:
                self._fail(level, _cancelled(level.run))
        self._cluster.cancel(run)

    def _begin(self, level: _Level) -> None:
        with self._lock:
            if level.run.request.run <= self._cancelled_run:
                raise _cancelled(level.run)
            self._level = level
            limit_s = math.inf if self._regions is None else self._regions.unit_s_max
            self._handle(rules.LevelBegun(tuple(level.units), self._isolated(level), limit_s))

    def _isolated(self, level: _Level) -> frozenset[int]:
        """Return the units whose splits are regions."""
        origins = {number: self._program.legs[unit.leg].origin for number, unit in level.units.items()}
        return frozenset(
            number
            for number, origin in origins.items()
            if isinstance(origin, SourceOrigin) and origin.source in self._regional_sources
        )

    def _await(self, level: _Level) -> Iterator[UnitResult]:
        with self._lock:
            while not level.done and level.failure is None:
                self._reported.wait()
            if level.failure is not None:
                raise level.failure
        if level.in_spark:
            yield from self._in_spark(replace(level.run, units=level.in_spark))
        yield from level.results.values()

    def _in_spark(self, run: LevelRun) -> list[UnitResult]:
        self._in_spark_s = self._clock.monotonic()
        try:
            results = self._cluster.run_level(run)
        finally:
            self._in_spark_s = math.inf
        for result in results:
            self._requests(result.requests)
        return results

    def _leave(self, level: _Level) -> None:
        with self._lock:
            if self._level is level:
                self._level = None
                self._handle(rules.LevelLeft(self._clock.monotonic()))

    def _fail(self, level: _Level, error: Exception) -> None:
        level.failure = level.failure or error
        self._reported.notify_all()

    # --- reports of senders -------------------------------------------------------------------------------------------

    def _answer(self, sender: ProcessId, order: Order, answer: Iterator[UnitResult]) -> None:
        """Take the reports of an order as they come. The last report ends the order."""
        missing = {unit.unit for unit in order.units}
        try:
            for result in answer:
                self._requests(result.requests)
                missing.discard(result.unit)
                self._tell(rules.UnitReported(sender, order.attempt, result.unit, not missing), result)
        except StaleCall:
            self._tell(rules.AnswerEnded(sender, order.attempt))
        except HoldfastError as error:
            self._call(self._broke, sender, order.attempt, str(error))
        else:
            if missing:
                self._tell(rules.AnswerEnded(sender, order.attempt))

    def _broke(self, sender: ProcessId, attempt: int, reason: str) -> None:
        """Take an answer that broke off. Mostly the sender has died, and the cluster reports the reason a moment
        later."""
        with self._changed:
            has_ended = self._changed.wait_for(lambda: self._started.get(sender.number) != sender, BROKEN_S_MAX)
        if not has_ended:
            self._tell(rules.AnswerBroke(sender, attempt, reason))

    def _tell(self, event: rules.Event, result: UnitResult | None = None) -> None:
        with self._lock:
            self._handle(event, result)

    def _now_serves(self, serving: Serving[SenderGateway]) -> None:
        self._tell_machine(events.Registered(serving.process))
        self._tell(rules.SenderServes(serving.process))

    def _lost(self, sender: ProcessId, reason: str) -> None:
        self._tell(rules.SenderEnded(sender, reason))
        with self._lock:
            is_excused = sender in self._excused or sender.number not in self._units.wanted
            self._excused.discard(sender)
        self._tell_machine(events.Lost(sender, reason, is_excused))

    def _now_leaves(self, process: ProcessId, reason: str) -> None:
        with self._lock:
            self._excused.add(process)
        self._tell(rules.SenderLeaves(process, reason))

    def _is_silent(self, process: ProcessId) -> None:
        """Give up a silent sender at once: its units go to another sender while it is being ended."""
        self.give_up(process, "it is silent")

    def check_heartbeats(self) -> None:
        super().check_heartbeats()
        self._tell(rules.UnitsTick(self._clock.monotonic()))
        self._tell_who_is_at_work()
        self._readers.look()

    def _tell_who_is_at_work(self) -> None:
        """Tell the machine which senders work on a level that takes long, so that the log can name a sender that
        hangs."""
        with self._lock:
            level, now_s = self._level, self._clock.monotonic()
            if level is None or now_s < level.look_s:
                return
            level.look_s = now_s + QUICK_S
            if level.at_work != self._units.at_work:
                level.at_work = self._units.at_work
                self._tell_machine(events.AtWork(level.at_work))

    @property
    def serving(self) -> int:
        """Number of senders that take units."""
        with self._lock:
            return self._units.serving

    def want(self, count: int) -> None:
        """Have so many senders stay from now on; those past the count are ended."""
        self._tell(rules.SendersWanted(count))

    def make_room(self, task_managers_missing: bool) -> None:
        """End senders to free slots for another query that wants them, or for a TaskManager or a short Spark job
        without a slot while executors are missing; start them again once each of these has its slots."""
        allowed, count = self._cluster.residents, self._units.count
        if count > allowed:
            log.info("%d of %d senders stay, since another query needs slots", allowed, count)
            self._tell(rules.SendersWanted(allowed))
            return
        units_wait = self._units_may_wait()
        if not allowed or not (task_managers_missing or units_wait or count < allowed):
            return
        fit = self._cluster.residents_that_fit()
        if fit < count or (fit > count and not task_managers_missing):
            self._tell(rules.SendersWanted(fit))
            if self._units.count != count:
                text = (
                    "beside all TaskManagers and one slot for short Spark jobs, %d senders have slots; %d stayed before"
                )
                (log.warning if fit < count else log.info)(text, fit, count)

    def _units_may_wait(self) -> bool:
        """True if no sender serves, or if a sender or a short Spark job takes long: perhaps it waits for a slot."""
        now_s, serving, count = self._clock.monotonic(), self.serving, self._units.count
        if serving >= count:
            self._complete_s = now_s
        return serving == 0 < count or now_s - min(self._complete_s, self._in_spark_s) > WAITS_S_MAX

    # --- commands of the rules ----------------------------------------------------------------------------------------

    def _handle(self, event: rules.Event, result: UnitResult | None = None) -> None:
        """Handle an event; the lock is held. Calls to other processes are made on threads of their own."""
        for command in self._units.handle(event):
            if isinstance(command, rules.AcceptOutcome):
                assert self._level is not None and result is not None
                self._level.results[command.unit] = result
            else:
                self._execute(command)

    def _execute(self, command: rules.Command) -> None:
        level = self._level
        match command:
            case rules.Give(sender, attempt, units):
                self._give(sender, attempt, units)
            case rules.CancelOrder(sender, attempt):
                self._call(self._cancel, sender, attempt)
            case rules.UnitFailed(sender, unit, reason, split) if level is not None:
                self._excused.add(sender)
                kind = SenderLost if split is None else SenderHung
                failure = Failure(kind.__name__, reason, split or "")
                level.results[unit] = UnitResult(unit, level.units[unit].leg, "", failure=failure)
            case rules.AskForSplit(sender, attempt, unit):
                self._call(self._ask_for_split, sender, attempt, unit)
            case rules.GiveUp(sender, reason):
                self._call(self.give_up, sender, reason)
            case rules.StartSenders(numbers):
                self._readers.allow(len(numbers))
                self._tell_machine(events.SendersStay(numbers))
            case rules.RunInSpark(units) if level is not None:
                level.in_spark += [level.units[unit] for unit in units]
            case rules.LevelDone() if level is not None:
                level.done = True
                self._reported.notify_all()
            case rules.LevelFailed(reason) if level is not None:
                self._fail(level, SenderLost(reason))

    def _give(self, sender: ProcessId, attempt: int, units: tuple[int, ...]) -> None:
        level, serving = self._level, self._serving.get(sender.number)
        if level is None or serving is None or serving.process != sender:
            self._call(self._tell, rules.AnswerBroke(sender, attempt, "it has ended"))
            return
        order = Order(level.common, attempt, [level.units[unit] for unit in units])
        self._orders.append((sender, serving.gateway, order))
        if len(self._orders) <= READERS_MIN:
            self._readers.read(self._begin_orders)

    def _begin_orders(self) -> None:
        """Begin the calls of all given orders; readers read their answers later.

        Several readers do so side by side, since the call to a sender that hangs does not return.
        """
        while True:
            with self._lock:
                if not self._orders:
                    return
                sender, gateway, order = self._orders.popleft()
            try:
                answer = gateway.run(order)
            except HoldfastError as error:
                self._call(self._broke, sender, order.attempt, str(error))
            else:
                self._readers.read(partial(self._answer, sender, order, answer))

    def _cancel(self, sender: ProcessId, attempt: int) -> None:
        serving = self._serving.get(sender.number)
        if serving is not None and serving.process == sender:
            try:
                serving.gateway.cancel(attempt)
            except HoldfastError as error:
                log.info("%s was not told to end attempt %d: %s", sender.name, attempt, error)

    def _ask_for_split(self, sender: ProcessId, attempt: int, unit: int) -> None:
        serving = self._serving.get(sender.number)
        split = ""
        if serving is not None and serving.process == sender:
            try:
                split = serving.gateway.split(attempt)
            except HoldfastError as error:
                log.info("%s did not say which split it reads: %s", sender.name, error)
        self._tell(rules.SplitTold(sender, attempt, unit, split))

    def stop(self) -> None:
        super().stop()
        self._readers.close()

    def _call(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Make a call on a thread of its own, since a process that hangs may keep the call for any time."""
        if not self._stopping:
            threading.Thread(target=call, args=arguments, name="holdfast-senders", daemon=True).start()


def _cancelled(run: LevelRun) -> Exception:
    return TaskManagerLost(f"run {run.request.run} was cancelled")
