"""Objects that a TaskManager's logs held over time: a set of names for each version, stored as the changes in between.

    version   1   2   3   4          pinned: by a record, a pending checkpoint, or as the current content of the logs
    a         ├───────┤              ended at 4: needed while version 1, 2 or 3 is pinned
    b             ├──────────►       in the latest version

A version has hundreds of names, and a checkpoint changes a few of them. The work for a checkpoint is in proportion to
these few. Invariants: a name is needed while a pinned version has it. A name that comes back while it is still needed
counts as if it had been there all the time, so it may be kept for longer than needed, but never for a shorter time.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Set


class Lineage:
    """The versions of a TaskManager's logs."""

    def __init__(self) -> None:
        self._version = 0
        self._latest: Set[str] = frozenset()
        self._born: dict[str, int] = {}
        """The version in which each name of the latest version first appeared."""
        self._ended: dict[str, tuple[int, int]] = {}
        """Names that are needed but not in the latest version: for each, the version in which it appeared, and the
        first version without it."""
        self._ended_at: dict[int, set[str]] = {}
        """The same names by the first version without them."""
        self._pins: Counter[int] = Counter()
        self._pinned: list[int] = []
        """The pinned versions, in order."""

    @property
    def is_needed(self) -> bool:
        """True if any version is pinned."""
        return bool(self._pins)

    def pin(self, names: Set[str]) -> tuple[int, set[str], set[str]]:
        """Begin a version with these names and a single pin; return its number, the new names, and the names that are
        no longer needed. If `names` is the same object as the latest version's set, that version only gets another pin.
        """
        if names is self._latest and self._pins[self._version]:
            self._pins[self._version] += 1
            return self._version, set(), set()
        new, free = self._begin(names)
        self._pins[self._version] += 1
        self._pinned.append(self._version)
        return self._version, new, free

    def unpin(self, version: int) -> set[str]:
        """Remove a pin of a version; return the names that are no longer needed."""
        self._pins[version] -= 1
        if self._pins[version]:
            return set()
        del self._pins[version]
        place = bisect_left(self._pinned, version)
        del self._pinned[place]
        following = self._pinned[place] if place < len(self._pinned) else self._version
        ended = [name for end in range(version + 1, following + 1) for name in self._ended_at.get(end, ())]
        free = {name for name in ended if not self._is_pinned(*self._ended[name])}
        for name in free:
            self._forget(name)
        if version == self._version:
            free |= self._begin(frozenset())[1]
        return free

    def at(self, version: int) -> set[str]:
        """The names of a pinned version."""
        found = {name for name, born in self._born.items() if born <= version}
        return found | {name for name, (born, end) in self._ended.items() if born <= version < end}

    def names(self) -> Iterable[str]:
        """Names in any pinned version or in the latest version."""
        return [*self._born, *self._ended]

    def _begin(self, names: Set[str]) -> tuple[set[str], set[str]]:
        self._version += 1
        added, gone = names - self._latest, self._latest - names
        self._latest = names
        new = set(added - self._ended.keys())
        for name in added:
            self._born[name] = self._forget(name) if name in self._ended else self._version
        free = set()
        for name in gone:
            born = self._born.pop(name)
            if self._is_pinned(born, self._version):
                self._ended[name] = born, self._version
                self._ended_at.setdefault(self._version, set()).add(name)
            else:
                free.add(name)
        return new, free

    def _forget(self, name: str) -> int:
        """Remove a name that had ended; return the version with which it came."""
        born, end = self._ended.pop(name)
        names = self._ended_at[end]
        names.discard(name)
        if not names:
            del self._ended_at[end]
        return born

    def _is_pinned(self, born: int, end: int) -> bool:
        place = bisect_left(self._pinned, born)
        return place < len(self._pinned) and self._pinned[place] < end
