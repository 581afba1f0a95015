"""The wait of a cut for the stored pieces of all ranges that it needs, whichever thread stores them."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from holdfast.changelog.ranges import RangePart
from holdfast.errors import CheckpointFailed
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import LogId


class _Combination:
    """Waits until all ranges of a cut are stored, and then completes `future` with their pieces, or with the first
    error.

    With that it drops its references to the ranges and the future. A finished range keeps its callbacks, including this
    object. Otherwise ranges and checkpoints would keep each other alive in cycles until a garbage collection finds
    them.
    """

    def __init__(self, log: LogId, needed: Sequence[RangePart], future: Future[list[LogPiece]]) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._open: tuple[Sequence[RangePart], Future[list[LogPiece]]] | None = (needed, future)
        awaited = [each for each in needed if not each.stored]
        self._missing = len(awaited)
        for each in awaited:
            each.range.done.add_done_callback(self._one_done)
        if not awaited:
            self._answer(None)

    def _one_done(self, stored: Future[list[LogPiece]]) -> None:
        error = stored.exception()
        with self._lock:
            self._missing -= 1
            waits = self._missing > 0 and error is None
        if not waits:
            self._answer(error)

    def _answer(self, error: BaseException | None) -> None:
        with self._lock:
            found, self._open = self._open, None
        if found is None:
            return
        needed, future = found
        if error is not None:
            future.set_exception(error)
        elif any(each.undone for each in needed):
            future.set_exception(CheckpointFailed(f"log {self._log}: it was rewound to before the cut"))
        else:
            future.set_result([piece for each in needed for piece in each.pieces()])


def pieces_of(log: LogId, needed: Sequence[RangePart]) -> Future[list[LogPiece]]:
    """Return a future of the pieces of all ranges, in order, or of the first error."""
    combined: Future[list[LogPiece]] = Future()
    _Combination(log, needed, combined)
    return combined
