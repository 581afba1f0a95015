"""Slots that are counted by waiting tasks, without Spark: executors that come because tasks wait for them."""

import socket
import threading
from contextlib import ExitStack, nullcontext

import pytest

from holdfast.errors import JobRefused
from holdfast.ports import ANY, Endpoint
from holdfast.spark import connect_slots
from holdfast.spark.connect_slots import CountedSlots, Staying, WaitingTasks
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
    with slots._staying.stays("tm"):
        slots.ask_beside(4)
        assert slots.number() >= 2, "slots that were found do not go while others are asked for"
        until(lambda: slots.number() == 3)
        with slots._staying.stays("sender"):
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


@pytest.mark.parametrize("waits_long", [False, True])
def test_a_process_that_waits_for_a_slot_is_not_counted_and_one_that_only_starts_is(monkeypatch, waits_long):
    monkeypatch.setattr(connect_slots, "FIRST_BESIDE_S_MAX", 0.3)
    monkeypatch.setattr(connect_slots, "WAITING_S_MAX", 0.0 if waits_long else 100.0)
    monkeypatch.setattr(connect_slots, "AGE_S_MAX" if waits_long else "AGE_STAYING_S_MAX", 0.0)
    host = InOrder(slots_max=4)
    slots = CountedSlots(host, Staying(), ANY)
    assert slots.number() == 4
    with ExitStack() as processes:
        for name in ("tm", "sender", "starts"):
            processes.enter_context(slots._staying.stays(name))
        host.processes = 3
        for name in ("tm", "sender"):
            slots._staying.registered(name)
        first_s = slots._found_s
        until(lambda: slots.number() and slots._found_s > first_s, "another count")
        assert slots._found == 4
        host._slots_max = 2
        until(lambda: slots.number() == 2, "one of three waits")


def test_a_process_that_spark_was_asked_for_before_the_tasks_of_a_count_ran_counts_with_them(monkeypatch):
    host = InOrder(slots_max=6)
    slots = CountedSlots(host, Staying(), ANY)
    at_once, processes = host.run, ExitStack()

    def run(tasks, body):
        for name in ("tm", "sender"):
            processes.enter_context(slots._staying.stays(name))
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
    with slots._staying.stays("tm"), slots._staying.stays("sender"):
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
    with slots._staying.stays("tm"):
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
