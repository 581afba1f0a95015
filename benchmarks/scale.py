"""Costs of the driver, from 1 to 64 TaskManagers: the real JobMaster, with stand-ins for all other processes.

    python -m benchmarks.scale --task-managers 64 --subtasks 8 --senders 512 --splits 5000 --json

Prints for 1, 4, 16, … TaskManagers (senders and splits in proportion) the processor time of the driver alone: for a
batch in which every split has rows and every sender sends to every subtask, for a batch of `--small-rows` rows, for a
checkpoint, and for the restart after a TaskManager died; and the largest message and the largest journal record.
Messages are really encoded and decoded. Other costs of a connection (gRPC, TLS) are left out.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import holdfast as hf
from benchmarks.count import percentile
from benchmarks.scale_stand_ins import DictStore, StandInCluster
from holdfast.clock import SystemClock
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, SourcePlan
from holdfast.sources.sequence import SequenceEnumerator, SequenceSource
from holdfast.testing.run import start_on

WARMUP_BATCHES = 3
SETTLE_S = 0.05
"""After a checkpoint: Wait until the driver has deleted all that the checkpoint made needless."""
WAIT_S_MAX = 60.0
SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us"), nullable=False)])


class Gate:
    """Holds the batch loop before it plans, and says how much to plan."""

    def __init__(self) -> None:
        self._parked = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._rows = 0
        self.open = False

    def await_parked(self) -> None:
        if not self._parked.acquire(timeout=WAIT_S_MAX):
            raise SystemExit("the driver comes to no end; see its log above")

    def step(self, rows: int) -> None:
        """Let the loop plan a batch of that many rows, or none, and wait until it comes to plan again."""
        self._rows = rows
        self._go.release()
        self.await_parked()

    def park(self) -> int:
        """Stand still on the batch loop's thread."""
        if self.open:
            return 0
        self._parked.release()
        self._go.acquire()
        return self._rows

    def leave_open(self) -> None:
        self.open = True
        self._go.release()


class Events(SequenceSource):
    """The splits of a sequence, with event time, read by nobody."""

    gate: Gate

    def schema(self) -> pa.Schema:
        return SCHEMA

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        return GatedEnumerator(self, context.source, context.clock)

    def __reduce__(self) -> tuple[Any, ...]:
        return SequenceSource, (1,)


class GatedEnumerator(SequenceEnumerator):
    def __init__(self, source: Events, name: str, clock: Any) -> None:
        super().__init__(source, name, clock)
        self._gate = source.gate

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        rows = self._gate.park()
        return super().plan(start, until, rows, sys.maxsize) if rows else SourcePlan(start, [])


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task-managers", type=int, default=64)
    parser.add_argument("--subtasks", type=int, default=8, help="of each TaskManager")
    parser.add_argument("--senders", type=int, default=512)
    parser.add_argument("--splits", type=int, default=5000)
    parser.add_argument("--small-rows", type=int, default=2000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--checkpoints", type=int, default=100)
    parser.add_argument("--failovers", type=int, default=3)
    parser.add_argument("--only", type=int, help="this number of TaskManagers alone")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    return parser.parse_args(argv)


class Driver:
    """One JobMaster with its stand-ins, stepped from batch to batch."""

    def __init__(self, options: argparse.Namespace, task_managers: int) -> None:
        share = task_managers / options.task_managers
        self.splits = max(1, round(options.splits * share))
        self._gate = Gate()
        self._store = DictStore()
        residents = max(1, round(options.senders * share))

        def made(program: Any, store: Any, place: Any, gateway: Any) -> StandInCluster:
            self.cluster = StandInCluster(residents, program, self._store, place, gateway)
            return self.cluster

        job = hf.Job(
            None,
            name="scale",
            storage=self._store.url,
            parallelism=task_managers * options.subtasks,
            task_managers=task_managers,
            checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
        )
        source = Events(splits=self.splits, name="events")
        object.__setattr__(source, "gate", self._gate)
        events = job.read(source).with_watermark("at", "10s")
        counts = events.key_by("value", hf.window("at", "1min")).aggregate(n=hf.count(), name="counts")
        counts.write(hf.NoopSink(name="out"))
        self._query = start_on(job, hf.processing_time("0s"), self._store, SystemClock(), made)
        self._gate.await_parked()

    def batch_ms(self, rows: int) -> float:
        return 1000 * self._cost_s(lambda: self._gate.step(rows))

    def checkpoint_ms(self) -> float:
        def run() -> None:
            before = max(each.completed for each in self.cluster.task_managers())
            self._query.trigger_checkpoint(WAIT_S_MAX)
            until(lambda: all(each.completed > before for each in self.cluster.task_managers()))
            time.sleep(SETTLE_S)

        return 1000 * self._cost_s(run)

    def failover_s(self, task_manager: int) -> float:
        def run() -> None:
            restarts = len(self._query.restarts)
            self.cluster.kill(task_manager)
            while len(self._query.restarts) == restarts:
                self._gate.step(0)

        return self._cost_s(run)

    def _cost_s(self, run: Callable[[], None]) -> float:
        """Processor time of this process without that of stand-ins."""
        before_s, elsewhere_s = time.process_time(), self.cluster.wire.stand_in_s
        run()
        spent_s = time.process_time() - before_s
        return spent_s - (self.cluster.wire.stand_in_s - elsewhere_s)

    @property
    def record_bytes(self) -> int:
        return self._store.record_bytes

    def close(self) -> None:
        self._gate.leave_open()
        self._query.stop()


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit("the driver came to no end")
        time.sleep(0.001)


def measure(options: argparse.Namespace, task_managers: int) -> dict[str, Any]:
    driver = Driver(options, task_managers)
    full = driver.splits * 1000
    for _ in range(WARMUP_BATCHES):
        driver.batch_ms(full)
        driver.checkpoint_ms()
    batches = [driver.batch_ms(full) for _ in range(options.batches)]
    small = [driver.batch_ms(options.small_rows) for _ in range(options.batches)]
    checkpoints = []
    for _ in range(options.checkpoints):
        driver.batch_ms(options.small_rows)
        checkpoints.append(driver.checkpoint_ms())
    failovers = [driver.failover_s(number % task_managers) for number in range(options.failovers)]
    largest = driver.cluster.wire.largest
    driver.close()
    if not options.json:
        print(dict(sorted(largest.items(), key=lambda each: -each[1])), file=sys.stderr)
    return {
        "task_managers": task_managers,
        "batch_ms": round(percentile(batches, 50), 2),
        "small_batch_ms": round(percentile(small, 50), 2),
        "checkpoint_ms_p50": round(percentile(checkpoints, 50), 2),
        "checkpoint_ms_p99": round(percentile(checkpoints, 99), 2),
        "failover_s": round(max(failovers), 3),
        "message_bytes_max": max(largest.values()),
        "record_bytes": driver.record_bytes,
    }


def sizes(options: argparse.Namespace) -> list[int]:
    """1, 4, 16, … up to the number asked for."""
    if options.only:
        return [options.only]
    found = [1]
    while found[-1] * 4 <= options.task_managers:
        found.append(found[-1] * 4)
    return found if found[-1] == options.task_managers else [*found, options.task_managers]


def main(argv: list[str]) -> None:
    options = arguments(argv)
    print(json.dumps({"sizes": [measure(options, size) for size in sizes(options)]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
