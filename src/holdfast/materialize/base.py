"""A base: a table as a whole, durable, for the log to be replayed upon. Data only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.changelog.writer import LogSize
from holdfast.formats.handles import LogPiece, MaterializedPart

BEFORE_ALL_BATCHES = -1


@dataclass(frozen=True, eq=False)
class Base:
    """A state as of `batch`, with all change sets below `sqn` in it."""

    sqn: int
    batch: int
    materialized: Sequence[MaterializedPart] = ()
    restored_log: Sequence[LogPiece] = ()
    """What an earlier start left to be replayed upon the parts."""
    files: Mapping[str, MaterializedPart] = field(default_factory=dict)
    """Of `materialized`, files that never change, by their names: the next base names those it still has."""
    new_bytes: int = 0
    """Of the parts, those that were stored for it."""

    @cached_property
    def stored_bytes(self) -> int:
        """Of the parts, without the restored log."""
        return sum(part.length for part in self.materialized)

    @cached_property
    def objects(self) -> Sequence[str]:
        """Names of what it needs, without doubles."""
        parts, pieces = [part.object for part in self.materialized], [piece.object for piece in self.restored_log]
        return tuple(dict.fromkeys(parts + pieces))

    def size(self, log: LogSize) -> LogSize:
        """The log upon this base, with what of it was restored."""
        return LogSize(
            log.pieces + len(self.restored_log),
            log.stored_bytes + sum(piece.length for piece in self.restored_log),
            log.pending_sets,
        )
