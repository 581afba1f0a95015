"""The end of a program waits for calls that have no answer yet: PyArrow would crash as they return after it."""

import threading

import pytest

from holdfast.errors import HoldfastError
from holdfast.taskmanager.remote import RunningCalls


def test_the_end_waits_for_a_call_and_lets_no_other_begin() -> None:
    calls, begun, answered = RunningCalls(), threading.Event(), threading.Event()

    def call() -> None:
        with calls.one(HoldfastError):
            begun.set()
            answered.wait()

    calling = threading.Thread(target=call)
    calling.start()
    begun.wait()
    assert not calls.end(seconds=0.0)
    with pytest.raises(HoldfastError, match="the program ends"), calls.one(HoldfastError):
        raise AssertionError("no call begins once the program ends")
    answered.set()
    assert calls.end()
    calling.join()


def test_a_call_that_fails_has_an_answer() -> None:
    calls = RunningCalls()
    with pytest.raises(ValueError, match="refused"), calls.one(HoldfastError):
        raise ValueError("refused")
    assert calls.end(seconds=0.0)
