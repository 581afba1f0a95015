"""Deletes of objects that are this TaskManager's own to delete; those that fail stay queued.

Invariant: nothing but names given to `discard` is deleted, and nothing after `abandon`. What the bound or the
end of the process leaves behind is in the folder of an incarnation, which is swept when that is dead.
"""

import threading
from collections import deque
from collections.abc import Iterable

from holdfast.errors import StorageError
from holdfast.storage.store import ObjectStore

QUEUED_MAX = 10_000


class Janitor:
    """A queue of names to delete. Thread-safe; `sweep` does I/O, nothing else does."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._queued: deque[str] = deque(maxlen=QUEUED_MAX)
        self._abandoned = False

    def discard(self, names: Iterable[str]) -> None:
        with self._lock:
            self._queued.extend(names)

    def queued(self) -> int:
        with self._lock:
            return len(self._queued)

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True

    def sweep(self) -> None:
        """Delete what is queued; what cannot be deleted now is queued again for the next sweep."""
        with self._lock:
            names = [] if self._abandoned else list(self._queued)
            self._queued.clear()
        if not names:
            return
        try:
            self._store.delete(names)
        except StorageError:
            self.discard(names)
