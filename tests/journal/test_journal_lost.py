"""A newest record that is lost is told from a beginning: nobody starts from an older record, and nothing is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptObject, StorageError
from holdfast.journal import rules
from holdfast.journal.codec import decode_begun
from holdfast.journal.fence import take_over
from holdfast.journal.journal import Journal
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.testing.stores import Fault
from journal_kit import Steered, advance, checkpoint, fresh_store, no_wait, start


def refused(store: ObjectStore, match: str) -> None:
    before = [info.name for info in store.list("")]
    with pytest.raises(CorruptObject, match=match):
        take_over(store, wait=no_wait)
    assert [info.name for info in store.list("")] == before


def test_a_journal_whose_only_checkpoint_is_lost_is_no_beginning() -> None:
    store = fresh_store()
    _, journal = start(store)
    newest = advance(journal, 1, 4)
    store.delete([names.journal(newest)])
    refused(store, r"journal/000000000002, or a later record, is missing.*No checkpoint record is left.*Restore")


def test_a_record_lost_below_a_takeover_is_named() -> None:
    store = fresh_store()
    _, journal = start(store)
    advance(journal, 1, 4)
    start(store)
    store.delete([names.journal(5)])
    refused(store, r"journal/000000000005 is missing: the newest checkpoint record")


def test_a_record_lost_above_an_older_one_is_named_with_it() -> None:
    store = fresh_store()
    _, journal = start(store)
    advance(journal, 1, 4, keep=2)
    start(store)
    store.delete([names.journal(5)])
    refused(store, r"journal/000000000005 is missing.*journal/000000000004 is older")


def test_the_lost_record_put_back_is_the_base_again() -> None:
    store = fresh_store()
    _, journal = start(store)
    newest = advance(journal, 1, 4)
    data = store.get(names.journal(newest))
    store.delete([names.journal(newest)])
    refused(store, "is missing")
    store.put(names.journal(newest), data)
    assert take_over(store, wait=no_wait).base_number == newest


def test_takeovers_without_a_checkpoint_are_a_beginning() -> None:
    store = fresh_store()
    for _ in range(3):
        start(store)
    assert take_over(store, wait=no_wait).base is None
    assert names.begun() not in [info.name for info in store.list("")]


@pytest.mark.parametrize("fault", list(Fault))
def test_a_first_record_counts_once_its_mark_is_there(fault: Fault) -> None:
    inner = fresh_store()
    start(inner)
    steered = Steered(inner, {("create", 2): fault, ("get", 1): Fault.FAIL})
    journal = Journal(steered.store, take_over(inner, wait=no_wait).epoch, attempts_max=1, wait=no_wait)
    with pytest.raises(StorageError):
        journal.append(checkpoint(2))
    assert journal.unresolved
    with pytest.raises(StorageError):
        journal.expire([])
    while journal.unresolved:
        try:
            journal.resolve()
        except StorageError:
            steered.store.land()
    assert decode_begun(names.begun(), inner.get(names.begun())).record == 3


def test_a_takeover_marks_a_journal_whose_writer_died_before_it_could() -> None:
    store = fresh_store()
    _, journal = start(store)
    journal.append(checkpoint(1))
    store.delete([names.begun()])
    start(store)
    assert names.begun() in [info.name for info in store.list("")]


def test_a_record_that_seems_lost_while_others_append_is_looked_for_again() -> None:
    """A listing may miss records written while it ran, and records that these made expire."""
    inner = fresh_store()
    _, journal = start(inner)
    advance(journal, 1, 2)
    data = inner.get(names.journal(3))
    inner.delete([names.journal(3)])
    steered = Steered(inner, {("list", 2): lambda: inner.put(names.journal(3), data)})
    assert take_over(steered.store, wait=no_wait).base_number == 3


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_no_journal_that_is_whole_seems_to_miss_a_record_and_no_lost_one_is_missed(
    checkpoints: list[bool], data: st.DataObject
) -> None:
    kinds = dict(enumerate([False, *checkpoints], 1))
    newest = max((number for number, is_checkpoint in kinds.items() if is_checkpoint), default=None)
    below = [number for number, is_checkpoint in kinds.items() if is_checkpoint and number != newest]
    expired = data.draw(st.sets(st.sampled_from(below))) if below else set()
    present = set(kinds) - expired
    assert rules.missing_record(present, newest is not None, newest) is None
    if newest is None:
        return
    left = present - {newest}
    older = max((number for number in left if kinds[number]), default=None)
    if older is None or newest < max(kinds):
        missing = rules.missing_record(left, True, older)
        assert missing == newest if newest < max(kinds) else missing is not None
