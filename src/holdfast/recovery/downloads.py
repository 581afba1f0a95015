"""Downloads of a recovery: each object is fetched once, ahead of the replay, from this machine or from the store.

    expect(ranges, in order of replay) ──► download threads: local copy, or store ──► decode threads ──► replay
                                           at most `ahead_bytes_max` ahead            `ahead`

Invariants: an object is fetched once, however many ranges of it are expected, and let go of when all of them are
decoded. An object that is not expected is kept until the end. An object that somebody waits for is fetched at once,
without waiting for the bound. Neither downloads nor decoding wait for anything but the store. Writes nothing but local
copies.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from holdfast.formats.handles import FILE, LogPiece, MaterializedPart
from holdfast.recovery.local import Copy, LocalCopies
from holdfast.storage.store import ObjectStore

DOWNLOADS_MAX = 48
"""Objects that are fetched at once, each over a connection of its own. A higher value helps where objects are small and
the store takes long to answer: 10,000 objects at 20 ms take 4 s of waiting. The bytes that wait have a bound too."""
DECODES_MAX = 4
AHEAD_MAX = 4
"""Ranges of a table that are decoded, or being decoded, before they are replayed. A higher value takes more memory."""
AHEAD_BYTES_MAX = 256 * 1024 * 1024

StoredRange = LogPiece | MaterializedPart
T = TypeVar("T")


@dataclass(frozen=True)
class Fetched:
    """Counts of the downloads so far: objects, and their bytes by where they came from."""

    objects: int = 0
    bytes_from_store: int = 0
    bytes_from_local: int = 0

    def __str__(self) -> str:
        store_mb, local_mb = self.bytes_from_store / 1e6, self.bytes_from_local / 1e6
        return f"{self.objects} objects, {store_mb:.1f} MB from the storage and {local_mb:.1f} MB from local copies"


class ObjectCache:
    """The objects of a recovery, fetched; a context manager. Thread-safe.

    Parameters
    ----------
    copies
        Copies on this machine: asked before the store, and given each object from there. None: no local recovery.
    ahead_bytes_max
        Bytes that wait to be replayed at most; past them, no further expected object is fetched.
    """

    def __init__(
        self,
        store: ObjectStore,
        downloads_max: int = DOWNLOADS_MAX,
        copies: LocalCopies | None = None,
        ahead_bytes_max: int = AHEAD_BYTES_MAX,
    ) -> None:
        self._store = store
        self._copies = copies
        self._ahead_bytes_max = ahead_bytes_max
        self._lock = threading.RLock()
        self._objects: dict[str, Future[Copy]] = {}
        self._expected: Counter[str] = Counter()
        self._sizes: dict[str, int] = {}
        self._files: set[str] = set()
        self._to_fetch: deque[str] = deque()
        self._ahead_bytes = 0
        self._fetched = Fetched()
        self._downloads = ThreadPoolExecutor(downloads_max, thread_name_prefix="holdfast-download")
        self._decodes = ThreadPoolExecutor(DECODES_MAX, thread_name_prefix="holdfast-decode")

    def __enter__(self) -> "ObjectCache":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def fetched(self) -> Fetched:
        with self._lock:
            return self._fetched

    @property
    def ahead_bytes(self) -> int:
        """Expected objects that are being fetched, or that wait to be decoded."""
        with self._lock:
            return self._ahead_bytes

    def expect(self, ranges: Iterable[StoredRange]) -> None:
        """Each of these will be decoded once, in about this order: their objects are fetched ahead."""
        with self._lock:
            for each in ranges:
                name = each.object
                if not self._expected[name] and name not in self._objects:
                    self._to_fetch.append(name)
                self._expected[name] += 1
                self._sizes[name] = max(self._sizes.get(name, 0), each.offset + each.length)
                if isinstance(each, MaterializedPart) and each.kind == FILE:
                    self._files.add(name)
            self._fetch_ahead()

    def get(self, name: str) -> memoryview:
        """The whole object; waits for it. Raises `StorageError` where it cannot be read."""
        return memoryview(self._start(name).result().data())

    def ahead(self, ranges: Iterable[StoredRange], decode: Callable[[StoredRange, Copy], T]) -> Iterator[T]:
        """`decode` each range and its object, in order; done on other threads as soon as the object is there.

        Once it has ended, also by an error, no thread decodes any of the ranges: what `decode` writes to may be
        deleted.
        Raises what `decode` raises, or `StorageError` where an object cannot be read.
        """
        pending: deque[Future[T]] = deque()
        try:
            for each in ranges:
                pending.append(self._decoded(each, decode))
                if len(pending) == AHEAD_MAX:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            wait([each for each in pending if not each.cancel()])

    def from_store(self, name: str) -> Copy:
        """Fetch the object from the store, even if this machine has a copy."""
        data = self._store.get(name)
        with self._lock:
            self._fetched = replace(self._fetched, bytes_from_store=self._fetched.bytes_from_store + len(data))
        return Copy(data, len(data))

    def keep_file(self, name: str, data: bytes, file: Path) -> None:
        """The object's end is in that file now: a local copy may link it."""
        if self._copies is not None:
            self._copies.keep(name, data, file, in_place_of_older=False)

    def close(self) -> None:
        """Let go of everything; downloads that were not begun are dropped."""
        self._downloads.shutdown(wait=True, cancel_futures=True)
        self._decodes.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._objects.clear()
            self._to_fetch.clear()

    def _decoded(self, each: StoredRange, decode: Callable[[StoredRange, Copy], T]) -> "Future[T]":
        decoded: Future[T] = Future()
        self._start(each.object).add_done_callback(partial(self._arrived, each, decode, decoded))
        return decoded

    def _arrived(
        self,
        each: StoredRange,
        decode: Callable[[StoredRange, Copy], T],
        decoded: "Future[T]",
        download: "Future[Copy]",
    ) -> None:
        if download.cancelled():
            decoded.cancel()
            return
        try:
            self._decodes.submit(self._decode, each, decode, decoded, download)
        except RuntimeError:  # closed: nobody waits for it any more
            decoded.cancel()

    def _decode(
        self,
        each: StoredRange,
        decode: Callable[[StoredRange, Copy], T],
        decoded: "Future[T]",
        download: "Future[Copy]",
    ) -> None:
        if not decoded.set_running_or_notify_cancel():
            return
        try:
            result = decode(each, download.result())
        except Exception as error:
            decoded.set_exception(error)
        else:
            self._done(each.object)
            decoded.set_result(result)

    def _done(self, name: str) -> None:
        """Note that a range of the object is decoded; let go of the object with its last expected range."""
        with self._lock:
            if name not in self._expected:
                return
            self._expected[name] -= 1
            if not self._expected[name]:
                del self._expected[name]
                self._objects.pop(name, None)
                self._ahead_bytes -= self._sizes.pop(name)
                self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Begin expected downloads up to the bound. Called under the lock, so that none is done too early."""
        while self._to_fetch and self._ahead_bytes < self._ahead_bytes_max:
            name = self._to_fetch.popleft()
            if name in self._expected:  # else somebody waited for it, and it is done
                self._start(name)

    def _start(self, name: str) -> "Future[Copy]":
        with self._lock:
            if name not in self._objects:
                self._objects[name] = self._downloads.submit(self._fetch, name)
                self._ahead_bytes += self._sizes.get(name, 0)
            return self._objects[name]

    def _fetch(self, name: str) -> Copy:
        copy = None if self._copies is None else self._copies.open(name)
        with self._lock:
            seen = self._fetched
            local_bytes = seen.bytes_from_local + (0 if copy is None else copy.length)
            self._fetched = replace(seen, objects=seen.objects + 1, bytes_from_local=local_bytes)
        if copy is not None:
            return copy
        copy = self.from_store(name)
        if self._copies is not None and name not in self._files:
            self._copies.keep(name, copy.head, in_place_of_older=False)
        return copy
