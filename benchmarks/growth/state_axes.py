"""Axes of state: a batch of few rows costs the same whatever lies in the state, or in the entries of its key."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from benchmarks.growth.axis import REST, WORK, Axis
from benchmarks.growth.jobs import LONG, SCHEMA, Declare, later_batch_s, rows, whole_s
from holdfast.testing import TestSource

FEW = rows(np.arange(10), 5)
MANY = (1_000, 8_000, 64_000)
LARGE = hf.TaskManagerConfig(memory="2GB")
"""Ten million keys take 0.8 GB, with those that the first batch can still take back."""


class Listed(hf.ProcessFunction):
    """Adds each row's value to the list of its key."""

    entries = hf.ListState(pa.int64())

    def process(self, row: Any, ctx: Any) -> Any:
        self.entries.add(row.v)
        yield row.k, row.v


class Mapped(hf.ProcessFunction):
    """Puts each row's value into the map of its key."""

    entries = hf.MapState(pa.int64(), pa.int64())

    def process(self, row: Any, ctx: Any) -> Any:
        self.entries.put(row.v, 1)
        yield row.k, row.v


class Timed(hf.ProcessFunction):
    """Registers a timer for each row, long after it."""

    seen = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        ctx.timers.register_event_time(row.at + timedelta(seconds=row.v))
        yield row.k, row.v

    def on_timer(self, timestamp: Any, ctx: Any) -> Any:
        yield ctx.key, 0


class Texts(hf.ProcessFunction):
    """Keeps a text of a length for each key."""

    text = hf.ValueState(pa.string(), default="")

    def process(self, row: Any, ctx: Any) -> Any:
        if row.v:
            self.text.update("x" * row.v)
        yield row.k, row.v


def _process(function: hf.ProcessFunction) -> Declare:
    return lambda job, stream: stream.key_by("k").process(function, "k BIGINT, v BIGINT").write(hf.NoopSink())


def _late(declare: Callable[[hf.Stream], hf.Stream]) -> Declare:
    """Declare behind a watermark that never passes a row."""
    return lambda job, stream: declare(stream.with_watermark("at", LONG)).write(hf.NoopSink())


def _aggregate(job: hf.Job, stream: hf.Stream) -> None:
    stream.key_by("k").aggregate(n=hf.count(), total=hf.sum("v")).write(hf.NoopSink())


def _of_one_key(declare: Declare, apart_s: int = 100) -> Callable[[int], float]:
    """A row of a key with many entries, all apart in time, in order behind them."""
    return lambda n: later_batch_s(
        [rows(0, np.arange(n) * apart_s, np.arange(n))], rows(0, np.array([(n - 1) * apart_s + 1]), n + 1), declare
    )


def _joined(**bounds: Any) -> Callable[[int], float]:
    """A row of the left side for a key with many kept rows of the right side."""

    def measure(n: int) -> float:
        right = rows(0, np.arange(n), np.arange(n))

        def declare(job: hf.Job, stream: hf.Stream) -> None:
            others = job.read(TestSource([right], SCHEMA)).with_watermark("at", LONG)
            left = stream.with_watermark("at", LONG)
            left.key_by("k").join(others.key_by("k"), suffix="_r", **bounds).write(hf.NoopSink())

        return later_batch_s([rows(0, np.array([n]))], rows(0, np.array([n - 1])), declare)

    return measure


def _closing(n: int) -> float:
    """A watermark that jumps over many windows at once."""
    first, jump = rows(np.arange(n) % 100, np.arange(n) * 10), rows(0, np.array([n * 20]))

    def declare(job: hf.Job, stream: hf.Stream) -> None:
        timed = stream.with_watermark("at", 0)
        timed.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count()).write(hf.NoopSink())

    return _whole([first, jump, jump], declare)


def _whole(batches: list[pa.RecordBatch], declare: Declare) -> float:
    return whole_s(lambda job: declare(job, job.read(TestSource(batches, SCHEMA))))


def _rows_of_a_batch(keys: Callable[[int], Any]) -> Callable[[int], float]:
    return lambda n: later_batch_s([FEW], rows(keys(n), 5, np.arange(n)), _aggregate, task_manager=LARGE)


def _texts(n: int) -> float:
    return later_batch_s([rows(99, 5, n)], rows(np.arange(10), 5, 0), _process(Texts()))


def _own_list(n: int) -> float:
    """A value that is a list of many elements comes in a row."""
    batch = pa.RecordBatch.from_pydict({"k": [1], "k2": [1], "xs": [list(range(n))]})

    def declare(job: hf.Job, stream: hf.Stream) -> None:
        stream.key_by("k").last(by="k2").write(hf.NoopSink())

    return later_batch_s([batch], batch, declare, "k BIGINT, k2 BIGINT, xs ARRAY<BIGINT>")


def _firing(n: int) -> float:
    first, jump = rows(np.arange(n), 0, 10), rows(0, np.array([100_000]), 10)

    def declare(job: hf.Job, stream: hf.Stream) -> None:
        timed = stream.with_watermark("at", 0)
        timed.key_by("k").process(Timed(), "k BIGINT, v BIGINT").write(hf.NoopSink())

    return _whole([first, jump, jump], declare)


def _broadcast(n: int) -> float:
    class Ruled(hf.ProcessFunction):
        rules = hf.BroadcastState()

        def process(self, row: Any, ctx: Any) -> Any:
            rule = self.rules.get(row.k)
            yield row.k, 0 if rule is None else rule.v

    def declare(job: hf.Job, stream: hf.Stream) -> None:
        rules = job.read(TestSource([rows(np.arange(n), 0)], SCHEMA)).key_by("k")
        ruled = stream.key_by("k").process(Ruled(), "k BIGINT, v BIGINT", broadcast={"rules": rules})
        ruled.write(hf.NoopSink())

    return later_batch_s([FEW], FEW, declare)


AXES = [
    Axis(
        "keys",
        REST,
        (100_000, 1_000_000, 10_000_000),
        lambda n: later_batch_s([rows(np.arange(n), 5)], FEW, _aggregate, task_manager=LARGE),
    ),
    Axis("entries_of_a_list", REST, MANY, _of_one_key(_process(Listed()))),
    Axis("entries_of_a_map", REST, MANY, _of_one_key(_process(Mapped()))),
    Axis("length_of_a_text_of_another_key", REST, (10_000, 100_000, 1_000_000), _texts),
    Axis(
        "timers",
        REST,
        MANY,
        lambda n: later_batch_s(
            [rows(np.arange(n), 5, 10_000_000)],
            rows(np.arange(10), 6, 10_000_000),
            lambda job, s: _process(Timed())(job, s.with_watermark("at", LONG)),
        ),
    ),
    Axis(
        "windows_of_a_key",
        REST,
        MANY,
        _of_one_key(_late(lambda s: s.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count()))),
    ),
    Axis(
        "windows_of_a_key_in_another_order",
        REST,
        MANY,
        lambda n: later_batch_s(
            [rows(0, np.arange(n) * 100)],
            rows(0, np.array([50])),
            _late(lambda s: s.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count())),
        ),
    ),
    Axis(
        "sessions_of_a_key",
        REST,
        MANY,
        _of_one_key(_late(lambda s: s.key_by("k", hf.session_window("at", "30s")).aggregate(n=hf.count()))),
    ),
    Axis(
        "sessions_of_a_key_far_out_of_order",
        REST,
        MANY,
        lambda n: later_batch_s(
            [rows(0, np.arange(n) * 100)],
            rows(0, np.array([250])),
            _late(lambda s: s.key_by("k", hf.session_window("at", "30s")).aggregate(n=hf.count())),
        ),
    ),
    Axis(
        "sessions_of_other_keys",
        REST,
        MANY,
        lambda n: later_batch_s(
            [rows(np.arange(n), np.arange(n))],
            rows(n - 1, np.array([n])),
            _late(lambda s: s.key_by("k", hf.session_window("at", "30s")).aggregate(n=hf.count())),
        ),
    ),
    Axis("join_within", REST, MANY, _joined(within=("-5s", "5s"))),
    Axis("join_as_of", REST, MANY, _joined(how="asof")),
    Axis("last", REST, MANY, _of_one_key(lambda job, s: s.key_by("k").last(by="v").write(hf.NoopSink()))),
    Axis("top", REST, MANY, _of_one_key(lambda job, s: s.key_by("k").top(10, by="v").write(hf.NoopSink()))),
    Axis(
        "duplicates_within",
        REST,
        MANY,
        lambda n: later_batch_s(
            [rows(np.arange(n), np.arange(n))], FEW, _late(lambda s: s.drop_duplicates("k", within="1d"))
        ),
    ),
    Axis(
        "distinct_values_of_a_key",
        REST,
        MANY,
        _of_one_key(lambda job, s: s.key_by("k").aggregate(n=hf.count_distinct("v")).write(hf.NoopSink())),
    ),
    Axis("broadcast_entries", REST, MANY, _broadcast),
    Axis("rows_of_a_batch", WORK, (100_000, 1_000_000, 10_000_000), _rows_of_a_batch(lambda n: np.arange(n) % 100)),
    Axis("keys_of_a_batch", WORK, (100_000, 1_000_000, 10_000_000), _rows_of_a_batch(np.arange)),
    Axis("elements_of_a_list_in_a_row", WORK, (100_000, 1_000_000, 10_000_000), _own_list),
    Axis("windows_that_close_at_once", WORK, (10_000, 40_000, 160_000), _closing),
    Axis("timers_that_fire_at_once", WORK, (2_000, 8_000, 32_000), _firing),
]
