"""The gauges of a table's durable side, under their documented names. No policy is here."""

import threading
from collections.abc import Sequence

from holdfast.formats.handles import LogPiece, MaterializedPart


class Sizes:
    """Gauges of a table: the duration of its last materialization, and the sizes of both parts of its last checkpoint.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gauges: dict[str, float] = {}
        self._pieces: frozenset[tuple[str, int]] = frozenset()
        self._parts: frozenset[tuple[str, int]] = frozenset()

    def materialized(self, duration_ms: float) -> None:
        """Note the duration of a materialization."""
        with self._lock:
            self._gauges["lastDurationOfMaterialization"] = duration_ms

    def restored(self, parts: Sequence[MaterializedPart]) -> None:
        """Note that the table begins from these parts, which an earlier checkpoint named."""
        with self._lock:
            self._parts = frozenset((part.object, part.offset) for part in parts)

    def stored(self, parts: Sequence[MaterializedPart], pieces: Sequence[LogPiece]) -> None:
        """Note the parts of the materialized table, and the pieces of the table's own log, that a checkpoint names."""
        tables = {(part.object, part.offset): part.length for part in parts}
        lengths = {(piece.object, piece.offset): piece.length for piece in pieces}
        with self._lock:
            new = sum(length for piece, length in lengths.items() if piece not in self._pieces)
            new_parts = sum(length for part, length in tables.items() if part not in self._parts)
            self._pieces, self._parts = frozenset(lengths), frozenset(tables)
            self._gauges["lastFullSizeOfMaterialization"] = float(sum(tables.values()))
            self._gauges["lastIncSizeOfMaterialization"] = float(new_parts)
            self._gauges["lastFullSizeOfNonMaterialization"] = float(sum(lengths.values()))
            self._gauges["lastIncSizeOfNonMaterialization"] = float(new)

    def gauges(self) -> dict[str, float]:
        """Return the gauges by name, in bytes and milliseconds; empty before anything was stored."""
        with self._lock:
            return dict(self._gauges)
