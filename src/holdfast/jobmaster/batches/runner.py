"""Execution of a batch: push → process → pull, level by level, then commit. A transaction: all or nothing.

    level 0     units read splits          → operators of level 1, sinks
    level n     units pull from operators  → operators of level n + 1, sinks
    commit      once every operator has processed and everything is staged

This module does not retry: an error leaves the batch uncommitted, and the execution machine orders its undo on the
TaskManagers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import TypeVar

from msgspec.structs import replace

from holdfast import failpoints
from holdfast.availability import Refusal
from holdfast.clock import Clock
from holdfast.errors import TaskManagerLost
from holdfast.exchange.hot_keys import KeySample
from holdfast.exchange.task import LevelRequest, UnitResult, stage_dead_letters, stream_attempt
from holdfast.execution.calls import Step
from holdfast.execution.isolation import SplitName
from holdfast.functions.operator import Timers
from holdfast.graph.plan import Plan, Unit, divide
from holdfast.graph.program import (
    DEAD_LETTERS,
    Leg,
    OperatorOrigin,
    OperatorTarget,
    Program,
    SourceOrigin,
)
from holdfast.ids import OPERATORS, Epoch, RunNumber
from holdfast.jobmaster.batches.isolating import Isolated, Isolator
from holdfast.jobmaster.batches.losses import SubtaskRows
from holdfast.jobmaster.processes.cluster import LevelRun
from holdfast.jobmaster.processes.senders import Senders
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.printable import logger
from holdfast.protocol.streams import SentUnit, Streams, by_task_manager
from holdfast.protocol.taskmanager import ExchangeRoutes, ProcessRequest, SubtaskResult, TaskManagerGateway
from holdfast.settings import RegionConfig
from holdfast.sources.bad_reasons import BadReason, counted_reasons
from holdfast.sources.base import BadRow
from holdfast.storage.store import ObjectStore

log = logger(__name__)

T = TypeVar("T")


@dataclass
class BatchOutcome:
    """Results of a batch so far; `committables` by sink, in unit order. The committables of a failed batch must be
    dropped."""

    rows_in: int = 0
    rows_by_source: dict[str, int] = field(default_factory=dict)
    bad_rows: int = 0
    bad_reasons: Counter[BadReason] = field(default_factory=Counter)
    key_samples: list[KeySample] = field(default_factory=list)
    rows_by_sink: dict[str, int] = field(default_factory=dict)
    committables: dict[str, list[bytes]] = field(default_factory=dict)
    superseded: dict[str, list[bytes]] = field(default_factory=dict)
    """Committables of units that ran again without a failed split, by sink. They are always dropped."""
    failed_splits: dict[SplitName, str] = field(default_factory=dict)
    """Splits that the batch did not advance, with the reasons."""
    durations_ms: dict[str, float] = field(default_factory=dict)
    event_times: dict[str, dict[str, int]] = field(default_factory=dict)
    """Newest event time of each split, by watermark."""
    timers: dict[str, list[Timers]] = field(default_factory=dict)
    """Remaining timers of each subtask, by operator."""
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """Metrics that each TaskManager reported with its commit, by TaskManager."""
    refusals: list[Refusal] = field(default_factory=list)
    """Operators that refuse a cut after this batch."""
    sent: SubtaskRows = field(default_factory=Counter)
    """Rows sent to each subtask and not processed yet, in a job that may drop rows."""
    taken: SubtaskRows = field(default_factory=Counter)
    """Rows that each subtask processed, in a job that may drop rows."""
    dropped: SubtaskRows = field(default_factory=Counter)
    """Rows for subtasks that were missing."""
    busy_s: dict[int, list[float]] = field(default_factory=dict)
    """Seconds for which each subtask processed rows, by level; the operators of a level are added up."""
    broadcast: bool = False
    """True if rows were sent to broadcast states, even if some of them were dropped."""
    committing: bool = False
    """True once some TaskManagers may have committed: an error then leads to a restart from a checkpoint instead of an
    undo."""

    @property
    def rows_out(self) -> int:
        return sum(self.rows_by_sink.values())

    @property
    def fired(self) -> int:
        """Number of timers that fired and of expired values that were removed."""
        return sum(each.fired + each.expired for found in self.timers.values() for each in found)

    def note_event_times(self, watermark: str, newest: Mapping[str, int]) -> None:
        times = self.event_times.setdefault(watermark, {})
        if times.keys().isdisjoint(newest):
            times.update(newest)
            return
        for split, time_us in newest.items():
            times[split] = max(time_us, times.get(split, time_us))

    def add(self, sink: str, committables: Iterable[bytes]) -> None:
        self.committables.setdefault(sink, []).extend(committables)

    def took(self, phase: str, seconds: float) -> None:
        self.durations_ms[phase] = self.durations_ms.get(phase, 0.0) + seconds * 1000


@dataclass(frozen=True)
class BatchRunner:
    """Runs batches under a run number on a set of TaskManagers. Each change of either makes a new runner."""

    job_id: str
    epoch: Epoch
    run: RunNumber
    program: Program
    senders: Senders
    task_managers: TaskManagers
    routes: ExchangeRoutes
    store: ObjectStore
    clock: Clock
    combine: bool
    """True if senders may combine rows."""
    before_commit: Callable[[], None]
    """Waits for everything that must precede a commit; raises if the batch must not be committed."""
    drop: bool = False
    """True: the batch continues without lost TaskManagers, and drops the rows for their subtasks."""
    regions: RegionConfig | None = None
    """Limits within which splits may fail without the others; None: each failure fails the batch."""

    def execute(self, plan: Plan, outcome: BatchOutcome) -> None:
        """Process and stage everything. `outcome` is filled step by step, so that a failed batch's files are known."""
        arrived: dict[int, list[SentUnit]] = {}
        started_s = self.clock.monotonic()
        self._run_level(plan, 0, self._source_units(plan), arrived, outcome)
        outcome.took("push", self.clock.monotonic() - started_s)
        for level in range(1, self.program.levels + 1):
            failpoints.hit("jobmaster.process.before")
            started_s = self.clock.monotonic()
            pulled = self._process(plan, level, arrived.pop(level, []), outcome)
            failpoints.hit("jobmaster.process.after")
            outcome.took("process", self.clock.monotonic() - started_s)
            started_s = self.clock.monotonic()
            self._run_level(plan, level, pulled, arrived, outcome)
            outcome.took("pull", self.clock.monotonic() - started_s)

    def commit(self, plan: Plan, outcome: BatchOutcome) -> None:
        """Commit the processed batch. If that fails, `outcome.committing` is true if some TaskManagers may have
        committed."""
        failpoints.hit("jobmaster.commit.before")
        started_s = self.clock.monotonic()
        if self.program.levels:
            self.before_commit()
            outcome.committing = True
            answers = self._on_all(Step.COMMIT, f"batch {plan.batch}", lambda _, to: to.commit(self.run, plan.batch))
            outcome.metrics = {index: answer.metrics for index, answer in answers.items()}
            outcome.refusals = [each for answer in answers.values() for each in answer.refusals]
            failpoints.hit("jobmaster.commit.after")
        outcome.took("commit", self.clock.monotonic() - started_s)

    def _on_all(self, step: Step, about: str, call: Callable[[int, TaskManagerGateway], T]) -> dict[int, T]:
        """Call all TaskManagers that hold a place; if the batch may continue without lost ones, only those that
        serve."""
        if self.drop:
            return self.task_managers.on_present(step, about, call)
        return dict(self.task_managers.on_all(step, about, lambda index, gateway: (index, call(index, gateway))))

    def _source_units(self, plan: Plan) -> list[Unit]:
        units: list[Unit] = []
        for leg in self.program.source_legs:
            assert isinstance(leg.origin, SourceOrigin)
            for reads in plan.reads[leg.origin.source]:
                units.append(Unit(len(units), leg.index, reads=reads))
        return units

    def _run_level(
        self, plan: Plan, level: int, units: list[Unit], arrived: dict[int, list[SentUnit]], outcome: BatchOutcome
    ) -> None:
        """Run the units. Rows that they sent are noted in `arrived` until the level of their operator."""
        if not units:
            return
        failpoints.hit("jobmaster.level.before")
        closed = _of(self.program.operators_fed_by[level], plan.closed)
        request = LevelRequest(
            self.job_id,
            self.epoch,
            self.run,
            plan.batch,
            level,
            self.combine,
            closed,
            plan.batch_time_us,
            max(1, min(len(units), self.senders.side_by_side)),
        )
        run = partial(self._run_units, request)
        if self.regions is not None and level == 0:
            isolated = Isolator(self.program, self.regions).run(plan, units, run)
            self._note_failed(isolated, outcome)
            results = isolated.counted
        else:
            results = run(units)
        if self.drop:
            results = self._without_the_gone(units, results, outcome)
        by_leg = [(self.program.legs[leg], list(found)) for leg, found in groupby(results, attrgetter("leg"))]
        for leg, found in by_leg:
            self._collect(leg, found, outcome)
        failpoints.hit("jobmaster.level.after")
        failure = next((each.failure for each in results if each.failure is not None), None)
        if failure is not None:
            raise failure.error()
        sent = [
            (
                output,
                [SentUnit(each.unit, stream_attempt(each.attempt, place), each.outputs[place].sent) for each in found],
            )
            for leg, found in by_leg
            for place, output in enumerate(leg.outputs)
        ]
        for output, units_sent in sorted(sent, key=lambda each: each[0].number):
            if isinstance(output.target, OperatorTarget):
                arrived.setdefault(self.program.operator_levels[output.target.operator], []).extend(units_sent)

    def _run_units(self, request: LevelRequest, units: list[Unit]) -> list[UnitResult]:
        what = "push" if request.level == 0 else "pull"
        present = self.task_managers.deployed()
        routes = replace(self.routes, routes=present, drop=True) if self.drop else self.routes
        run = LevelRun(request, units, routes, f"batch {request.batch}, {what} {request.level}")
        with self.task_managers.calls.under_way(Step.LEVEL, run.description):
            return self.senders.run_level(run)

    def _without_the_gone(
        self, units: list[Unit], results: list[UnitResult], outcome: BatchOutcome
    ) -> list[UnitResult]:
        """Give up TaskManagers that units could not reach, and leave out units that pulled from a lost TaskManager.

        The output of a subtask in a batch counts in full or not at all.
        """
        owners = {unit.unit: self.routes.owners[unit.subtasks[0]] for unit in units if unit.subtasks}
        for result in results:
            gone = dict(result.gone)
            if result.unit in owners and result.failure is not None and result.failure.kind == TaskManagerLost.__name__:
                gone[owners[result.unit]] = result.failure.message
            for task_manager, reason in gone.items():
                self.task_managers.left_out(task_manager, reason)
        present = {each.task_manager for each in self.task_managers.deployed()}
        counted = []
        for result in results:
            if result.unit not in owners or owners[result.unit] in present:
                counted.append(result)
            else:
                self._supersede(result, outcome)
        return counted

    def _supersede(self, result: UnitResult, outcome: BatchOutcome) -> None:
        if result.failure is None:
            for place, sink in self.program.legs[result.leg].sink_places.items():
                outcome.superseded.setdefault(sink, []).extend(result.outputs[place].committables)
        if result.dead_letters:
            outcome.superseded.setdefault(DEAD_LETTERS, []).extend(result.dead_letters)

    def _note_failed(self, isolated: Isolated, outcome: BatchOutcome) -> None:
        outcome.failed_splits.update(isolated.failed)
        for (source, split), reason in isolated.failed.items():
            log.warning("source %r, split %r failed and stays where it is: %s", source, split, reason)
        for result in isolated.superseded:
            self._supersede(result, outcome)

    def _collect(self, leg: Leg, results: list[UnitResult], outcome: BatchOutcome) -> None:
        """Take the results of units of a leg, in unit order."""
        if isinstance(leg.origin, SourceOrigin):
            self._count_source(leg, leg.origin.source, sum(each.rows for each in results), outcome)
        good = [each for each in results if each.failure is None]
        for place, sink in leg.sink_places.items():
            given = [each.outputs[place] for each in good]
            outcome.rows_by_sink[sink] = outcome.rows_by_sink.get(sink, 0) + sum(each.staged for each in given)
            outcome.add(sink, chain.from_iterable(each.committables for each in given))
        if leg.watermark is not None:
            for each in results:
                outcome.note_event_times(leg.watermark.key, each.event_times)
        for place, output in enumerate(leg.outputs):
            if isinstance(output.target, OperatorTarget) and output.target.broadcast:
                sent = any(len(each.outputs[place].sent) or each.gone for each in good)
                outcome.broadcast = outcome.broadcast or sent
        for each in results:
            outcome.bad_rows += each.bad_rows
            outcome.bad_reasons.update(dict(each.bad_reasons))
            outcome.key_samples += each.key_samples
            for operator, subtask, rows in each.rows_by_subtask:
                outcome.sent[operator, subtask] += rows
            if each.dead_letters:
                outcome.add(DEAD_LETTERS, each.dead_letters)

    def _count_source(self, leg: Leg, source: str, rows: int, outcome: BatchOutcome) -> None:
        """Count the rows of a source read by several branches once, by its first leg."""
        if leg.index in self.program.first_legs:
            outcome.rows_in += rows
            outcome.rows_by_source[source] = outcome.rows_by_source.get(source, 0) + rows

    def _process(self, plan: Plan, level: int, sent: list[SentUnit], outcome: BatchOutcome) -> list[Unit]:
        """Have every TaskManager process a level; return the units that pull the output."""

        streams = by_task_manager(sent)
        operators = self.program.operators_of_level[level]
        watermarks, closed = _of(operators, plan.watermarks), _of(operators, plan.closed)

        def request(task_manager: int) -> ProcessRequest:
            own = streams.get(task_manager, Streams())
            return ProcessRequest(self.run, plan.batch, plan.batch_time_us, level, own, watermarks, closed)

        about = f"batch {plan.batch}, level {level}"
        results = self._on_all(Step.PROCESS, about, lambda index, gateway: gateway.process(request(index)))
        subtasks = sorted(
            (subtask for result in results.values() for subtask in result.subtasks),
            key=lambda r: (r.operator, r.subtask),
        )
        if self.drop:
            self._count_dropped(level, subtasks, outcome)
        outcome.busy_s[level] = [0.0] * self.routes.parallelism
        for subtask in subtasks:
            outcome.busy_s[level][subtask.subtask] += subtask.busy_s
            if subtask.timers is not None:
                outcome.timers.setdefault(subtask.operator, []).append(subtask.timers)
        bad = [row for subtask in subtasks for row in subtask.bad]
        self._stage_bad(plan, level, bad, outcome)
        by_operator = {operator: list(found) for operator, found in groupby(subtasks, attrgetter("operator"))}
        legs = [leg for operator in by_operator for leg in self.program.legs_by_operator.get(operator, ())]
        units: list[Unit] = []
        for leg in sorted(legs, key=attrgetter("index")):
            assert isinstance(leg.origin, OperatorOrigin)
            outputs = _outputs(leg.origin, by_operator[leg.origin.operator])
            for some in self._pulled_together(outputs):
                for part in divide([rows for _, rows in some], len(some)):
                    units.append(Unit(len(units), leg.index, subtasks=[some[place][0] for place in part]))
        return units

    def _pulled_together(self, outputs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Group the outputs that a unit may pull together: in a job that drops rows, the outputs of a single
        TaskManager."""
        if not self.drop:
            return [outputs]
        by_owner: dict[int, list[tuple[int, int]]] = {}
        for subtask, rows in outputs:
            by_owner.setdefault(self.routes.owners[subtask], []).append((subtask, rows))
        return list(by_owner.values())

    def _count_dropped(self, level: int, subtasks: list[SubtaskResult], outcome: BatchOutcome) -> None:
        """Count as dropped the rows that were sent to subtasks which did not process the level."""
        taken = {(each.operator, each.subtask): each.rows_in for each in subtasks}
        outcome.taken.update(taken)
        for key in [key for key in outcome.sent if self.program.operator_levels[key[0]] == level]:
            rows = outcome.sent.pop(key)
            if key not in taken:
                outcome.dropped[key] += rows

    def _stage_bad(self, plan: Plan, level: int, bad: list[BadRow], outcome: BatchOutcome) -> None:
        if not bad:
            return
        request = LevelRequest(self.job_id, self.epoch, self.run, plan.batch, level)
        letters = stage_dead_letters(bad, self.program, request, OPERATORS, "jobmaster", self.store)
        outcome.add(DEAD_LETTERS, letters)
        outcome.bad_rows += len(bad)
        outcome.bad_reasons.update(dict(counted_reasons(bad)))


def _of(operators: Iterable[str], times: Mapping[str, int]) -> dict[str, int]:
    return {operator: times[operator] for operator in operators if operator in times}


def _outputs(origin: OperatorOrigin, results: list[SubtaskResult]) -> list[tuple[int, int]]:
    """Return the subtasks of an operator that put out rows for an origin, each with its number of rows."""
    found = [
        (result.subtask, result.late_out.get(origin.output, 0) if origin.output else result.rows_out)
        for result in results
    ]
    return [(subtask, rows) for subtask, rows in found if rows]
