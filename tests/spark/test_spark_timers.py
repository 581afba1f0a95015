"""Watermarks, timers and all kinds of states on Spark: late rows, a killed TaskManager, batches without rows."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from spark_kit import kill_task_manager, new_job, run, tuples, write_rows

import holdfast as hf
from holdfast.sinks.memory import MemorySink
from holdfast.testing import TestSource
from holdfast.testing import run as run_in_process
from sampling import quick
from waiting import until

START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW_S = 10
DELAY_S = 5
OFTEN = hf.CheckpointConfig(trigger=hf.every("100ms"))
BACKENDS = {"hashmap": hf.HashMapState(), "rocksdb": hf.RocksDBState(cache_max_entries=5)}


def second(of: datetime) -> int:
    return round((of - START).total_seconds())


class Windows(hf.ProcessFunction):
    """Counts rows in windows of ten seconds, says so when a window has ended, and which rows came too late for that."""

    counts = hf.MapState(pa.int64(), pa.int64(), default=0)
    fired = hf.ValueState(pa.timestamp("us", tz="UTC"), default=START - timedelta(days=1))

    def process(self, row, ctx):
        end = START + timedelta(seconds=(second(row.at) // WINDOW_S + 1) * WINDOW_S)
        if ctx.watermark is not None and ctx.watermark >= end:
            yield row.k, second(row.at), "late"
            return
        self.counts.put(second(end), self.counts.get(second(end)) + 1)
        ctx.timers.register_event_time(end)

    def on_timer(self, timestamp, ctx):
        assert self.fired.value() < timestamp <= ctx.watermark, "in order, once, and not too early"
        self.fired.update(timestamp)
        yield ctx.key, second(timestamp), f"{self.counts.get(second(timestamp))} rows"
        self.counts.remove(second(timestamp))


def windows(files):
    """Output of `Windows` for files that come in sequence."""
    found, watermark, reached, counts = [], -(10**9), -(10**9), Counter()
    for rows in files:
        for k, at in rows:
            end = (at // WINDOW_S + 1) * WINDOW_S
            if end <= watermark:
                found.append((k, at, "late"))
            else:
                counts[k, end] += 1
        reached = max(reached, max(at for _, at in rows))
        watermark = reached - DELAY_S
        for k, end in [key for key in counts if key[1] <= watermark]:
            found.append((k, end, f"{counts.pop((k, end))} rows"))
    return sorted(found)


def random_files(rng: random.Random) -> list[list[tuple[int, int]]]:
    return [
        [(rng.randrange(5), max(0, 8 * number + rng.randrange(-25, 8))) for _ in range(rng.randrange(1, 60))]
        for number in range(8)
    ]


@pytest.mark.parametrize("state", quick("hashmap", of=BACKENDS))
def test_windows_are_exactly_once_though_a_task_manager_is_killed(spark, tmp_path, state):
    seed = random.randrange(1_000_000)
    print("seed", seed)
    files, folder, sink = random_files(random.Random(seed)), tmp_path / "in", hf.MemorySink()
    folder.mkdir()
    job = new_job(spark, tmp_path, parallelism=3, task_managers=2, checkpoint=OFTEN, state=state)
    stream = job.read(hf.FileSource(f"{folder}/*.parquet", schema="k BIGINT, at TIMESTAMP"))
    keyed = stream.with_watermark("at", f"{DELAY_S}s").key_by("k")
    keyed.process(Windows(), "k BIGINT, second BIGINT, what STRING").write(sink)
    query = job.start(hf.processing_time())
    try:
        for number, rows in enumerate(files):
            write_rows(folder / f"{number}.parquet", [{"k": k, "at": START + timedelta(seconds=at)} for k, at in rows])
            if number in (3, 5):
                kill_task_manager(query, number % 2)
            expected = windows(files[: number + 1])
            until(lambda expected=expected: len(sink.rows()) >= len(expected) or query.exception() is not None)
            query.processAllAvailable()
            assert tuples(sink) == expected
        assert query.restarts
    finally:
        query.stop()
    assert query.exception() is None


class Remind(hf.ProcessFunction):
    """Half a second of processing time after each row."""

    def process(self, row, ctx):
        ctx.timers.register_processing_time(ctx.batch_time + timedelta(seconds=0.5))

    def on_timer(self, timestamp, ctx):
        assert ctx.batch_time >= timestamp
        yield ctx.key, "reminded"


def test_a_due_processing_time_timer_starts_a_batch_without_rows(spark, tmp_path):
    folder, sink = tmp_path / "in", hf.MemorySink()
    write_rows(folder / "a.parquet", [{"k": k} for k in range(4)])
    job = new_job(spark, tmp_path, checkpoint=OFTEN)
    job.read(hf.FileSource(f"{folder}/*.parquet")).key_by("k").process(Remind(), "k BIGINT, what STRING").write(sink)
    query = job.start(hf.processing_time())
    try:
        until(lambda: bool(sink.rows()) or query.exception() is not None)
        query.processAllAvailable()
        assert tuples(sink) == [(k, "reminded") for k in range(4)]
        assert any(progress["numInputRows"] == 0 for progress in query.recentProgress)
    finally:
        query.stop()


class EachRow(hf.ProcessFunction):
    """All five kinds of states, read and written for each row."""

    count = hf.ValueState(pa.int64(), default=0)
    note = hf.ValueState(default=[])
    least = hf.ReducingState(min, pa.int64())
    mean = hf.AggregatingState(lambda acc, v: [acc[0] + v, acc[1] + 1], [0, 0], lambda acc: acc[0] / acc[1])
    last = hf.ListState(pa.int64())
    of = hf.MapState(pa.string(), pa.decimal128(10, 2))

    def process(self, row, ctx):
        self.count.update(self.count.value() + 1)
        self.note.update([*self.note.value(), row.v][-2:])
        self.least.add(row.v)
        self.mean.add(row.v)
        self.last.update([*self.last.get(), row.v][-3:])
        self.of.put(str(row.v % 3), None if row.v % 4 == 0 else row.v)
        seen = self.count.value(), self.note.value(), self.least.get(), self.mean.get(), self.last.get()
        yield row.k, repr((*seen, self.of.items()))


class EachBatch(hf.BatchFunction):
    """The kinds of states that are arrays; its output at the end does not depend on batches."""

    count = hf.ValueState(pa.int64(), default=0)
    rows = hf.ListState(pa.int64())
    of = hf.MapState(pa.int64(), pa.int64())

    def process(self, batch, keys, groups, ctx):
        self.count.update(self.count.values().to_numpy() + np.bincount(groups, minlength=keys.num_rows))
        self.rows.append(batch["v"], groups)
        self.of.put(pa.array(batch["v"].to_numpy() % 3), batch["v"], groups)
        items = [[] for _ in range(keys.num_rows)]
        for each in self.of.items().to_pylist():
            items[each["group"]].append((each["key"], each["value"]))
        rows = zip(self.count.values().to_pylist(), self.rows.get().to_pylist(), items, strict=True)
        return pa.record_batch([keys["k"], pa.array([repr(row) for row in rows])], names=["k", "seen"])


def build(job: hf.Job, source) -> tuple[MemorySink, MemorySink]:
    by_row, by_batch = hf.MemorySink(name="by-row"), hf.MemorySink(name="by-batch")
    keyed = job.read(source).key_by("k")
    keyed.process(EachRow(), "k BIGINT, seen STRING").write(by_row)
    keyed.process(EachBatch(), "k BIGINT, seen STRING").write(by_batch)
    return by_row, by_batch


@pytest.mark.parametrize("state", quick("rocksdb", of=BACKENDS))
def test_all_kinds_of_states_are_on_spark_as_they_are_in_process(spark, tmp_path, state):
    rows = [{"k": v % 7, "v": v * 37 % 101} for v in range(200)]
    write_rows(tmp_path / "in" / "a.parquet", rows)
    job = new_job(spark, tmp_path, parallelism=3, task_managers=2, state=state, max_rows_per_batch=60)
    found = build(job, hf.FileSource(f"{tmp_path}/in/*.parquet"))
    run(job)
    in_process = hf.Job(None, name="same", storage=f"memory://{tmp_path.name}")
    expected = build(in_process, TestSource([rows], "k BIGINT, v BIGINT"))
    run_in_process(in_process)
    assert tuples(found[0]) == tuples(expected[0])
    assert dict(row.values() for row in found[1].rows()) == dict(row.values() for row in expected[1].rows())
