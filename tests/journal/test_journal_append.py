"""Appending and expiring: every answer but success is resolved by reading the number back."""

import random

import pytest

from holdfast.errors import Fenced, StorageError
from holdfast.ids import Epoch, JournalNumber
from holdfast.journal.fence import read_record
from holdfast.journal.journal import Journal
from holdfast.journal.records import CheckpointRecord
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.testing.stores import Fault, FaultyStore, seeded_faults
from journal_kit import Steered, checkpoint, fresh_store, no_wait, numbers, start


def steered_journal(
    inner: ObjectStore, plan: dict[tuple[str, int], object], **settings: int
) -> tuple[Journal, Steered]:
    taken, _ = start(inner)
    steered = Steered(inner, plan)  # type: ignore[arg-type]
    return Journal(steered.store, taken.epoch, taken.base_number, wait=no_wait, **settings), steered


def test_records_follow_the_takeover_without_gaps() -> None:
    store = fresh_store()
    taken, journal = start(store)
    assert journal.newest is None
    assert journal.next_number == taken.epoch + 1
    written = [journal.append(checkpoint(taken.epoch, turn)) for turn in range(3)]
    assert written == [2, 3, 4]
    assert (journal.newest, journal.next_number) == (4, 5)
    record = read_record(store, 3)
    assert isinstance(record, CheckpointRecord)
    assert (record.checkpoint_id, len(record.nonce)) == (1, 32)


@pytest.mark.parametrize("fault", list(Fault))
def test_whatever_the_store_answers_the_record_is_written_once(fault: Fault) -> None:
    inner = fresh_store()
    journal, steered = steered_journal(inner, {("create", 1): fault, ("create", 2): fault, ("get", 1): Fault.FAIL})
    assert journal.append(checkpoint(1, 7)) == 2
    steered.store.land()
    assert numbers(inner) == [1, 2]
    assert not journal.unresolved
    assert journal.append(checkpoint(1, 8)) == 3


def test_a_false_exists_is_not_taken_for_another_epoch() -> None:
    inner = fresh_store()
    journal, steered = steered_journal(inner, {("create", 1): Fault.FALSE_EXISTS})
    assert journal.append(checkpoint(1)) == 2
    assert steered.counts == {"create": 3, "get": 1}, "the record twice, and the mark of the first one"


def test_ones_own_record_reported_as_existing_is_not_taken_for_another_epoch() -> None:
    inner = fresh_store()
    journal, _ = steered_journal(inner, {("create", 1): Fault.OWN_EXISTS})
    assert journal.append(checkpoint(1)) == 2


def test_a_put_that_lands_after_its_time_out_is_the_same_record_as_the_one_put_again() -> None:
    inner = fresh_store()
    journal, steered = steered_journal(inner, {("create", 1): Fault.LATE})
    journal.append(checkpoint(1))
    before = inner.get(names.journal(2))
    steered.store.land()
    assert inner.get(names.journal(2)) == before


def test_a_late_put_never_lands_on_a_newer_takeovers_number() -> None:
    inner = fresh_store()
    journal, steered = steered_journal(inner, {("create", turn): Fault.LATE for turn in range(1, 4)}, attempts_max=3)
    with pytest.raises(StorageError, match="not known whether journal/000000000002 was written"):
        journal.append(checkpoint(1))
    newer, _ = start(inner)
    steered.store.land()
    assert (newer.epoch, newer.base) == (2, None)
    with pytest.raises(Fenced):
        journal.resolve()


def test_a_record_that_lands_before_a_takeover_becomes_its_base_and_its_writer_learns_that_it_is_written() -> None:
    inner = fresh_store()
    journal, _ = steered_journal(inner, {("create", 1): Fault.LOST_ANSWER, ("get", 1): Fault.FAIL}, attempts_max=1)
    with pytest.raises(StorageError):
        journal.append(checkpoint(1, 42))
    newer, _ = start(inner)
    assert newer.base is not None and newer.base.checkpoint_id == 42
    assert journal.resolve() == 2
    with pytest.raises(Fenced):
        journal.append(checkpoint(1, 43))


def test_until_the_outcome_is_known_nothing_is_appended_or_deleted() -> None:
    inner = fresh_store()
    dead = {("create", turn): Fault.LATE for turn in range(4, 7)} | {("get", turn): Fault.FAIL for turn in range(1, 4)}
    journal, _ = steered_journal(inner, dead, attempts_max=1)
    first = journal.append(checkpoint(1, 1))
    journal.append(checkpoint(1, 2))
    with pytest.raises(StorageError):
        journal.append(checkpoint(1, 3))
    assert journal.unresolved
    with pytest.raises(StorageError, match="cannot append"):
        journal.append(checkpoint(1, 4))
    with pytest.raises(StorageError, match="cannot expire"):
        journal.expire([first])
    assert numbers(inner) == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(StorageError):
            journal.resolve()
    assert journal.resolve() == 4
    record = read_record(inner, 4)
    assert isinstance(record, CheckpointRecord) and record.checkpoint_id == 3
    journal.expire([first])
    assert numbers(inner) == [1, 3, 4]


def test_something_unreadable_at_ones_number_fences() -> None:
    inner = fresh_store()
    _, journal = start(inner)
    inner.put(names.journal(2), b"from a later version")
    with pytest.raises(Fenced):
        journal.append(checkpoint(1))


def test_only_older_checkpoint_records_can_expire() -> None:
    store = fresh_store()
    taken, journal = start(store)
    written = [journal.append(checkpoint(taken.epoch, turn)) for turn in range(3)]
    for refused in (taken.epoch, written[-1], JournalNumber(99)):
        with pytest.raises(ValueError, match=f"number {refused} is "):
            journal.expire([written[0], JournalNumber(refused)])
    assert numbers(store) == [1, 2, 3, 4]
    journal.expire(written[:2])
    assert numbers(store) == [1, 4]


def test_the_base_expires_once_a_newer_record_is_written() -> None:
    store = fresh_store()
    _, journal = start(store)
    journal.append(checkpoint(1))
    taken, journal = start(store)
    assert taken.base_number is not None
    with pytest.raises(ValueError, match="newest"):
        journal.expire([taken.base_number])
    journal.append(checkpoint(taken.epoch))
    journal.expire([taken.base_number])
    assert numbers(store) == [1, 3, 4]


def test_a_failed_expiry_can_be_repeated() -> None:
    inner = fresh_store()
    journal, _ = steered_journal(inner, {("delete", 1): Fault.LOST_ANSWER})
    written = [journal.append(checkpoint(1, turn)) for turn in range(2)]
    with pytest.raises(StorageError):
        journal.expire(written[:1])
    journal.expire(written[:1])
    assert numbers(inner) == [1, 3]


def test_a_record_of_another_epoch_is_refused_before_anything_is_sent() -> None:
    store = fresh_store()
    _, journal = start(store)
    with pytest.raises(ValueError, match="epoch 9"):
        journal.append(checkpoint(9))
    with pytest.raises(ValueError, match="no record to resolve"):
        journal.resolve()
    assert numbers(store) == [1]


@pytest.mark.parametrize("seed", range(60))
def test_under_random_faults_exactly_the_records_believed_written_are_there(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    inner = fresh_store()
    taken, _ = start(inner)
    faulty = FaultyStore(inner, seeded_faults(seed, rng.choice([0.1, 0.4, 0.7])))
    journal = Journal(faulty, Epoch(taken.epoch), attempts_max=rng.choice([1, 3, 10]), wait=no_wait)
    written: dict[int, int] = {}
    for turn in range(20):
        try:
            written[journal.append(checkpoint(1, turn))] = turn
        except StorageError:
            while journal.unresolved:
                faulty.land() if rng.random() < 0.3 else None
                try:
                    written[journal.resolve()] = turn
                except StorageError:
                    continue
    faulty.land()
    records = {number: read_record(inner, number) for number in numbers(inner) if number != taken.epoch}
    assert {number: record.checkpoint_id for number, record in records.items()} == written  # type: ignore[union-attr]
    assert written == {number: number - 2 for number in range(2, 22)}


def test_a_position_that_is_not_a_number_does_not_hide_ones_own_record() -> None:
    inner = fresh_store()
    journal, _ = steered_journal(inner, {("create", 1): Fault.LOST_ANSWER})
    assert journal.append(checkpoint(1, offsets={"source": {"split": float("nan")}})) == 2
