"""Plans batches: what each source gives next, fixed before anything runs.

Positions move here only when a batch is committed (`committed`), and back when the job is restored.
A batch's time is wall-clock time that never goes back, also over restarts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.checkpoint.events import Position
from holdfast.clock import Clock
from holdfast.graph.plan import Plan, group_reads
from holdfast.sources.base import Enumerator, Offsets

AllOffsets = dict[str, Offsets]


@dataclass(frozen=True)
class BatchLimits:
    """How much one batch may be, over all sources."""

    rows_max: int
    bytes_max: int


class Planner:
    """Used by the batch loop's thread alone."""

    def __init__(self, enumerators: Mapping[str, Enumerator], limits: BatchLimits, senders: int, clock: Clock) -> None:
        self._enumerators = enumerators
        self._limits = limits
        self._senders = senders
        self._clock = clock
        self._next_batch = 1
        self._batch_time_us = 0
        self._initial: AllOffsets = {}
        self.offsets: AllOffsets = {}

    def begin(self, base: Position | None) -> None:
        """The first start in this process: from a record, or from where the sources begin."""
        for name, enumerator in self._enumerators.items():
            if base is not None and name in base.offsets:
                enumerator.restore(dict(base.offsets[name]), list(base.source_objects.get(name, [])))
        self._initial = {
            name: dict(base.offsets[name]) if base is not None and name in base.offsets else enumerator.initial()
            for name, enumerator in self._enumerators.items()
        }
        self.restore(base)

    def restore(self, base: Position | None) -> None:
        """Go back to a checkpoint of this process's own, or to the beginning. Batch numbers and time go on."""
        offsets: Mapping[str, Mapping[str, int | float | str | bool | None]] = base.offsets if base is not None else {}
        self.offsets = {name: dict(offsets.get(name, self._initial[name])) for name in self._enumerators}
        if base is not None:
            self._batch_time_us = max(self._batch_time_us, base.batch_time_us)

    def latest(self) -> AllOffsets:
        """Look for new data in every source."""
        return {name: enumerator.latest() for name, enumerator in self._enumerators.items()}

    def next(self, until: AllOffsets) -> Plan | None:
        """The next batch, not past `until`; None where there is nothing to do."""
        plans = {
            name: enumerator.plan(self.offsets[name], until[name], self._rows_max, self._bytes_max)
            for name, enumerator in self._enumerators.items()
        }
        if not any(plan.reads or plan.to != self.offsets[name] for name, plan in plans.items()):
            return None
        self._batch_time_us = max(self._batch_time_us, int(self._clock.now() * 1_000_000))
        plan = Plan(
            batch=self._next_batch,
            batch_time_us=self._batch_time_us,
            start=self.offsets,
            to={name: plan.to for name, plan in plans.items()},
            reads={name: group_reads(plan.reads, self._senders) for name, plan in plans.items()},
        )
        self._next_batch += 1
        return plan

    @property
    def next_batch(self) -> int:
        return self._next_batch

    def reached(self, until: AllOffsets) -> bool:
        """Whether everything before `until` is committed."""
        return not any(
            enumerator.plan(self.offsets[name], until[name], 1, 1).reads
            for name, enumerator in self._enumerators.items()
        )

    def committed(self, plan: Plan) -> Position:
        """The batch is done: go on from its end."""
        self.offsets = plan.to
        objects = {name: found for name, e in self._enumerators.items() if (found := e.objects(plan.to[name]))}
        return Position(plan.batch_time_us, plan.to, objects)

    def completed(self, position: Position) -> None:
        """A checkpoint at that position was recorded."""
        for name, enumerator in self._enumerators.items():
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
