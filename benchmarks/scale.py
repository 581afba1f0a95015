"""Costs of the driver, from 1 to 64 TaskManagers: the real JobMaster, with stand-ins for all other processes.

    python -m benchmarks.scale --task-managers 64 --subtasks 8 --senders 512 --splits 5000 --json

Prints for 1, 4, 16, … TaskManagers (senders and splits in proportion) the processor time of the driver's process, in
which nothing else runs: for a batch in which every split has rows and every sender sends to every TaskManager, for a
batch of `--small-rows` rows, for a checkpoint, and for the restart after a TaskManager died. Besides, the largest
message and the largest journal record.

Messages are really encoded and decoded. Sockets of the machine carry them, and the store's files are those of this
machine; the processor time of both is left out: `…_connected_ms` has it. `…_wall_ms` is the time that passed
meanwhile, in which the stand-ins worked too, all of them in a single process. With `--flight` the calls are those of a
real job, so that gRPC and TLS are in all figures, and the sizes of messages are not noted.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import holdfast as hf
from benchmarks.count import percentile
from benchmarks.scale_cluster import StandInCluster, StandInStore
from holdfast.clock import SystemClock
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, SourcePlan
from holdfast.sources.sequence import SequenceEnumerator, SequenceSource
from holdfast.testing.run import start_on

WARMUP_BATCHES = 3
SETTLE_S = 0.05
"""Seconds after a checkpoint until the driver has deleted the objects that the checkpoint made needless."""
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
    parser.add_argument("--flight", action="store_true", help="calls as in a real job: gRPC with TLS")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    return parser.parse_args(argv)


@dataclass(frozen=True)
class Cost:
    """The cost of a step of the driver."""

    connected_ms: float
    """Processor time of this process, with all of its threads."""
    carrying_ms: float
    """The part of it that sockets and files of the stand-in store took."""
    wall_ms: float

    @property
    def processor_ms(self) -> float:
        return self.connected_ms - self.carrying_ms


class Driver:
    """A JobMaster with its stand-ins, stepped from batch to batch."""

    def __init__(self, options: argparse.Namespace, task_managers: int) -> None:
        share = task_managers / options.task_managers
        self._task_managers = task_managers
        self.splits = max(1, round(options.splits * share))
        self._gate = Gate()
        self._store = StandInStore()
        self._told = threading.Semaphore(0)
        """Released for each TaskManager that is told of a completed checkpoint."""
        residents = max(1, round(options.senders * share))

        def made(program: Any, store: Any, place: Any, gateway: Any) -> StandInCluster:
            self.cluster = StandInCluster(
                residents,
                program,
                self._store,
                place,
                gateway,
                over_flight=options.flight,
                on_completed=lambda number: self._told.release(),
            )
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

    def batch(self, rows: int) -> Cost:
        return self._cost(lambda: self._gate.step(rows))

    def checkpoint(self) -> Cost:
        def run() -> None:
            self._query.trigger_checkpoint(WAIT_S_MAX)
            for _ in range(self._task_managers):
                if not self._told.acquire(timeout=WAIT_S_MAX):
                    raise SystemExit("the driver came to no end")
            time.sleep(SETTLE_S)

        return self._cost(run)

    def failover(self, task_manager: int) -> Cost:
        def run() -> None:
            restarts = len(self._query.restarts)
            self.cluster.kill(task_manager)
            while len(self._query.restarts) == restarts:
                self._gate.step(0)

        return self._cost(run)

    def _cost(self, run: Callable[[], None]) -> Cost:
        carrying_s = self.cluster.carrying_s()
        processor_s, wall_s = time.process_time(), time.monotonic()
        run()
        processor_s, wall_s = time.process_time() - processor_s, time.monotonic() - wall_s
        return Cost(1000 * processor_s, 1000 * (self.cluster.carrying_s() - carrying_s), 1000 * wall_s)

    @property
    def record_bytes(self) -> int:
        return self._store.record_bytes

    def close(self) -> None:
        self._gate.leave_open()
        self._query.stop()
        self._store.close()


def measure(options: argparse.Namespace, task_managers: int) -> dict[str, Any]:
    driver = Driver(options, task_managers)
    full = driver.splits * 1000
    for _ in range(WARMUP_BATCHES):
        driver.batch(full)
        driver.checkpoint()
    batches = [driver.batch(full) for _ in range(options.batches)]
    small = [driver.batch(options.small_rows) for _ in range(options.batches)]
    checkpoints = []
    for _ in range(options.checkpoints):
        driver.batch(options.small_rows)
        checkpoints.append(driver.checkpoint())
    failovers = [driver.failover(number % task_managers) for number in range(options.failovers)]
    largest = driver.cluster.sizes.largest
    driver.close()
    if not options.json:
        print(dict(sorted(largest.items(), key=lambda each: -each[1])), file=sys.stderr)
    return {
        "task_managers": task_managers,
        **of("batch", batches),
        **of("small_batch", small),
        **of("checkpoint", checkpoints),
        "checkpoint_ms_p50": percent(checkpoints, "processor_ms", 50),
        "checkpoint_ms_p99": percent(checkpoints, "processor_ms", 99),
        "failover_s": round(max(each.processor_ms for each in failovers) / 1000, 3),
        "message_bytes_max": max(largest.values(), default=None),
        "record_bytes": driver.record_bytes,
    }


def of(step: str, costs: list[Cost]) -> dict[str, float]:
    """The medians of a step."""
    return {
        f"{step}_ms": percent(costs, "processor_ms", 50),
        f"{step}_connected_ms": percent(costs, "connected_ms", 50),
        f"{step}_wall_ms": percent(costs, "wall_ms", 50),
    }


def percent(costs: list[Cost], figure: str, percent: int) -> float:
    return round(percentile([getattr(each, figure) for each in costs], percent), 2)


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
