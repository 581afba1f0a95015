"""Bases: complete durable tables, on which the log is replayed. Data only.

current base       the last completed checkpoint uses it
provisional bases  newer ones that no completed checkpoint uses yet; the newest is last
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.changelog.writer import LogSize
from holdfast.formats.handles import LogPiece, MaterializedPart, TableHandle
from holdfast.ids import NO_BATCH, BatchNumber


@dataclass(frozen=True, eq=False)
class Base:
    """The state of a table after `batch`: it contains all change sets with a number below `sqn`."""

    sqn: int
    batch: BatchNumber
    materialized: Sequence[MaterializedPart] = ()
    restored_log: Sequence[LogPiece] = ()
    """The pieces of log of an earlier start, to be replayed on the parts."""
    files: Mapping[str, MaterializedPart] = field(default_factory=dict)
    """The parts that are files, which never change, by file name. The next base names those that the table still
    has."""

    @cached_property
    def stored_bytes(self) -> int:
        """Return the size of all parts, without the restored log."""
        return sum(part.length for part in self.materialized)

    @cached_property
    def objects(self) -> Sequence[str]:
        """Return the names of the objects that the base needs, each once."""
        parts, pieces = [part.object for part in self.materialized], [piece.object for piece in self.restored_log]
        return tuple(dict.fromkeys(parts + pieces))

    def size(self, log: LogSize) -> LogSize:
        """Return the size of the log on this base, including the restored pieces."""
        return log._replace(
            pieces=log.pieces + len(self.restored_log),
            stored_bytes=log.stored_bytes + sum(piece.length for piece in self.restored_log),
        )


def size_of(handle: TableHandle) -> LogSize:
    """Return the size of the log that a checkpoint's handle names."""
    return LogSize(len(handle.log), sum(piece.length for piece in handle.log), 0)


class Bases:
    """The bases of a table. Methods return the bases that they remove, for the caller to release."""

    def __init__(self) -> None:
        self.current = Base(0, NO_BATCH)
        self._provisional: list[Base] = []

    @property
    def newest(self) -> Base:
        return self._provisional[-1] if self._provisional else self.current

    def newest_at(self, batch: BatchNumber) -> Base:
        """Return the newest base from which a cut at this batch may start."""
        return max((each for each in self._all() if each.batch <= batch), key=lambda each: each.batch)

    def add(self, base: Base) -> None:
        """Add a provisional base. No other base is of a later batch."""
        self._provisional.append(base)

    def adopt(self, base: Base) -> list[Base]:
        """Make a base that a completed checkpoint used the current base, and remove all older ones."""
        if base is self.current:
            return []
        older = [self.current, *(each for each in self._provisional if each.batch < base.batch)]
        self._provisional = [each for each in self._provisional if each.batch >= base.batch and each is not base]
        self.current = base
        return older

    def drop_after(self, batch: BatchNumber) -> list[Base]:
        """Remove the provisional bases of later batches."""
        return self._take([each for each in self._provisional if each.batch > batch])

    def drop_superseded(self, used: Collection[Base | None]) -> list[Base]:
        """Remove the provisional bases that are older than the newest one and not `used`."""
        return self._take([each for each in self._provisional[:-1] if each not in used])

    def drop_all(self) -> list[Base]:
        """Remove all provisional bases. Returns them, and also the current base, which stays."""
        return [self.current, *self._take(self._provisional)]

    def objects(self) -> list[str]:
        """Return the names of the objects that the bases need."""
        return [name for base in self._all() for name in base.objects]

    def _all(self) -> list[Base]:
        return [self.current, *self._provisional]

    def _take(self, bases: list[Base]) -> list[Base]:
        self._provisional = [each for each in self._provisional if each not in bases]
        return bases
