"""The stored objects of a job's sources: names in use are remembered, so that a sweep can find strays.

    put ──► in use ──delete──► let go         stray: stored in this epoch, and not in use: a put that was reported
     └─ failed ────────────────────┘                 as failed and landed later, or landed after the delete

Invariant: a name is in use before its put begins, and is never put again after it was released. So an object that a
listing shows, and that is not in use when the listing has ended, is a stray. This module deletes nothing: a record may
still name an object that its source has released, and the registry knows when that record is gone. Objects of older
epochs belong to the clean-up.
"""

import threading
from collections.abc import Callable, Sequence

from holdfast.ids import Epoch
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo, ObjectStore


class SourceObjects:
    """An `ObjectStore` for the enumerators of a job's start. `let_go` takes the names to delete. Thread-safe."""

    def __init__(self, inner: ObjectStore, epoch: Epoch, let_go: Callable[[frozenset[str]], None]) -> None:
        self.url = inner.url
        self.inner = inner
        self._epoch = epoch
        self._let_go = let_go
        self._lock = threading.Lock()
        self._in_use: set[str] = set()

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        with self._lock:
            self._in_use.add(name)
        try:
            self.inner.put(name, data)
        except BaseException:
            self._forget([name])
            raise

    def create(self, name: str, data: bytes) -> None:
        with self._lock:
            self._in_use.add(name)
        self.inner.create(name, data)

    def get(self, name: str) -> bytes:
        return self.inner.get(name)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self.inner.get_range(name, offset, length)

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        return self.inner.list(prefix, after=after)

    def delete(self, names: Sequence[str]) -> None:
        """Release objects. The method returns at once; the objects are deleted when no record names them any more."""
        self._forget(names)
        if names:
            self._let_go(frozenset(names))

    def strays(self) -> set[str]:
        """Return the objects in this epoch's folder that no source uses. Any thread; raises `StorageError`."""
        stored = [info.name for info in self.inner.list(names.sources_folder(self._epoch))]
        with self._lock:
            strays = [name for name in stored if name not in self._in_use]
        return {name for name in strays if isinstance(names.parse(name), names.SourceName)}

    def _forget(self, names: Sequence[str]) -> None:
        with self._lock:
            self._in_use.difference_update(names)
