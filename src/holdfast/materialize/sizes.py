"""The gauges of a table's durable side, under their known names. Owns no policy."""

import threading
from collections.abc import Sequence

from holdfast.formats.handles import LogPiece


class Sizes:
    """Gauges of a table: its last materialization, and the log in its last checkpoint. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gauges: dict[str, float] = {}
        self._pieces: frozenset[tuple[str, int]] = frozenset()

    def materialized(self, full_bytes: int, new_bytes: int, duration_ms: float) -> None:
        """A materialization takes that much in the store; `new_bytes` of it were stored for it."""
        with self._lock:
            self._gauges["lastDurationOfMaterialization"] = duration_ms
            self._gauges["lastFullSizeOfMaterialization"] = float(full_bytes)
            self._gauges["lastIncSizeOfMaterialization"] = float(new_bytes)

    def logged(self, pieces: Sequence[LogPiece]) -> None:
        """A checkpoint names these pieces of the table's own log."""
        lengths = {(piece.object, piece.offset): piece.length for piece in pieces}
        with self._lock:
            new = sum(length for piece, length in lengths.items() if piece not in self._pieces)
            self._pieces = frozenset(lengths)
            self._gauges["lastFullSizeOfNonMaterialization"] = float(sum(lengths.values()))
            self._gauges["lastIncSizeOfNonMaterialization"] = float(new)

    def gauges(self) -> dict[str, float]:
        """The gauges by name, in bytes and milliseconds; empty before anything was stored."""
        with self._lock:
            return dict(self._gauges)
