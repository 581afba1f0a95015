"""The requests that a checkpoint waits for, in manual time: how many there are, and how many follow each other.

    python -m benchmarks.checkpoint_path --json --task-managers 64 --sinks 4 --latency-ms 50

Real logs, uploaders, acknowledgements, control loop, coordinator, recorder and journal run on the fibers of
`tests/simulation`, whose clock jumps. Stand-ins: the calls between the processes, which take no time, the sinks, and
the store's time. A request takes `--latency-ms`. In a second run of `--writers` TaskManagers, whose changes are too
large for an acknowledgement, a request that stores something takes as long as FLIP-158's table says for 500 streams of
5 MB (`benchmarks.uploads`; the size itself plays no part), beside the checkpoint latencies that FLIP-158 claims.

JSON: `sequential_requests` (the longest chain in which each request begins after the end of the request before, between
a cut and its completion; the most of any checkpoint), `requests` (a checkpoint's, on average), `p50_ms` and `p99_ms`
(from the cut to its completion), `data_p50_ms` and `data_p99_ms` (from the cut until everything but the record is
stored, which is what FLIP-158 computes), `of_latency` (`p50_ms` over the latency); `large` (the same where each
TaskManager's changes are too large for an acknowledgement); `writers` (`p50_ms`, `p99_ms`, `data_p50_ms`,
`data_p99_ms`, `requests`, `claimed_p50_ms`, `claimed_p99_ms`, which are claims for the data).
"""

import argparse
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from obstore.store import MemoryStore

import holdfast as hf
from benchmarks.uploads import SCHEMA, latencies_s
from holdfast.changelog.writer import ChangelogWriter
from holdfast.changelog_config import DEFAULTS, RetryPolicy
from holdfast.checkpoint import events
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.formats.handles import MadeBase, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.ids import CheckpointId, Incarnation, ProcessId, Role, RunNumber
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.checkpoints.job_facts import JobFacts
from holdfast.jobmaster.checkpoints.job_time import JobTime
from holdfast.jobmaster.checkpoints.outages import Outages
from holdfast.journal.fence import take_over
from holdfast.journal.journal import Journal
from holdfast.observe.event_log import EventLog
from holdfast.protocol.taskmanager import Deployment, ExchangeRoute
from holdfast.state.table import merge_changes
from holdfast.storage import names
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.retrying import RetryingStore
from holdfast.taskmanager.checkpoints import Answers, CheckpointWork, LocalCheckpoint
from holdfast.uploads.hedged_store import RECORDS, DriverUploads
from holdfast.uploads.uploader import Uploader

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "simulation"))

from simulation_patches import simulated
from simulation_runtime import Runtime
from simulation_threads import monotonic, now, running, sleep

JOB = "0" * 32
SMALL_BYTES = 500
"""Changes of a TaskManager in a batch, in the first run."""
LARGE_BYTES = 200_000
"""Changes of a TaskManager in a batch, in the other runs. They do not compress."""
LARGE_CHECKPOINTS = 5
"""Checkpoints of the run with large changes, after a first one, from which the JobMaster learns that they are large."""
KEPT_CHECKPOINTS = 16
"""Checkpoints of which a log is kept, as if the table were materialized then."""
PAUSE_S = 10.0
"""Time between two checkpoints, so that the work after a checkpoint has ended before the next."""
WAIT_S_MAX = 600.0
RECORD = f"create {names.JOURNAL}"
"""Beginning of the names of the requests that store a record."""
CLAIMED_MS = {"claimed_p50_ms": 1000.0, "claimed_p99_ms": 1700.0}
"""FLIP-158 on 500 writers; its "p99=1700s" is taken for milliseconds."""


class SimulatedClock:
    """The clock that jumps."""

    monotonic = staticmethod(monotonic)
    now = staticmethod(now)


def changes(size_bytes: int) -> pa.RecordBatch:
    """Changes of a batch, of random bytes."""
    values = [np.random.default_rng(1).bytes(size_bytes)]
    columns = [pa.array([0], pa.int32()), pa.array([False]), pa.array([0], pa.int64()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclass
class Request:
    name: str
    begun_s: float
    ended_s: float


class SlowStore:
    """A store in memory whose requests take simulated time."""

    def __init__(self, took_s: Callable[[str], float]) -> None:
        self.requests: list[Request] = []
        self._inner = ObstoreStore("memory://", MemoryStore())
        self._took_s = took_s
        self.url = self._inner.url

    def __getattr__(self, operation: str) -> Any:
        call = getattr(self._inner, operation)

        def timed(*arguments: Any, **named: Any) -> Any:
            name = arguments[0] if isinstance(arguments[0], str) else " ".join(arguments[0])
            request = Request(f"{operation} {name}", monotonic(), float("inf"))
            self.requests.append(request)
            sleep(self._took_s(f"{operation} {name}"))
            request.ended_s = monotonic()
            return call(*arguments, **named)

        return timed


class Member:
    """A TaskManager with a log, an uploader, and its work of checkpoints."""

    def __init__(self, number: int, store: SlowStore, control: Control, rows: pa.RecordBatch) -> None:
        deployment = Deployment(JOB, 1, 1, number, number, b"", 1, [])
        bounds = {"gathered_bytes_max": DEFAULTS.gathered_bytes_max, "awaited_bytes_max": DEFAULTS.object_bytes_max}
        self._uploader = Uploader(store, 1, Incarnation(number), **bounds)
        self._log = ChangelogWriter(LogId("benchmark", str(number), 0, 1), self._uploader, merge_changes)
        self._work = CheckpointWork(deployment, self._uploader, control, Answers())
        self._rows = rows
        self._table = str(number)
        self._ends: list[int] = []

    def commit(self, batch: int) -> None:
        self._log.append(batch, self._rows)

    def cut(self, run: RunNumber, checkpoint_id: CheckpointId, batch: int) -> None:
        handle: Future[TableHandle] = Future()
        begun_s = monotonic()
        pieces = self._log.persist(batch)
        self._ends.append(self._log.next_sqn())

        def persisted(stored: Future[Any]) -> None:
            handle.set_result(TableHandle("benchmark", self._table, 0, 1, b"", [], stored.result()))

        pieces.add_done_callback(persisted)
        self._work.start(LocalCheckpoint(checkpoint_id, batch, [handle], self._log.held, begun_s, 0.0))

    def complete(self, run: RunNumber, checkpoint_id: CheckpointId, part: str, bases: Sequence[MadeBase]) -> None:
        self._uploader.completed(checkpoint_id, part)
        if len(self._ends) > KEPT_CHECKPOINTS:
            self._log.truncate(self._ends.pop(0))

    def abort_checkpoint(self, run: RunNumber, checkpoint_id: CheckpointId) -> None:
        raise AssertionError(f"checkpoint {checkpoint_id} was given up")


class Members:
    """All TaskManagers: calls reach them at once, each in its own fiber."""

    def __init__(self, runtime: Runtime, count: int) -> None:
        self._runtime = runtime
        self._processes = [runtime.process(f"tm-{number}") for number in range(count)]
        self.all: list[Member] = []
        self.calls = self

    def open(self, store: SlowStore, control: Control, rows: pa.RecordBatch) -> None:
        self.all = [Member(number, store, control, rows) for number in range(len(self._processes))]

    def routes(self) -> list[ExchangeRoute]:
        return [ExchangeRoute(number, Incarnation(number), "") for number in range(len(self.all))]

    def holders(self) -> list[ProcessId]:
        return [ProcessId(Role.TASK_MANAGER, number, Incarnation(number)) for number in range(len(self.all))]

    def begin(self, asked: Any, lane: object) -> Any:
        for process in asked.unanswered:
            self._runtime.spawn(lambda process=process: self._call(asked, process), "call", self._at(process))
        return asked

    def _at(self, process: ProcessId) -> Any:
        return self._processes[process.number]

    def _call(self, asked: Any, process: ProcessId) -> None:
        asked.settle(process, asked.call(process.number, self.all[process.number]))

    def take_dead(self, live: object) -> list[Incarnation]:
        return []

    def check_heartbeats(self) -> None: ...

    def pending(self, *about: object) -> None: ...


class StandInSink:
    """The publisher of a sink that has nothing to do."""

    layout = b""
    awaited_us = None

    def publish(self, command: events.Publish, post: Callable[[events.Event], None]) -> None:
        post(events.Published(command.sink, command.number))

    def refusal(self) -> None: ...

    def discard(self, name: str) -> None: ...

    def close(self) -> None: ...


class Listener:
    """Takes the reports of the control loop."""

    def completed(self, stats: Any, position: object) -> None: ...

    def not_completed(self, stats: Any) -> None:
        raise AssertionError(f"a checkpoint did not complete: {stats.reason}")

    def failover(self, reason: str) -> None: ...

    def planning(self, paused_by: frozenset[str]) -> None: ...

    def died(self, dead: object, outstanding: object) -> None: ...

    def tick(self, now_s: float, outstanding: object) -> None: ...


@dataclass
class Found:
    """Durations and requests of checkpoints."""

    took_s: list[float] = field(default_factory=list)
    stored_s: list[float] = field(default_factory=list)
    """The first rounds: from the cut until the record's first request begins."""
    requests: list[list[Request]] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        return {
            "sequential_requests": max(map(sequential, self.requests)),
            "requests": round(float(np.mean([len(each) for each in self.requests])), 2),
            "p50_ms": round(1000 * float(np.quantile(self.took_s, 0.5)), 1),
            "p99_ms": round(1000 * float(np.quantile(self.took_s, 0.99)), 1),
            "data_p50_ms": round(1000 * float(np.quantile(self.stored_s, 0.5)), 1),
            "data_p99_ms": round(1000 * float(np.quantile(self.stored_s, 0.99)), 1),
            "checkpoints": len(self.took_s),
        }


def sequential(requests: Sequence[Request]) -> int:
    """Length of the longest chain of requests each of which begins when the request before has ended, or later."""
    length, free_s = 0, float("-inf")
    for request in sorted(requests, key=lambda each: each.ended_s):
        if request.begun_s >= free_s:
            length, free_s = length + 1, request.ended_s
    return length


class Job:
    """The checkpoints of a job without rows: a JobMaster's control loop, and TaskManagers."""

    def __init__(self, runtime: Runtime, store: SlowStore, task_managers: int, sinks: int, size_bytes: int) -> None:
        self._store = store
        self._sinks = {f"sink-{number}": StandInSink() for number in range(sinks)}
        self._size_bytes = size_bytes
        self._members = Members(runtime, task_managers)
        clock = SimulatedClock()
        taken = take_over(store)
        config = hf.CheckpointConfig(trigger=hf.manual())
        facts = JobFacts(JOB, taken.epoch, {}, lambda: task_managers, task_managers)
        retrying = RetryingStore(store)
        uploads = DriverUploads(retrying, RetryPolicy.fixed())
        self.control = Control(
            Coordinator(config),
            Journal(uploads.store(RECORDS), taken.epoch),
            retrying,
            self._members,
            self._sinks,
            facts,
            clock,
            JobTime("benchmark", clock, None),
            self._failed,
            Outages("benchmark", store.url, clock, lambda: (60.0, "60s")),
            EventLog(clock.now),
            uploads,
        )

    def _failed(self, error: Exception) -> None:
        raise error

    def run(self, checkpoints: int, found: Found) -> None:
        self.control.open(None, {}, Listener())
        self._members.open(self._store, self.control, changes(self._size_bytes))
        run = RunNumber(1)
        self.control.deployed(run, {each.task_manager: each.incarnation for each in self._members.routes()})
        self._checkpoint(0, Found())  # the first checkpoint of a storage also leaves a mark that it was recorded
        for batch in range(1, checkpoints + 1):
            sleep(PAUSE_S)
            self._checkpoint(batch, found)

    def _checkpoint(self, batch: int, found: Found) -> None:
        for member in self._members.all:
            member.commit(batch)
        committables = {sink: [b"a staged file"] for sink in self._sinks}
        position = events.Position(batch, {})
        self.control.committed(events.CommitAcknowledged(batch, position, True, committables))
        begun_s, before = monotonic(), len(self._store.requests)
        self.control.request_checkpoint().result()
        found.took_s.append(monotonic() - begun_s)
        made = self._store.requests[before:]
        found.stored_s.append(min(each.begun_s for each in made if each.name.startswith(RECORD)) - begun_s)
        found.requests.append([each for each in made if each.ended_s <= begun_s + found.took_s[-1]])


def measure(task_managers: int, sinks: int, size_bytes: int, checkpoints: int, took_s: Callable[[str], float]) -> Found:
    """Run a job's checkpoints in simulated time."""
    runtime, found = Runtime(1), Found()
    with simulated(), running(runtime, 1):
        store, over = SlowStore(took_s), threading.Event()

        def run() -> None:
            Job(runtime, store, task_managers, sinks, size_bytes).run(checkpoints, found)
            over.set()

        runtime.spawn(run, "run", runtime.process("driver"))
        runtime.run(over.is_set, WAIT_S_MAX + checkpoints * 60.0, "the last checkpoint")
    return found


def dealt(writers: int, checkpoints: int) -> Callable[[str], float]:
    """Deal latencies to the requests that store something; others take no time."""
    deck: Iterator[float] = latencies_s(writers * checkpoints, 1)
    return lambda request: next(deck) if request.startswith(("put", "create")) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task-managers", type=int, default=64)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--checkpoints", type=int, default=30)
    parser.add_argument("--writers", type=int, default=500, help="TaskManagers of the second run; 0: no such run")
    parser.add_argument("--writers-checkpoints", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one line of JSON and nothing else")
    options = parser.parse_args()
    latency_s = options.latency_ms / 1000.0
    found = measure(options.task_managers, options.sinks, SMALL_BYTES, options.checkpoints, lambda _: latency_s)
    result: dict[str, Any] = found.report() | {
        "task_managers": options.task_managers,
        "sinks": options.sinks,
        "latency_ms": options.latency_ms,
        "of_latency": round(found.report()["p50_ms"] / options.latency_ms, 2),
    }
    large = measure(options.task_managers, options.sinks, LARGE_BYTES, LARGE_CHECKPOINTS, lambda _: latency_s)
    result["large"] = large.report()
    if options.writers:
        rounds = options.writers_checkpoints
        claimed = measure(options.writers, 1, LARGE_BYTES, rounds, dealt(options.writers, rounds))
        report = claimed.report()
        del report["sequential_requests"]  # requests of different writers follow each other by chance
        result["writers"] = {"writers": options.writers, **report, **CLAIMED_MS}
    if options.json:
        print(json.dumps(result))
        return
    print(f"{options.task_managers} TaskManagers, {options.sinks} sinks, {options.latency_ms} ms a request:", result)
    for request in itertools.islice(found.requests[-1], 20):
        print(f"  {request.name}")


if __name__ == "__main__":
    main()
