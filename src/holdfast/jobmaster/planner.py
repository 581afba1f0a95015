"""Plans batches: what each source gives next, fixed before anything runs.

Positions move here only when a batch is committed (`committed`), and back when the job is restored.
A batch's time is wall-clock time that never goes back, also over restarts. Its watermarks come from the rows of
batches committed before. A batch without rows is planned for timers that are due, and for expired state that is
to be removed; after a restore one is planned anyway where an operator may have either, since only the restored state
knows.

Looking for new data may be much work (a folder of a hundred thousand files), so a source is looked at as often as that
takes no more than a part of the time (`LOOK_SHARE`), and at once where somebody waits for what is there now.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.checkpoint.events import Position, Scalar
from holdfast.clock import Clock
from holdfast.functions.operator import Timers
from holdfast.graph.plan import Plan, group_reads
from holdfast.sources.base import Enumerator, Offsets
from holdfast.watermarks import Watermarks

AllOffsets = dict[str, Offsets]

LOOK_SHARE = 10
"""Looking takes no more than one part in so many of the time,"""
LOOK_PAUSE_S_MAX = 60.0
"""unless that makes it wait for longer than this."""


@dataclass(frozen=True)
class BatchLimits:
    """How much one batch may be, over all sources."""

    rows_max: int
    bytes_max: int


class _Look:
    """What was found in a source when it was looked at last. `monotonic` is of the machine: it measures work."""

    def __init__(self, enumerator: Enumerator, monotonic: Callable[[], float]) -> None:
        self._enumerator = enumerator
        self._monotonic = monotonic
        self._found: Offsets | None = None
        self._next_s = float("-inf")

    def latest(self, fresh: bool) -> Offsets:
        began_s = self._monotonic()
        if self._found is None or fresh or began_s >= self._next_s:
            self._found = self._enumerator.latest()
            ended_s = self._monotonic()
            self._next_s = ended_s + min(LOOK_PAUSE_S_MAX, LOOK_SHARE * (ended_s - began_s))
        return self._found


class Planner:
    """Used by the batch loop's thread alone."""

    def __init__(
        self,
        enumerators: Mapping[str, Enumerator],
        limits: BatchLimits,
        senders: int,
        clock: Clock,
        watermarks: Watermarks | None = None,
        timed: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._enumerators = enumerators
        self._looks = {name: _Look(enumerator, monotonic) for name, enumerator in enumerators.items()}
        self._limits = limits
        self._senders = senders
        self._clock = clock
        self._next_batch = 1
        self._batch_time_us = 0
        self._watermarks = watermarks or Watermarks({}, {})
        self._timed = timed
        self._timers: Mapping[str, list[Timers]] | None = None
        """By operator, what the last batch left of each subtask's timers; None: not known."""
        self._initial: AllOffsets = {}
        self._completed: Mapping[str, Mapping[str, Scalar]] | None = None
        """What sources were told of last."""
        self.offsets: AllOffsets = {}

    def begin(self, base: Position | None) -> None:
        """The first start in this process: from a record, or from where the sources begin."""
        for name, enumerator in self._enumerators.items():
            if base is not None and name in base.offsets:
                enumerator.restore(dict(base.offsets[name]), list(base.source_objects.get(name, [])))
        if base is not None:
            self.completed(base)
        self._initial = {
            name: dict(base.offsets[name]) if base is not None and name in base.offsets else enumerator.initial()
            for name, enumerator in self._enumerators.items()
        }
        self.restore(base)

    def restore(self, base: Position | None) -> None:
        """Go back to a checkpoint of this process's own, or to the beginning. Batch numbers and time go on."""
        offsets: Mapping[str, Mapping[str, Scalar]] = base.offsets if base is not None else {}
        self.offsets = {name: dict(offsets.get(name, self._initial[name])) for name in self._enumerators}
        self._watermarks.restore({} if base is None else base.watermarks)
        self._timers = None
        if base is not None:
            self._batch_time_us = max(self._batch_time_us, base.batch_time_us)

    def latest(self, fresh: bool = False) -> AllOffsets:
        """What there is in every source, as of the last look; `fresh`: as of now."""
        return {name: look.latest(fresh) for name, look in self._looks.items()}

    def next(self, until: AllOffsets, to_end: bool = False) -> Plan | None:
        """The next batch, not past `until`; None where there is nothing to do.

        With `to_end` no time passes for timers but that of batches: none is waited for.
        """
        plans = {
            name: enumerator.plan(self.offsets[name], until[name], self._rows_max, self._bytes_max)
            for name, enumerator in self._enumerators.items()
        }
        if not any(plan.reads or plan.to != self.offsets[name] for name, plan in plans.items()):
            now_us = self._batch_time_us if to_end else int(self._clock.now() * 1_000_000)
            if not self._timers_due(now_us):
                return None
        self._batch_time_us = max(self._batch_time_us, int(self._clock.now() * 1_000_000))
        plan = Plan(
            batch=self._next_batch,
            batch_time_us=self._batch_time_us,
            start=self.offsets,
            to={name: plan.to for name, plan in plans.items()},
            reads={name: group_reads(plan.reads, self._senders) for name, plan in plans.items()},
            watermarks=self._watermarks.of_operators(),
        )
        self._next_batch += 1
        return plan

    def _timers_due(self, now_us: int) -> bool:
        if not self._timed or self._timers is None:
            return self._timed
        watermarks = self._watermarks.of_operators()
        for operator, subtasks in self._timers.items():
            for each in subtasks:
                if each.processing_us is not None and each.processing_us <= now_us:
                    return True
                watermark_us = watermarks.get(operator)
                if each.event_us is not None and watermark_us is not None and each.event_us <= watermark_us:
                    return True
        return False

    @property
    def next_batch(self) -> int:
        return self._next_batch

    def reached(self, until: AllOffsets) -> bool:
        """Whether everything before `until` is committed."""
        return not any(
            enumerator.plan(self.offsets[name], until[name], 1, 1).reads
            for name, enumerator in self._enumerators.items()
        )

    def committed(
        self, plan: Plan, event_times: Mapping[str, Mapping[str, int]], timers: Mapping[str, list[Timers]]
    ) -> Position:
        """The batch is done: go on from its end, with what its rows said of event time, and what it left of timers."""
        self.offsets = plan.to
        self._timers = timers
        self._watermarks.committed(event_times, plan.batch_time_us, plan.to)
        objects = {name: found for name, e in self._enumerators.items() if (found := e.objects(plan.to[name]))}
        return Position(plan.batch_time_us, plan.to, objects, self._watermarks.times)

    def completed(self, position: Position) -> None:
        """A checkpoint at that position was recorded; a source that is new since then is not in it."""
        if position.offsets == self._completed:
            return
        self._completed = position.offsets
        for name, enumerator in self._enumerators.items():
            if name in position.offsets:
                enumerator.completed(dict(position.offsets[name]))

    def lag(self) -> dict[str, dict[str, int]]:
        return {name: dict(enumerator.lag(self.offsets[name])) for name, enumerator in self._enumerators.items()}

    def close(self) -> None:
        for enumerator in self._enumerators.values():
            enumerator.close()

    @property
    def _rows_max(self) -> int:
        return max(1, self._limits.rows_max // len(self._enumerators))

    @property
    def _bytes_max(self) -> int:
        return max(1, self._limits.bytes_max // len(self._enumerators))
