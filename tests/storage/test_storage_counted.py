"""A counted store counts the requests that reach it, by kind, whatever becomes of them."""

from collections.abc import Mapping

import pytest
from obstore.store import MemoryStore

from holdfast.errors import ObjectExists, ObjectNotFound, StorageError
from holdfast.storage.counted import PAGE, CountedStore, counted, note, requests_of, untold
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.retrying import RetryingStore
from holdfast.testing.stores import Fault, FaultyStore


def memory() -> ObstoreStore:
    return ObstoreStore("memory://", MemoryStore())


def seen(counts: Mapping[str, float]) -> dict[str, float]:
    """The counts of requests that came."""
    return {name: count for name, count in counts.items() if count}


def test_each_kind_of_request_counts_with_its_bytes() -> None:
    store = CountedStore(memory())
    store.put("a/1", b"12345")
    store.create("a/2", b"123")
    assert store.get("a/1") == b"12345"
    assert store.get_range("a/1", 1, 2) == b"23"
    assert [each.name for each in store.list("a/")] == ["a/1", "a/2"]
    store.delete(["a/1", "a/2"])
    assert seen(store.metrics()) == {
        "storePuts": 2,
        "storePutBytes": 8,
        "storeGets": 2,
        "storeGetBytes": 7,
        "storeLists": 1,
        "storeDeletes": 1,
    }


def test_requests_that_fail_count_and_read_nothing() -> None:
    store = CountedStore(memory())
    store.create("a", b"1")
    with pytest.raises(ObjectExists):
        store.create("a", b"2")
    with pytest.raises(ObjectNotFound):
        store.get("b")
    assert seen(store.metrics()) == {"storePuts": 2, "storePutBytes": 2, "storeGets": 1}


def test_many_objects_are_listed_and_deleted_by_several_requests() -> None:
    inner = memory()
    names = [f"a/{number:05}" for number in range(2 * PAGE + 1)]
    for name in names:
        inner.put(name, b"")
    store = CountedStore(inner)
    assert len(store.list("a/")) == len(names)
    store.delete(names)
    assert seen(store.metrics()) == {"storeLists": 3, "storeDeletes": 3}


def test_retries_above_it_count() -> None:
    faults = [Fault.FAIL, Fault.FAIL, None]
    store = counted(RetryingStore(FaultyStore(memory(), lambda operation, name: faults.pop(0))))
    assert isinstance(store, RetryingStore)
    store.put("a", b"12")
    assert seen(requests_of(store)) == {"storePuts": 3, "storePutBytes": 6}


def test_a_store_without_retries_gets_none() -> None:
    store = counted(FaultyStore(memory(), lambda operation, name: Fault.FAIL))
    with pytest.raises(StorageError):
        store.put("a", b"12")
    assert seen(requests_of(store)) == {"storePuts": 1, "storePutBytes": 2}
    assert requests_of(memory()) == {}


def test_a_store_beside_a_counted_one_counts_with_it() -> None:
    store = counted(RetryingStore(memory()))
    target = counted(RetryingStore(memory()), store)
    target.put("a", b"12")
    store.put("b", b"345")
    assert seen(requests_of(store)) == seen(requests_of(target)) == {"storePuts": 2, "storePutBytes": 5}
    plain = memory()
    assert counted(plain, memory()) is plain


def test_counts_are_told_once_and_noted_elsewhere_with_the_puts_of_senders_apart() -> None:
    sender, job_master = counted(RetryingStore(memory())), counted(memory())
    sender.put("a", b"12")
    first = untold(sender)
    assert untold(sender) == {}
    sender.get("a")
    note(job_master, first, by_senders=True)
    note(job_master, untold(sender), by_senders=True)
    note(job_master, {"storeGets": 3})
    assert seen(requests_of(job_master)) == {
        "storePuts": 1,
        "storePutBytes": 2,
        "senderPuts": 1,
        "senderPutBytes": 2,
        "storeGets": 4,
        "storeGetBytes": 2,
    }
    note(memory(), first)
    assert untold(memory()) == {}
