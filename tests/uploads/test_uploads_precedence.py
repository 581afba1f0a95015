"""When something large may begin beside checkpoints."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from changelog_kit import ManualLog, change
from holdfast.testing.scheduler import ManualScheduler
from holdfast.uploads.precedence import RECORD_S, WAIT_S_MAX, Precedence

FILE_BYTES = 64_000_000
LANE_S = 0.1
"""Seconds that a call takes among the uploads of a `ManualLog`."""


@pytest.fixture
def scheduler() -> ManualScheduler:
    return ManualScheduler()


@pytest.fixture
def precedence(scheduler: ManualScheduler) -> Precedence:
    return Precedence(scheduler)


def begin(precedence: Precedence) -> Future[None]:
    checkpoint: Future[None] = Future()
    precedence.begun(checkpoint)
    return checkpoint


def each_second(precedence: Precedence, scheduler: ManualScheduler) -> None:
    """The last checkpoint has just begun and ended, `RECORD_S` ago."""
    for pause_s in (1.0, 1.0, RECORD_S):
        begin(precedence).set_result(None)
        scheduler.advance(pause_s)


def test_without_checkpoints_everything_begins_at_once(precedence, scheduler):
    assert precedence.free(FILE_BYTES).done()
    begin(precedence).set_result(None)
    scheduler.advance(1.0)
    assert precedence.free(FILE_BYTES).done(), "one alone says nothing of the next"


def test_one_comes_soon_when_little_of_the_interval_is_left_and_if_it_is_a_little_late(precedence, scheduler):
    assert not precedence.soon()
    each_second(precedence, scheduler)
    for pause_s, soon in ((0.65, False), (0.05, True), (0.35, True), (0.15, False)):
        scheduler.advance(pause_s)
        assert precedence.soon() == soon


def test_of_a_long_interval_soon_is_the_last_half_second(precedence, scheduler):
    for pause_s in (10.0, 10.0, 9.4):
        begin(precedence).set_result(None)
        scheduler.advance(pause_s)
    assert not precedence.soon()
    scheduler.advance(0.2)
    assert precedence.soon()


def test_it_waits_until_all_that_are_under_way_have_ended_however(precedence, scheduler):
    first, second = begin(precedence), begin(precedence)
    waiting = [precedence.free(FILE_BYTES), precedence.free(FILE_BYTES)]
    second.set_exception(OSError("declined"))
    assert not any(each.done() for each in waiting)
    first.set_result(None)
    assert not any(each.done() for each in waiting), "the record is still to be written"
    scheduler.advance(RECORD_S)
    assert all(each.done() for each in waiting)
    assert precedence.free(FILE_BYTES).done()


def test_it_waits_shortly_before_the_next_one_is_expected_until_that_one_has_ended(precedence, scheduler):
    each_second(precedence, scheduler)
    scheduler.advance(0.7)
    assert precedence.free(FILE_BYTES).done()
    scheduler.advance(0.1)
    waiting = precedence.free(FILE_BYTES)
    scheduler.advance(0.2)
    following = begin(precedence)
    assert not waiting.done()
    following.set_result(None)
    scheduler.advance(RECORD_S)
    assert waiting.done()


def test_where_none_comes_when_it_is_expected_it_begins_a_little_later(precedence, scheduler):
    each_second(precedence, scheduler)
    scheduler.advance(0.9)
    waiting = precedence.free(FILE_BYTES)
    scheduler.advance(WAIT_S_MAX - 0.01)
    assert not waiting.done()
    scheduler.advance(0.02)
    assert waiting.done()
    assert precedence.free(FILE_BYTES).done()


def test_a_checkpoint_that_takes_long_does_not_hold_it_up_for_long(precedence, scheduler):
    checkpoint, waiting = begin(precedence), precedence.free(FILE_BYTES)
    scheduler.advance(WAIT_S_MAX)
    assert waiting.done()
    checkpoint.set_result(None)
    scheduler.advance(RECORD_S)
    assert precedence.free(FILE_BYTES).done()


def test_the_smaller_it_is_the_later_it_may_begin(precedence, scheduler):
    each_second(precedence, scheduler)
    scheduler.advance(0.88)
    assert not precedence.free(FILE_BYTES).done()
    assert precedence.free(FILE_BYTES // 4).done()
    scheduler.advance(0.09)
    assert precedence.free(0).done()


def test_frequent_checkpoints_leave_most_of_the_time_free(precedence, scheduler):
    for pause_s in (0.1, 0.1, 0.05):
        begin(precedence).set_result(None)
        scheduler.advance(pause_s)
    assert precedence.free(FILE_BYTES).done()
    scheduler.advance(0.02)
    assert not precedence.free(FILE_BYTES).done()


def test_who_came_first_goes_first(precedence, scheduler):
    checkpoint, gone = begin(precedence), []
    for number in range(20):
        precedence.free(FILE_BYTES).add_done_callback(lambda _, number=number: gone.append(number))
    checkpoint.set_result(None)
    scheduler.advance(RECORD_S)
    assert gone == list(range(20))


class Kept:
    """`uploads.uploader.Copies`: the names that it heard of."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def keep(self, name: str, data: bytes | memoryview, file: Path | None = None) -> None:
        self.names.append(name)


def test_the_copy_of_what_a_checkpoint_stored_is_made_when_its_record_is_written():
    kept = Kept()
    world = ManualLog(copies=kept)
    world.writer.append(0, change("a"))
    part: Future[None] = Future()
    world.uploader.precede(part)
    world.persisted(0)
    world.scheduler.advance(LANE_S)
    part.set_result(None)
    assert not kept.names
    world.scheduler.advance(RECORD_S + LANE_S)
    assert kept.names == world.names()
