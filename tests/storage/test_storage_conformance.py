"""Promises of every store, over files, memory and the S3 protocol, bare and inside each decorator."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import ObjectExists, ObjectNotFound, StorageError
from holdfast.journal.other_storages import routed
from holdfast.storage import obstore_store
from holdfast.storage.counted import CountedStore
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing.stores import FaultyStore, SlowStore

DECORATIONS: dict[str, Callable[[ObjectStore], ObjectStore]] = {
    "bare": lambda store: store,
    "retrying": lambda store: RetryingStore(store, wait=lambda _: None),
    "counted": CountedStore,
    "routing": routed,
    "faulty, without faults": lambda store: FaultyStore(store, lambda operation, name: None),
    "slow, without delay": lambda store: SlowStore(store, 0.0, wait=lambda _: None),
}


@pytest.fixture(params=list(DECORATIONS))
def decorated(request: pytest.FixtureRequest, store: ObjectStore) -> ObjectStore:
    return DECORATIONS[request.param](store)


def test_what_was_put_is_read_back_whole_and_in_ranges(decorated: ObjectStore) -> None:
    decorated.put("dstl/1/a", b"0123456789")
    decorated.put("dstl/1/b", bytearray(b"array"))
    decorated.put("dstl/1/c", memoryview(b"a view")[2:])
    decorated.put("dstl/1/empty", b"")
    assert decorated.get("dstl/1/a") == b"0123456789"
    assert decorated.get_range("dstl/1/a", 3, 4) == b"3456"
    assert decorated.get_range("dstl/1/a", 0, 10) == b"0123456789"
    assert decorated.get_range("dstl/1/a", 4, 0) == b""
    assert decorated.get("dstl/1/b") == b"array"
    assert decorated.get("dstl/1/c") == b"view"
    assert decorated.get("dstl/1/empty") == b""


def test_put_replaces_and_create_does_not(decorated: ObjectStore) -> None:
    decorated.put("a/x", b"one")
    decorated.put("a/x", b"three")
    with pytest.raises(ObjectExists, match="a/x"):
        decorated.create("a/x", b"four")
    decorated.create("a/y", b"five")
    assert decorated.get("a/x") == b"three"
    assert decorated.get("a/y") == b"five"


def test_a_missing_object_is_named(decorated: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound, match="no/such"):
        decorated.get("no/such")
    with pytest.raises(ObjectNotFound, match="no/such"):
        decorated.get_range("no/such", 0, 1)


@pytest.mark.parametrize(("offset", "length"), [(8, 5), (10, 1), (50, 2)])
def test_a_range_past_the_end_is_an_error(decorated: ObjectStore, offset: int, length: int) -> None:
    decorated.put("x", b"0123456789")
    with pytest.raises(StorageError, match="x"):
        decorated.get_range("x", offset, length)


def test_a_listing_is_recursive_sorted_and_of_that_folder_alone(decorated: ObjectStore) -> None:
    for name in ("b/2", "b/10", "b/1/deep", "bb/1", "a/1", "b/1-x"):
        decorated.put(name, b"12345")
    listed = decorated.list("b/")
    assert [info.name for info in listed] == ["b/1-x", "b/1/deep", "b/10", "b/2"]
    assert {info.size for info in listed} == {5}
    assert all(info.modified_s > 1_500_000_000 for info in listed)
    assert [info.name for info in decorated.list("b/", after="b/1/deep")] == ["b/10", "b/2"]
    assert decorated.list("nothing/") == []
    assert [info.name for info in decorated.list("")] == ["a/1", "b/1-x", "b/1/deep", "b/10", "b/2", "bb/1"]


def test_deleting_passes_over_what_is_missing(decorated: ObjectStore) -> None:
    for name in ("a/1", "a/2", "a/3"):
        decorated.put(name, b"")
    decorated.delete(["a/0", "a/1", "a/9", "a/3"])
    decorated.delete(["a/1"])
    decorated.delete([])
    assert [info.name for info in decorated.list("a/")] == ["a/2"]


def test_of_many_that_create_one_object_exactly_one_succeeds(store: ObjectStore) -> None:
    def attempt(number: int) -> int | None:
        try:
            store.create("journal/1", b"%d" % number)
        except ObjectExists:
            return None
        return number

    for _ in range(5):
        with ThreadPoolExecutor(8) as threads:
            winners = [winner for winner in threads.map(attempt, range(8)) if winner is not None]
        assert [b"%d" % winner for winner in winners] == [store.get("journal/1")]
        store.delete(["journal/1"])


def test_another_opening_of_the_same_url_sees_the_same_objects(open_again: Callable[[], ObjectStore]) -> None:
    open_again().put("a", b"1")
    assert open_again().get("a") == b"1"


def test_many_objects_are_deleted_and_listed(store: ObjectStore) -> None:
    """More than the thousand that S3 lists, and deletes, at once."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: store.put(f"many/{number:05d}", b"x"), range(1_100)))
    assert len(store.list("many/")) == 1_100
    store.delete([f"many/{number:05d}" for number in range(1_050)])
    assert [info.name for info in store.list("many/")] == [f"many/{number:05d}" for number in range(1_050, 1_100)]


def test_a_large_object_is_written_in_parts(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObstoreStore, "multipart_bytes_min", 6 * 1024 * 1024)
    monkeypatch.setattr(obstore_store, "MULTIPART_CHUNK_BYTES", 5 * 1024 * 1024)
    data = bytes(range(256)) * (11 * 1024 * 4)
    store.put("large", data)
    assert store.get("large") == data
    assert store.get_range("large", 5 * 1024 * 1024 - 2, 4) == data[5 * 1024 * 1024 - 2 :][:4]


def test_listings_and_puts_go_on_while_objects_and_folders_vanish(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/s")
    store.put("kept/0/x", b"")
    stop = threading.Event()

    def churn(worker: int) -> int:
        turns = 0
        while not stop.is_set():
            name = f"kept/{worker % 2}/{turns % 3}-{worker}"
            store.put(name, b"x" * 100)
            store.delete([name])
            turns += 1
        return turns

    with ThreadPoolExecutor(4) as threads:
        workers = [threads.submit(churn, worker) for worker in range(4)]
        try:
            for _ in range(3_000):
                assert "kept/0/x" in {info.name for info in store.list("kept/")}
        finally:
            stop.set()
        assert all(worker.result() > 0 for worker in workers)


def test_emptied_folders_do_not_stay_behind(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/s")
    names = [f"dstl/1/{number}/x" for number in range(20)]
    for name in names:
        store.put(name, b"")
    store.delete(names)
    assert list((tmp_path / "s").rglob("*")) == []
