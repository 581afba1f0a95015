"""Slots that are counted by waiting tasks, without Spark: executors that come because tasks wait for them."""

import socket
import threading
from contextlib import ExitStack, nullcontext

import pytest

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.errors import JobRefused
from holdfast.graph.build import build_program, without_spark
from holdfast.ids import Role
from holdfast.jobmaster.processes.senders import Senders
from holdfast.ports import ANY, Endpoint
from holdfast.spark import connect_slots
from holdfast.spark.claims import SHARED, senders_that_fit
from holdfast.spark.connect_slots import CountedSlots, Staying, WaitingTasks
from holdfast.testing import TestSource
from waiting import until


class OnDemand:
    """Starts an executor for each task that waits, up to a bound."""

    def __init__(self, slots_max, reached=True):
        self.waiting, self.is_ended = 0, False
        self._slots_max = slots_max
        self._reached = reached

    def address(self):
        return "127.0.0.1"

    def bind_address(self):
        return ""

    def described(self, job):
        return nullcontext()

    def has_ended(self):
        return self.is_ended

    def cancel(self, group):
        raise AssertionError("no task that runs is interrupted")

    def run(self, tasks, body):
        self.waiting = len(tasks)
        answers = []

        def task():
            answers.extend(body(b"") if self._reached else [b"no route to host"])

        threads = [threading.Thread(target=task, daemon=True) for _ in tasks[: self._slots_max]]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        return answers


def on_demand(slots_max, **how):
    host = OnDemand(slots_max, **how)
    return host, CountedSlots(host, Staying(), ANY, on_demand=True)


def test_executors_on_demand_come_for_the_slots_that_are_asked_for_and_for_no_other():
    host, slots = on_demand(slots_max=100)
    assert slots.number() == 0 and host.waiting == 0, "a count would start executors"
    with slots.asking(3):
        until(lambda: slots.number() == 3)
    assert (slots.number(), host.waiting) == (3, 3)


def test_slots_that_do_not_come_are_not_counted(monkeypatch):
    monkeypatch.setattr(connect_slots, "ASKED_S_MAX", 0.2)
    host, slots = on_demand(slots_max=2)
    slots.ask_beside(3)
    until(lambda: slots.number() == 2)
    until(lambda: not slots._lock.locked())
    assert (slots.number(), host.waiting) == (2, 3)


def test_a_process_that_starts_while_slots_are_asked_for_counts_with_them():
    _, slots = on_demand(slots_max=2)
    with slots.asking(2):
        until(lambda: slots.number() == 2)
    with slots._staying.stays("tm", Role.TASK_MANAGER):
        slots.ask_beside(4)
        assert slots.number() >= 2, "slots that were found do not go while others are asked for"
        until(lambda: slots.number() == 3)
        with slots._staying.stays("sender", Role.SENDER):
            assert slots.number() == 3, "it may wait for a slot"
            slots._staying.registered("sender")
            until(lambda: slots.number() == 4)
            until(lambda: not slots._lock.locked())
            assert slots.number() == 4


class InOrder(OnDemand):
    """Gives its slots to processes and tasks in the order of requests."""

    def __init__(self, slots_max):
        super().__init__(slots_max)
        self.processes = 0

    def run(self, tasks, body):
        return super().run(tasks[: max(0, self._slots_max - self.processes)], body)


def enter(processes, slots, roles):
    for name, role in roles.items():
        processes.enter_context(slots._staying.stays(name, role))


def late_after(monkeypatch, task_manager_s, sender_s=100.0):
    late_s = {Role.TASK_MANAGER: task_manager_s, Role.SENDER: sender_s}
    monkeypatch.setattr(connect_slots, "WAITING_S_MAX", late_s)


@pytest.mark.parametrize("waits_long", [False, True])
def test_a_process_that_waits_for_a_slot_is_not_counted_and_one_that_only_starts_is(monkeypatch, waits_long):
    monkeypatch.setattr(connect_slots, "FIRST_BESIDE_S_MAX", 0.3)
    late_after(monkeypatch, 0.0, 0.0 if waits_long else 100.0)
    monkeypatch.setattr(connect_slots, "AGE_S_MAX" if waits_long else "AGE_STAYING_S_MAX", 0.0)
    host = InOrder(slots_max=4)
    slots = CountedSlots(host, Staying(), ANY)
    assert slots.number() == 4
    with ExitStack() as processes:
        enter(processes, slots, {"tm": Role.TASK_MANAGER, "sender": Role.SENDER, "starts": Role.SENDER})
        host.processes = 3
        for name in ("tm", "sender"):
            slots._staying.registered(name)
        first_s = slots._found_s
        until(lambda: slots.number() and slots._found_s > first_s, "another count")
        assert slots._found == 4
        host._slots_max, first_s = 2, slots._found_s
        until(lambda: slots.number() and slots._found_s > first_s + 0.3, "a count without a free slot")
        assert slots._found == (2 if waits_long else 4), "a sender that starts slowly may have its slot"


class Fitting:
    """A cluster with three senders beside two TaskManagers, in slots that are counted."""

    residents = senders = 3
    sender = None
    """No sender serves here."""

    def __init__(self, slots):
        self._slots = slots

    def residents_that_fit(self):
        return senders_that_fit(self._slots.number(), 2, self.residents, SHARED)


def senders_on(slots, told):
    job = hf.Job(None, name="fits", storage="memory://fits")
    job.read(TestSource([], "k BIGINT")).write(hf.NoopSink())
    return Senders(Fitting(slots), build_program(job.declared, without_spark, None), ManualClock(), told.append, 30.0)


def test_senders_that_start_slowly_keep_their_slots_on_demand_and_give_them_up_for_a_task_manager(monkeypatch):
    late_after(monkeypatch, 0.0)
    host, told = InOrder(slots_max=6), []
    slots = CountedSlots(host, Staying(), ANY, on_demand=True)
    staying = senders_on(slots, told)
    with slots.asking(6):
        until(lambda: slots.number() == 6)
    senders = {f"sender {number}": Role.SENDER for number in range(3)}
    with ExitStack() as processes:
        enter(processes, slots, {"first": Role.TASK_MANAGER, "second": Role.TASK_MANAGER} | senders)
        for name in ("first", "second"):
            slots._staying.registered(name)
        assert slots.number() == 6
        staying.make_room(task_managers_missing=False)
        assert not told, "all senders fit"
        enter(processes, slots, {"third": Role.TASK_MANAGER})
        assert slots.number() == 2 + 3, "it waits for a slot"
        staying.make_room(task_managers_missing=True)
        assert [len(event.numbers) for event in told] == [2]
        slots._staying.registered("third")
        host.processes = 6
        slots.ask_beside(6)
        until(lambda: not slots._asked_beside and not slots._lock.locked())
        assert slots.number() == 6
        staying.make_room(task_managers_missing=False)
        assert [len(event.numbers) for event in told] == [2, 3]
        late_after(monkeypatch, 0.0, 0.0)
        enter(processes, slots, {"late": Role.SENDER})
        assert slots.number() == 3 + 3, "no sender waits for ever"


def test_slots_that_tasks_of_a_short_job_hold_are_not_missing(monkeypatch):
    monkeypatch.setattr(connect_slots, "AGE_STAYING_S_MAX", 0.0)
    host = InOrder(slots_max=8)
    slots = CountedSlots(host, Staying(), ANY)
    assert slots.number() == 8

    def counted_again():
        first_s = slots._found_s
        until(lambda: slots.number() and slots._found_s > first_s, "another count")
        until(lambda: not slots._lock.locked())
        return slots._found

    with slots._staying.stays("tm", Role.TASK_MANAGER):
        slots._staying.registered("tm")
        with slots._staying.runs("a short job"):
            host.processes = 1 + 4
            assert counted_again() == 8
        assert counted_again() == 4, "other jobs hold three, which are not known"


def test_a_process_that_spark_was_asked_for_before_the_tasks_of_a_count_ran_counts_with_them(monkeypatch):
    host = InOrder(slots_max=6)
    slots = CountedSlots(host, Staying(), ANY)
    at_once, processes = host.run, ExitStack()

    def run(tasks, body):
        enter(processes, slots, {"tm": Role.TASK_MANAGER, "sender": Role.SENDER})
        host.processes = 2
        return at_once(tasks, body)

    monkeypatch.setattr(host, "run", run)
    with processes:
        assert slots.number() == 6


def test_slots_of_short_jobs_count_while_all_processes_have_theirs(monkeypatch):
    monkeypatch.setattr(connect_slots, "FIRST_BESIDE_S_MAX", 0.1)
    monkeypatch.setattr(connect_slots, "AGE_STAYING_S_MAX", 0.0)
    host = InOrder(slots_max=3)
    slots = CountedSlots(host, Staying(), ANY)
    assert slots.number() == 3
    with slots._staying.stays("tm", Role.TASK_MANAGER), slots._staying.stays("sender", Role.SENDER):
        for name in ("tm", "sender"):
            slots._staying.registered(name)
        host.processes, first_s = 3, slots._found_s
        until(lambda: slots.number() and slots._found_s > first_s, "another count")
        assert slots._found == 3


def test_a_program_that_executors_on_demand_do_not_reach_is_refused():
    _, slots = on_demand(slots_max=2, reached=False)
    with (
        pytest.raises(JobRefused, match=r"do not reach this program at 127.0.0.1 \(no route to host\)"),
        slots.asking(2),
    ):
        until(lambda: slots.number() < 0)


OTHER_PYTHON = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.11"


@pytest.mark.parametrize("is_on_demand", [True, False])
@pytest.mark.parametrize(
    ("failure", "expected", "words"),
    [
        (RuntimeError(OTHER_PYTHON), JobRefused, r"has different version: 3.11.*need the same minor version"),
        (ConnectionError("the session is closed"), ConnectionError, r"^the session is closed$"),
    ],
    ids=["another Python", "another failure"],
)
def test_a_failure_of_the_tasks_that_wait_names_the_remedy_for_python_alone(
    monkeypatch, is_on_demand, failure, expected, words
):
    def run(*_):
        raise failure

    host = OnDemand(slots_max=2)
    monkeypatch.setattr(host, "run", run)
    slots = CountedSlots(host, Staying(), ANY, on_demand=is_on_demand)
    with pytest.raises(expected, match=words), slots.asking(2) if is_on_demand else nullcontext():
        until(lambda: slots.number() < 0)


def test_tasks_that_do_not_reach_the_program_end_no_query_beside_which_they_were_asked_for():
    host, slots = on_demand(slots_max=2, reached=False)
    with slots._staying.stays("tm", Role.TASK_MANAGER):
        slots._staying.registered("tm")
        slots.ask_beside(3)
        until(lambda: slots._asked is not None and slots._asked.answers.done())
        assert slots.number() == 1
        host.is_ended = True
        until(lambda: not slots._asked_beside)


def test_a_larger_request_beside_a_query_takes_the_place_of_a_smaller_one():
    host, slots = on_demand(slots_max=5)
    with slots.asking(1):
        until(lambda: slots.number() == 1)
        slots.ask_beside(2)
        slots.ask_beside(4)
    until(lambda: slots.number() == 4 and not slots._asked_beside)
    assert host.waiting == 4


def test_tasks_are_counted_at_the_address_that_others_see_while_the_program_listens_at_its_own():
    with WaitingTasks(Endpoint("[2001:db8::1]", "127.0.0.1")) as given:
        assert given.address[0] == "2001:db8::1"
        with socket.create_connection(("127.0.0.1", given.address[1])) as task:
            task.sendall(given.word)
            assert given.take(5) and given.count == 1
