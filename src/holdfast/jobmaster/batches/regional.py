"""Planning around splits that are behind because they failed; the rules are in `execution.failing`.

retry, skip ──any thread──► requests ──► the next plan
a plan: waiting and parked splits do not advance; others that are behind get units of their own, of a bounded size,
        so that neither their failures nor their backlog delay the other splits
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.behind import Behind, Positions
from holdfast.errors import HoldfastError
from holdfast.execution.failing import FailingSplits
from holdfast.execution.isolation import SplitName
from holdfast.graph.plan import Plan, group_reads
from holdfast.observe.view import SplitView
from holdfast.printable import logger
from holdfast.sources.base import Offsets, SourcePlan, SplitRead

log = logger(__name__)

AllOffsets = dict[str, Offsets]

UNITS_ALONE_MAX = 64
"""Number of units for splits that are behind. With a higher value, more of these splits have a unit of their own, and
there are more and smaller files."""
CATCH_UP_ROWS_MIN = 1_000
"""Least number of rows that a split which is behind may read in a batch. With a higher value, it catches up sooner, in
longer batches."""


@dataclass(frozen=True)
class SplitRequest:
    """A request of a user: try a split at once, and put the row at `skipped` aside if that is given."""

    name: SplitName
    skipped: int | None = None


class RegionalPlanning:
    """The splits that are behind. Only the batch loop's thread uses it, apart from `ask` and `views`."""

    def __init__(self, failing: FailingSplits, senders: Callable[[], int]) -> None:
        self._failing = failing
        self._senders = senders
        self._requests: deque[SplitRequest] = deque()
        self._skipped: dict[SplitName, set[int]] = {}
        """Positions of rows that are written to the dead letters when they are read. An entry stays until a checkpoint
        has passed the row, since a batch that passed it may be undone."""
        self._latest: AllOffsets = {}
        self._offsets: AllOffsets = {}
        self.behind: Behind = {}
        """Splits that are behind, in the form for the next record. Always replaced, never changed in place."""

    # --- requests and views of other threads --------------------------------------------------------------------------

    def ask(self, split: str, source: str | None, skipped: int | None) -> None:
        """Take a request. Raises `HoldfastError` if the split is not behind, or its row cannot be skipped."""
        name = self._named(split, source)
        position = self._offsets.get(name[0], {}).get(split, 0)
        if skipped is not None and not isinstance(position, int):
            raise HoldfastError(
                f"split {split!r}: its positions are not numbers of rows, so that no row can be skipped"
            )
        if skipped is not None and skipped < int(position or 0):
            raise HoldfastError(f"split {split!r} stands at {position}: its row at {skipped} is already processed")
        end = _at(self._latest, name)
        if skipped is not None and isinstance(end, int) and skipped >= end:
            raise HoldfastError(f"split {split!r} ends at {end}: it has no row at {skipped} to skip")
        self._requests.append(SplitRequest(name, skipped))

    def _named(self, split: str, source: str | None) -> SplitName:
        found = [each for each, splits in self.behind.items() if split in splits and source in (None, each)]
        if len(found) == 1:
            return found[0], split
        if found:
            raise HoldfastError(f"split {split!r} fails in the sources {found}: name a source with source=")
        failing = [f"{split!r} of {each!r}" for each, splits in self.behind.items() for split in splits]
        raise HoldfastError(f"split {split!r} does not fail; failing are: {', '.join(failing[:20]) or 'none'}")

    def views(self, recorded: Behind) -> tuple[SplitView, ...]:
        """Splits that are behind, for people. `recorded`: the newest record's splits."""
        behind, offsets = self.behind, self._offsets
        return tuple(
            SplitView(
                source,
                split,
                offsets.get(source, {}).get(split),
                recorded[source][split].since if split in recorded.get(source, {}) else 0,
                each.failures,
                each.reason,
                each.parked,
            )
            for source, splits in sorted(behind.items())
            for split, each in sorted(splits.items())
        )

    # --- planning -----------------------------------------------------------------------------------------------------

    def restored(self, behind: Behind) -> None:
        """Begin with the splits of a record."""
        self._failing.restored(behind)
        for source, splits in behind.items():
            for split, each in splits.items():
                if each.skipped:
                    self._skipped[source, split] = set(each.skipped)

    def begin_plan(self, offsets: AllOffsets, latest: AllOffsets, now_s: float) -> AllOffsets:
        """Carry out requests, and return ends at which waiting and parked splits do not advance."""
        self._latest = latest
        while self._requests:
            request = self._requests.popleft()
            self._failing.retry(request.name)
            if request.skipped is not None:
                self._skipped.setdefault(request.name, set()).add(request.skipped)
        return without(self._failing.held(now_s), offsets, latest)

    def without_parked(self, offsets: AllOffsets, ends: AllOffsets) -> AllOffsets:
        return without(self._failing.parked(), offsets, ends)

    def closer_ends(self, plans: Mapping[str, SourcePlan], ends: AllOffsets) -> AllOffsets | None:
        """Return ends at which splits that are behind take no longer than the others; None if `ends` are such
        already."""
        names = self._failing.names
        if not names:
            return None
        reads = [(source, read) for source, plan in plans.items() for read in plan.reads]
        behind = [(source, read) for source, read in reads if (source, read.split) in names]
        rows = sum(read.rows for _, read in reads) - sum(read.rows for _, read in behind)
        rows_max = max(CATCH_UP_ROWS_MIN, rows // max(self._senders(), len(behind), 1))
        large = [(source, read) for source, read in behind if read.rows > rows_max and isinstance(read.start, int)]
        if not rows or not large:
            return None
        closer = dict(ends)
        for source, read in large:
            closer[source] = closer[source] | {read.split: int(read.start or 0) + rows_max}
        return closer

    def grouped(self, source: str, reads: list[SplitRead]) -> list[list[SplitRead]]:
        """Divide the reads of a source among the senders."""
        names = self._failing.names
        if not names:
            return group_reads(reads, self._senders())
        others = [read for read in reads if (source, read.split) not in names]
        alone = [read for read in reads if (source, read.split) in names]
        size = -(-len(alone) // UNITS_ALONE_MAX) or 1
        groups = [alone[first : first + size] for first in range(0, len(alone), size)]
        return group_reads(others, self._senders()) + [self._with_skips(source, group) for group in groups]

    def _with_skips(self, source: str, reads: list[SplitRead]) -> list[SplitRead]:
        found = []
        for read in reads:
            rest = read
            for position in sorted(self._skipped.get((source, read.split), ())):
                if isinstance(rest.start, int) and isinstance(rest.stop, int) and rest.start <= position < rest.stop:
                    found += _part(rest, rest.start, position)
                    found.append(SplitRead(read.split, position, position + 1, 1, read.detail, is_skipped=True))
                    rest = replace(rest, start=position + 1, rows=max(0, rest.stop - position - 1))
            found += _part(rest, rest.start, rest.stop)
        return found

    def check(self, failed: Mapping[SplitName, str]) -> None:
        """Raise `QueryFailed` if a split that a batch failed to move failed too often."""
        self._failing.check(failed, self._offsets)

    def standing(self, reads: Mapping[str, list[list[SplitRead]]]) -> int:
        """Number of splits that are stopped and are not among these reads."""
        return self._failing.standing(_tried(reads)) if self._failing.names else 0

    def committed(self, plan: Plan, failed: Mapping[SplitName, str], now_s: float) -> None:
        """Note a committed batch, and the splits that it did not advance."""
        if not (failed or self._failing.names):
            self._offsets = plan.to
            return
        self._note_parked(self._failing.committed(_tried(plan.reads), failed, now_s))
        self._failing.caught_up(lambda name: _at(plan.to, name) == _at(self._latest, name))
        self.now_at(plan.to)

    def checkpoint_completed(self, offsets: Positions) -> None:
        """Note that a checkpoint at these positions is recorded."""
        self._failing.checkpoint_completed()
        self._skipped = {name: left for name in self._skipped if (left := self._not_reached(name, offsets))}
        self.now_at(self._offsets)

    def _not_reached(self, name: SplitName, offsets: Positions) -> set[int]:
        """Return the positions of rows to skip that lie ahead of a split."""
        position = _at(offsets, name)
        return {each for each in self._skipped.get(name, ()) if not isinstance(position, int) or each >= position}

    def now_at(self, offsets: AllOffsets) -> None:
        """Note the current positions of the splits."""
        self._offsets = offsets
        behind = self._failing.behind()
        for source, split in self._skipped:
            skipped = self._not_reached((source, split), offsets)
            if skipped and split in behind.get(source, {}):
                found = behind[source]
                found[split] = replace(found[split], skipped=tuple(sorted(skipped)))
        self.behind = behind

    @property
    def is_waiting(self) -> bool:
        """True if it is time to try failed splits again."""
        return self._failing.is_waiting or bool(self._requests)

    @staticmethod
    def _note_parked(parked: list[SplitName]) -> None:
        for source, split in parked:
            log.error(
                "source %r, split %r is parked until query.retry(%r) or the next start, since it kept failing",
                source,
                split,
                split,
            )


def without(held: Iterable[SplitName], offsets: AllOffsets, ends: AllOffsets) -> AllOffsets:
    """Return ends at which the `held` splits do not advance."""
    found, copied = dict(ends), set()
    for source, split in held:
        if source not in copied:
            copied.add(source)
            found[source] = dict(found[source])
        if split in offsets[source]:
            found[source][split] = offsets[source][split]
        else:
            found[source].pop(split, None)
    return found


def _tried(reads: Mapping[str, list[list[SplitRead]]]) -> set[SplitName]:
    return {(name, read.split) for name, parts in reads.items() for part in parts for read in part}


def _at(offsets: Positions, name: SplitName) -> object:
    source, split = name
    return offsets.get(source, {}).get(split)


def _part(read: SplitRead, start: object, stop: object) -> list[SplitRead]:
    """Return a part of a read; none if it is empty."""
    if start == stop:
        return []
    rows = stop - start if isinstance(start, int) and isinstance(stop, int) else read.rows
    return [replace(read, start=start, stop=stop, rows=rows)]
