"""Retries and hedging of uploads (behaviour 8), and the fate of attempts that nobody waits for any more."""

import gc
import itertools
import random

import pytest
from obstore.store import MemoryStore

from changelog_kit import ManualLog, change
from holdfast.changelog_config import RetryPolicy
from holdfast.errors import SettingsError, StorageError
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.scheduler import ManualScheduler
from holdfast.testing.stores import Fault
from holdfast.uploads.attempts import Losers, Upload
from holdfast.uploads.hedging import STARTING_REQUESTS, TIMEOUT_S_MIN, Hedging
from holdfast.uploads.janitor import AGAIN_S, FAILED_AGAIN_S, DeletionQueue
from holdfast.uploads.puts import Puts
from holdfast.uploads.scheduling import ThreadScheduler
from holdfast.uploads.uploader import LOGS, SHARED
from waiting import until

HEDGING = RetryPolicy.fixed(3, timeout="1s", next_attempt_delay="500ms")


def saved(world: ManualLog, uploads: int = 20) -> None:
    """Uploads that take 0.1 s each, and leave the budget for 1 hedge in 20."""
    for batch in range(uploads):
        world.writer.append(batch, change("warm"))
        world.persisted(batch)
    world.writer.truncate(world.writer.next_sqn())
    world.scheduler.advance(1.0)
    world.puts.clear()
    assert world.names() == []


def test_a_policy_that_always_fails_makes_exactly_its_attempts_and_reports_the_failure_once():
    world = ManualLog(RetryPolicy.fixed(5, next_attempt_delay="500ms"))
    world.faults = [Fault.FAIL] * 5
    world.writer.append(0, change("a"))
    future = world.writer.persist(0)
    reported: list[float] = []
    future.add_done_callback(lambda _: reported.append(world.scheduler.monotonic()))
    world.scheduler.advance(60.0)
    assert len(world.puts) == len(set(world.puts)) == 5
    assert reported == [pytest.approx(5 * 0.1 + 4 * 0.5)]
    assert isinstance(future.exception(), StorageError)
    assert (world.metric("numberOfUploadRequests"), world.metric("numberOfUploadFailures")) == (1, 1)


def test_success_on_the_third_attempt_stops_there():
    world = ManualLog(RetryPolicy.fixed(5, next_attempt_delay="500ms"))
    world.faults = [Fault.FAIL, Fault.FAIL]
    world.writer.append(0, change("a"))
    [piece] = world.persisted(0)
    assert (len(world.puts), piece.object) == (3, world.puts[2])
    assert world.scheduler.monotonic() == pytest.approx(3 * 0.1 + 2 * 0.5)
    assert (world.metric("attemptsPerUpload#max"), world.metric("totalAttemptsPerUpload#sum")) == (3, 3)


def test_no_retries_is_one_attempt():
    world = ManualLog(RetryPolicy.none())
    world.faults = [Fault.FAIL]
    world.took_s = [100.0]
    world.writer.append(0, change("a"))
    with pytest.raises(StorageError):
        world.persisted(0)
    assert len(world.puts) == 1


def test_an_error_that_is_no_io_error_is_not_retried():
    world = ManualLog()
    world.inner.put = lambda name, data: (_ for _ in ()).throw(RuntimeError("a mistake"))  # type: ignore[method-assign]
    world.writer.append(0, change("a"))
    with pytest.raises(RuntimeError, match="a mistake"):
        world.persisted(0)
    assert len(world.puts) == 1


def test_a_timed_out_attempt_goes_on_while_the_next_two_start_without_delay_and_the_first_success_wins():
    world = ManualLog(HEDGING)
    saved(world)
    world.took_s = [30.0, 0.25, 0.5]
    world.writer.append(100, change("a"))
    begun_s = world.scheduler.monotonic()
    [piece] = world.persisted(100)
    hedged_after_s = world.scheduler.monotonic() - begun_s - 0.25
    assert hedged_after_s == pytest.approx(1.0)
    assert world.puts == [piece.object]
    assert (world.metric("hedgedUploads"), world.metric("attemptsPerUpload#max")) == (1, 2)
    assert world.uploader.take_repeats([piece.object]) == {piece.object: (0, 2)}
    assert world.uploader.take_repeats([piece.object]) == {}, "told once"
    world.scheduler.advance(30.0)  # the others land, and are deleted
    assert len(world.puts) == 3
    assert world.names() == [piece.object]


def test_the_first_attempt_may_win_and_then_those_that_were_to_overtake_it_are_deleted():
    world = ManualLog(HEDGING)
    saved(world)
    world.took_s = [1.5, 3.0, 4.0]
    world.writer.append(100, change("a"))
    [piece] = world.persisted(100)
    world.scheduler.advance(4.0)
    assert world.puts == [piece.object, *world.puts[1:3]]
    assert world.names() == [piece.object]
    assert (world.metric("attemptsPerUpload#sum"), world.metric("totalAttemptsPerUpload#max")) == (21, 3)


def test_the_failure_of_a_hedged_upload_is_reported_after_the_last_attempt_ended_and_counts_all_of_them():
    world = ManualLog(HEDGING)
    saved(world)
    world.took_s = [30.0, 0.1, 0.1]
    world.faults = [Fault.FAIL] * 3
    world.writer.append(100, change("a"))
    begun_s = world.scheduler.monotonic()
    future = world.writer.persist(100)
    world.scheduler.advance(29.0)
    assert len(world.puts) == 2
    assert not future.done()
    world.scheduler.advance(2.0)
    assert (len(world.puts), world.scheduler.monotonic() - begun_s) == (3, pytest.approx(31.0))
    assert isinstance(future.exception(), StorageError)


def test_a_slow_attempt_that_fails_after_it_was_overtaken_starts_no_third_one():
    world = ManualLog(HEDGING)
    saved(world)
    world.took_s = [1.2, 5.0]
    world.faults = [Fault.FAIL]
    world.writer.append(100, change("a"))
    [piece] = world.persisted(100)
    assert world.puts[1:] == [piece.object]


def test_the_first_upload_of_a_process_is_hedged_already():
    world = ManualLog(HEDGING)
    world.took_s = [30.0, 0.1, 0.1]
    world.writer.append(0, change("a"))
    world.persisted(0)
    assert world.scheduler.monotonic() == pytest.approx(1.1)
    world.scheduler.advance(30.0)
    assert len(world.puts) == 3


def test_each_attempt_is_counted_before_the_next_is_planned_however_they_end():
    """Two attempts beside a slow attempt, of which one fails at once, are three requests and no fourth."""
    world = ManualLog(HEDGING)
    world.took_s = [30.0, 0.1, 5.0]
    world.faults = [Fault.FAIL, None, None]
    world.writer.append(0, change("a"))
    world.persisted(0)
    world.scheduler.advance(40.0)
    assert (len(world.puts), world.metric("totalAttemptsPerUpload#max")) == (3, 3)


def test_without_a_budget_a_slow_attempt_is_waited_for():
    world = ManualLog(RetryPolicy.fixed(3, timeout="1s", extra_requests=0))
    world.took_s = [30.0]
    world.writer.append(0, change("a"))
    world.persisted(0)
    assert (len(world.puts), world.scheduler.monotonic()) == (1, 30.0)


def test_a_put_that_lands_arbitrarily_late_after_it_was_reported_as_failed_is_deleted_by_the_next_sweep():
    world = ManualLog()
    world.faults = [Fault.LATE]
    world.writer.append(0, change("a"))
    [piece] = world.persisted(0)
    for _ in range(3):
        world.scheduler.advance(10 * AGAIN_S)
        assert world.names() == [piece.object]
    world.store.land()
    assert len(world.names()) == 2
    world.scheduler.advance(AGAIN_S)
    assert world.names() == [piece.object]


def test_late_arrivals_of_an_earlier_deployment_are_looked_for_by_the_next_one():
    world = ManualLog()
    world.faults = [Fault.LATE] * 3
    world.writer.append(0, change("a"))
    with pytest.raises(StorageError):
        world.persisted(0)
    janitor = world.uploader._janitor
    world.writer.close()
    world.uploader.close()
    ManualLog(janitor=janitor, scheduler=world.scheduler)
    world.store.land()
    assert len(world.names()) == 3
    world.scheduler.advance(AGAIN_S)
    assert world.names() == []


def test_a_delete_that_failed_is_repeated_soon_also_when_nothing_else_is_uploaded():
    world = ManualLog()
    world.faults = [Fault.LOST_ANSWER]
    world.delete_faults = [Fault.FAIL]
    world.writer.append(0, change("a"))
    [piece] = world.persisted(0)
    assert len(world.names()) == 2
    world.scheduler.advance(FAILED_AGAIN_S)
    assert world.names() == [piece.object]


def test_extra_requests_are_a_twentieth_however_slow_the_store_becomes():
    world = ManualLog(HEDGING)
    world.took_s = [5.0] * 1000
    for batch in range(200):
        world.writer.append(batch, change("a"))
        world.persisted(batch)
    assert 200 < world.metric("totalAttemptsPerUpload#sum") <= 200 * (1 + HEDGING.extra_requests) + STARTING_REQUESTS


def test_hedging_spares_nearly_all_uploads_the_slowest_answers_and_stays_within_its_budget():
    rng = random.Random(7)
    uploads = 3000
    slow: list[int] = []
    for policy in (RetryPolicy.fixed(timeout=None), HEDGING):
        scheduler = ManualScheduler(lambda lane: 4.0 if rng.random() < 0.01 else rng.uniform(0.2, 0.8))
        store = ObstoreStore("memory://", MemoryStore())
        puts = Puts(policy, scheduler, DeletionQueue(store))
        names = (f"object {number}" for number in itertools.count())
        took_s = []
        for _ in range(uploads):
            begun_s = scheduler.monotonic()
            scheduler.result(puts.put(lambda name: None, names.__next__, 5_000_000, "upload"))
            took_s.append(scheduler.monotonic() - begun_s)
        slow.append(sum(each > 2.0 for each in took_s))
    assert slow[0] > uploads / 200
    assert slow[1] <= slow[0] / 10
    assert puts.metrics()["totalAttemptsPerUpload#sum"] <= uploads * (1 + HEDGING.extra_requests) + STARTING_REQUESTS


def test_large_files_are_not_slow_for_taking_longer_than_pieces_of_logs():
    scheduler = ManualScheduler(lambda lane: 0.01 if lane == LOGS else 0.5)
    puts = Puts(HEDGING, scheduler, DeletionQueue(ObstoreStore("memory://", MemoryStore())))
    names = (f"object {number}" for number in itertools.count())
    for lane, size_bytes in [(LOGS, 1_000_000)] * 200 + [(SHARED, 64_000_000)] * 10:
        scheduler.result(puts.put(lambda name: None, names.__next__, size_bytes, lane))
    assert puts.metrics()["totalAttemptsPerUpload#sum"] == 210


def test_the_time_out_is_one_second_and_longer_for_sizes_that_usually_take_more_than_half_of_it():
    hedging = Hedging(1.0, 0.05)
    assert hedging.timeout_s(8_000_000) == 1.0
    for _ in range(20):
        hedging.attempt_succeeded(5_000_000, 0.5)
    for size_mb, slow_after_s in ((1, 1.0), (5, 1.0), (8, 1.6), (10, 2.0), (20, 3.0), (50, 6.0)):
        assert hedging.timeout_s(size_mb * 1_000_000) == pytest.approx(slow_after_s)


def test_the_time_out_becomes_what_nearly_all_attempts_keep_to():
    hedging = Hedging(1.0, 0.05)
    for index in range(1000):
        hedging.attempt_succeeded(5_000_000, 0.3 + 0.4 * (index % 100) / 100)
    assert hedging.timeout_s(5_000_000) == pytest.approx(0.3 + 0.4 * 0.955, abs=0.01)


def test_a_store_that_answers_quickly_is_not_hedged_for_a_few_milliseconds():
    hedging = Hedging(1.0, 0.05)
    for _ in range(1000):
        hedging.attempt_succeeded(1000, 0.002)
    assert hedging.timeout_s(1000) == pytest.approx(TIMEOUT_S_MIN + 0.001)


def test_a_large_object_is_not_hedged_for_what_its_size_takes():
    hedging = Hedging(1.0, 0.05)
    for size_mb in (64, 64, 64, 128) * 100:
        hedging.attempt_succeeded(size_mb * 1_000_000, size_mb * 0.0025)
    assert hedging.timeout_s(128_000_000) == pytest.approx(TIMEOUT_S_MIN + 0.32)


def test_small_objects_do_not_make_the_rate_of_large_ones():
    hedging = Hedging(1.0, 0.05)
    for _ in range(1000):
        hedging.attempt_succeeded(100, 0.9)
    assert hedging.timeout_s(8_000_000) <= 9.0


def test_without_a_time_out_no_attempt_is_ever_slow():
    assert Hedging(None, 0.05).timeout_s(1) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_attempts": 0}, "max_attempts=0: allowed is a whole number of at least 1"),
        ({"max_attempts": 1.5}, "max_attempts=1.5"),
        ({"timeout": 0}, "timeout=0: allowed is anything above zero"),
        ({"timeout": "soon"}, "timeout='soon' is not understood"),
        ({"next_attempt_delay": -1}, "next_attempt_delay=-1"),
        ({"extra_requests": -0.1}, "extra_requests=-0.1: allowed is a number from 0 to 2"),
        ({"extra_requests": 3}, "extra_requests=3"),
        ({"extra_requests": True}, "extra_requests=True"),
    ],
    ids=str,
)
def test_a_retry_policy_that_makes_no_sense_is_refused_by_field_and_value(wrong, message):
    with pytest.raises(SettingsError, match=message):
        RetryPolicy.fixed(**wrong)


def test_a_retry_policy_shows_how_it_is_made():
    assert repr(RetryPolicy.none()) == "RetryPolicy.none()"
    assert eval(repr(RetryPolicy.fixed(5)), {"RetryPolicy": RetryPolicy}) == RetryPolicy.fixed(5)


def test_an_upload_that_ended_is_let_go_with_its_bytes_without_a_search_for_garbage():
    world = ManualLog(HEDGING)
    saved(world)
    gc.collect()
    gc.disable()
    try:
        world.writer.append(100, change("a"))
        world.persisted(100)
        world.scheduler.advance(10.0)
        assert not [each for each in gc.get_objects() if type(each) is Upload]
    finally:
        gc.enable()


class PromptScheduler(ThreadScheduler):
    """Runs each call to its end before `submit` returns, as threads do now and then."""

    planned_late = False

    def submit(self, lane, call):
        future = super().submit(lane, call)
        until(lambda: self._ended or self._timed, "the end of the call, or a timer that it set")
        return future

    def call_later(self, delay_s, call):
        self.planned_late |= self._ended
        return super().call_later(delay_s, call)


def test_the_retry_of_an_attempt_that_failed_at_once_is_planned_before_a_closing_scheduler_ends():
    scheduler, answers = PromptScheduler({LOGS: 1}), []
    scheduler._unfinished, scheduler._closing = 0, True  # closed while a deployment's last upload was begun
    failures = iter([StorageError("away")])

    def put(name: str) -> None:
        for failure in failures:
            raise failure

    losers = Losers(lambda name: None, lambda name: None)
    policy = RetryPolicy.fixed(2, timeout=None, next_attempt_delay="1ms")
    names = (f"object {number}" for number in itertools.count())
    more = {"policy": policy, "hedging": Hedging(None, 0.05), "scheduler": scheduler, "losers": losers}
    Upload(put, names.__next__, 1, LOGS, **more, answered=answers.append).start()
    until(lambda: answers, "the answer")
    assert (answers[0].error, answers[0].attempts) == (None, 2)
    assert not scheduler.planned_late
