"""How fast rows pass the exchange alone: two sender processes → a TaskManager with a keyed count → two pullers.

    python -m benchmarks.exchange [--seconds 10] [--rows 4000000] [--keys 1000] [--emit every] [--parallelism 2]

`--emit changes` combines in the senders, unless told `--no-combine`.

No Spark and no checkpoints: the part of `benchmarks.count` between a source and a sink. Prints a JSON line of
millions of rows a second: for each phase alone, and for all of them together.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.exchange.combining import CombiningWriter
from holdfast.exchange.connections import Connections
from holdfast.exchange.links import FlightLinks
from holdfast.exchange.unit_writer import UnitAttempt
from holdfast.functions.aggregates.declared import count
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import OperatorInput
from holdfast.graph.keygroups import default_max_parallelism, key_group_range
from holdfast.graph.program import OperatorTarget, Program
from holdfast.ids import ProcessId, Role
from holdfast.protocol.streams import SentUnit, by_task_manager
from holdfast.protocol.taskmanager import (
    Acknowledgement,
    Decline,
    Deployment,
    ExchangeRoute,
    ExchangeRoutes,
    ProcessRequest,
    Registration,
    SubtaskDeployment,
)
from holdfast.storage.counted import Requests
from holdfast.storage.store import open_store
from holdfast.taskmanager.client import TaskManagerClient
from holdfast.taskmanager.remote import address
from holdfast.taskmanager.security import new_secret
from holdfast.taskmanager.server import TaskManagerServer
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.taskmanager import TaskManager

JOB = "0" * 32
SENDERS = 2
ROWS_PER_READ = 128 * 1024
INPUT = pa.schema([("k", pa.int64())])
TARGET = OperatorTarget("count", 0, ("k",))


class _NoJobMaster:
    def register(self, registration: Registration) -> bool:
        return True

    def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
        return True

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        return True

    def decline(self, decline: Decline) -> bool:
        return True


def serve(orders: Connection, secret: str, folder: str) -> None:
    """The TaskManager's process."""
    settings = TaskManagerSettings(
        job_id=JOB,
        epoch=1,
        process=ProcessId(Role.TASK_MANAGER, 0, 1),
        job_master="",
        secret=secret,
        bind_host="127.0.0.1",
        storage_url=f"file://{folder}/store",
        memory_bytes=4 << 30,
    )
    task_manager = TaskManager(settings, open_store(settings.storage_url), _NoJobMaster(), SystemClock())
    server = TaskManagerServer(task_manager, secret, "127.0.0.1")
    orders.send(address("127.0.0.1", server.port))
    orders.recv()
    server.close()
    task_manager.close()


def work(orders: Connection, secret: str, number: int, rows: int, keys: int, spec: AggregateSpec) -> None:
    """A process of a sender and puller: carries out orders until None comes."""
    routes: ExchangeRoutes = orders.recv()
    links = FlightLinks(routes, Connections(secret))
    while (order := orders.recv()) is not None:
        what, batch = order
        push = what == "push"
        orders.send(_push(links, batch, number, rows, keys, spec) if push else _pull(links, batch, number, routes))


def _push(links: FlightLinks, batch: int, number: int, rows: int, keys: int, spec: AggregateSpec) -> SentUnit:
    plain = links.open_writer(UnitAttempt(1, batch, 0, number, f"{batch}-{number}"))
    sender = CombiningWriter(plain, TARGET, spec.combiner())
    for start in range(0, rows, ROWS_PER_READ):
        made = np.arange(start, min(start + ROWS_PER_READ, rows), dtype=np.int64)
        sender.send(pa.RecordBatch.from_arrays([pa.array(made % keys)], schema=INPUT))
    return SentUnit(number, plain.unit.attempt, sender.finish())


def _pull(links: FlightLinks, batch: int, number: int, routes: ExchangeRoutes) -> int:
    own = range(number, routes.parallelism, SENDERS)
    return sum(piece.num_rows for subtask in own for piece in links.output(1, batch, "count", subtask))


def deployment(parallelism: int, spec: AggregateSpec) -> Deployment:
    max_parallelism = default_max_parallelism(parallelism)
    ranges = [key_group_range(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
    return Deployment(
        job_id=JOB,
        epoch=1,
        run=1,
        task_manager=0,
        incarnation=1,
        program=cloudpickle.dumps(Program({}, (), {"count": spec}, {"count": 1}, {}, {}, {})),
        max_parallelism=max_parallelism,
        subtasks=[SubtaskDeployment("count", subtask, *ranges[subtask]) for subtask in range(parallelism)],
    )


class Bench:
    """Runs batches, and adds up the seconds of each phase."""

    def __init__(self, client: TaskManagerClient, workers: list[Connection]) -> None:
        self.client = client
        self.workers = workers
        self.seconds = dict.fromkeys(("push", "process", "pull", "commit"), 0.0)

    def batch(self, batch: int) -> int:
        """Run a batch through all phases; return the rows pulled."""
        streams = by_task_manager(self._timed("push", lambda: self._all(("push", batch))))[0]
        self._timed("process", lambda: self.client.process(ProcessRequest(1, batch, 0, 1, streams)))
        pulled = self._timed("pull", lambda: self._all(("pull", batch)))
        self._timed("commit", lambda: self._commit(batch))
        return sum(pulled)

    def _all(self, order: tuple[str, int]) -> list[Any]:
        for worker in self.workers:
            worker.send(order)
        return [worker.recv() for worker in self.workers]

    def _commit(self, batch: int) -> None:
        self.client.commit(1, batch)

    def _timed(self, phase: str, call: Callable[[], Any]) -> Any:
        started_s = time.perf_counter()
        result = call()
        self.seconds[phase] += time.perf_counter() - started_s
        return result


def run(options: argparse.Namespace) -> dict[str, Any]:
    secret = new_secret()
    context = multiprocessing.get_context("spawn")
    spec = AggregateSpec("count", OperatorInput(INPUT, ("k",)), {"n": count()}, options.emit, combine=options.combine)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        served, orders = context.Pipe()
        server = context.Process(target=serve, args=(orders, secret, folder), daemon=True)
        server.start()
        orders.close()  # so that a child that dies is noticed
        route = ExchangeRoute(0, 1, served.recv())
        routes = ExchangeRoutes(JOB, [route], [0] * options.parallelism, default_max_parallelism(options.parallelism))
        pipes = [context.Pipe() for _ in range(SENDERS)]
        workers = [
            context.Process(
                target=work, args=(pipe[1], secret, number, options.rows // SENDERS, options.keys, spec), daemon=True
            )
            for number, pipe in enumerate(pipes)
        ]
        for worker, pipe in zip(workers, pipes, strict=True):
            worker.start()
            pipe[1].close()
            pipe[0].send(routes)
        with TaskManagerClient(route, secret) as client:
            client.deploy(deployment(options.parallelism, spec))
            bench = Bench(client, [pipe[0] for pipe in pipes])
            result = measure(bench, options)
        for pipe in pipes:
            pipe[0].send(None)
        served.send(None)
        for process in (server, *workers):
            process.join()
    return result


def measure(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Two batches to warm up, then as many as fit into the time."""
    for batch in range(2):
        bench.batch(batch)
    bench.seconds = dict.fromkeys(bench.seconds, 0.0)
    batches = 0
    started_s = time.perf_counter()
    while time.perf_counter() - started_s < options.seconds:
        pulled = bench.batch(2 + batches)
        assert pulled == options.rows or options.emit == "changes", (pulled, options.rows)
        batches += 1
    millions = batches * options.rows / 1e6
    phases = {f"{phase}_m_rows_per_s": round(millions / seconds, 2) for phase, seconds in bench.seconds.items()}
    push_process = bench.seconds["push"] + bench.seconds["process"]
    return {
        "rows": int(millions * 1e6),
        "batches": batches,
        **phases,
        "push_and_process_m_rows_per_s": round(millions / push_process, 2),
        "with_pull_m_rows_per_s": round(millions / (push_process + bench.seconds["pull"]), 2),
        "all_m_rows_per_s": round(millions / sum(bench.seconds.values()), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows a batch")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--emit", choices=("every", "changes"), default="every")
    parser.add_argument("--combine", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--parallelism", type=int, default=2)
    json.dump(run(parser.parse_args()), sys.stdout)
    print()


if __name__ == "__main__":
    main()
