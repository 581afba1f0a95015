"""Checkpoints of many regions in simulation: the real planner, execution machine, isolation, coordinator and records.

    plan ─► machine: RunBatch ─► units fail as drawn, isolated ─► machine: Commit ─► coordinator: Cut, StoreAndRecord

Nothing else is there: no process, no row, no store; the clock jumps from checkpoint to checkpoint.
"""

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import psutil

import holdfast as hf
from holdfast.checkpoint import events as cp
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.clock import ManualClock
from holdfast.exchange.task import OutputResult, UnitResult
from holdfast.execution import events as ev
from holdfast.execution.failing import FailingSplits
from holdfast.execution.machine import Machine
from holdfast.failure import Failure
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.plan import Plan, Unit
from holdfast.ids import BatchNumber, JournalNumber, Role, RunNumber
from holdfast.jobmaster.batches.isolating import Isolated, Isolator
from holdfast.jobmaster.batches.planner import BatchLimits, Planner
from holdfast.jobmaster.batches.regional import RegionalPlanning
from holdfast.jobmaster.checkpoints.job_facts import JobFacts
from holdfast.journal.codec import encode_record
from holdfast.journal.records import CheckpointRecord
from holdfast.sources.base import EnumeratorContext
from holdfast.storage.store import open_store
from holdfast.watermarks import Watermarks

T = TypeVar("T")

INTERVAL_S = 60.0
"""Time between two checkpoints; longer than any pause of a split that failed."""
FAILURE_CHANCE = 1e-4
BURST_EVERY, BURST_SPLITS = 200, 50
POISONED = "17"
POISONED_FROM = 100
"""Checkpoint from which on this split always fails."""
SENDERS = 8
SOURCE = "events"
KINDS = ("SenderLost", "SenderHung", *["RuntimeError"] * 8)
"""Kinds of failures: a process that died, a split that hung, and an error. Each split has its own."""


@dataclass
class Simulated:
    """Results of a simulation."""

    checkpoints: int = 0
    completed: int = 0
    healthy_standing: int = 0
    """Pairs of a checkpoint and a region that did not fail and did not advance."""
    failures: int = 0
    parked: int = 0
    commit_ms: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)
    """The same by processor time, which other processes do not lengthen."""
    record_bytes_max: int = 0
    resident_bytes: list[int] = field(default_factory=list)

    @property
    def success(self) -> float:
        return self.completed / max(1, self.checkpoints)

    @property
    def grown_mb(self) -> float:
        """Growth of the process from the first quarter of the checkpoints to the last, in MB."""
        quarter = max(1, len(self.resident_bytes) // 4)
        return (max(self.resident_bytes[-quarter:]) - max(self.resident_bytes[:quarter])) / 1e6


def failing_splits(splits: int, seed: int, poisoned: bool) -> Iterator[set[str]]:
    """Draw the splits that fail, for each checkpoint in turn."""
    chance, number = random.Random(seed), 0
    while True:
        number += 1
        found = {str(split) for split in range(splits) if chance.random() < FAILURE_CHANCE}
        if number % BURST_EVERY == 0:
            found |= {str(split) for split in chance.sample(range(splits), min(BURST_SPLITS, splits // 4))}
        if poisoned and number >= POISONED_FROM:
            found.add(POISONED)
        yield found


class SimulatedJob:
    """A job that copies a source of many splits to a sink."""

    def __init__(self, splits: int, regions: hf.RegionConfig | None) -> None:
        self.found = Simulated()
        self._clock = ManualClock()
        source = hf.SequenceSource(None, splits=splits, rows_per_second=splits, name=SOURCE)
        job = hf.Job(None, name="regions", storage="memory://regions")
        job.read(source).write(hf.NoopSink(name="out"))
        self._program = build_program(job.declared, without_spark, None)
        context = EnumeratorContext(open_store(job.storage), SOURCE, 1, self._clock)
        failover = hf.FailoverConfig(batch_attempts=1_000_000)
        self._isolator = None if regions is None else Isolator(self._program, regions)
        failing = None if regions is None else FailingSplits(regions, failover, False)
        regional = None if failing is None else RegionalPlanning(failing, lambda: SENDERS)
        self._planner = Planner(
            {SOURCE: source.enumerator(context)},
            BatchLimits(1 << 40, 1 << 50),
            lambda: SENDERS,
            self._clock,
            monotonic=self._clock.monotonic,
            watermarks=Watermarks({}, {}),
            regional=regional,
        )
        self._planner.begin(None)
        self._machine = Machine(failover)
        self._coordinator = Coordinator(hf.CheckpointConfig(trigger=hf.manual()))
        self._facts = JobFacts("job", 1, {}, lambda: 1, 128)
        self._newest: tuple[JournalNumber, CheckpointRecord] | None = None
        self._number = 0
        self._plan: Plan | None = None
        self._run = RunNumber(0)
        self._start()

    def _start(self) -> None:
        now_s = self._clock.monotonic()
        [deploy] = self._machine.handle(ev.Started(now_s, {Role.TASK_MANAGER: 0, Role.SENDER: 0}, None))
        assert isinstance(deploy, ev.Deploy)
        self._run = deploy.run
        self._machine.handle(ev.Deployed(deploy.run))
        self._coordinate(cp.CoordinatorStarted(now_s, self._clock.now(), None))
        self._coordinate(cp.TaskManagersChanged(deploy.run, {}))

    def checkpoint(self, failing: set[str]) -> None:
        """Take the next checkpoint, while these splits fail."""
        self._clock.advance(INTERVAL_S)
        found, before = self.found, dict(self._planner.offsets[SOURCE])
        self._machine.handle(ev.Tick(self._clock.monotonic()))
        began_s, processor_s = time.perf_counter(), time.process_time()
        if self._plan is None:
            self._plan = self._planner.next(self._planner.latest(fresh=True))
            assert self._plan is not None
            self._expect(ev.RunBatch, self._machine.handle(ev.BatchPlanned(BatchNumber(self._plan.batch))))
        isolated = self._execute(self._plan, failing)
        errors = [each.failure.error() for each in isolated.counted if each.failure is not None]
        found.checkpoints += 1
        if errors:
            self._try_again(self._plan, errors[0])
            return
        self._commit(self._plan, isolated)
        self._plan = None
        found.commit_ms.append((time.perf_counter() - began_s) * 1000)
        found.processor_ms.append((time.process_time() - processor_s) * 1000)
        self._check(before, failing)

    def _execute(self, plan: Plan, failing: set[str]) -> Isolated:
        def run(units: list[Unit]) -> list[UnitResult]:
            return [self._result(unit, failing) for unit in units]

        units = [Unit(number, 0, reads=reads) for number, reads in enumerate(plan.reads[SOURCE])]
        return Isolated(run(units)) if self._isolator is None else self._isolator.run(plan, units, run)

    @staticmethod
    def _result(unit: Unit, failing: set[str]) -> UnitResult:
        broken = next((read.split for read in unit.reads if read.split in failing), None)
        if broken is None:
            rows = sum(read.rows for read in unit.reads)
            return UnitResult(unit.unit, 0, "attempt", rows, (OutputResult(committables=(b"file",)),))
        kind = KINDS[int(broken) % len(KINDS)]
        named = "" if kind == "SenderLost" else broken
        return UnitResult(unit.unit, 0, "attempt", failure=Failure(kind, f"split {broken} fails", named))

    def _try_again(self, plan: Plan, error: Exception) -> None:
        """Have the machine undo the batch; the next checkpoint runs it again."""
        commands = self._machine.handle(ev.BatchFailed(self._run, BatchNumber(plan.batch), error))
        undo = self._expect(ev.Undo, commands)
        self._run = undo.run
        self._expect(ev.RunBatch, self._machine.handle(ev.Undone(undo.run)))

    def _commit(self, plan: Plan, isolated: Isolated) -> None:
        batch = BatchNumber(plan.batch)
        self._expect(ev.Commit, self._machine.handle(ev.BatchProcessed(self._run, batch)))
        moved = plan.without(isolated.failed)
        position = self._planner.committed(moved, {}, {}, isolated.failed)
        committables = {"out": [each for result in isolated.counted for each in result.committables]}
        progress = moved.progress or bool(isolated.failed)
        self._coordinate(cp.CommitAcknowledged(batch, position, progress, committables))
        self._expect(ev.PlanBatch, self._machine.handle(ev.BatchCommitted(self._run, batch)))
        self.found.failures += len(isolated.failed)
        self._coordinate(cp.TriggerRequested(f"checkpoint {batch}"))

    def _coordinate(self, event: cp.Event) -> None:
        """Tell the coordinator a fact, and carry out its commands at once."""
        now = cp.CoordinatorTick(self._clock.monotonic(), self._clock.now())
        waiting: list[cp.Event] = [now, event]
        while waiting:
            for command in self._coordinator.handle(waiting.pop(0)):
                waiting += self._answers(command)

    def _answers(self, command: cp.Command) -> Iterable[cp.Event]:
        match command:
            case cp.StoreAndRecord():
                yield self._record(command)
            case cp.NotifyCompleted():
                self.found.completed += 1
                self._planner.completed(command.position)
                self._machine.handle(ev.CheckpointCompleted())
            case cp.ExpireRecords():
                yield cp.RecordsExpired(frozenset(command.numbers))
            case cp.Publish():
                yield cp.Published(command.sink, command.number)
            case cp.Discard():
                yield cp.Discarded(command.sink, command.number)
            case cp.DeleteObjects():
                yield cp.ObjectsDeleted(frozenset(command.names))
            case cp.Resolve():
                assert command.failure is None, command.failure

    def _record(self, command: cp.StoreAndRecord) -> cp.RecordWritten:
        self._number += 1
        number = JournalNumber(self._number)
        stored = {sink: f"{sink}-{number}" for sink in command.committables}
        record = self._facts.record(command, stored, number, self._newest)
        self._newest = number, record
        self.found.record_bytes_max = max(self.found.record_bytes_max, len(encode_record(record)))
        return cp.RecordWritten(command.checkpoint_id, number, stored)

    def _check(self, before: dict[str, object], failing: set[str]) -> None:
        """Check the newest record: each healthy region has advanced, each failed region stands and is named."""
        assert self._newest is not None
        _, record = self._newest
        standing = {split for split, place in record.offsets[SOURCE].items() if place == before[split]}
        behind = record.behind.get(SOURCE, {})
        parked = {split for split, each in behind.items() if each.parked}
        self.found.healthy_standing += len(standing - failing - parked)
        self.found.parked = len(parked)
        assert {split for split, each in behind.items() if each.reason} == standing - (standing - failing - parked)

    @staticmethod
    def _expect(kind: type[T], commands: list[ev.Command]) -> T:
        found = [each for each in commands if isinstance(each, kind)]
        assert len(found) == 1, f"expected {kind.__name__}, the machine says {commands}"
        return found[0]


def simulate(splits: int, checkpoints: int, regions: hf.RegionConfig | None, seed: int) -> Simulated:
    """Take checkpoints of a job with or without regions. A split is poisoned only where there are regions: without
    them no checkpoint would complete any more."""
    job, process = SimulatedJob(splits, regions), psutil.Process()
    drawn = failing_splits(splits, seed, poisoned=regions is not None)
    for number in range(checkpoints):
        job.checkpoint(next(drawn))
        if number % 50 == 0:
            job.found.resident_bytes.append(process.memory_info().rss)
    return job.found
