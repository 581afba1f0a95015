"""Threads behind the changelog: lanes, timers, and their end."""

import threading

import pytest

from holdfast.testing.scheduler import ManualScheduler
from holdfast.uploads.scheduling import ThreadScheduler, report_failure


@pytest.fixture
def scheduler():
    scheduler = ThreadScheduler({"one": 1, "two": 2})
    yield scheduler
    scheduler.close()


def test_a_lane_runs_so_many_calls_at_once_in_the_order_they_came(scheduler):
    both = threading.Barrier(2)
    order = []
    for future in [scheduler.submit("two", lambda: both.wait(60)) for _ in range(2)]:
        scheduler.result(future)
    for future in [scheduler.submit("one", lambda index=index: order.append(index)) for index in range(100)]:
        scheduler.result(future)
    assert order == list(range(100))


def test_an_error_of_a_call_is_its_futures(scheduler):
    with pytest.raises(ZeroDivisionError):
        scheduler.result(scheduler.submit("one", lambda: 1 // 0))


def test_timers_fire_in_order_of_their_time_and_those_cancelled_do_not(scheduler):
    fired = []
    done = threading.Event()
    scheduler.call_later(1.0, lambda: (fired.append("late"), done.set()))
    scheduler.call_later(0.5, lambda: fired.append("never"))()
    scheduler.call_later(0.0, lambda: fired.append("early"))
    assert done.wait(60)
    assert fired == ["early", "late"]


def test_a_timer_whose_call_fails_is_logged_and_leaves_the_others(scheduler, caplog):
    done = threading.Event()
    scheduler.call_later(0.0, lambda: 1 // 0)
    scheduler.call_later(0.001, done.set)
    assert done.wait(60)
    assert "a timer's call failed" in caplog.text


def test_a_mistake_in_work_that_nobody_waits_for_is_logged(scheduler, caplog):
    reported = threading.Event()
    future = scheduler.submit("one", lambda: 1 // 0)
    future.add_done_callback(lambda each: (report_failure(each), reported.set()))
    assert reported.wait(60)
    assert "ZeroDivisionError" in caplog.text


def test_after_close_what_was_submitted_and_what_that_submits_still_ends_and_then_the_threads_do():
    scheduler = ThreadScheduler({"ends": 1})
    opened, ended = threading.Event(), threading.Event()

    def first() -> None:
        opened.wait(60)
        scheduler.call_later(0.001, lambda: scheduler.submit("ends", second).add_done_callback(lambda _: ended.set()))

    def second() -> None:
        threads.append(threading.current_thread())

    threads: list[threading.Thread] = []
    scheduler.submit("ends", first)
    scheduler.close()
    opened.set()
    assert ended.wait(60)
    threads[0].join(60)
    assert not threads[0].is_alive()
    assert threads[0] is not threading.current_thread()
    scheduler.submit("ends", second)
    assert threads[1] is threading.current_thread()  # the end of the last work there was


def test_in_manual_time_nothing_runs_until_time_is_let_pass_and_then_in_order():
    ran = []
    scheduler = ManualScheduler(lambda lane: {"slow": 2.0, "fast": 1.0}[lane])
    slow = scheduler.submit("slow", lambda: ran.append("slow"))
    scheduler.submit("fast", lambda: ran.append("fast"))
    scheduler.call_later(1.5, lambda: ran.append("timer"))
    scheduler.call_later(1.6, lambda: ran.append("never"))()
    scheduler.advance(0.5)
    assert ran == []
    scheduler.result(slow)
    assert (ran, scheduler.monotonic()) == (["fast", "timer", "slow"], 2.0)
    with pytest.raises(RuntimeError, match="no call is left"):
        scheduler.run_until(lambda: False)


def test_a_retry_that_is_asked_for_after_the_end_comes_all_the_same():
    scheduler = ThreadScheduler({"lane": 1})
    scheduler.close()
    called = threading.Event()
    scheduler.call_later(0.001, called.set)
    assert called.wait(10)
