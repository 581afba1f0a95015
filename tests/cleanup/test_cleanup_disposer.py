"""Deletions that the coordinator orders: each outcome is told to it, so that a failed deletion is ordered again."""

import logging
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast.checkpoint import events
from holdfast.cleanup.disposer import Disposer
from holdfast.errors import HoldfastError, JobRefused, ObjectNotFound, SettingsError, StorageError
from holdfast.ids import JournalNumber
from holdfast.storage.routing import PartlyDeleted
from holdfast.testing.stores import Fault
from journal_kit import Steered, fresh_store

NAMES = frozenset({"a", "b"})


def disposing(store: Any, target: Any = None) -> tuple[Disposer, list[events.Event]]:
    posted: list[events.Event] = []
    return Disposer(store, {"out": target}, posted.append), posted


def test_objects_that_were_deleted_are_told() -> None:
    store = fresh_store()
    store.put("a", b"1")
    store.put("kept", b"2")
    disposer, posted = disposing(store)
    disposer.delete(events.DeleteObjects(sorted(NAMES)))
    assert posted == [events.ObjectsDeleted(NAMES)]
    assert [info.name for info in store.list("")] == ["kept"]


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST_ANSWER])
def test_a_deletion_of_which_nobody_knows_is_told_as_failed(fault: Fault) -> None:
    steered = Steered(fresh_store(), {("delete", 1): fault})
    disposer, posted = disposing(steered.store)
    disposer.delete(events.DeleteObjects(sorted(NAMES)))
    disposer.delete(events.DeleteObjects(sorted(NAMES)))
    assert posted == [events.DeleteFailed(NAMES), events.ObjectsDeleted(NAMES)]


@pytest.mark.parametrize("error", [JobRefused("the storage is another job's"), SettingsError("an option is missing")])
def test_no_error_of_a_storage_ends_the_query(error: HoldfastError) -> None:
    disposer, posted = disposing(Mock(delete=Mock(side_effect=error)), Mock(discard=Mock(side_effect=error)))
    disposer.delete(events.DeleteObjects(sorted(NAMES)))
    disposer.discard(events.Discard("out", JournalNumber(4), "group"))
    assert posted == [events.DeleteFailed(NAMES), events.DiscardFailed("out", JournalNumber(4))]


def test_objects_that_other_storages_have_deleted_are_told() -> None:
    error = PartlyDeleted(StorageError("away"), frozenset({"b"}))
    disposer, posted = disposing(Mock(delete=Mock(side_effect=error)))
    disposer.delete(events.DeleteObjects(sorted(NAMES)))
    assert posted == [events.DeleteFailed(frozenset({"b"})), events.ObjectsDeleted(frozenset({"a"}))]


def test_staged_files_of_a_published_group_are_deleted_by_their_sink_or_told_as_left() -> None:
    target = Mock()
    target.discard.side_effect = [None, StorageError("away")]
    disposer, posted = disposing(fresh_store(), target)
    command = events.Discard("out", JournalNumber(4), "group")
    disposer.discard(command)
    disposer.discard(command)
    assert posted == [events.Discarded("out", JournalNumber(4)), events.DiscardFailed("out", JournalNumber(4))]
    assert [each.args for each in target.discard.call_args_list] == [("group",), ("group",)]


def test_staged_files_whose_list_somebody_deleted_are_left_to_the_sweep_and_not_asked_for_again() -> None:
    target = Mock(discard=Mock(side_effect=ObjectNotFound("gone")))
    disposer, posted = disposing(fresh_store(), target)
    disposer.discard(events.Discard("out", JournalNumber(4), "group"))
    assert posted == [events.Discarded("out", JournalNumber(4))]


def test_files_that_no_record_held_are_left_to_the_sweep_when_they_cannot_be_deleted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = Mock(drop=Mock(side_effect=OSError("read-only")))
    disposer, posted = disposing(fresh_store(), target)
    with caplog.at_level(logging.WARNING):
        disposer.drop_staged("out", [b"one"])
    assert posted == []
    assert "left to the next sweep" in caplog.text
