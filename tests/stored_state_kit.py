"""A job in process whose state has every kind that can be read, and its storage."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.testing import TestSource, start

DUE = datetime(2030, 1, 1, tzinfo=UTC)


class Everything(hf.ProcessFunction):
    """Keeps a value, an untyped object, a map, a list with a time to live, and a timer for each key."""

    n = hf.ValueState(pa.int64(), default=0)
    anything = hf.ValueState(None)
    seen = hf.MapState(pa.string(), pa.int64())
    last = hf.ListState(pa.int64(), ttl="1h")

    def process(self, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        self.anything.update({"newest": row.v})
        self.seen.put(str(row.v), row.v)
        self.last.add(row.v)
        ctx.timers.register_processing_time(DUE)
        yield (row.k,)

    def on_timer(self, timestamp: Any, ctx: Any) -> Any:
        return ()


def rows_from(first: int, count: int) -> list[dict[str, int]]:
    return [{"k": number % 3, "v": number} for number in range(first, first + count)]


def run_job(folder: Path, *batches: list[dict[str, int]], state: Any = None) -> str:
    """Run a job over the batches with a checkpoint after each; returns its storage's URL."""
    storage = folder.as_uri()
    job = hf.Job(None, name="inspected", storage=storage, parallelism=2, state=state)
    source = job.read(TestSource([*batches], "k BIGINT, v BIGINT", name="rows"))
    source.key_by("k").process(Everything(), "k BIGINT", name="everything").write(hf.NoopSink(name="a"))
    counts = source.key_by("k").aggregate(n=hf.count(), worst=hf.max("v"), name="counts")
    counts.write(hf.NoopSink(name="b"))
    query = start(job, hf.available_now())
    query.awaitTermination()
    return storage
