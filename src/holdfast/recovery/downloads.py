"""Downloads of a recovery: each byte is fetched once, ahead of the replay, from this machine or from the store.

    expect(ranges, in order of replay) ──► download threads: local copy, or store ──► decode threads ──► replay
                                           at most `ahead_bytes_max` ahead            `ahead`

`spans` decides which bytes of an object are fetched. Invariants: a span is fetched once, however many of its ranges are
expected, and is freed when all of them are decoded. A span that was not expected is kept until the end. A span that a
thread waits for is fetched at once, regardless of the bound. Downloads and decoding wait only for the store. The module
writes only local copies.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from holdfast.errors import CorruptObject
from holdfast.formats.handles import FILE, MaterializedPart
from holdfast.printable import logger
from holdfast.recovery.local import Copy, LocalCopies
from holdfast.recovery.spans import Span, StoredRange, read_span, spans_of
from holdfast.storage.store import ObjectStore

_log = logger(__name__)

DOWNLOADS_MAX = 48
"""Number of objects that are fetched at once, each over its own connection. A higher value helps if objects are small
and the store takes long to answer: 10,000 objects at 20 ms take 4 s of waiting. The bytes that wait have their own
bound."""
DECODES_MAX = 4
AHEAD_MAX = 4
"""Ranges of a table that are decoded, or being decoded, before they are replayed. A higher value takes more memory."""
AHEAD_BYTES_MAX = 256 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Fetched:
    """Counts of the downloads so far: objects, and the bytes that were read by where they came from."""

    objects: int = 0
    bytes_from_store: int = 0
    bytes_from_local: int = 0

    @property
    def size_bytes(self) -> int:
        return self.bytes_from_store + self.bytes_from_local

    def __str__(self) -> str:
        store_mb, local_mb = self.bytes_from_store / 1e6, self.bytes_from_local / 1e6
        return f"{self.objects} objects, {store_mb:.1f} MB from the storage and {local_mb:.1f} MB from local copies"


@dataclass(eq=False)
class _Download:
    """A span that is being fetched for the decoding of its ranges."""

    span: Span
    expected: int = 0
    """Ranges of it that are expected and not decoded yet."""
    size: int = 0
    """Bytes that count as ahead."""
    kept: bool = False
    """True if the object becomes a local copy once it is fetched. A base store's file becomes one only when it is laid
    out."""
    copy: Future[Copy] | None = None
    local: bool = False
    """The bytes are those of a local copy."""


class ObjectCache:
    """The objects of a recovery, fetched; a context manager. Thread-safe.

    Parameters
    ----------
    copies
        Copies on this machine: they are read before the store, and get each object that is read in full from the store.
        None: no local recovery.
    shared
        Names of objects that hold parts of other processes too: only the expected ranges of these are read, and no
        copies are kept.
    ahead_bytes_max
        Bound on the bytes that wait to be replayed; above it, no further expected span is fetched.
    """

    def __init__(
        self,
        store: ObjectStore,
        downloads_max: int = DOWNLOADS_MAX,
        copies: LocalCopies | None = None,
        shared: Collection[str] = (),
        ahead_bytes_max: int = AHEAD_BYTES_MAX,
    ) -> None:
        self._store = store
        self._copies = copies
        self._shared = frozenset(shared)
        self._ahead_bytes_max = ahead_bytes_max
        self._lock = threading.RLock()
        self._wanted: dict[str, list[_Download]] = {}
        self._to_fetch: deque[_Download] = deque()
        self._ahead_bytes = 0
        self._fetched = Fetched()
        self._objects: set[str] = set()
        """Names of the objects that `_fetched` counts."""
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
        """Bytes of expected spans that are being fetched, or that wait to be decoded."""
        with self._lock:
            return self._ahead_bytes

    def expect(self, ranges: Iterable[StoredRange]) -> None:
        """Announce ranges that will be decoded once each, in about this order: their bytes are fetched ahead."""
        expected, missing = list(ranges), dict[str, list[StoredRange]]()
        with self._lock:
            for each in expected:
                if self._found(each) is None:
                    missing.setdefault(each.object, []).append(each)
            for name, some in missing.items():
                self._to_fetch += self._plan(name, some)
            for each in expected:
                self._download_of(each).expected += 1
            self._fetch_ahead()

    def ahead(self, ranges: Iterable[StoredRange], decode: Callable[[StoredRange, Copy], T]) -> Iterator[T]:
        """Yield the result of `decode` for each range and its bytes, in order; other threads decode as soon as the
        bytes are there. Once the iterator has ended, even by an error, no thread decodes any of the ranges any more, so
        the target of `decode` may be deleted. Raises the errors of `decode`, or `StorageError` if an object cannot be
        read.
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
        return read_span(self._store, Span(name, 0, None), self._count)

    def keep_file(self, name: str, data: bytes | memoryview, file: Path) -> None:
        """Note that the object's end is in that file now, so that a local copy may link it."""
        if self._copies is not None:
            self._copies.keep(name, data, file, in_place_of_older=False)

    def close(self) -> None:
        """Free everything; downloads that were not begun are dropped."""
        self._downloads.shutdown(wait=True, cancel_futures=True)
        self._decodes.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._wanted.clear()
            self._to_fetch.clear()

    def _plan(self, name: str, ranges: list[StoredRange]) -> list[_Download]:
        """The downloads for ranges of an object."""
        copied = self._copies is not None and (name not in self._shared or self._copies.has(name))
        spans = [Span(name, 0, None)] if copied else spans_of(ranges, divide=name in self._shared)
        files = any(isinstance(each, MaterializedPart) and each.kind == FILE for each in ranges)
        made = [_Download(each, size=_size(each, ranges), kept=each.stop is None and not files) for each in spans]
        self._wanted.setdefault(name, []).extend(made)
        return made

    def _found(self, each: StoredRange) -> _Download | None:
        return next((known for known in self._wanted.get(each.object, ()) if known.span.has(each)), None)

    def _download_of(self, each: StoredRange) -> _Download:
        return self._found(each) or self._plan(each.object, [each])[0]

    def _decoded(self, each: StoredRange, decode: Callable[[StoredRange, Copy], T]) -> "Future[T]":
        decoded: Future[T] = Future()
        with self._lock:
            download = self._download_of(each)
        self._start(download).add_done_callback(partial(self._arrived, each, decode, decoded, download))
        return decoded

    def _arrived(
        self,
        each: StoredRange,
        decode: Callable[[StoredRange, Copy], T],
        decoded: "Future[T]",
        download: _Download,
        copy: "Future[Copy]",
    ) -> None:
        if copy.cancelled():
            decoded.cancel()
            return
        try:
            self._decodes.submit(self._decode, each, decode, decoded, download, copy)
        except RuntimeError:  # closed: no thread waits for it any more
            decoded.cancel()

    def _decode(
        self,
        each: StoredRange,
        decode: Callable[[StoredRange, Copy], T],
        decoded: "Future[T]",
        download: _Download,
        copy: "Future[Copy]",
    ) -> None:
        if not decoded.set_running_or_notify_cancel():
            return
        try:
            result = self._decode_whole(each, decode, download, copy.result())
        except Exception as error:
            decoded.set_exception(error)
        else:
            self._done(download)
            decoded.set_result(result)

    def _decode_whole(
        self, each: StoredRange, decode: Callable[[StoredRange, Copy], T], download: _Download, copy: Copy
    ) -> T:
        """Decode a range; if the local copy turns out to be damaged, decode the bytes of the store."""
        try:
            return decode(each, copy)
        except CorruptObject as error:
            if not download.local or self._copies is None:
                raise
            _log.warning("a local copy is deleted, and the object is read from the storage: %s", error)
            self._copies.forget(each.object)
            return decode(each, self.from_store(each.object))

    def _done(self, download: _Download) -> None:
        """Note that a range of the span is decoded; free the span after its last expected range."""
        with self._lock:
            if not download.expected:
                return
            download.expected -= 1
            if not download.expected:
                self._wanted[download.span.object].remove(download)
                self._ahead_bytes -= download.size
                self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Begin expected downloads up to the bound. Called under the lock, so that none is done too early."""
        while self._to_fetch and self._ahead_bytes < self._ahead_bytes_max:
            download = self._to_fetch.popleft()
            if download.expected:  # otherwise a thread waited for it, and it is done
                self._start(download)

    def _start(self, download: _Download) -> "Future[Copy]":
        with self._lock:
            if download.copy is None:
                download.copy = self._downloads.submit(self._fetch, download)
                self._ahead_bytes += download.size
            return download.copy

    def _fetch(self, download: _Download) -> Copy:
        span, copies = download.span, self._copies
        copy = copies.open(span.object) if copies is not None and span.stop is None else None
        download.local = copy is not None
        with self._lock:
            seen = self._fetched
            self._objects.add(span.object)
            local_bytes = seen.bytes_from_local + (0 if copy is None else copy.length)
            self._fetched = replace(seen, objects=len(self._objects), bytes_from_local=local_bytes)
        if copy is None:
            copy = read_span(self._store, span, self._count)
            if copies is not None and download.kept:
                copies.keep(span.object, copy.head, in_place_of_older=False)
        return copy

    def _count(self, size_bytes: int) -> None:
        with self._lock:
            self._fetched = replace(self._fetched, bytes_from_store=self._fetched.bytes_from_store + size_bytes)


def _size(span: Span, ranges: Iterable[StoredRange]) -> int:
    stop = max(each.offset + each.length for each in ranges) if span.stop is None else span.stop
    return stop - span.start
