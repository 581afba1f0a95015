"""The plan of a batch, made before it runs, and the units of work that tasks take from it."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

import msgspec

from holdfast.availability import Refusal
from holdfast.ids import BatchNumber
from holdfast.sources.base import Offsets, SplitRead

ROWS_PER_UNIT_MIN = 256
"""Least number of rows that are worth a unit of their own. A higher value saves calls if batches are small, but fewer
processes then share the work of a function that takes long for each row."""

PIECES_PER_UNIT_MAX = 16
"""Bound on the pieces (reads, or outputs of subtasks) in a unit, however few rows they have. A higher value makes fewer
units, which take longer if each piece is slow to begin."""


class Unit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Work of a sender for a leg: reads, or the output of subtasks, in that order.

    Units are numbered within (batch, level); TaskManagers process input in the order of these numbers.
    """

    unit: int
    leg: int
    reads: list[SplitRead] = []
    subtasks: list[int] = []


class Plan(msgspec.Struct, frozen=True):
    """A batch between two offset maps per source. A retry uses the same plan under a new run number."""

    batch: BatchNumber
    batch_time_us: int
    start: dict[str, Offsets]
    to: dict[str, Offsets]
    reads: dict[str, list[list[SplitRead]]]
    """The reads of each sender, by source."""
    watermarks: dict[str, int] = {}
    """Watermarks in microseconds, by operator; only operators that have a watermark."""
    closed: dict[str, int] = {}
    """Watermark of each operator in the previous batch, in microseconds: windows up to it are closed."""
    drained: bool = False
    """True if all input was declared complete before this batch."""
    refusals: list[Refusal] = []
    """Sources that refuse a cut after this batch."""
    standing: int = 0
    """Number of splits that failed or are parked, and that the batch does not try."""

    @property
    def progress(self) -> bool:
        """True if the batch moves any source, or declares the input complete."""
        return self.drained or self.start != self.to

    def without(self, failed: Collection[tuple[str, str]]) -> "Plan":
        """Return the plan as if these splits, each given by its source and its name, had not moved."""
        to = dict(self.to)
        for source, split in failed:
            ends = dict(to[source])
            if split in self.start[source]:
                ends[split] = self.start[source][split]
            else:
                ends.pop(split, None)
            to[source] = ends
        return msgspec.structs.replace(self, to=to)


def group_reads(reads: list[SplitRead], senders: int) -> list[list[SplitRead]]:
    """Divide reads among at most `senders` senders: contiguous, in order, of about equal expected rows."""
    rows = [read.rows or ROWS_PER_UNIT_MIN for read in reads]
    return [reads[part.start : part.stop] for part in divide(rows, senders)]


def divide(rows: Sequence[int], units_max: int) -> list[range]:
    """Divide pieces of work, whose numbers of rows are `rows`, among at most `units_max` units with about equal numbers
    of rows. Few rows make few units, since a unit has a fixed cost for the driver and for each process that it sends
    to. A piece has a fixed cost too (a file to open, a call to a TaskManager), so the number of pieces in a unit is
    bounded.
    """
    if not rows:
        return []
    total = sum(rows)
    units = max(total // ROWS_PER_UNIT_MIN, -(-len(rows) // PIECES_PER_UNIT_MAX), 1)
    units = min(units, units_max, len(rows))
    starts = [0]
    before = list(accumulate(rows, initial=0))
    for unit in range(1, units):
        place = max(starts[-1] + 1, bisect_left(before, -(-unit * max(total, 1) // units), hi=len(rows)))
        if place == len(rows):
            break
        starts.append(place)
    return [range(start, stop) for start, stop in pairwise([*starts, len(rows)])]
