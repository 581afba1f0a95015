"""The choice of stored ranges whose pieces become a single piece, and the ranges that such a piece has replaced.

    level 0   │ │ │ │ … │   a piece of each cut; once there are too many, the newest run of them is merged
    level 1   │───────│     once no long run of level 0 is left, runs up to level 1 are merged; and so on

A merge takes the newest run of neighbours whose level is low enough, for the lowest level at which it frees enough
pieces. So changes are stored again as often as their level says, and `P` pieces in which everything was stored again at
most `k` times hold up to `(P + k)! / P! / k!` cuts: 2,000 with 2 levels and 64 pieces, 45,000 with 3.

Invariant: a range that was replaced keeps its objects until a checkpoint has completed that was cut after it was
replaced, since the completed checkpoint and pending ones name them. No I/O, no locks.
"""

from collections.abc import Sequence

from holdfast.changelog.ranges import Entry, Extent, Range
from holdfast.formats.handles import LogPiece

MERGED_BYTES_MAX = 32 * 1024 * 1024
"""Stored bytes of a run that is merged, at the most. A higher value lets longer logs do with few pieces, and takes more
memory: the rows of a run are in memory at once."""
MERGED_ROWS_BYTES_MAX = 128 * 1024 * 1024
"""Bytes of the rows of such a run before they are encoded, at the most, as far as they are known. A higher value
matters for rows that shrink to less than a quarter. A merge takes about twice as much memory."""


def run_to_merge(entries: Sequence[Entry], from_sqn: int, to_sqn: int, frees_min: int) -> list[Range]:
    """Return the neighbouring ranges between two SQNs that should become one; empty if none would free `frees_min`
    pieces.

    Changes that go across `to_sqn` are left out: a follower whose log ends there finds that end.
    """
    runs: list[list[Range]] = [[]]
    for entry in entries:
        if entry.sqn_stop <= from_sqn:
            continue
        if isinstance(entry, Range) and entry.pieces and entry.done.done() and entry.sqn_stop <= to_sqn:
            runs[-1].append(entry)
        elif entry.sqn_stop > to_sqn:
            break
        else:
            runs.append([])
    found = [_newest_run(run, level, frees_min) for run in runs for level in sorted({each.level for each in run})]
    return min((run for run in found if run), key=lambda run: max(each.level for each in run), default=[])


def _newest_run(ranges: Sequence[Range], level: int, frees_min: int) -> list[Range]:
    """Return the newest run of ranges up to that level; empty if it frees too few pieces."""
    run: list[Range] = []
    left, rows_left = MERGED_BYTES_MAX, MERGED_ROWS_BYTES_MAX
    for each in reversed(ranges):
        left -= each.stored_bytes
        rows_left -= each.rows_bytes
        if each.level > level or left < 0 or rows_left < 0:
            break
        run.insert(0, each)
    return run if sum(len(each.pieces or ()) for each in run) > frees_min else []


def merged_range(run: Sequence[Range], pieces: list[LogPiece]) -> Range:
    """Return the range that replaces a run, given its stored pieces."""
    first, last = run[0], run[-1]
    extent = Extent(first.sqn_start, last.sqn_stop, first.batch_start, last.batch_stop)
    before_bytes = sum(each.stored_bytes for each in run)
    merged = Range(True, [], [extent], pieces, asked=True, level=1 + max(each.level for each in run))
    # The kept rows are taken to be compressed like the rows of the run.
    merged.rows_bytes = sum(each.rows_bytes for each in run) * merged.stored_bytes // max(1, before_bytes)
    merged.done.set_result(pieces)
    return merged


class Replaced:
    """The ranges that were replaced, whose objects a checkpoint may still name. Not thread-safe."""

    def __init__(self) -> None:
        self.times = 0
        """Number of runs that have been replaced so far."""
        self._kept: list[tuple[int, Sequence[Range]]] = []

    def add(self, run: Sequence[Range]) -> None:
        """Keep the ranges of a run that has just been replaced."""
        self.times += 1
        self._kept.append((self.times, run))

    def take(self, times: int) -> list[Range]:
        """Take out the ranges that no checkpoint names any more: one has completed that was cut when `times` runs had
        been replaced."""
        taken = [each for number, run in self._kept if number <= times for each in run]
        self._kept = [(number, run) for number, run in self._kept if number > times]
        return taken

    def ranges(self) -> list[Range]:
        """Return all kept ranges."""
        return [each for _, run in self._kept for each in run]
