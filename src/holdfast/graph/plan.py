"""The plan: what fixes a batch before it runs; and the units of work that tasks take from it."""

import msgspec

from holdfast.availability import Refusal
from holdfast.sources.base import Offsets, SplitRead


class Unit(msgspec.Struct, frozen=True):
    """What one sender does for one leg: reads, or the output of subtasks, in that order.

    Numbered within (batch, level); TaskManagers process input in the order of these numbers.
    """

    unit: int
    leg: int
    reads: list[SplitRead] = []
    subtasks: list[int] = []


class Plan(msgspec.Struct, frozen=True):
    """A batch between two offset maps per source. A retry uses the same plan under a new run number."""

    batch: int
    batch_time_us: int
    start: dict[str, Offsets]
    to: dict[str, Offsets]
    reads: dict[str, list[list[SplitRead]]]
    """Per source: the reads of each sender."""
    watermarks: dict[str, int] = {}
    """Of operators that have one, in microseconds."""
    closed: dict[str, int] = {}
    """The watermark that each operator had in the batch before, in microseconds: windows up to it are closed."""
    drained: bool = False
    """Whether all input was declared complete before this batch."""
    refusals: list[Refusal] = []
    """The sources that refuse a cut after this batch."""

    @property
    def progress(self) -> bool:
        """Whether the batch moves any source, or says that the input is complete."""
        return self.drained or self.start != self.to


def group_reads(reads: list[SplitRead], senders: int) -> list[list[SplitRead]]:
    """Divide reads among at most `senders` senders: contiguous, in order, of about equal expected rows."""
    total = sum(read.rows for read in reads)
    groups: list[list[SplitRead]] = []
    done = 0
    for read in reads:
        sender = min(len(reads), senders) * done // max(total, 1)
        if not groups or sender >= len(groups):
            groups.append([])
        groups[-1].append(read)
        done += read.rows
    return groups
