"""A store that counts the requests which reach it, retries included.

    RetryingStore ──► CountedStore ──► the store

A request counts before its outcome is known, since it is paid for whatever the outcome. A listing or a deletion of many
objects is several requests, of `PAGE` objects each. It does not know why a request is made; `uploads` measures its own.
"""

import threading
from collections import Counter
from collections.abc import Sequence

from holdfast.storage.retrying import RetryingStore, without_retries
from holdfast.storage.store import ObjectInfo, ObjectStore

COUNTS = ("storePuts", "storePutBytes", "storeGets", "storeGetBytes", "storeLists", "storeDeletes")
PAGE = 1000
"""Objects that a cloud's store lists, or deletes, with a single request."""


class CountedStore:
    """An `ObjectStore`; `metrics` has its counts since it was made."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self._inner = inner
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))

    def metrics(self) -> dict[str, float]:
        """Counters by the names of `observe.known_metrics`."""
        with self._lock:
            return dict(self._counts)

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._count(storePuts=1, storePutBytes=len(data))
        self._inner.put(name, data)

    def create(self, name: str, data: bytes) -> None:
        self._count(storePuts=1, storePutBytes=len(data))
        self._inner.create(name, data)

    def get(self, name: str) -> bytes:
        self._count(storeGets=1)
        data = self._inner.get(name)
        self._count(storeGetBytes=len(data))
        return data

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        self._count(storeGets=1, storeGetBytes=length)
        return self._inner.get_range(name, offset, length)

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        self._count(storeLists=1)
        found = self._inner.list(prefix, after=after)
        self._count(storeLists=len(found) // PAGE)
        return found

    def delete(self, names: Sequence[str]) -> None:
        self._count(storeDeletes=-(-len(names) // PAGE))
        self._inner.delete(names)

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)


def counted(store: ObjectStore) -> ObjectStore:
    """The same store, below whose retries requests are counted."""
    single = CountedStore(without_retries(store))
    return RetryingStore(single) if isinstance(store, RetryingStore) else single


def requests_of(store: ObjectStore) -> dict[str, float]:
    """The counts of a store that `counted` has made."""
    single = without_retries(store)
    return single.metrics() if isinstance(single, CountedStore) else {}
