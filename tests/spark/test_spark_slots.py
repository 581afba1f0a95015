"""Waiting for slots: executors that are on their way, and those that come only when they are asked for."""

import contextlib
from typing import ClassVar

import pytest
from host_kit import NamedHost

from holdfast.spark import slots as waiting
from holdfast.spark.classic_host import ClassicHost
from waiting import until


class Elsewhere(NamedHost):
    """A host that says `numbers` of slots at each look, the last number for good."""

    numbers: ClassVar[list[int]] = []

    def slots(self) -> int:
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(waiting, "_POLL_S", 0.001)
    monkeypatch.setattr(Elsewhere, "numbers", [])
    return Elsewhere.numbers


def test_under_dynamic_allocation_all_slots_are_asked_for_and_those_beyond_the_least_awaited_for_a_while(
    slots, monkeypatch
):
    asked: list[int] = []
    monkeypatch.setattr(waiting, "_asking", lambda _, tasks, *__: asked.append(tasks) or contextlib.nullcontext())
    slots += [1, 2, 4]
    assert waiting.await_slots(Elsewhere("yarn", dynamicAllocation__enabled="true"), 2, 4) == 4
    monkeypatch.setattr(waiting, "MORE_S_MAX", 0.02)
    slots[:] = [1, 2]
    assert waiting.await_slots(Elsewhere("yarn", dynamicAllocation__enabled="true"), 2, 4) == 2
    assert asked == [4, 4]


def test_beside_a_query_executors_are_requested_since_tasks_that_wait_would_take_its_free_slot(slots):
    slots += [3, 3, 7]
    requests: list[int] = []
    host = Elsewhere("yarn", dynamicAllocation__enabled="True", executor__cores="4", task__cpus="2")
    host.ask_for = requests.append
    assert waiting.await_slots(host, 1, 6, is_used=True) == 7
    assert requests == [6]
    assert waiting.executors_of(host, 6 - 3) == 2


def test_in_local_mode_there_is_nothing_to_wait_for(slots):
    slots += [2, 4]
    assert waiting.await_slots(Elsewhere("local[2]"), 3) == 2


def test_executors_that_are_on_their_way_are_awaited(slots):
    slots += [0, 0, 2, 4]
    assert waiting.await_slots(Elsewhere("spark://master:7077"), 3) == 4


@pytest.mark.parametrize(
    ("master", "settings"),
    [
        ("local-cluster[2,3,1024]", {}),
        ("yarn", {"executor__instances": "3", "executor__cores": "2"}),
        ("yarn", {"executor__instances": "3", "executor__cores": "4", "task__cpus": "2"}),
    ],
)
def test_all_slots_that_the_settings_promise_are_awaited(slots, master, settings):
    slots += [2, 4, 6]
    assert waiting.await_slots(Elsewhere(master, **settings), 1) == 6


def test_waiting_ends_with_what_there_is_and_says_so_meanwhile(slots, monkeypatch, caplog):
    slots += [1]
    monkeypatch.setattr(waiting, "_PROGRESS_EVERY_S", 0.0)
    assert waiting.await_slots(Elsewhere("spark://master:7077"), 3, wait_s_max=0.02) == 1
    assert "waiting for executors: Spark has 1 slots, 3 are needed" in caplog.text


def test_under_dynamic_allocation_spark_is_asked_by_tasks_that_wait(spark, monkeypatch):
    context = spark.sparkContext
    elsewhere = NamedHost("yarn", ClassicHost(spark), dynamicAllocation__enabled="true", executor__instances="9")

    def asked() -> list[int]:
        tracker = context.statusTracker()
        active = set(tracker.getActiveJobsIds())
        return [job for job in tracker.getJobIdsForGroup("holdfast-slots") if job in active]

    monkeypatch.setattr(elsewhere, "slots", lambda: 3 if asked() else 0, raising=False)
    assert waiting.await_slots(elsewhere, 3) == 3
    until(lambda: asked() == [])  # the tracker hears of it a little later
