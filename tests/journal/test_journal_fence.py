"""Taking over: which takeover counts, which starts over, and the findings of an older JobMaster afterwards."""

import pytest

from holdfast.errors import CorruptObject, Fenced, StorageError
from holdfast.journal.fence import read_record, take_over
from holdfast.journal.journal import Journal
from holdfast.journal.records import Takeover
from holdfast.storage import names
from holdfast.storage.framing import frame
from holdfast.storage.store import ObjectStore
from holdfast.testing.stores import Fault
from journal_kit import Steered, advance, checkpoint, fresh_store, no_wait, numbers, start


def test_the_first_takeover_of_a_fresh_storage_is_epoch_one_without_a_base() -> None:
    taken = take_over(fresh_store(), wait=no_wait)
    assert (taken.epoch, taken.base_number, taken.base) == (1, None, None)


def test_a_takeover_finds_the_newest_checkpoint_below_other_takeovers() -> None:
    store = fresh_store()
    _, journal = start(store)
    newest = advance(journal, 1, 3)
    take_over(store, wait=no_wait)
    taken = take_over(store, wait=no_wait)
    assert (taken.epoch, taken.base_number) == (newest + 2, newest)
    assert taken.base == read_record(store, newest)


def test_the_jobmaster_before_can_complete_nothing_more_and_deletes_nothing() -> None:
    store = fresh_store()
    taken, journal = start(store)
    first = journal.append(checkpoint(taken.epoch))
    journal.append(checkpoint(taken.epoch))
    start(store)
    before = numbers(store)
    for _ in range(2):
        with pytest.raises(Fenced, match="epoch 1 has ended"):
            journal.append(checkpoint(taken.epoch))
    with pytest.raises(Fenced):
        journal.expire([first])
    assert numbers(store) == before


@pytest.mark.parametrize("fault", list(Fault))
def test_an_unclear_answer_to_the_takeovers_put_is_read_back(fault: Fault) -> None:
    inner = fresh_store()
    steered = Steered(inner, {("create", 1): fault})
    taken = take_over(steered.store, wait=no_wait)
    steered.store.land()
    assert taken.epoch == 1
    assert numbers(inner) == [1]


def test_a_lost_answer_and_failing_reads_are_waited_for_with_growing_patience() -> None:
    waited: list[int] = []
    steered = Steered(
        fresh_store(), {("create", 1): Fault.LOST_ANSWER, ("get", 1): Fault.FAIL, ("list", 2): Fault.FAIL}
    )
    assert take_over(steered.store, wait=waited.append).epoch == 1
    assert waited == [1, 2]


def test_a_candidate_whose_number_is_taken_starts_over_above() -> None:
    inner = fresh_store()
    steered = Steered(inner, {("create", 1): lambda: advance(start(inner)[1], 1, 1)})
    taken = take_over(steered.store, wait=no_wait)
    assert (taken.epoch, taken.base_number) == (3, 2)
    assert steered.counts["list"] == 3


def paused_candidate(inner: ObjectStore, running: Journal) -> Steered:
    """A candidate that is paused between its listing and its put, while the records it saw are deleted."""
    return Steered(inner, {("create", 1): lambda: advance(running, 1, 5)})


def test_a_freed_number_that_a_paused_candidate_creates_again_does_not_count() -> None:
    inner = fresh_store()
    _, running = start(inner)
    running.append(checkpoint(1))
    taken = take_over(paused_candidate(inner, running).store, wait=no_wait)
    assert read_record(inner, 3) == Takeover(3, read_record(inner, 3).nonce), "the freed number was created again"
    assert (taken.epoch, taken.base_number) == (8, 7)
    with pytest.raises(Fenced):
        running.append(checkpoint(1))


def test_until_a_candidates_takeover_counts_it_does_nothing_that_matters() -> None:
    inner = fresh_store()
    _, running = start(inner)
    running.append(checkpoint(1))
    candidate = paused_candidate(inner, running)
    candidate._plan = {**candidate._plan, **{("list", turn): Fault.FAIL for turn in range(2, 50)}}  # type: ignore[assignment]
    with pytest.raises(StorageError, match="could not be listed after 10 attempts"):
        take_over(candidate.store, wait=no_wait)
    assert set(candidate.counts) == {"list", "get", "create"}
    running.append(checkpoint(1))


def test_a_base_that_vanishes_between_listing_and_reading_starts_over() -> None:
    inner = fresh_store()
    _, running = start(inner)
    running.append(checkpoint(1))

    def move_on() -> None:
        newest = running.append(checkpoint(1))
        running.expire([number for number in (2,) if number < newest])

    taken = take_over(Steered(inner, {("get", 1): move_on}).store, wait=no_wait)
    assert taken.base_number == 3


def test_a_takeover_put_that_lands_late_stops_the_one_before_and_the_next_start_works() -> None:
    inner = fresh_store()
    _, running = start(inner)
    steered = Steered(inner, {("create", turn): Fault.LATE for turn in range(1, 20)})
    with pytest.raises(StorageError, match="it is not known whether journal/000000000002 was written"):
        take_over(steered.store, wait=no_wait)
    running.append(checkpoint(1))
    steered.store.land()
    assert numbers(inner) == [1, 2]
    assert take_over(inner, wait=no_wait).epoch == 3


def test_an_abandoned_takeover_that_lands_before_the_next_record_fences() -> None:
    inner = fresh_store()
    _, running = start(inner)
    steered = Steered(inner, {("create", turn): Fault.LATE for turn in range(1, 20)})
    with pytest.raises(StorageError):
        take_over(steered.store, wait=no_wait)
    steered.store.land()
    with pytest.raises(Fenced):
        running.append(checkpoint(1))
    assert take_over(inner, wait=no_wait).epoch == 3


@pytest.mark.parametrize("stored", [b"", b"hello", frame(b"HFJR", 4, b"?"), frame(b"HFJR", 1, b"?")])
def test_a_journal_that_cannot_be_read_is_named_and_left_as_it_is(stored: bytes) -> None:
    store = fresh_store()
    store.put(names.journal(1), stored)
    with pytest.raises(CorruptObject, match="journal/000000000001"):
        take_over(store, wait=no_wait)
    assert numbers(store) == [1]


def test_unknown_names_in_the_journal_are_passed_over() -> None:
    store = fresh_store()
    store.put("journal/notes.txt", b"")
    assert take_over(store, wait=no_wait).epoch == 1


def test_candidates_that_keep_overtaking_each_other_give_up_after_a_bound() -> None:
    inner = fresh_store()
    steered = Steered(inner, {("create", turn): lambda: start(inner) for turn in range(1, 20)})
    with pytest.raises(StorageError, match="could not take over, others did meanwhile after 3 attempts"):
        take_over(steered.store, attempts_max=3, wait=no_wait)
