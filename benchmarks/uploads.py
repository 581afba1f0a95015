"""The tail of upload latencies, without hedging and with it, in manual time.

    python -m benchmarks.uploads --json

500 writers have 5 MB of changes each and persist them at once, some times, through the real writer and uploader. The
store's latencies follow the table that FLIP-158 gives for 500 streams of 5 MB to S3 (p50 459, p90 740, p95 833,
p99 1,039, p99.9 3,202 ms): straight lines between its points and the least value `LEAST_MS`, a Pareto tail beyond.
Every attempt, also a hedge, takes the next of them from a shuffled deck, so that the first attempts follow the
table exactly. The changes compress well: the stored objects are small, and it does not look at it.

JSON: `unhedged` and `hedged` (each `p50_ms`, `p90_ms`, `p95_ms`, `p99_ms`, `p999_ms`, `uploads`, `requests`),
`p999_cut` (1 - hedged / unhedged), `extra_requests` (requests over uploads, less 1).
"""

import argparse
import json
import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from obstore.store import MemoryStore

from holdfast.changelog.writer import ChangelogWriter
from holdfast.changelog_config import RetryPolicy
from holdfast.formats.log_objects import LogId
from holdfast.state.table import merge_changes, stored_schema
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.scheduler import ManualScheduler
from holdfast.uploads.uploader import LOGS, Uploader

LEAST_MS = 200.0
TABLE_MS = {0.5: 459.0, 0.9: 740.0, 0.95: 833.0, 0.99: 1039.0, 0.999: 3202.0}
QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}
TAIL = np.log(3202.0 / 1039.0) / np.log(10.0)
"""Exponent of the tail beyond p99.9, as between p99 and p99.9: ten times rarer is ten to that power times longer."""
SCHEMA = stored_schema(pa.schema([("key", pa.int64())]), pa.schema([("value", pa.binary())]))


def latency_s(quantile: float) -> float:
    """The table's latency at that quantile."""
    if quantile > 0.999:
        return float(TABLE_MS[0.999] * (0.001 / (1.0 - quantile)) ** TAIL / 1000.0)
    return float(np.interp(quantile, [0.0, *TABLE_MS], [LEAST_MS, *TABLE_MS.values()]) / 1000.0)


def latencies_s(uploads: int, seed: int) -> Iterator[float]:
    """Deal deck after deck."""
    rng = random.Random(seed)
    while True:
        deck = [latency_s((index + 0.5) / uploads) for index in range(uploads)]
        rng.shuffle(deck)
        yield from deck


def changes(size_bytes: int) -> pa.RecordBatch:
    """The part of a writer, of a batch."""
    rows = 5
    columns = [
        pa.array([0] * rows, pa.int32()),
        pa.array([False] * rows),
        pa.array(range(rows), pa.int64()),
        pa.array([bytes(size_bytes // rows)] * rows, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Run:
    """Run some rounds of all writers under a policy."""

    def __init__(self, policy: RetryPolicy, writers: int, size_bytes: int, rounds: int, seed: int) -> None:
        deck = latencies_s(writers * rounds, seed)
        self._scheduler = ManualScheduler(lambda lane: next(deck) if lane == LOGS else 0.0)
        self._uploader = Uploader(
            ObstoreStore("memory://", MemoryStore()),
            1,
            1,
            persist_bytes_max=1,  # an object for each writer: they do not share
            object_bytes_max=2 * size_bytes,
            in_flight_bytes_max=2 * (writers + 1) * size_bytes,
            preempt_bytes_max=2 * size_bytes,
            uploads_max=writers,
            retries=policy,
            scheduler=self._scheduler,
        )
        self._writers = [
            ChangelogWriter(LogId("benchmark", str(index), 0, 1), self._uploader, merge_changes)
            for index in range(writers)
        ]
        self._took_s: list[float] = []
        for batch in range(rounds):
            self._round(batch, changes(size_bytes))

    def report(self) -> dict[str, float]:
        metrics = self._uploader.metrics()
        found = {name: round(1000.0 * float(np.quantile(self._took_s, at)), 1) for name, at in QUANTILES.items()}
        return found | {
            "uploads": metrics["numberOfUploadRequests"],
            "requests": metrics["totalAttemptsPerUpload#sum"],
        }

    def _round(self, batch: int, rows: pa.RecordBatch) -> None:
        begun_s = self._scheduler.monotonic()
        futures = []
        for writer in self._writers:
            writer.append(batch, rows)
            futures.append(writer.persist(batch))
            futures[-1].add_done_callback(lambda _: self._took_s.append(self._scheduler.monotonic() - begun_s))
        for future in futures:
            self._scheduler.result(future)
        self._scheduler.advance(60.0)
        for writer in self._writers:
            writer.truncate(writer.next_sqn())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--mb", type=float, default=5.0, help="changes of a writer in a round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one line of JSON and nothing else")
    options = parser.parse_args()
    policies = {"unhedged": RetryPolicy.fixed(timeout=None), "hedged": RetryPolicy.fixed()}
    size_bytes = int(options.mb * 1e6)
    found = {
        name: Run(policy, options.writers, size_bytes, options.rounds, options.seed).report()
        for name, policy in policies.items()
    }
    hedged = found["hedged"]
    result = {
        **found,
        "p999_cut": round(1.0 - hedged["p999_ms"] / found["unhedged"]["p999_ms"], 3),
        "extra_requests": round(hedged["requests"] / hedged["uploads"] - 1.0, 4),
        "writers": options.writers,
        "rounds": options.rounds,
        "seed": options.seed,
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, report in found.items():
        print(f"{name:9}", "  ".join(f"{key[:-3]} {report[key]:7.0f}" for key in QUANTILES), "ms")
    print(f"p99.9 cut by {result['p999_cut']:.1%} with {result['extra_requests']:.1%} more requests")


if __name__ == "__main__":
    main()
