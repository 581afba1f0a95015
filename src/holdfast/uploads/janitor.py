"""Deletion of the objects that this TaskManager may delete itself; failed deletions stay queued.

    discard ──► queued ──sweep──► deleted
    suspect ──► queued, and again every `AGAIN_S`: a put that was reported as failed may land arbitrarily late

Invariant: only names given to `discard` and `suspect` are deleted, and none after `abandon`. Objects that are left
behind, because of the bounds or the end of the process, are in the folder of an incarnation, which is swept once the
incarnation is dead.
"""

import threading
from collections import deque
from collections.abc import Iterable

from holdfast.errors import HoldfastError
from holdfast.storage.routing import PartlyDeleted
from holdfast.storage.store import ObjectStore

QUEUED_MAX = 10_000
AGAIN_S = 300.0
FAILED_AGAIN_S = 5.0


class DeletionQueue:
    """A queue of names to delete. Thread-safe; `sweep` does I/O, nothing else does."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._queued: deque[str] = deque(maxlen=QUEUED_MAX)
        self._suspects: deque[str] = deque(maxlen=QUEUED_MAX)
        self._abandoned = False

    def discard(self, names: Iterable[str]) -> None:
        """Queue objects that may be stored, that no running request will store later, and whose names no other part
        knows."""
        with self._lock:
            self._queued.extend(names)

    def suspect(self, name: str) -> None:
        """Queue an object whose put was reported as failed. Its name is remembered, and deleted again and again."""
        with self._lock:
            self._queued.append(name)
            self._suspects.append(name)

    def queued(self) -> int:
        with self._lock:
            return len(self._queued)

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True

    def next_sweep_s(self) -> float | None:
        """Seconds until there is something to sweep again; None: there is nothing."""
        with self._lock:
            if self._abandoned or not (self._queued or self._suspects):
                return None
            return FAILED_AGAIN_S if self._queued else AGAIN_S

    def look_again(self) -> None:
        """Queue the objects that may have landed since the last sweep."""
        with self._lock:
            self._queued.extend(self._suspects)

    def sweep(self) -> None:
        """Delete the queued objects; objects that cannot be deleted now are queued again for the next sweep."""
        with self._lock:
            names = [] if self._abandoned else list(dict.fromkeys(self._queued))
            self._queued.clear()
        if not names:
            return
        try:
            self._store.delete(names)
        except HoldfastError as error:
            self.discard(error.left if isinstance(error, PartlyDeleted) else names)
