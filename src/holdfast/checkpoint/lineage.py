"""Objects that a TaskManager's logs held at each time: a set for each version, stored as changes in between.

    version   1   2   3   4          pinned: by a record, a pending checkpoint, or as what the logs hold now
    a         ├───────┤              ended at 4: needed while version 1, 2 or 3 is pinned
    b             ├──────────►       in the latest version

A version has hundreds of names, and a checkpoint changes a few of them. The work for a checkpoint is in proportion to
these few. Invariants: a name is needed while a pinned version has it. A name that comes back while it is still needed
counts as if it had never been away, so it may be kept for longer than needed, and never for shorter.
"""

from collections import Counter
from collections.abc import Iterable, Set


class Lineage:
    """The versions of a TaskManager's logs."""

    def __init__(self) -> None:
        self._version = 0
        self._latest: Set[str] = frozenset()
        self._born: dict[str, int] = {}
        """The version with which each name of the latest version came."""
        self._ended: dict[str, tuple[int, int]] = {}
        """Names that are needed, but not in the latest version: the version each came with, and the first without."""
        self._pins: Counter[int] = Counter()

    @property
    def is_needed(self) -> bool:
        """True if any version is pinned."""
        return bool(self._pins)

    def pin(self, names: Set[str]) -> tuple[int, set[str], set[str]]:
        """Begin a version with these names, pinned once; its number, the names that are new, those needed no more.

        The very set of the latest version is pinned once more.
        """
        if names is self._latest and self._pins[self._version]:
            self._pins[self._version] += 1
            return self._version, set(), set()
        new, free = self._begin(names)
        self._pins[self._version] += 1
        return self._version, new, free

    def unpin(self, version: int) -> set[str]:
        """Remove a pin of a version; return the names that nobody needs any more."""
        self._pins[version] -= 1
        if self._pins[version]:
            return set()
        del self._pins[version]
        free = {name for name, (born, end) in self._ended.items() if not self._is_pinned(born, end)}
        for name in free:
            del self._ended[name]
        if version == self._version:
            free |= self._begin(frozenset())[1]
        return free

    def at(self, version: int) -> set[str]:
        """The names of a pinned version."""
        found = {name for name, born in self._born.items() if born <= version}
        return found | {name for name, (born, end) in self._ended.items() if born <= version < end}

    def names(self) -> Iterable[str]:
        """Names that any pinned version or the newest needs."""
        return [*self._born, *self._ended]

    def _begin(self, names: Set[str]) -> tuple[set[str], set[str]]:
        self._version += 1
        added, gone = names - self._latest, self._latest - names
        self._latest = names
        new = set(added - self._ended.keys())
        for name in added:
            self._born[name] = self._ended.pop(name, (self._version, 0))[0]
        free = set()
        for name in gone:
            born = self._born.pop(name)
            if self._is_pinned(born, self._version):
                self._ended[name] = born, self._version
            else:
                free.add(name)
        return new, free

    def _is_pinned(self, born: int, end: int) -> bool:
        return any(born <= version < end for version in self._pins)
