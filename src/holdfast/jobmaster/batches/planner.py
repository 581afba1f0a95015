"""Planning of batches: the next input of each source, fixed before the batch runs.

Positions move here only when a batch is committed (`committed`), and back when the job is restored. A batch's time is
wall-clock time that never goes back, also over restarts. Its watermarks come from the rows of batches committed before,
and from splits that have become idle since. A batch without rows is planned for due timers and windows, and for expired
state that is to be removed. After a restore, a batch is planned in any case if an operator may have timers or expired
state, since only the restored state shows that.

The limits of a batch are shared among sources in proportion to their remaining rows, so that sources with rows of the
same period end together. Sources whose event time is far ahead of the others' wait (`BatchLimits.skew_us_max`).

Looking for new data may be much work (a folder of a hundred thousand files), so the pause between two looks at a source
grows with the time that looks take (`LOOK_SHARE`), except when somebody waits for the data available now.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from holdfast.availability import Refusal, refusal
from holdfast.behind import Behind
from holdfast.checkpoint.events import Position
from holdfast.checkpoint.triggers import CheckpointTrigger, OnWatermark
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, JobRefused, ObjectNotFound
from holdfast.execution.isolation import SplitName
from holdfast.functions.operator import Timers
from holdfast.graph.plan import Plan, group_reads
from holdfast.ids import BatchNumber, SplitPosition
from holdfast.jobmaster.batches.regional import AllOffsets, RegionalPlanning
from holdfast.jobmaster.batches.sizing import BatchSizer
from holdfast.observe.view import SplitView
from holdfast.sources.base import Enumerator, Offsets, SourcePlan, SplitRead
from holdfast.storage.lost import lost
from holdfast.watermarks import Watermarks

NONE_FAILED: Mapping[SplitName, str] = {}

LOOK_SHARE = 10
"""The pause between two looks at a source lasts this many times the shorter of the last two looks; there is no pause
after the first look. So looks at a source that is always slow take a tenth of the time, and a single look that was held
up (by a broker, or because the driver was suspended) delays nothing. A higher value saves work and finds data later."""
LOOK_PAUSE_S_MAX = 60.0
"""Bound in seconds on the pause between two looks at a source, however long a look takes."""


@dataclass(frozen=True)
class BatchLimits:
    """Bounds of a batch, over all sources.

    `skew_us_max`: a source whose event time is further ahead than this of the slowest source with rows is not read.
    `duration_s`: a batch gets as many rows as are expected to take this long, but never more than `rows_max`.
    """

    rows_max: int
    bytes_max: int
    skew_us_max: int | None = None
    duration_s: float | None = None


class _Look:
    """Result of the last look at a source. `monotonic` is the machine's clock, since it measures work."""

    def __init__(self, enumerator: Enumerator, monotonic: Callable[[], float]) -> None:
        self._enumerator = enumerator
        self._monotonic = monotonic
        self._found: Offsets | None = None
        self._last_look_s = 0.0
        self._next_s = float("-inf")

    def latest(self, fresh: bool) -> Offsets:
        began_s = self._monotonic()
        if self._found is None or fresh or began_s >= self._next_s:
            self._found = self._enumerator.latest()
            ended_s = self._monotonic()
            look_s = ended_s - began_s
            self._next_s = ended_s + min(LOOK_PAUSE_S_MAX, LOOK_SHARE * min(look_s, self._last_look_s))
            self._last_look_s = look_s
        return self._found


class Planner:
    """Planner of batches. Only the batch loop's thread uses it."""

    def __init__(
        self,
        enumerators: Mapping[str, Enumerator],
        limits: BatchLimits,
        senders: Callable[[], int],
        clock: Clock,
        monotonic: Callable[[], float],
        watermarks: Watermarks | None = None,
        timed: bool = False,
        regional: RegionalPlanning | None = None,
    ) -> None:
        self._enumerators = enumerators
        self._regional = regional
        self._monotonic = monotonic
        self._looks = {name: _Look(enumerator, monotonic) for name, enumerator in enumerators.items()}
        self._limits = limits
        self._sizer = None if limits.duration_s is None else BatchSizer(limits.duration_s, limits.rows_max)
        self._senders = senders
        self._clock = clock
        self._next_batch = BatchNumber(1)
        self._batch_time_us = 0
        self._watermarks = watermarks or Watermarks({}, {})
        self._timed = timed
        self._boundaries: OnWatermark | None = None
        """The trigger of checkpoints if it depends on the watermark: then a batch without rows reports that, for
        example, an hour has ended."""
        self._timers: Mapping[str, list[Timers]] | None = None
        """Remaining timers of each subtask after the last batch, by operator; None: not known."""
        self._initial: AllOffsets = {}
        self._unrecorded: set[str] = set()
        """Sources that were asked for their first positions and whose answers are not in a checkpoint yet."""
        self._begun = False
        """True once the batch without rows that fixes those positions is planned."""
        self._completed: Mapping[str, Mapping[str, SplitPosition]] | None = None
        """The positions of the last checkpoint that was reported to the sources."""
        self.offsets: AllOffsets = {}

    def go_by(self, trigger: CheckpointTrigger) -> None:
        """Set the trigger of checkpoints. Any thread may call this."""
        self._boundaries = trigger if isinstance(trigger, OnWatermark) else None

    def begin(self, base: Position | None) -> None:
        """Begin, at the first start in this process, at a record or at the sources' own first positions."""
        for name, enumerator in self._enumerators.items():
            if base is not None and name in base.offsets:
                try:
                    enumerator.restore(dict(base.offsets[name]), list(base.source_objects.get(name, [])))
                except ObjectNotFound as error:
                    instead = f"give the source a new name, and give up its positions with drop_state=[{name!r}]"
                    raise lost(f"source {name!r} cannot go on from its positions", error, instead) from error
        self._unrecorded = {
            name
            for name, enumerator in self._enumerators.items()
            if enumerator.initial_varies and (base is None or name not in base.offsets)
        }
        if base is not None:
            self.completed(base)
            if self._regional is not None:
                self._regional.restored(base.behind)
        self._initial = {
            name: dict(base.offsets[name]) if base is not None and name in base.offsets else enumerator.initial()
            for name, enumerator in self._enumerators.items()
        }
        self.restore(base)

    def restore(self, base: Position | None) -> None:
        """Go back to a checkpoint of this process's own, or to the beginning. Batch numbers and time go on."""
        offsets: Mapping[str, Mapping[str, SplitPosition]] = base.offsets if base is not None else {}
        self.offsets = {name: dict(offsets.get(name, self._initial[name])) for name in self._enumerators}
        self._watermarks.restore({} if base is None else base.watermarks)
        if self._regional is not None:
            self._regional.now_at(self.offsets)
            self._watermarks.behind = self._regional.behind
        self._timers = None
        self._begun = False
        if base is not None:
            self._batch_time_us = max(self._batch_time_us, base.batch_time_us)

    def begin_looks(self) -> list[Callable[[], bool]]:
        """Have every source look for all data available now; see `Enumerator.begin_look`."""
        return [enumerator.begin_look() for enumerator in self._enumerators.values()]

    def latest(self, fresh: bool = False) -> AllOffsets:
        """Ends of every source's available data, found by the last look; with `fresh`, by a look now."""
        return {name: look.latest(fresh) for name, look in self._looks.items()}

    def next(self, until: AllOffsets, to_end: bool = False, drain: bool = False) -> Plan | None:
        """Plan the next batch, not past `until`; None if there is nothing to do.

        With `to_end`, only batches advance the time of timers, so that no timer is waited for. With `drain` the input
        is declared complete after its last row, once: that batch closes all windows and fires all event-time timers. If
        a source was asked for its first position, the first batch has no rows: it fixes the answer, and the next batch
        waits until a checkpoint has recorded it (`awaits_record`).
        """
        if self.awaits_record:
            return None
        if self._unrecorded:
            self._begun = True
            asked: AllOffsets = {name: {} for name in self._unrecorded}
            return self._planned(self._stays(self._enumerators), self.offsets | asked)
        if self._regional is not None:
            until = self._regional.begin_plan(self.offsets, until, self._monotonic())
        drained = False
        plans = self._hold_back(self._plans_within(until))
        self._refuse_rows_after_the_end(plans)
        if not any(plan.reads or plan.to != self.offsets[name] for name, plan in plans.items()):
            now_us = self._batch_time_us if to_end else max(self._batch_time_us, int(self._clock.now() * 1_000_000))
            if not self._timers_due(now_us) and not self._passes_boundary(now_us):
                if not drain or self._watermarks.complete or self.awaits_splits:
                    return None
                self._watermarks.drain()
                drained = True
        return self._planned(plans, self.offsets, drained)

    def ask_again(self) -> Plan:
        """Plan a batch without rows, after which those who refused a cut at the last boundary are asked again."""
        return self._planned(self._stays(self._enumerators), self.offsets)

    def _stays(self, sources: Iterable[str]) -> dict[str, SourcePlan]:
        """Make empty plans for sources; each plan says whether the source allows a cut at its position."""
        plans = {}
        for name in sources:
            place = self.offsets[name]
            asked = self._enumerators[name].plan(place, place, rows_max=1, bytes_max=1)
            plans[name] = SourcePlan(place, [], asked.availability)
        return plans

    @property
    def awaits_record(self) -> bool:
        """True if a checkpoint must be taken before the next batch."""
        return self._begun and bool(self._unrecorded)

    @property
    def awaits_splits(self) -> bool:
        """True if failed splits will be tried again."""
        return self._regional is not None and self._regional.is_waiting

    def _planned(self, plans: Mapping[str, SourcePlan], start: AllOffsets, drained: bool = False) -> Plan:
        self._batch_time_us = max(self._batch_time_us, int(self._clock.now() * 1_000_000))
        reads = {name: self._grouped(name, plan.reads) for name, plan in plans.items()}
        plan = Plan(
            batch=self._next_batch,
            batch_time_us=self._batch_time_us,
            start=start,
            to={name: plan.to for name, plan in plans.items()},
            reads=reads,
            watermarks=self._watermarks.of_operators(self._batch_time_us),
            closed=self._watermarks.closed(),
            drained=drained,
            refusals=_refusals(plans),
            standing=0 if self._regional is None else self._regional.standing(reads),
        )
        self._next_batch = BatchNumber(self._next_batch + 1)
        return plan

    def _grouped(self, source: str, reads: list[SplitRead]) -> list[list[SplitRead]]:
        return group_reads(reads, self._senders()) if self._regional is None else self._regional.grouped(source, reads)

    def _plans_within(self, until: AllOffsets) -> dict[str, SourcePlan]:
        """Plan the next input of each source, so that splits that are behind take no longer than the others."""
        plans = self._source_plans(until)
        closer = None if self._regional is None else self._regional.closer_ends(plans, until)
        return plans if closer is None else self._source_plans(closer)

    def _source_plans(self, until: AllOffsets) -> dict[str, SourcePlan]:
        """Plan the next input of each source, all together within the limits."""
        limits = self._limits
        batch_rows_max = limits.rows_max if self._sizer is None else self._sizer.rows
        plans = {
            name: enumerator.plan(self.offsets[name], until[name], batch_rows_max, limits.bytes_max)
            for name, enumerator in self._enumerators.items()
        }
        reading = [name for name, plan in plans.items() if plan.reads]
        if len(reading) < 2:
            return plans
        left = {name: self._rows_left(name, plans[name]) for name in reading}
        for name in reading:
            share = left[name] / sum(left.values())
            rows_max, bytes_max = max(1, round(batch_rows_max * share)), max(1, round(limits.bytes_max * share))
            plans[name] = self._enumerators[name].plan(self.offsets[name], until[name], rows_max, bytes_max)
        return plans

    def _rows_left(self, source: str, plan: SourcePlan) -> float:
        """Estimate a source's remaining rows: the rows of a plan, divided by the share of the lag that they make up."""
        enumerator = self._enumerators[source]
        before, after = (sum(enumerator.lag(offsets).values()) for offsets in (self.offsets[source], plan.to))
        return _rows(plan) * (before / (before - after) if before > after else 1.0)

    def _hold_back(self, plans: dict[str, SourcePlan]) -> dict[str, SourcePlan]:
        """Remove the plans of sources that are too far ahead in event time."""
        skew_us_max, times = self._limits.skew_us_max, self._watermarks.event_times()
        reading = [name for name, plan in plans.items() if plan.reads and name in times]
        if skew_us_max is None or len(reading) < 2:
            return plans
        slowest = min(reading, key=lambda name: _time_or_least(times[name]))
        limit_us = _time_or_least(times[slowest]) + skew_us_max
        waiting = [name for name in reading if name != slowest and _time_or_least(times[name]) > limit_us]
        return plans | self._stays(waiting)

    def _refuse_rows_after_the_end(self, plans: Mapping[str, SourcePlan]) -> None:
        for name in sorted(self._watermarks.complete_sources()):
            if plans[name].reads:
                raise JobRefused(
                    f"source {name!r} has new rows ({plans[name].reads[0].split!r}), but an earlier start with "
                    "available_now(drain=True) declared its input complete, and all windows are closed: give this "
                    "input to a job with a storage of its own, or start without drain=True where more may come"
                )

    def _timers_due(self, now_us: int) -> bool:
        if not self._timed or self._timers is None:
            return self._timed
        watermarks = self._watermarks.of_operators(now_us)
        for operator, subtasks in self._timers.items():
            for each in subtasks:
                if each.processing_us is not None and each.processing_us <= now_us:
                    return True
                watermark_us = watermarks.get(operator)
                if each.event_us is not None and watermark_us is not None and each.event_us <= watermark_us:
                    return True
        return False

    def _passes_boundary(self, now_us: int) -> bool:
        """True if the rows so far end an interval of event time after which a checkpoint must be taken."""
        boundaries = self._boundaries
        if boundaries is None:
            return False
        before_us, least_us = self._watermarks.least_closed(), self._watermarks.least(now_us)
        return None not in (before_us, least_us) and boundaries.boundary_us(least_us or 0) > (before_us or 0)

    @property
    def next_batch(self) -> BatchNumber:
        return self._next_batch

    def reached(self, until: AllOffsets) -> bool:
        """True if everything before `until` is committed, apart from parked splits."""
        if self._regional is not None:
            until = self._regional.without_parked(self.offsets, until)
        return not any(
            has_rows(enumerator, self.offsets[name], until[name]) for name, enumerator in self._enumerators.items()
        )

    def committed(
        self,
        plan: Plan,
        event_times: Mapping[str, Mapping[str, int]],
        timers: Mapping[str, list[Timers]],
        failed: Mapping[SplitName, str] = NONE_FAILED,
    ) -> Position:
        """Continue from the end of a committed batch, with its event times and its remaining timers. `failed`: splits
        that `plan` tried to read but could not advance, with the reasons.
        """
        if self._regional is not None:
            self._regional.committed(plan, failed, self._monotonic())
        self.offsets = plan.to
        self._timers = timers
        open_splits = {name: each.open_splits(plan.to[name]) for name, each in self._enumerators.items()}
        self._watermarks.behind = behind = {} if self._regional is None else self._regional.behind
        self._watermarks.committed(event_times, plan.batch_time_us, open_splits)
        objects = {name: found for name, e in self._enumerators.items() if (found := e.objects(plan.to[name]))}
        held = self._watermarks.held_by_splits_behind()
        return Position(plan.batch_time_us, plan.to, objects, self._watermarks.times, behind, held)

    def check(self, failed: Mapping[SplitName, str]) -> None:
        """Raise `QueryFailed` if a split that a batch failed to move failed too often for a checkpoint without it."""
        if self._regional is not None and failed:
            self._regional.check(failed)

    def took(self, rows: int, duration_s: float) -> None:
        """Note how long a committed batch took from its plan to its commit."""
        if self._sizer is not None:
            self._sizer.observe(rows, duration_s)

    def completed(self, position: Position) -> None:
        """Note that a checkpoint at that position was recorded. It does not have sources that were added later."""
        if self._regional is not None:
            self._regional.checkpoint_completed(position.offsets)
        if position.offsets == self._completed:
            return
        self._completed = position.offsets
        self._unrecorded -= position.offsets.keys()
        for name, enumerator in self._enumerators.items():
            if name in position.offsets:
                enumerator.completed(dict(position.offsets[name]))

    @property
    def behind(self) -> Behind:
        """Splits that failed and have not caught up since. Thread-safe."""
        return {} if self._regional is None else self._regional.behind

    def splits_behind(self, recorded: Behind) -> tuple[SplitView, ...]:
        """Describe the splits that are behind, for people. `recorded`: the newest record's splits. Thread-safe."""
        return () if self._regional is None else self._regional.views(recorded)

    def ask_for_split(self, split: str, source: str | None, skipped: int | None) -> None:
        """Try a split that failed at once, and put its row at `skipped` aside. Thread-safe.

        Raises `HoldfastError` if that split does not fail, or its row cannot be skipped.
        """
        if self._regional is None:
            raise HoldfastError(
                f"split {split!r}: a job without Job(regions=RegionConfig(…)) has no splits that fail alone"
            )
        self._regional.ask(split, source, skipped)

    def source_watermarks(self) -> dict[str, int]:
        """Watermark of each source after the last batch; only sources with a watermark."""
        return self._watermarks.of_sources(self._batch_time_us)

    def lag(self) -> dict[str, dict[str, int]]:
        return {name: dict(enumerator.lag(self.offsets[name])) for name, enumerator in self._enumerators.items()}

    def source_messages(self) -> tuple[str, ...]:
        """Return the reasons why sources give no rows at the moment. Thread-safe."""
        listed = list(self._enumerators.items())
        return tuple(f"source {name!r}: {enumerator.message}" for name, enumerator in listed if enumerator.message)

    def close(self) -> None:
        for enumerator in self._enumerators.values():
            enumerator.close()


def has_rows(enumerator: Enumerator, at: Offsets, until: Offsets) -> bool:
    """Return whether there are reads between two offsets, perhaps behind a range that has no rows."""
    while not (plan := enumerator.plan(at, until, 1, 1)).reads:
        if plan.to == at:
            return False
        at = plan.to
    return True


def _refusals(plans: Mapping[str, SourcePlan]) -> list[Refusal]:
    """Sources that refuse a cut at the end of their plans."""
    answers = [refusal(f"source {name!r}", plan.availability) for name, plan in sorted(plans.items())]
    return [each for each in answers if each is not None]


def _rows(plan: SourcePlan) -> int:
    return sum(max(1, read.rows) for read in plan.reads)


def _time_or_least(time_us: int | None) -> float:
    """Event time for comparisons; a source without event time is behind all others."""
    return float("-inf") if time_us is None else time_us
