"""Sinks on branches of a stream share its reading, however many they are, and each gets its rows once and in order."""

from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from job_kit import Feed, new_job, new_storage

import holdfast as hf
from holdfast.errors import StorageError
from holdfast.exchange import waiting_rows
from holdfast.testing import TestSource, run, start
from holdfast.testing.local import LocalCluster

ROWS = [{"k": k % 7, "v": k} for k in range(50)]


class Targets:
    """Sinks of four kinds in turn, each on a branch of its own: all rows, or those above a bound."""

    def __init__(self, tmp_path, count):
        self.called = {number: {} for number in range(count)}
        self.sinks = [self.made(number, f"file://{tmp_path}/target-{number}") for number in range(count)]

    def made(self, number, folder):
        name, kind = f"sink-{number}", number % 4
        if kind == 0:
            return hf.MemorySink(name=name)
        if kind == 1:
            return hf.CallbackSink(lambda rows, group: self.called[number].update({group: rows}), name=name)
        return (hf.ParquetSink if kind == 2 else hf.DeltaSink)(folder, name=name)

    def write(self, rows):
        for number, sink in enumerate(self.sinks):
            (rows.where(pc.field("v") >= number) if number % 3 else rows).write(sink)

    def check(self, written):
        for number, sink in enumerate(self.sinks):
            expected = [each["v"] for each in written if number % 3 == 0 or each["v"] >= number]
            assert self.found(number, sink) == expected, sink.name

    def found(self, number, sink):
        if isinstance(sink, hf.MemorySink):
            return [row["v"] for row in sink.rows()]
        if isinstance(sink, hf.CallbackSink):
            return [value for _, rows in sorted(self.called[number].items()) for value in rows["v"].to_pylist()]
        if isinstance(sink, hf.ParquetSink):
            return sorted(pq.read_table(sink.url.removeprefix("file://"))["v"].to_pylist())
        return sorted(pa.table(DeltaTable(sink.url).to_pyarrow_table())["v"].to_pylist())


@pytest.mark.parametrize("count", [2, 20, 40])
def test_a_source_is_read_once_for_all_of_its_sinks(tmp_path, count):
    job, targets = new_job(f"memory://shared-{count}", max_rows_per_batch=20), Targets(tmp_path, count)
    targets.write(job.read(TestSource([ROWS[:20], ROWS[20:]], "k BIGINT, v BIGINT")))
    with mock.patch.object(TestSource, "read_output", autospec=True, side_effect=TestSource.read_output) as read:
        query = run(job)
    assert read.call_count == query.totals.batches == 2
    targets.check(ROWS)


def test_an_operator_s_output_is_pulled_once_for_all_of_its_sinks_and_steps_run_once(tmp_path):
    job, seen = new_job(), []
    sinks = [hf.MemorySink(), hf.MemorySink(), hf.MemorySink()]

    def noted(rows):
        seen.append(rows.num_rows)
        return rows

    counts = job.read(TestSource([ROWS], "k BIGINT, v BIGINT")).key_by("k").aggregate(n=hf.count())
    stepped = counts.map_batches(noted, "k BIGINT, n BIGINT")
    for sink in sinks:
        stepped.write(sink)
    run(job)
    assert seen == [7]
    assert [{row["k"]: row["n"] for row in sink.rows()} for sink in sinks] == [
        {0: 8, **dict.fromkeys(range(1, 7), 7)}
    ] * 3


def test_rows_that_one_sink_cannot_show_reach_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting_rows, "KEPT_BYTES_MAX", 0)
    job = new_job(bad_records="dead_letter", dead_letters=f"file://{tmp_path}/letters")
    sinks = [hf.MemorySink(name=name) for name in ("first", "strict", "last")]
    rows = job.read(TestSource([ROWS[:4]], "k BIGINT, v BIGINT"))
    for sink in sinks:
        rows.write(sink)
    refused = hf.MemorySink.refused

    def strict(sink, rows):
        found = {n: "odd" for n, v in enumerate(rows["v"].to_pylist()) if v % 2}
        return found if sink.name == "strict" else refused(sink, rows)

    with mock.patch.object(hf.MemorySink, "refused", strict):
        query = run(job)
    assert [[row["v"] for row in sink.rows()] for sink in sinks] == [[0, 1, 2, 3], [0, 2], [0, 1, 2, 3]]
    assert query.lastProgress["badRows"] == 2


@pytest.mark.parametrize(
    "bytes_max", [pytest.param(waiting_rows.KEPT_BYTES_MAX, marks=pytest.mark.long), 0], ids=["in memory", "on disk"]
)
def test_each_of_many_sinks_is_exact_through_losses_and_failures_of_some(tmp_path, monkeypatch, bytes_max):
    monkeypatch.setattr(waiting_rows, "KEPT_BYTES_MAX", bytes_max)
    storage, feed, targets, clusters = new_storage(), Feed(name="feed"), Targets(tmp_path, 8), []
    failing = []

    stage = hf.DeltaSink.stage

    def fail(sink, batches, context):
        if failing:
            next(batches, None)
            raise StorageError(f"{sink.name}: its store is away, since {failing.pop()}")
        return stage(sink, batches, context)

    monkeypatch.setattr(hf.DeltaSink, "stage", fail)
    written = []
    for _ in range(2):
        job = new_job(storage, task_managers=1)
        rows = job.read(feed)
        targets.write(rows)
        rows.key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="counts-out"))
        query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
        for step in range(3):
            more = [{"k": k % 7, "v": len(written) + k} for k in range(30)]
            written += more
            failing += [step] * step
            feed.put(more)
            if step == 1:
                query.processAllAvailable()
                cluster: LocalCluster = clusters[-1]
                cluster.kill(0)
        query.processAllAvailable()
        query.stop()
        assert not failing
    targets.check(written)
