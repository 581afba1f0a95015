"""Bases: a table as a whole, durable, for the log to be replayed upon. Data only.

current base       the last completed checkpoint uses it
provisional bases  newer ones that no completed checkpoint uses yet; the newest is last
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.changelog.writer import LogSize
from holdfast.formats.handles import LogPiece, MaterializedPart
from holdfast.ids import NO_BATCH, BatchNumber


@dataclass(frozen=True, eq=False)
class Base:
    """The state of a table after `batch`: it contains all change sets with a number below `sqn`."""

    sqn: int
    batch: BatchNumber
    materialized: Sequence[MaterializedPart] = ()
    restored_log: Sequence[LogPiece] = ()
    """The pieces of log that an earlier start left to be replayed upon the parts."""
    files: Mapping[str, MaterializedPart] = field(default_factory=dict)
    """The parts that are files which never change, by file name: the next base names those that it still has."""

    @cached_property
    def stored_bytes(self) -> int:
        """The size of all parts, without the restored log."""
        return sum(part.length for part in self.materialized)

    @cached_property
    def objects(self) -> Sequence[str]:
        """Names of the objects that the base needs, without doubles."""
        parts, pieces = [part.object for part in self.materialized], [piece.object for piece in self.restored_log]
        return tuple(dict.fromkeys(parts + pieces))

    def size(self, log: LogSize) -> LogSize:
        """The size of the log upon this base, the restored pieces included."""
        return LogSize(
            log.pieces + len(self.restored_log),
            log.stored_bytes + sum(piece.length for piece in self.restored_log),
            log.pending_sets,
        )


class Bases:
    """The bases of a table. Methods return the bases that they take out, for the caller to release."""

    def __init__(self) -> None:
        self.current = Base(0, NO_BATCH)
        self._provisional: list[Base] = []

    @property
    def newest(self) -> Base:
        return self._provisional[-1] if self._provisional else self.current

    def newest_at(self, batch: BatchNumber) -> Base:
        """The newest base that a cut at this batch may start from."""
        return max((each for each in self._all() if each.batch <= batch), key=lambda each: each.batch)

    def add(self, base: Base) -> None:
        """Add a provisional base, newer than all others."""
        self._provisional.append(base)

    def adopt(self, base: Base) -> list[Base]:
        """Make a base that a completed checkpoint used the current base, and take out all older bases."""
        if base is self.current:
            return []
        older = [self.current, *(each for each in self._provisional if each.batch < base.batch)]
        self._provisional = [each for each in self._provisional if each.batch > base.batch]
        self.current = base
        return older

    def drop_after(self, batch: BatchNumber) -> list[Base]:
        """Take out the provisional bases past this batch."""
        return self._take([each for each in self._provisional if each.batch > batch])

    def drop_superseded(self, used: Collection[Base | None]) -> list[Base]:
        """Take out the provisional bases older than the newest that are not `used`."""
        return self._take([each for each in self._provisional[:-1] if each not in used])

    def drop_all(self) -> list[Base]:
        """Take out all provisional bases; return them and the current base, which stays."""
        return [self.current, *self._take(self._provisional)]

    def objects(self) -> list[str]:
        """Names of the objects that the bases need."""
        return [name for base in self._all() for name in base.objects]

    def _all(self) -> list[Base]:
        return [self.current, *self._provisional]

    def _take(self, bases: list[Base]) -> list[Base]:
        self._provisional = [each for each in self._provisional if each not in bases]
        return bases
