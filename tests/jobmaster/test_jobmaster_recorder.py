"""A JobMaster at rest learns that another has taken over, though it writes no record."""

import threading
from contextlib import ExitStack

import pytest

import holdfast as hf
from holdfast.changelog_config import RetryPolicy
from holdfast.checkpoint import events
from holdfast.checkpoint.ahead import StoreAhead
from holdfast.clock import ManualClock
from holdfast.errors import Fenced
from holdfast.ids import CheckpointId, Incarnation, JournalNumber
from holdfast.jobmaster.checkpoints import recorder as module
from holdfast.jobmaster.checkpoints.gathered import CarriedPart
from holdfast.jobmaster.checkpoints.outages import Outages
from holdfast.jobmaster.checkpoints.recorder import LOOK_AT_JOURNAL_S, Recorder
from holdfast.journal.fence import take_over
from holdfast.journal.journal import Journal
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.testing import FaultyStore, start
from holdfast.uploads.hedged_store import DriverUploads
from journal_kit import checkpoint, fresh_store
from waiting import until


class Facts:
    """The facts of a job, as far as a record is made again."""

    epoch = 1

    def again(self, record: object, command: object) -> object:
        return record


class Driver:
    """A recorder that has taken over, and has written a record."""

    def __init__(self, store: ObjectStore) -> None:
        self.clock = ManualClock()
        self.posted: list[object] = []
        self.failures: list[Exception] = []
        taken = take_over(store)
        outages = Outages("n", store.url, self.clock, lambda: (30.0, "30s"))
        journal = Journal(store, taken.epoch, taken.base_number)
        self.recorder = Recorder(
            journal,
            store,
            Facts(),
            {},
            self.posted.append,
            self.failures.append,
            threading.Event(),
            outages,
            self.clock,
            DriverUploads(store, RetryPolicy.none()),
        )  # type: ignore[arg-type]
        self.recorder.found(1, checkpoint(int(taken.epoch)))

    def record(self) -> None:
        self.recorder.record_again(events.RecordAgain(1, 1, {}, hf.CheckpointConfig()))

    def rest(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        return self.recorder.look_is_due()


def test_a_look_is_due_once_nothing_was_written_for_a_while_and_never_twice_at_once() -> None:
    driver = Driver(fresh_store())
    assert not driver.rest(LOOK_AT_JOURNAL_S / 2)
    driver.record()
    assert not driver.rest(LOOK_AT_JOURNAL_S * 0.9)
    assert driver.rest(LOOK_AT_JOURNAL_S / 2)
    assert not driver.rest(100 * LOOK_AT_JOURNAL_S)  # the look has not come to its end
    driver.recorder.look()
    assert not driver.rest(LOOK_AT_JOURNAL_S / 2)
    assert driver.rest(LOOK_AT_JOURNAL_S)
    assert driver.failures == []


def test_a_look_finds_the_takeover_of_another_and_ends_the_query_once() -> None:
    store = fresh_store()
    driver = Driver(store)
    driver.record()
    take_over(store)
    assert driver.rest(LOOK_AT_JOURNAL_S)
    driver.recorder.look()
    [failure] = driver.failures
    assert isinstance(failure, Fenced)
    assert isinstance(driver.posted[-1], events.Superseded)
    assert not driver.rest(100 * LOOK_AT_JOURNAL_S)


def test_a_driver_at_rest_ends_when_a_second_driver_has_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_AT_JOURNAL_S", 0.05)
    storage = fresh_store().url

    def job() -> hf.Job:
        made = hf.Job(None, name="n", storage=storage, checkpoint=hf.CheckpointConfig(trigger=hf.manual()))
        made.read(hf.SequenceSource(10, name="s")).write(hf.MemorySink(name="m"))
        return made

    with ExitStack() as open_queries:
        first = start(job(), hf.processing_time("20ms"))
        open_queries.callback(first.stop)
        first.processAllAvailable()
        second = start(job(), hf.processing_time("20ms"))
        open_queries.callback(second.stop)
        until(lambda: not first.isActive)
        assert "another JobMaster wrote" in str(first.exception())
        assert second.isActive


def test_objects_stored_ahead_of_a_checkpoint_that_is_given_up_have_no_owner() -> None:
    store = fresh_store()
    driver = Driver(store)
    ahead = StoreAhead(CheckpointId(3), events.Position(1, {}), {}, ((0, Incarnation(1)),))
    driver.recorder.store_ahead(ahead, {0: CarriedPart(b"manifest", 0)})
    driver.recorder.drop_ahead(CheckpointId(2))
    until(lambda: store.list("gathered/"))
    assert not driver.posted, "that was another checkpoint"
    driver.recorder.drop_ahead(CheckpointId(3))
    until(lambda: driver.posted)
    assert driver.posted == [events.ObjectsFound(frozenset(info.name for info in store.list("gathered/")))]
    driver.recorder.drop_ahead(CheckpointId(3))
    assert len(driver.posted) == 1


def test_looks_at_the_storage_begin_with_the_objects_that_are_stored_ahead() -> None:
    seen: list[str] = []
    driver = Driver(FaultyStore(fresh_store(), lambda operation, name: seen.append(f"{operation} {name}")))
    seen.clear()
    driver.recorder.store_ahead(StoreAhead(CheckpointId(3), events.Position(1, {}), {}, ()), {})
    until(lambda: len(seen) == 2)
    assert {each.rpartition(" ")[2] for each in seen} == {names.job(), names.journal(JournalNumber(1))}
