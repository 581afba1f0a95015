"""Waiting for slots: executors that are on their way, and those that come only when they are asked for."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.spark import slots as waiting
from waiting import until


class Elsewhere:
    """A SparkContext that says it has another master and other settings."""

    def __init__(self, context: Any, master: str, **settings: str) -> None:
        self._context = context
        self.master = master
        self._settings = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}

    @property
    def _conf(self) -> dict[str, str]:
        return self._settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def session(master: str, context: Any = None, **settings: str) -> Any:
    return SimpleNamespace(sparkContext=Elsewhere(context, master, **settings))


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of slots that Spark says at each look, the last number for good."""
    numbers: list[int] = []
    monkeypatch.setattr(waiting, "slots", lambda _: numbers.pop(0) if len(numbers) > 1 else numbers[0])
    monkeypatch.setattr(waiting, "_POLL_S", 0.001)
    return numbers


def test_under_dynamic_allocation_all_slots_are_asked_for_and_those_beyond_the_least_awaited_for_a_while(
    slots, monkeypatch
):
    monkeypatch.setattr(waiting, "MORE_S_MAX", 0.02)
    asked: list[int] = []
    monkeypatch.setattr(waiting, "_asking", lambda _, tasks, __: asked.append(tasks) or contextlib.nullcontext())
    slots += [1, 2, 4]
    assert waiting.await_slots(session("yarn", dynamicAllocation__enabled="true"), 2, 4) == 4
    slots[:] = [1, 2]
    assert waiting.await_slots(session("yarn", dynamicAllocation__enabled="true"), 2, 4) == 2
    assert asked == [4, 4]


def test_in_local_mode_there_is_nothing_to_wait_for(slots):
    slots += [2, 4]
    assert waiting.await_slots(session("local[2]"), 3) == 2


def test_executors_that_are_on_their_way_are_awaited(slots):
    slots += [0, 0, 2, 4]
    assert waiting.await_slots(session("spark://master:7077"), 3) == 4


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
    assert waiting.await_slots(session(master, **settings), 1) == 6


def test_waiting_ends_with_what_there_is_and_says_so_meanwhile(slots, monkeypatch, caplog):
    slots += [1]
    monkeypatch.setattr(waiting, "_PROGRESS_EVERY_S", 0.0)
    assert waiting.await_slots(session("spark://master:7077"), 3, wait_s_max=0.02) == 1
    assert "waiting for executors: Spark has 1 slots, 3 are needed" in caplog.text


def test_under_dynamic_allocation_spark_is_asked_by_tasks_that_wait(spark, monkeypatch):
    context = spark.sparkContext
    elsewhere = session("yarn", context, dynamicAllocation__enabled="true", executor__instances="9")

    def asked() -> list[int]:
        tracker = context.statusTracker()
        active = set(tracker.getActiveJobsIds())
        return [job for job in tracker.getJobIdsForGroup("holdfast-slots") if job in active]

    monkeypatch.setattr(waiting, "slots", lambda _: 3 if asked() else 0)
    assert waiting.await_slots(elsewhere, 3) == 3
    until(lambda: asked() == [])  # the tracker hears of it a little later
