"""Run a job whose input or output is far larger than the memory of its TaskManager; print the process's peak of memory.

python memory_script.py NAME     prints {"peak_mb": …, "error": …}: growth from the start of the job on
"""

import gc
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from benchmarks.growth.axis import own_mb, watched
from benchmarks.growth.jobs import BOUND_MB, SCHEMA, bounded, new_job, rows
from holdfast.taskmanager.process_memory import keep_freed_memory
from holdfast.testing import TestSource, run

WIDE = 1_000
"""Bytes of each text, so that 100,000 rows are 100 MB."""
TEXTS = "k BIGINT, at TIMESTAMP, v STRING"
AT_ONCE = 2_000
JUMP = rows(0, np.array([1_000_000]))
"""A row that lets all windows close."""


def _wide(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows with long texts, made on their way, so that the source itself takes no memory."""
    for start in range(0, batch.num_rows, AT_ONCE):
        part = batch.slice(start, AT_ONCE)
        text = pa.array([f"{number:0{WIDE}}" for number in range(start, start + part.num_rows)])
        yield pa.RecordBatch.from_arrays([part.column("k"), part.column("at"), text], names=["k", "at", "v"])


def texts(job: hf.Job, keys: Any) -> hf.Stream:
    """A row with a long text for each of the keys in a single batch, then a row that closes everything."""
    return numbers(job, keys).map_batches(_wide, TEXTS)


def numbers(job: hf.Job, keys: Any, seconds: Any = 5) -> hf.Stream:
    return job.read(TestSource([rows(keys, seconds), JUMP, JUMP], SCHEMA)).with_watermark("at", 0)


WINDOW = hf.window("at", "10s")
MANY = np.arange(100_000)
FEW = MANY % 100


def joined(job: hf.Job, how: Any, **bounds: Any) -> hf.Stream:
    return texts(job, FEW).key_by("k").join(numbers(job, np.arange(100)).key_by("k"), how=how, suffix="_r", **bounds)


def sliding(job: hf.Job, how: Any) -> hf.Stream:
    window = hf.window("at", "1000s", "1s")
    left, right = (numbers(job, np.arange(4_000), np.arange(4_000) % 500).key_by("k", window) for _ in range(2))
    return left.join(right, how=how, suffix="_r")


def _repeat(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from itertools.repeat(batch, 1_000)


class Repeat(hf.ProcessFunction):
    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        for number in range(10):
            yield {"n": number, "text": f"{number:0{WIDE}}"}


class Keep(hf.ProcessFunction):
    """Keeps a long text for each key."""

    text = hf.ValueState(pa.string(), default="")

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        self.text.update(f"{row.k:0{WIDE}}")
        yield {"n": row.k}


class Add(hf.ProcessFunction):
    """Adds a long text to the list of a key."""

    texts = hf.ListState(pa.string())

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        self.texts.add(f"{row.v:0{WIDE}}")
        yield {"n": row.k}


DECLARED: dict[str, Callable[[hf.Job], hf.Stream]] = {
    "flat map": lambda job: (
        numbers(job, np.arange(64_000)).map_batches(_repeat, SCHEMA).key_by("k").aggregate(n=hf.count())
    ),
    "windows that close": lambda job: numbers(job, np.arange(400_000)).key_by("k", WINDOW).aggregate(n=hf.count()),
    "sessions that close": lambda job: (
        numbers(job, np.arange(250_000)).key_by("k", hf.session_window("at", "10s")).aggregate(n=hf.count())
    ),
    "inner join in sliding windows": lambda job: sliding(job, "inner"),
    "outer join in sliding windows": lambda job: sliding(job, "outer"),
    "left join of many rows": lambda job: (
        numbers(job, np.arange(600_000) % 50_000)
        .key_by("k")
        .join(numbers(job, np.arange(100)).key_by("k"), how="left", suffix="_r", within=("0s", "10s"))
    ),
    "left join of many keys": lambda job: (
        numbers(job, np.arange(600_000))
        .key_by("k")
        .join(numbers(job, np.arange(600_000)).key_by("k"), how="left", suffix="_r", within=("0s", "10s"))
    ),
    "left join of long texts": lambda job: joined(job, "left", within=("0s", "10s")),
    "semi join of long texts": lambda job: joined(job, "semi", within=("0s", "10s")),
    "join with a time to live": lambda job: joined(job, "inner", ttl="1h"),
    "join as of a time": lambda job: joined(job, "asof"),
    "last of many keys": lambda job: texts(job, MANY).key_by("k").last(by="v"),
    "last of few keys": lambda job: texts(job, FEW).key_by("k").last(by="v"),
    "top": lambda job: texts(job, FEW).key_by("k").top(10, by="v"),
    "top of windows": lambda job: texts(job, FEW).key_by("k", WINDOW).top(10, by="v"),
    "duplicates": lambda job: texts(job, MANY).drop_duplicates("v"),
    "lists": lambda job: texts(job, FEW).key_by("k").aggregate(texts=hf.collect_list("v")),
    "max_by": lambda job: texts(job, FEW).key_by("k").aggregate(text=hf.max_by("v", "at")),
    "running max_by": lambda job: texts(job, FEW).key_by("k").aggregate(text=hf.max_by("v", "at"), emit="every"),
    "function": lambda job: numbers(job, np.arange(10_000)).key_by("k").process(Repeat(), "n BIGINT, text STRING"),
    "function that keeps texts": lambda job: (
        numbers(job, 3 * np.arange(150_000)).key_by("k").process(Keep(), "n BIGINT")
    ),
    "function that adds texts": lambda job: numbers(job, FEW).key_by("k").process(Add(), "n BIGINT"),
}


def main(name: str) -> None:
    keep_freed_memory(BOUND_MB << 20)  # as a TaskManager's process does
    small = new_job(**bounded())
    numbers(small, np.arange(100)).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    run(small)
    job = new_job(**bounded())
    DECLARED[name](job).write(hf.NoopSink())
    gc.collect()
    before_mb, error = own_mb(), ""
    with watched() as seen_mb:
        try:
            run(job)
        except hf.QueryFailed as failed:
            error = str(failed)
    print(json.dumps({"peak_mb": round(max(seen_mb) - before_mb), "error": error}))


if __name__ == "__main__":
    main(sys.argv[1])
