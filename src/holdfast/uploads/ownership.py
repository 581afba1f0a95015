"""Ownership of uploaded objects: this TaskManager may delete an object until an acknowledgement names it.

    uploaded ──hold──► used by n ──release × n──► nobody uses it ──► `discard` deletes it
                          │
                     acknowledge: from now on only the JobMaster's registry or clean-up deletes it

Invariants: an object is discarded at most once, and never if an acknowledgement has named it. After `abandon` no object
is discarded: the JobMaster is gone, and the next JobMaster decides which objects to keep. Names only. Thread-safe;
`discard` is called without any lock held.
"""

import threading
from collections.abc import Callable, Iterable, Sequence


class Ownership:
    """Counts the users of each object that this TaskManager uploaded; `discard` deletes those without users."""

    def __init__(self, discard: Callable[[Sequence[str]], None]) -> None:
        self._discard = discard
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}
        self._acknowledged: set[str] = set()
        self._abandoned = False

    def hold(self, name: str, users: int = 1) -> None:
        """Note that an object was uploaded for a number of users, under a name that was never used before."""
        with self._lock:
            self._users[name] = users

    def retain(self, names: Iterable[str]) -> None:
        """Add a user of each object; objects of other TaskManagers are ignored."""
        with self._lock:
            for name in names:
                if name in self._users:
                    self._users[name] += 1

    def acknowledge(self, names: Iterable[str]) -> None:
        """Give up these objects, which an acknowledgement will name; objects of others are ignored."""
        with self._lock:
            self._acknowledged.update(name for name in names if name in self._users)

    def release(self, names: Iterable[str]) -> None:
        """Remove a user of each object; objects of other TaskManagers are ignored.

        Objects without users that no acknowledgement named are discarded.
        """
        with self._lock:
            unwanted = [name for name in names if self._let_go(name)]
        if unwanted:
            self._discard(unwanted)

    def in_use(self) -> set[str]:
        """Names of the objects that have users."""
        with self._lock:
            return set(self._users)

    def abandon(self) -> None:
        """Delete nothing from now on."""
        with self._lock:
            self._abandoned = True

    def _let_go(self, name: str) -> bool:
        if name not in self._users:
            return False
        self._users[name] -= 1
        if self._users[name]:
            return False
        del self._users[name]
        own = name not in self._acknowledged
        self._acknowledged.discard(name)
        return own and not self._abandoned
