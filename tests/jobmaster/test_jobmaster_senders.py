"""Senders as the JobMaster runs them: orders side by side, slots given up for a TaskManager, and taken again."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.exchange.resident import Order
from holdfast.exchange.task import LevelRequest, UnitResult
from holdfast.execution import events
from holdfast.graph.build import build_program
from holdfast.graph.plan import Unit
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.processes.cluster import LevelRun, ProcessStarter
from holdfast.jobmaster.processes.senders import WAITS_S_MAX, Senders
from holdfast.protocol.taskmanager import ExchangeRoutes, Registration
from holdfast.storage.counted import Requests
from waiting import until

WAIT_S_MAX = 10.0


class Answering:
    """A sender that reports every unit at once."""

    def run(self, order: Order) -> Iterator[UnitResult]:
        for unit in order.units:
            yield UnitResult(unit.unit, unit.leg, "attempt", rows=1, requests={"storePuts": 1})

    def cancel(self, attempt: int) -> None:
        pass


class Slots:
    """A cluster with so many slots for senders; who is started registers by hand."""

    heartbeats = True
    residents = senders = 2

    def __init__(self) -> None:
        self.fit = 2
        self.started: list[ProcessStarter] = []
        self.ended: list[ProcessId] = []
        self.in_spark: list[list[int]] = []

    def start(self, start: ProcessStarter) -> None:
        self.started.append(start)

    def end(self, process: ProcessId) -> None:
        self.ended.append(process)

    def sender(self, process: ProcessId, address: str) -> Answering:
        return Answering()

    def residents_that_fit(self) -> int:
        return self.fit

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        self.in_spark.append([unit.unit for unit in run.units])
        return [UnitResult(unit.unit, unit.leg, "spark", requests={"storePuts": 10}) for unit in run.units]


class Starter:
    """The machine's part: senders that are wanted and not there are started, each under a new incarnation."""

    def __init__(self) -> None:
        self.senders: Senders | None = None
        self._wanted = frozenset[int]()
        self._there: dict[int, ProcessId] = {}
        self._incarnation = 0

    def tell(self, event: events.Event) -> None:
        if isinstance(event, events.Lost) and self._there.get(event.process.number) == event.process:
            del self._there[event.process.number]
        if isinstance(event, events.SendersStay):
            self._wanted = event.numbers
        for number in self._wanted - self._there.keys():
            self._incarnation += 1
            self._there[number] = ProcessId(Role.SENDER, number, self._incarnation)
            assert self.senders is not None
            threading.Thread(target=self.senders.start, args=(self._there[number],)).start()


def level(units: int) -> LevelRun:
    request = LevelRequest("job", 1, 1, 1, 0)
    return LevelRun(request, [Unit(number, 0) for number in range(units)], ExchangeRoutes("job", [], [], 8), "push")


def senders_on(
    cluster: Any,
    regions: hf.RegionConfig | None = None,
    clock: ManualClock | None = None,
    told: list[events.Event] | None = None,
    keyed: bool = False,
    requests: Callable[[Requests], None] = lambda requests: None,
) -> Senders:
    """Senders that are started; `told` is given all that the machine hears of them."""
    job = hf.Job(None, name="senders", storage="memory://senders")
    numbers = job.read(hf.SequenceSource(8)).map_batches(lambda batch: batch, pa.schema([("value", pa.int64())]))
    rows = numbers.key_by("value").aggregate(n=hf.count()) if keyed else numbers
    rows.write(hf.NoopSink())
    program = build_program(job.declared, lambda fn, schema: schema, None)
    starter = Starter()

    def tell(event: events.Event) -> None:
        if told is not None:
            told.append(event)
        starter.tell(event)

    starter.senders = Senders(cluster, program, clock or ManualClock(), tell, 30.0, regions, requests)
    starter.tell(events.SendersStay(frozenset(range(cluster.residents))))
    until(lambda: len(cluster.started) == cluster.residents, "the start of all senders")
    return starter.senders


def register(senders: Senders, cluster: Slots, *numbers: int) -> None:
    for number in numbers:
        newest = [each.process for each in cluster.started if each.process.number == number][-1]
        assert senders.register(Registration(newest, f"grpc://here:{number}", f"{newest}"))


def test_a_sender_gives_its_slot_up_for_a_task_manager_and_is_started_again_when_there_is_room():
    cluster = Slots()
    senders = senders_on(cluster)
    register(senders, cluster, 0, 1)
    cluster.fit = 0
    senders.make_room(task_managers_missing=False)
    assert not cluster.ended, "nobody needs a slot"
    senders.make_room(task_managers_missing=True)
    until(lambda: sorted(process.number for process in cluster.ended) == [0, 1])
    results = senders.run_level(level(3))
    assert cluster.in_spark == [[0, 1, 2]]
    assert [result.attempt for result in results] == ["spark"] * 3
    cluster.fit = 2
    senders.make_room(task_managers_missing=False)
    until(lambda: len(cluster.started) == 4)
    register(senders, cluster, 0, 1)
    assert [result.attempt for result in senders.run_level(level(3))] == ["attempt"] * 3
    assert len(cluster.in_spark) == 1


def lose(cluster: Slots, number: int) -> None:
    """End the newest sender of that number, as its executor would by its own end."""
    newest = [each for each in cluster.started if each.process.number == number][-1]
    newest.ended(newest.process, "its executor was lost")


def test_units_do_not_wait_for_senders_that_get_no_slots():
    cluster, found = Slots(), list[UnitResult]()
    senders = senders_on(cluster)
    register(senders, cluster, 0, 1)
    lose(cluster, 0)
    lose(cluster, 1)
    running = threading.Thread(target=lambda: found.extend(senders.run_level(level(3))), daemon=True)
    running.start()
    until(lambda: senders._level is not None)
    senders.make_room(task_managers_missing=False)
    assert not cluster.in_spark, "two senders fit, and are being started"
    cluster.fit = 0
    senders.make_room(task_managers_missing=False)
    running.join(WAIT_S_MAX)
    assert [result.attempt for result in found] == ["spark"] * 3


def test_a_short_job_that_gets_no_slot_takes_that_of_a_sender():
    cluster, clock, told, go = Slots(), ManualClock(), list[events.Event](), threading.Event()
    at_once = cluster.run_level

    def once_there_is_a_slot(run: LevelRun) -> list[UnitResult]:
        assert go.wait(WAIT_S_MAX), "the batch stands still"
        return at_once(run)

    cluster.run_level = once_there_is_a_slot  # type: ignore[method-assign]
    senders = senders_on(cluster, clock=clock, told=told)
    register(senders, cluster, 0, 1)
    for start in list(cluster.started):
        start.leaving(start.process, "its node is decommissioned")
    until(lambda: len(cluster.started) == 4)
    running = threading.Thread(target=senders.run_level, args=(level(3),), daemon=True)
    running.start()
    until(lambda: senders._in_spark_s == clock.monotonic(), "the units go as a short Spark job")
    register(senders, cluster, 1)
    cluster.fit = 0
    clock.advance(WAITS_S_MAX / 2)
    senders.make_room(task_managers_missing=False)
    assert len(cluster.ended) == 2, "most short jobs end soon"
    clock.advance(WAITS_S_MAX)
    senders.make_room(task_managers_missing=False)
    until(lambda: cluster.ended[-1].incarnation > 2, "the sender that took the last slot ends")
    assert told[-1] == events.Lost(cluster.ended[-1], "fewer senders are to stay", is_excused=True)
    go.set()
    running.join(WAIT_S_MAX)
    assert cluster.in_spark == [[0, 1, 2]]


def test_a_sender_that_takes_long_to_start_is_not_wanted_any_more_where_it_has_no_slot(
    caplog: pytest.LogCaptureFixture,
):
    cluster, clock, told = Slots(), ManualClock(), list[events.Event]()
    caplog.set_level(logging.INFO)
    senders = senders_on(cluster, clock=clock, told=told)
    register(senders, cluster, 0, 1)
    lose(cluster, 0)
    cluster.fit = 1
    senders.make_room(task_managers_missing=False)
    clock.advance(WAITS_S_MAX + 0.1)
    assert not [event for event in told if isinstance(event, events.SendersStay)], "it may just be starting"
    senders.make_room(task_managers_missing=False)
    assert told[-1] == events.SendersStay(frozenset({1}))
    cluster.fit = 2
    senders.make_room(task_managers_missing=False)
    assert told[-1] == events.SendersStay(frozenset({0, 1}))
    levels = [each.levelno for each in caplog.records if "beside all TaskManagers and one slot for" in each.message]
    assert levels == [logging.WARNING, logging.INFO]


def test_a_run_that_was_cancelled_is_not_waited_for():
    cluster = Slots()
    cluster.cancel = lambda run: None  # type: ignore[attr-defined]
    senders = senders_on(cluster)
    errors: list[Exception] = []

    def run() -> None:
        try:
            senders.run_level(level(2))
        except hf.errors.TaskManagerLost as error:
            errors.append(error)

    waiting = threading.Thread(target=run)
    waiting.start()
    until(lambda: senders._level is not None)
    senders.cancel(1)
    waiting.join(WAIT_S_MAX)
    assert [str(error) for error in errors] == ["run 1 was cancelled"]


def test_the_requests_of_all_units_are_told_wherever_they_ran():
    cluster, told = Slots(), Counter[str]()
    senders = senders_on(cluster, requests=told.update)
    register(senders, cluster, 0, 1)
    senders.run_level(level(3))
    assert told == {"storePuts": 3}
    cluster.fit = 0
    senders.make_room(task_managers_missing=True)
    until(lambda: len(cluster.ended) == 2)
    senders.run_level(level(2))
    assert told == {"storePuts": 3 + 2 * 10}


class Held(Answering):
    """A sender that reports the unit 1 once the test lets it."""

    def __init__(self, go: threading.Event) -> None:
        self._go = go

    def run(self, order: Order) -> Iterator[UnitResult]:
        assert order.units[0].unit != 1 or self._go.wait(WAIT_S_MAX)
        return super().run(order)


def test_the_machine_hears_who_is_at_work_where_a_level_takes_long():
    cluster, go, clock, told = Slots(), threading.Event(), ManualClock(), []
    cluster.sender = lambda process, address: Held(go)  # type: ignore[method-assign, assignment, return-value]
    senders = senders_on(cluster, clock=clock, told=told)
    register(senders, cluster, 0, 1)
    running = threading.Thread(target=senders.run_level, args=(level(2),))
    running.start()
    until(lambda: senders._level is not None and list(senders._level.results) == [0])
    for _ in range(3):
        assert not [event for event in told if isinstance(event, events.AtWork)], "most levels take milliseconds"
        clock.advance(0.4)
        senders.check_heartbeats()
    clock.advance(2.0)
    senders.check_heartbeats()
    go.set()
    running.join(WAIT_S_MAX)
    [hung] = [each.process for each in cluster.started if each.process.number == 1]
    assert [event for event in told if isinstance(event, events.AtWork)] == [events.AtWork((hung,))]


class Dying(Answering):
    """A sender that ends with its order; the cluster says why, perhaps after the answer broke off."""

    def __init__(self, cluster: Slots, process: ProcessId, is_noticed: bool) -> None:
        self._cluster, self._process, self._is_noticed = cluster, process, is_noticed

    def run(self, order: Order) -> Iterator[UnitResult]:
        if self._is_noticed:
            [start] = [each for each in self._cluster.started if each.process == self._process]
            threading.Timer(0.05, start.ended, (self._process, "the kernel ended it")).start()
        raise hf.errors.SenderLost("stream removed")


@pytest.mark.parametrize(("is_noticed", "reason"), [(True, "the kernel ended it"), (False, "stream removed")])
def test_the_cluster_says_why_a_sender_ended_rather_than_the_answer_that_broke_off(is_noticed: bool, reason: str):
    cluster, told = Slots(), []

    def sender(process: ProcessId, address: str) -> Answering:
        return Dying(cluster, process, is_noticed) if process.incarnation <= 2 else Answering()

    cluster.sender = sender  # type: ignore[method-assign]
    senders = senders_on(cluster, told=told)
    register(senders, cluster, 0)
    running = threading.Thread(target=senders.run_level, args=(level(1),), daemon=True)
    running.start()
    until(lambda: any(isinstance(event, events.Lost) for event in told))
    assert [event.reason for event in told if isinstance(event, events.Lost)] == [reason]
    until(lambda: len(cluster.started) == 3)
    register(senders, cluster, 0)
    running.join(WAIT_S_MAX)
    assert not running.is_alive(), "another one takes the unit"


class Together(Answering):
    """A sender that takes an order once another sender is given its order as well."""

    def __init__(self, called: threading.Barrier) -> None:
        self._called = called

    def run(self, order: Order) -> Iterator[UnitResult]:
        self._called.wait(WAIT_S_MAX)
        return super().run(order)


def test_an_order_that_is_not_taken_does_not_keep_the_others_waiting():
    cluster, called = Slots(), threading.Barrier(2)
    cluster.sender = lambda process, address: Together(called)  # type: ignore[method-assign, assignment, return-value]
    senders = senders_on(cluster)
    register(senders, cluster, 0, 1)
    assert [result.unit for result in senders.run_level(level(2))] == [0, 1]
    assert not called.broken


class Broken(Answering):
    """A sender that ends, or hangs, once an order has the unit 1."""

    def __init__(self, hangs: bool) -> None:
        self._hangs = hangs
        self._given_up = threading.Event()

    def run(self, order: Order) -> Iterator[UnitResult]:
        for unit in order.units:
            if unit.unit == 1:
                self._given_up.wait(WAIT_S_MAX if self._hangs else 0.0)
                raise hf.errors.SenderLost("connection reset")
            yield UnitResult(unit.unit, unit.leg, "attempt", rows=1)

    def split(self, attempt: int) -> str:
        return "7"


def worked_off(senders: Senders, cluster: Slots, clock: ManualClock, tick_s: float) -> list[UnitResult]:
    """Run a level of four units, while senders that end are started again."""
    register(senders, cluster, 0, 1)
    found: list[UnitResult] = []
    running = threading.Thread(target=lambda: found.extend(senders.run_level(level(4))))
    running.start()
    while running.is_alive():
        clock.advance(tick_s)
        senders.check_heartbeats()
        for number in range(2):
            newest = [each.process for each in cluster.started if each.process.number == number][-1]
            senders.register(Registration(newest, f"grpc://here:{number}", f"{newest}"))
        running.join(0.01)
    return found


def test_where_splits_are_no_regions_the_units_of_a_sender_that_ends_go_to_another():
    cluster, made = Slots(), iter([Broken(hangs=False), Broken(hangs=False)])
    cluster.sender = lambda *place: next(made, Answering())  # type: ignore[method-assign]
    clock = ManualClock()
    senders = senders_on(cluster, hf.RegionConfig(), clock, keyed=True)
    found = worked_off(senders, cluster, clock, 0.0)
    assert [(result.unit, result.failure) for result in found] == [(0, None), (1, None), (2, None), (3, None)]


@pytest.mark.parametrize(("hangs", "failure"), [(False, ("SenderLost", "")), (True, ("SenderHung", "7"))])
def test_with_regions_a_sender_that_ends_or_hangs_fails_its_unit_alone(hangs: bool, failure: tuple[str, str]):
    cluster = Slots()
    cluster.sender = lambda process, address: Broken(hangs)  # type: ignore[method-assign, assignment, return-value]
    clock, told = ManualClock(), []
    senders = senders_on(cluster, hf.RegionConfig(unit_timeout="10s"), clock, told)
    found = worked_off(senders, cluster, clock, 6.0 if hangs else 0.0)
    failed = [result for result in found if result.failure is not None]
    assert [result.unit for result in found] == [0, 1, 2, 3]
    assert [(each.unit, each.failure.kind, each.failure.split) for each in failed if each.failure] == [(1, *failure)]
    until(lambda: any(isinstance(event, events.Lost) and event.is_excused for event in told))
