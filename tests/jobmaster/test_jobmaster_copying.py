"""Copies by several processes: each object once, also where a process ends, and errors that end the copy."""

import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from holdfast.errors import HoldfastError, StorageError, TaskManagerLost
from holdfast.jobmaster.savepoints import copying
from holdfast.jobmaster.savepoints.copying import Portions, SpreadCopy
from holdfast.storage.copying import CopiedObject, CopyOrder

NAMES = [f"dstl/{number}" for number in range(10)]


class Workers:
    """Processes that copy at once, but for those that are told to fail."""

    def __init__(self, count: int, error: Exception | None = None, errors_of_0: int = 0) -> None:
        self.count = count
        self.orders: list[tuple[int, list[str]]] = []
        self._error = error
        self._errors_of_0 = errors_of_0
        self._lock = threading.Lock()

    def copy(self, number: int, order: CopyOrder) -> list[CopiedObject]:
        with self._lock:
            fails = self._error is not None and number == 0 and self._errors_of_0 > 0
            self._errors_of_0 -= fails
            self.orders.append((number, order.names))
        if fails:
            assert self._error is not None
            raise self._error
        return [CopiedObject(name, 10, 0) for name in order.names]


class Busy(Workers):
    """Two processes: the first copies until it is `free`; the second begins after it, and copies or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(2)
        self.free = threading.Event()
        self.begun = threading.Event()
        self.refused = threading.Event()
        self._refusal = error

    def copy(self, number: int, order: CopyOrder) -> list[CopiedObject]:
        if number == 0:
            self.begun.set()
            self.free.wait()
        else:
            self.begun.wait()
        if number == 1 and self._refusal is not None:
            self.refused.set()
            raise self._refusal
        return super().copy(number, order)


def copy(
    workers: Workers,
    ended: bool = False,
    discard: Callable[[], None] = lambda: None,
    timeout_s: float | None = None,
) -> tuple[list[CopiedObject], list[tuple[int, int]]]:
    said: list[tuple[int, int]] = []
    order = CopyOrder("memory://copies", {}, NAMES)
    spread = SpreadCopy(workers, order, lambda: ended, lambda objects, size: said.append((objects, size)), discard)
    return spread.run(timeout_s), said


def test_every_object_is_copied_once_and_progress_is_told() -> None:
    workers = Workers(2)
    found, said = copy(workers)
    assert [each.name for each in found] == NAMES
    assert sorted(name for _, names in workers.orders for name in names) == NAMES
    assert said[-1] == (10, 100)


def test_the_portion_of_a_process_that_ends_is_copied_by_whoever_asks_next() -> None:
    workers = Workers(2, TaskManagerLost("killed"), errors_of_0=1)
    found, _ = copy(workers)
    assert [each.name for each in found] == NAMES


def test_a_portion_over_which_processes_keep_ending_ends_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "LOOK_AGAIN_S", 0.001)
    with pytest.raises(TaskManagerLost, match="killed"):
        copy(Workers(1, TaskManagerLost("killed"), errors_of_0=1000))


def test_an_error_of_the_store_ends_the_copy_at_once() -> None:
    workers = Workers(1, StorageError("the disk is full"), errors_of_0=1)
    with pytest.raises(StorageError, match="the disk is full"):
        copy(workers)
    assert len(workers.orders) == 1


def test_the_end_of_the_query_ends_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "LOOK_AGAIN_S", 0.001)
    with pytest.raises(HoldfastError, match="the query ended before everything was copied"):
        copy(Workers(1, TaskManagerLost("the query ends"), errors_of_0=1000), ended=True)


def test_a_copy_that_takes_too_long_is_discarded_by_the_last_process_at_work() -> None:
    workers, discarded = Busy(), threading.Event()
    with pytest.raises(TimeoutError):
        copy(workers, discard=discarded.set, timeout_s=0.02)
    assert not discarded.is_set(), "a process still writes"
    workers.free.set()
    assert discarded.wait(60)


def test_a_copy_that_is_interrupted_is_discarded_by_the_last_process_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, discarded = Busy(), threading.Event()
    monkeypatch.setattr(copying, "wait_for", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        copy(workers, discard=discarded.set)
    assert not discarded.is_set(), "a process still writes"
    workers.free.set()
    assert discarded.wait(60)


def test_a_copy_that_failed_is_discarded_once_no_process_writes_any_more() -> None:
    workers, discarded, written_before = Busy(StorageError("the disk is full")), list[bool](), list[bool]()

    def discard() -> None:
        discarded.append(workers.free.is_set())

    def let_go() -> None:
        workers.refused.wait()
        written_before.append(bool(discarded))
        workers.free.set()

    threading.Thread(target=let_go).start()
    with pytest.raises(StorageError, match="the disk is full"):
        copy(workers, discard=discard)
    assert (written_before, discarded) == ([False], [True])


def test_a_copy_that_succeeds_is_not_discarded() -> None:
    copy(Workers(2), discard=lambda: pytest.fail("discarded"), timeout_s=30)


def test_portions_that_are_under_way_keep_a_copy_from_being_over() -> None:
    portions = Portions(NAMES[:5])
    first, second = portions.take(), portions.take()
    assert first is not None and second is not None and portions.take() is None
    assert not portions.is_over
    portions.lost(second, TaskManagerLost("killed"))
    assert portions.take() == second
    for portion in (first, second):
        portions.copied(portion, [CopiedObject(name, 1, 0) for name in portion])
    assert portions.is_over and set(portions.copies) == set(NAMES[:5])


def test_an_order_shows_no_credentials() -> None:
    assert "secret" not in repr(CopyOrder("s3://bucket/a", {"aws_secret_access_key": "secret"}, NAMES))
