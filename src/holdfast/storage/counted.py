"""A store that counts the requests which reach it, retries included.

    RetryingStore ──► CountedStore ──► the store
                           │
                      RequestCounts ◄── note: what other processes, and stores beside it, have counted

A request counts before its outcome is known, since it is paid for whatever the outcome. A listing or a deletion of many
objects is several requests, of `PAGE` objects each; a listing over a job's other storages counts once. It does not know
why a request is made; `uploads` measures its own.

A process reports its new counts (`untold`) with what it sends anyway, and the JobMaster adds them to its own (`note`).
So the last counts of a process that dies are lost, and those in a heartbeat whose answer is lost count twice.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.storage.retrying import RetryingStore, without_retries
from holdfast.storage.store import ObjectInfo, ObjectStore

COUNTS = ("storePuts", "storePutBytes", "storeGets", "storeGetBytes", "storeLists", "storeDeletes")
SENDER_PUTS = {"storePuts": "senderPuts", "storePutBytes": "senderPutBytes"}
"""Names under which the JobMaster counts the puts of senders a second time, by themselves."""
PAGE = 1000
"""Objects that a cloud's store lists, or deletes, with a single request."""

Requests = dict[str, int]
"""Counts of requests and of their bytes, by the names in `COUNTS`; names without requests are left out."""


class RequestCounts:
    """Counts since they were made, and those that were not told yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self._untold: Counter[str] = Counter()

    def add(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.update(counts)
            self._untold.update(counts)

    def all(self) -> Requests:
        """All counts."""
        with self._lock:
            return dict(self._counts)

    def untold(self) -> Requests:
        """The counts since the last call."""
        with self._lock:
            found, self._untold = self._untold, Counter()
            return {name: count for name, count in found.items() if count}


class CountedStore:
    """An `ObjectStore`. `counts`: those to which its requests are added; None: its own."""

    def __init__(self, inner: ObjectStore, counts: RequestCounts | None = None) -> None:
        self.url = inner.url
        self.inner = inner
        self.counts = counts or RequestCounts()

    def metrics(self) -> dict[str, float]:
        """Counters by the names of `observe.known_metrics`."""
        return dict(self.counts.all())

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self.counts.add({"storePuts": 1, "storePutBytes": len(data)})
        self.inner.put(name, data)

    def create(self, name: str, data: bytes) -> None:
        self.counts.add({"storePuts": 1, "storePutBytes": len(data)})
        self.inner.create(name, data)

    def get(self, name: str) -> bytes:
        self.counts.add({"storeGets": 1})
        data = self.inner.get(name)
        self.counts.add({"storeGetBytes": len(data)})
        return data

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        self.counts.add({"storeGets": 1, "storeGetBytes": length})
        return self.inner.get_range(name, offset, length)

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        self.counts.add({"storeLists": 1})
        found = self.inner.list(prefix, after=after)
        self.counts.add({"storeLists": len(found) // PAGE})
        return found

    def delete(self, names: Sequence[str]) -> None:
        self.counts.add({"storeDeletes": -(-len(names) // PAGE)})
        self.inner.delete(names)


def counted(store: ObjectStore, beside: ObjectStore | None = None) -> ObjectStore:
    """The same store, below whose retries requests are counted: with those of `beside`, if that store is counted."""
    counts = None if beside is None else counts_of(beside)
    if beside is not None and counts is None:
        return store
    single = CountedStore(without_retries(store), counts)
    return RetryingStore(single) if isinstance(store, RetryingStore) else single


def counts_of(store: ObjectStore) -> RequestCounts | None:
    """The counts of a store that `counted` has made, below whatever lies over it; None if it is not counted."""
    found: ObjectStore | None = store
    while found is not None and not isinstance(found, CountedStore):
        found = getattr(found, "inner", None)
    return None if found is None else found.counts


def requests_of(store: ObjectStore) -> Requests:
    """All counts of a store; empty if it is not counted."""
    counts = counts_of(store)
    return {} if counts is None else counts.all()


def untold(store: ObjectStore) -> Requests:
    """The counts of a store since the last call."""
    counts = counts_of(store)
    return {} if counts is None else counts.untold()


def note(store: ObjectStore, requests: Mapping[str, int], *, by_senders: bool = False) -> None:
    """Add requests that another process has counted to those of a store."""
    counts = counts_of(store)
    if counts is None or not requests:
        return
    own = {SENDER_PUTS[name]: count for name, count in requests.items() if name in SENDER_PUTS} if by_senders else {}
    counts.add({**requests, **own})
