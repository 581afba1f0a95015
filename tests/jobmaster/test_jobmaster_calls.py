"""Rounds of calls to processes: whose answer counts, who hears of it, and how few objects a round is."""

import gc

import pytest

from holdfast.errors import TaskManagerLost
from holdfast.ids import Incarnation, ProcessId, Role
from holdfast.jobmaster.checkpoints import calls as checkpoint_calls
from holdfast.jobmaster.processes.calls import Round

FIRST, SECOND = (ProcessId(Role.TASK_MANAGER, number, Incarnation(number + 1)) for number in (0, 1))


def never(number: int, gateway: object) -> None:
    raise AssertionError("a round makes no call by itself")


def test_a_round_is_done_once_all_have_answered() -> None:
    asked = Round([FIRST, SECOND], never)
    asked.settle(SECOND, "two")
    assert not asked.done.done() and asked.unanswered == [FIRST]
    asked.settle(FIRST, error=TaskManagerLost("gone"))
    assert asked.done.done() and asked.unanswered == []
    assert asked.results == {SECOND: "two"} and list(asked.errors) == [FIRST]


def test_the_first_answer_of_a_process_counts() -> None:
    heard: list[tuple[ProcessId, Exception | None]] = []
    asked = Round([FIRST], never, lambda process, error: heard.append((process, error)))
    lost = TaskManagerLost("it ended")
    asked.settle(FIRST, error=lost)
    asked.settle(FIRST, "late")
    asked.settle(SECOND, "not asked")
    assert heard == [(FIRST, lost)] and asked.errors == {FIRST: lost} and not asked.results


@pytest.mark.parametrize("answered_before", [False, True])
def test_a_listener_hears_once_of_the_answer_of_its_process(answered_before: bool) -> None:
    asked = Round([FIRST, SECOND], never)
    heard: list[str] = []
    if answered_before:
        asked.settle(FIRST, "one")
    asked.when_answered(FIRST, lambda: heard.append("first"))
    asked.settle(FIRST, "one")
    asked.settle(SECOND, "two")
    assert heard == ["first"]


def test_a_round_without_processes_is_done() -> None:
    assert Round([], never).done.done()


def test_a_round_of_a_thousand_calls_is_few_objects_for_the_garbage_collector() -> None:
    processes = [ProcessId(Role.TASK_MANAGER, number, Incarnation(number + 1)) for number in range(1000)]
    gc.collect()
    before = len(gc.get_objects())
    asked = Round(processes, never)
    for process in processes:
        asked.settle(process, 1)
    assert len(gc.get_objects()) - before < 50
    assert len(asked.results) == 1000


@pytest.mark.parametrize(("error", "level"), [(TaskManagerLost("gone"), "INFO"), (KeyError("a mistake"), "ERROR")])
def test_each_error_of_a_checkpoints_news_is_logged_with_its_cause(
    error: Exception, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        checkpoint_calls._log_untold(FIRST, error)
    [record] = caplog.records
    assert record.levelname == level and "TaskManager 0 was not told" in record.message
    assert str(error) in caplog.text


def test_an_answer_to_a_checkpoints_news_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint_calls._log_untold(FIRST, None)
    assert not caplog.records
