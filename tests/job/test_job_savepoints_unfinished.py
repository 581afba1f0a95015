"""Savepoints that are not finished: out of time, interrupted by errors, given up; their remains, and later ones."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from job_kit import Feed, pairs
from savepoints_kit import LIVE, Folders, files_of, made, put

import holdfast as hf
from holdfast.jobmaster.savepoints import savepoints
from holdfast.jobmaster.savepoints.progress import SavepointProgress
from holdfast.maintenance.verify import verify
from holdfast.storage.copying import CopyOrder
from holdfast.storage.store import open_store
from holdfast.taskmanager.taskmanager import TaskManager
from holdfast.testing import start
from waiting import until


@pytest.fixture
def url(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@contextmanager
def late_while_copying() -> Iterator[None]:
    """Let a savepoint run out of time once its objects are being copied, and not before, on a machine of any speed."""

    def left_s(self: SavepointProgress) -> float:
        return 60.0 if self._total is None else 0.0

    with mock.patch.object(SavepointProgress, "left_s", property(left_s)):
        yield


def test_a_savepoint_that_takes_too_long_leaves_no_files_and_the_query_goes_on(url: Folders) -> None:
    feed, sink, goes_on = Feed(name="feed"), hf.MemorySink(name="out"), threading.Event()
    query = start(made(url("one"), feed, sink), LIVE)
    put(query, feed, 1, 2)
    before = TaskManager.copy

    def copy(self: TaskManager, order: CopyOrder) -> Any:
        copied = before(self, order)
        goes_on.wait()
        return copied

    for take in (query.savepoint, lambda url, timeout: query.stop(with_savepoint=url, timeout=timeout)):
        goes_on.clear()
        with mock.patch.object(TaskManager, "copy", copy):
            with late_while_copying(), pytest.raises(TimeoutError, match=r"not written within 30 s: 0 of"):
                take(url("save"), timeout="30s")
            until(lambda: bool(files_of(url, "save")))
            assert not goes_on.is_set(), "a process still copies"
            goes_on.set()
            until(lambda: not files_of(url, "save"))
    put(query, feed, 4)
    query.savepoint(url("save"), timeout=60)
    query.stop()
    assert [each.outcome for each in query.savepoints] == ["failed", "failed", "completed"]
    assert hf.read_state(url("save"), "sums").column("total.sum").to_pylist() == [7]


def test_a_folder_is_written_again_only_after_a_late_copy_into_it_was_deleted(url: Folders) -> None:
    feed, late, deletes = Feed(name="feed"), threading.Event(), threading.Event()
    query = start(made(url("one"), feed, hf.MemorySink(name="out")), LIVE)
    put(query, feed, 1, 2)
    copy, discard = TaskManager.copy, savepoints.SavepointTarget.discard
    saved: list[savepoints.Savepoint] = []

    def copy_late(self: TaskManager, order: CopyOrder) -> Any:
        late.wait()
        return copy(self, order)

    def discard_later(self: savepoints.SavepointTarget, written: Any) -> None:
        deletes.wait()
        discard(self, written)

    with (
        mock.patch.object(TaskManager, "copy", copy_late),
        mock.patch.object(savepoints.SavepointTarget, "discard", discard_later),
    ):
        with late_while_copying(), pytest.raises(TimeoutError, match="0 of"):
            query.savepoint(url("save"), timeout="30s")
        late.set()
        until(lambda: bool(files_of(url, "save")))
        again = threading.Thread(target=lambda: saved.append(query.savepoint(url("save"), timeout=60)))
        again.start()
        until(lambda: bool(query.view().savepoints))
        again.join(0.3)
        deletes.set()
        again.join(60)
    query.stop()
    assert len(saved) == 1 and verify(open_store(url("save"))).ok


def test_a_stop_that_fails_lets_no_batch_be_planned_while_another_one_stops(url: Folders) -> None:
    feed, waits, goes_on = Feed(name="feed"), threading.Event(), threading.Event()
    query = start(made(url("one"), feed, hf.MemorySink(name="out")), LIVE)
    put(query, feed, 1, 2)
    before = TaskManager.copy

    def copy(self: TaskManager, order: CopyOrder) -> Any:
        waits.set()
        goes_on.wait()
        return before(self, order)

    with mock.patch.object(TaskManager, "copy", copy):
        stopping = threading.Thread(target=lambda: query.stop(with_savepoint=url("save")))
        stopping.start()
        waits.wait()
        with pytest.raises(TimeoutError):
            query.stop(with_savepoint=url("late"), timeout="100ms")
        feed.put(pairs((1, 100)))
        assert query.status["message"].startswith("Planning no further batch, to stop with a savepoint; savepoint ")
        batches = query.totals.batches
        query.awaitTermination(0.3)
        goes_on.set()
        stopping.join(60)
    assert query.totals.batches == batches and not query.isActive
    assert hf.read_state(url("save"), "sums").column("total.sum").to_pylist() == [3]


def test_a_savepoint_whose_sinks_never_publish_ends_with_its_time(url: Folders) -> None:
    feed, answers = Feed(name="feed"), threading.Event()

    def publish(table: Any, number: int) -> None:
        if not answers.is_set():
            raise ConnectionError("nobody answers")

    query = start(made(url("one"), feed, hf.CallbackSink(publish, name="out")), LIVE)
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.batches == 1)
    with pytest.raises(TimeoutError, match="nothing is copied yet"):
        query.stop(with_savepoint=url("save"), timeout=0.1)
    answers.set()
    with pytest.raises(hf.SettingsError, match="with_savepoint"):
        query.stop(timeout=1)
    assert query.stop(with_savepoint=url("save"), timeout=60) is not None
    assert not query.isActive


def test_the_copies_of_a_savepoint_that_failed_are_deleted(url: Folders) -> None:
    feed = Feed(name="feed")
    query = start(made(url("one"), feed, hf.MemorySink(name="out")), LIVE)
    put(query, feed, 1, 2)
    before = TaskManager.copy

    def copy(self: TaskManager, order: CopyOrder) -> Any:
        before(self, order)
        assert files_of(url, "save")
        raise hf.StorageError("the disk is full")

    with mock.patch.object(TaskManager, "copy", copy), pytest.raises(hf.StorageError, match="the disk is full"):
        query.savepoint(url("save"))
    assert not files_of(url, "save")
    query.stop()
