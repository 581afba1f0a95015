"""Puts of the JobMaster: hedged, retried and measured as those of logs; a record is put if absent, and told apart."""

import pytest
from obstore.store import MemoryStore

from holdfast.changelog_config import RetryPolicy
from holdfast.errors import ObjectExists, StorageError
from holdfast.ids import Epoch
from holdfast.journal.fence import take_over
from holdfast.journal.journal import Journal
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.scheduler import ManualScheduler
from holdfast.testing.stores import Fault, FaultyStore
from holdfast.uploads.hedged_store import RECORDS, SOURCES, DriverUploads
from journal_kit import checkpoint


class Driver:
    """The uploads of a JobMaster in manual time; `took_s` and `faults` are taken by its puts in turn."""

    def __init__(self, policy: RetryPolicy | None = None) -> None:
        self.took_s: list[float] = []
        self.faults: list[Fault | None] = []
        self.asked: list[str] = []
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.scheduler = ManualScheduler(lambda lane: self.took_s.pop(0) if self.took_s else 0.1)
        store = FaultyStore(self.inner, self._decide)
        self.uploads = DriverUploads(store, policy or RetryPolicy.fixed(), self.scheduler)
        self.records = self.uploads.store(RECORDS)

    def names(self) -> list[str]:
        return [info.name for info in self.inner.list("")]

    def metric(self, name: str) -> float:
        return self.uploads.puts.metrics().get(name, 0.0)

    def _decide(self, operation: str, name: str) -> Fault | None:
        if operation not in ("create", "put"):
            return None
        self.asked.append(operation)
        return self.faults.pop(0) if self.faults else None


def test_a_slow_record_is_overtaken_by_another_attempt_and_written_once() -> None:
    driver = Driver()
    driver.took_s = [30.0, 0.2, 0.3]
    driver.records.create("journal/2", b"mine")
    assert driver.scheduler.monotonic() == pytest.approx(1.2)
    driver.scheduler.advance(60.0)
    assert driver.names() == ["journal/2"], "the attempts that lost find their own bytes"
    assert (driver.metric("recordUploadAttempts#max"), driver.metric("recordUploadErrors")) == (3, 0)
    assert driver.metric("recordUploadLatenciesNanos#max") == pytest.approx(1.2e9)


def test_an_attempt_whose_answer_was_lost_counts_as_written_when_the_next_finds_its_bytes() -> None:
    driver = Driver()
    driver.took_s, driver.faults = [1.05, 0.2, 0.3], [Fault.LOST_ANSWER]
    driver.records.create("journal/2", b"mine")
    assert driver.inner.get("journal/2") == b"mine"


def test_a_number_that_is_taken_is_told_at_once_and_no_attempt_follows() -> None:
    driver = Driver()
    driver.inner.create("journal/2", b"of another")
    with pytest.raises(ObjectExists):
        driver.records.create("journal/2", b"mine")
    assert driver.asked == ["create"]
    assert driver.inner.get("journal/2") == b"of another"


def test_a_failed_record_is_not_repeated_here_since_its_outcome_is_read_back_first() -> None:
    driver = Driver()
    driver.faults = [Fault.FAIL]
    with pytest.raises(StorageError):
        driver.records.create("journal/2", b"mine")
    assert driver.asked == ["create"]
    assert driver.metric("recordUploadErrors") == 1


def test_a_record_that_lands_after_it_was_expired_is_deleted_again() -> None:
    driver = Driver()
    driver.took_s = [30.0, 0.2, 0.3]
    driver.records.create("journal/2", b"mine")
    driver.scheduler.advance(1.0)
    driver.records.delete(["journal/2"])
    driver.scheduler.advance(60.0)
    assert driver.names() == []


def test_a_journal_over_it_appends_through_lost_answers_and_slow_puts() -> None:
    driver = Driver()
    taken = take_over(driver.inner)
    journal = Journal(driver.records, Epoch(taken.epoch), wait=lambda attempts: None)
    driver.faults = [Fault.LOST_ANSWER, None, Fault.FAIL, None]
    driver.took_s = [0.1, 0.1, 20.0, 0.1]
    numbers = [journal.append(checkpoint(int(taken.epoch))) for _ in range(3)]
    driver.scheduler.advance(60.0)
    assert numbers == [2, 3, 4] and not journal.fenced


def test_an_object_of_a_source_is_tried_again_under_its_name_by_the_jobs_policy() -> None:
    driver = Driver(RetryPolicy.fixed(2, next_attempt_delay="2s"))
    driver.faults = [Fault.FAIL]
    driver.uploads.store(SOURCES).put("sources/1/a", b"chunk")
    assert driver.scheduler.monotonic() == pytest.approx(2.2)
    assert (driver.inner.get("sources/1/a"), driver.asked) == (b"chunk", ["put", "put"])
    assert (driver.metric("sourceUploadErrors"), driver.metric("curedUploadErrors")) == (1, 1)
    driver.faults = [Fault.FAIL, Fault.FAIL]
    with pytest.raises(StorageError):
        driver.uploads.store(SOURCES).put("sources/1/b", b"chunk")
    assert not driver.uploads.puts._repeats, "nobody asks for the repeats of the driver's objects"
