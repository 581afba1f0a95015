"""A recovery reads each object once, in parallel, a bounded way ahead, from local copies where there are any."""

import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from holdfast.errors import CorruptObject, ObjectNotFound, StorageError
from holdfast.formats.handles import LogPiece
from holdfast.recovery.downloads import Fetched, ObjectCache
from holdfast.recovery.local import Copy, LocalCopies
from holdfast.recovery.spans import StoredRange
from holdfast.storage import names
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.store import ObjectStore

WAIT_S = 30


class CountingStore:
    """Counts fetches; may hold requests up until `parties` are under way together."""

    def __init__(self, inner: ObjectStore, parties: int = 1) -> None:
        self.inner = inner
        self.fetched: Counter[str] = Counter()
        self.together = threading.Barrier(parties)

    def get(self, name: str) -> bytes:
        self.fetched[name] += 1
        self.together.wait(WAIT_S)
        return self.inner.get(name)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        self.fetched[name] += 1
        self.together.wait(WAIT_S)
        return self.inner.get_range(name, offset, length)


def stored(contents: dict[str, bytes], parties: int = 1) -> CountingStore:
    inner = ObstoreStore("memory://", MemoryStore())
    for name, data in contents.items():
        inner.put(name, data)
    return CountingStore(inner, parties)


def piece(name: str, offset: int = 0, length: int = 1) -> LogPiece:
    return LogPiece(name, offset, length, 0, 1, 0, 128)


def part(each: StoredRange, copy: Copy) -> bytes:
    return bytes(copy.part(each.offset, each.length))


def test_objects_are_fetched_once_and_in_parallel() -> None:
    store = stored({f"o{i}": bytes([i]) for i in range(4)}, parties=4)
    with ObjectCache(store, downloads_max=4) as cache:  # type: ignore[arg-type]
        ranges = [piece(f"o{i}") for i in (0, 1, 2, 3, 0)]
        cache.expect(ranges)
        assert list(cache.ahead(ranges, part)) == [b"\0", b"\1", b"\2", b"\3", b"\0"]
        assert cache.fetched == Fetched(4, 4, 0)
    assert set(store.fetched.values()) == {1}


def test_ranges_of_an_object_come_to_different_tables_with_one_fetch_whoever_is_first() -> None:
    store = stored({"o": b"abc", "p": b"d"})
    first, second = [piece("o", 0), piece("o", 1)], [piece("o", 2), piece("p")]
    with ObjectCache(store) as cache:  # type: ignore[arg-type]
        cache.expect([*first, *second])
        assert list(cache.ahead(first, part)) == [b"a", b"b"]
        assert list(cache.ahead(second, part)) == [b"c", b"d"]
        assert cache.ahead_bytes == 0
    assert store.fetched == {"o": 1, "p": 1}


def test_no_more_is_fetched_ahead_than_the_bound_and_waiting_for_an_object_fetches_it() -> None:
    count, size = 50, 100
    store = stored({f"o{i:02}": bytes([i]) * size for i in range(count)})
    ranges = [piece(f"o{i:02}", 0, size) for i in range(count)]
    with ObjectCache(store, ahead_bytes_max=3 * size) as cache:  # type: ignore[arg-type]
        cache.expect(ranges)
        assert cache.ahead_bytes == 3 * size
        assert list(cache.ahead(ranges[49:], part)) == [bytes([49]) * size]
        for number, data in enumerate(cache.ahead(ranges[:49], part)):
            assert data == bytes([number]) * size
            assert cache.ahead_bytes <= (3 + 4 + 1) * size
        assert cache.ahead_bytes == 0
    assert set(store.fetched.values()) == {1}


class PausedBeforeStart(ObjectCache):
    """Gives others time between the choice of an object to fetch ahead and the start of its fetch."""

    def __init__(self, store: CountingStore) -> None:
        super().__init__(store, ahead_bytes_max=1)  # type: ignore[arg-type]
        self.chosen = threading.Event()
        self.resumed = threading.Event()

    def _start(self, download: Any) -> "Future[Copy]":
        if threading.current_thread().name.startswith("holdfast-decode"):
            self.chosen.set()
            self.resumed.wait(0.2)
        return super()._start(download)


def test_what_is_replayed_while_it_is_chosen_to_be_fetched_ahead_is_fetched_once() -> None:
    store = stored({"a": b"a", "b": b"b"})
    with PausedBeforeStart(store) as cache:
        cache.expect([piece("a"), piece("b")])
        first = threading.Thread(target=lambda: list(cache.ahead([piece("a")], part)))
        first.start()
        assert cache.chosen.wait(WAIT_S)
        assert list(cache.ahead([piece("b")], part)) == [b"b"]
        cache.resumed.set()
        first.join(WAIT_S)
    assert store.fetched == {"a": 1, "b": 1}


def test_an_error_reaches_whoever_replays_and_nobody_hangs() -> None:
    store = stored({"o": b"a"})

    def damaged(each: StoredRange, copy: Copy) -> bytes:
        raise CorruptObject(f"{each.object}: damaged")

    with ObjectCache(store) as cache:  # type: ignore[arg-type]
        cache.expect([piece("o"), piece("missing")])
        with pytest.raises(CorruptObject, match="o: damaged"):
            list(cache.ahead([piece("o")], damaged))
        with pytest.raises(ObjectNotFound, match="missing"):
            list(cache.ahead([piece("o"), piece("missing")], part))


def test_what_was_not_begun_when_it_closes_is_not_fetched() -> None:
    store = stored({f"o{i}": b"x" for i in range(20)}, parties=3)
    cache = ObjectCache(store, downloads_max=2)  # type: ignore[arg-type]
    cache.expect([piece(f"o{i}") for i in range(20)])
    closing = threading.Thread(target=cache.close)
    while store.together.n_waiting < 2:
        time.sleep(0.001)
    closing.start()
    closing.join(0.5)
    assert closing.is_alive(), "it waits for what is under way"
    store.together.abort()
    closing.join(WAIT_S)
    assert sum(store.fetched.values()) == 2


def test_local_copies_are_read_before_the_store_and_made_of_what_comes_from_there(tmp_path: Path) -> None:
    here, there = names.changelog_object(1, 1), names.changelog_object(1, 1)
    store = stored({here: b"here", there: b"there"})
    copies = LocalCopies(str(tmp_path), "a" * 32, 0, 1000)
    copies.keep(here, b"here")
    ranges = [piece(here, 0, 4), piece(there, 0, 5)]
    for fetched in (Fetched(2, 5, 4), Fetched(2, 0, 9)):
        with ObjectCache(store, copies=copies) as cache:  # type: ignore[arg-type]
            cache.expect(ranges)
            assert list(cache.ahead(ranges, part)) == [b"here", b"there"]
            assert cache.fetched == fetched
    assert store.fetched == {there: 1}
    copies.close(delete=True)


def test_copies_that_hold_each_others_bytes_are_deleted_and_the_store_is_asked(tmp_path: Path) -> None:
    """Their own checksums are right: only who decodes them can tell."""
    contents = {names.changelog_object(1, 1): data for data in (b"one", b"two")}
    one, two = contents
    store = stored(contents)
    copies = LocalCopies(str(tmp_path), "a" * 32, 0, 1000)
    copies.keep(one, contents[two])
    copies.keep(two, contents[one])

    def decode(each: StoredRange, copy: Copy) -> bytes:
        if part(each, copy) != contents[each.object]:
            raise CorruptObject(f"{each.object}: holds other bytes than the checkpoint refers to")
        return part(each, copy)

    ranges = [piece(one, 0, 3), piece(two, 0, 3)]
    with ObjectCache(store, copies=copies) as cache:  # type: ignore[arg-type]
        cache.expect(ranges)
        assert list(cache.ahead(ranges, decode)) == [b"one", b"two"]
    assert copies.names() == set()
    assert not list(tmp_path.rglob("*.object"))
    copies.close(delete=True)


def test_without_the_store_nothing_that_is_only_damaged_here_is_used(tmp_path: Path) -> None:
    lost = names.changelog_object(1, 1)
    copies = LocalCopies(str(tmp_path), "a" * 32, 0, 1000)
    copies.keep(lost, b"lost")
    [path] = tmp_path.rglob("*.object")
    path.write_bytes(b"Lost")
    with ObjectCache(stored({}), copies=copies) as cache, pytest.raises(StorageError, match=lost):  # type: ignore[arg-type]
        list(cache.ahead([piece(lost, 0, 4)], part))
    copies.close(delete=True)


def test_after_an_error_no_thread_decodes_any_more() -> None:
    store = stored({"bad": b"x", "slow": b"y"})
    slow_begun, slow_may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def decode(each: StoredRange, copy: Copy) -> None:
        if each.object == "bad":
            assert slow_begun.wait(WAIT_S)
            threading.Timer(0.05, slow_may_end.set).start()
            raise OSError("No space left on device")
        slow_begun.set()
        assert slow_may_end.wait(WAIT_S)
        ended.set()

    with ObjectCache(store, downloads_max=1) as cache:  # type: ignore[arg-type]
        with pytest.raises(OSError, match="No space left"):
            list(cache.ahead([piece("bad"), piece("slow")], decode))
        assert ended.is_set()
