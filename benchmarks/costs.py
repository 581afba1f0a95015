"""Requests that a checkpoint costs, by lane, and the price of an interval.

    python -m benchmarks.costs --json

A keyed count in this process, with real TaskManagers, logs, uploads, journal and clean-up on a store in memory. Batches
change `--rows` random rows for each TaskManager, and checkpoints follow each other at once: logs of few rows travel,
and TaskManagers store logs of many rows. The requests are those in `query.view().store_use`, over `--checkpoints`
checkpoints after `WARMUP` of them. The history, which is written every ten seconds, is added for each hour.

JSON: for each number of TaskManagers and rows the requests and bytes of a checkpoint by lane; and `hourly`, for each
interval in seconds the requests an hour and their price by the default prices.
"""

import argparse
import json
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import holdfast as hf
from benchmarks.count import RandomKeys
from holdfast.jobmaster.checkpoints.history import SAVE_EVERY_S
from holdfast.observe.view import StoreUse
from holdfast.testing import start

WARMUP = 5
KEYS_PER_ROW = 1_000
INTERVALS_S = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)


@dataclass(frozen=True)
class Measured:
    """The requests and bytes of a checkpoint, by lane and kind."""

    requests: dict[tuple[str, str], float]
    size_bytes: dict[tuple[str, str], float]

    @classmethod
    def between(cls, before: StoreUse, after: StoreUse) -> "Measured":
        count = after.checkpoints - before.checkpoints
        first = {(each.lane, each.kind): each for each in before.lanes}

        def grown(figure: str) -> dict[tuple[str, str], float]:
            return {
                key: (getattr(each, figure) - getattr(first.get(key), figure, 0)) / count
                for each in after.lanes
                if (key := (each.lane, each.kind))[1] != "delete"
            }

        return cls(grown("requests"), grown("size_bytes"))

    def hourly(self, interval_s: float, prices: hf.StorePrices) -> dict[str, float]:
        checkpoints = 3600 / interval_s
        kinds = [(kind, each * checkpoints) for (_, kind), each in self.requests.items()]
        kinds.append(("put", min(checkpoints, 3600 / SAVE_EVERY_S)))
        return {
            "interval_s": interval_s,
            "puts_and_lists": round(sum(each for kind, each in kinds if kind != "get")),
            "gets": round(sum(each for kind, each in kinds if kind == "get")),
            "usd": round(sum(prices.of_requests(kind, each) for kind, each in kinds), 4),
        }


def measure(task_managers: int, rows: int, checkpoints: int) -> Measured:
    """Run a job's checkpoints, and count."""
    job = hf.Job(
        None,
        name="costs",
        storage=f"memory://costs-{uuid4().hex}",
        parallelism=task_managers,
        task_managers=task_managers,
        checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
        max_rows_per_batch=rows * task_managers,
    )
    keys = RandomKeys(rows * task_managers * KEYS_PER_ROW)
    numbers = job.read(hf.SequenceSource(splits=1, name="numbers")).map_batches(keys, "k BIGINT")
    numbers.key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    query = start(job, hf.processing_time("50ms"))
    try:
        return Measured.between(*(_after(query, number) for number in (WARMUP, WARMUP + checkpoints)))
    finally:
        query.stop()


def _after(query: Any, checkpoints: int) -> StoreUse:
    """Return the requests once so many checkpoints have completed, each with new changes."""
    while (used := query.view().store_use).checkpoints < checkpoints:
        query.awaitTermination(0.06)
        query.trigger_checkpoint(timeout=60)
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task-managers", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rows", type=int, nargs="+", default=[50, 20_000], help="changed for each TaskManager")
    parser.add_argument("--checkpoints", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    prices, found = hf.StorePrices(), list[dict[str, Any]]()
    for task_managers in options.task_managers:
        for rows in options.rows:
            measured = measure(task_managers, rows, options.checkpoints)
            lanes = {
                f"{lane} ({kind})": [round(each, 3), round(measured.size_bytes[lane, kind])]
                for (lane, kind), each in measured.requests.items()
                if each
            }
            hourly = [measured.hourly(interval_s, prices) for interval_s in INTERVALS_S]
            found.append({"task_managers": task_managers, "rows": rows, "a_checkpoint": lanes, "hourly": hourly})
            if not options.json:
                print(found[-1])
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
