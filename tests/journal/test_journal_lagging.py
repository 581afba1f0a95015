"""A store whose listings lag behind: no takeover counts that a listing does not show, and no fence is overlooked."""

from contextlib import suppress

import pytest

from holdfast.errors import Fenced, StorageError
from holdfast.ids import Epoch, JournalNumber
from holdfast.journal.fence import list_journal, settle, take_over
from holdfast.journal.journal import Journal
from holdfast.journal.patience import Patience
from holdfast.journal.records import Takeover
from journal_kit import LaggingStore, advance, checkpoint, fresh_store, no_wait, numbers


def running(store: LaggingStore) -> Journal:
    """A JobMaster that took over an empty storage, some time ago."""
    taken = take_over(store, wait=store.pass_time)
    for _ in range(9):
        store.pass_time()
    return Journal(store, taken.epoch, taken.base_number, wait=store.pass_time)


@pytest.mark.parametrize("lag", range(6))
@pytest.mark.parametrize("checkpoints", [1, 2, 6])
@pytest.mark.parametrize("keep", [1, 2])
def test_a_takeover_goes_on_from_the_newest_checkpoint_whatever_a_listing_shows(
    lag: int, checkpoints: int, keep: int
) -> None:
    store = LaggingStore(fresh_store(), lag)
    journal = running(store)
    newest = advance(journal, 1, checkpoints, min(keep, checkpoints))
    taken = take_over(store, wait=store.pass_time)
    assert taken.base_number == newest
    with pytest.raises(Fenced):
        journal.append(checkpoint(1))


@pytest.mark.parametrize("lag", range(1, 6))
def test_a_start_beside_a_driver_that_goes_on_finds_its_newest_checkpoint(lag: int) -> None:
    """The driver takes a checkpoint between any two attempts, and keeps each record until listings show the next."""
    store = LaggingStore(fresh_store(), lag)
    journal = running(store)
    written: list[JournalNumber] = []

    def go_on(attempts: int = 0) -> None:
        store.pass_time()
        if not journal.fenced:
            with suppress(Fenced):
                written.append(journal.append(checkpoint(1, len(written))))
                journal.expire(written[-lag - 2 : -lag - 1])

    for _ in range(10):
        go_on()
    taken = take_over(store, wait=go_on)
    assert taken.base_number == written[-1]
    assert journal.fenced


def test_a_listing_that_never_shows_the_takeover_is_named_and_nothing_begins() -> None:
    store = LaggingStore(fresh_store(), 1_000)
    with pytest.raises(StorageError, match="its listings do not show journal/000000000001, which is there: they lag"):
        take_over(store, wait=store.pass_time)
    assert list_journal(store).numbers == []


def test_the_mark_of_a_first_checkpoint_is_asked_for_by_name() -> None:
    store = LaggingStore(fresh_store(), 5)
    running(store).append(checkpoint(1))
    assert list_journal(store) == ([1], True)


def test_a_jobmaster_sees_that_it_is_fenced_though_no_listing_shows_it() -> None:
    store = LaggingStore(fresh_store(), 5)
    journal = running(store)
    advance(journal, 1, 2)
    journal.check()
    settle(store, JournalNumber(4), Takeover(Epoch(4), "other"), Patience(1, no_wait))
    assert numbers(store) == [1]
    with pytest.raises(Fenced, match="another JobMaster wrote"):
        journal.check()
