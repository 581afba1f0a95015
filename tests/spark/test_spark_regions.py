"""Regions on Spark: a split that ends its process, or hangs, stays behind by itself, and the others go on."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_kit import new_job

import holdfast as hf
from faulty_kit import ROWS, SPLITS, FaultySource, failing, faulty, heal, values, without
from waiting import until

QUICK = hf.FailoverConfig(backoff_first="200ms", backoff_max="1s", losses_max=2)
"""Few losses of a sender are allowed: those of a split that fails must not count."""


def copying(spark: Any, tmp_path: Path, source: FaultySource, **regions: Any) -> hf.Job:
    limits = hf.RegionConfig(max_consecutive_failures=1_000, **regions)
    job = new_job(spark, tmp_path, senders=2, regions=limits, failover=QUICK)
    job.read(source).write(hf.ParquetSink(f"file://{tmp_path}/out", name="out"))
    return job


def test_splits_that_end_their_sender_hang_or_raise_stay_behind_alone(spark, tmp_path):
    source = faulty(tmp_path / "faults", s7="exit", s11="raise", s20="hang")
    query = copying(spark, tmp_path, source, unit_timeout="2s").start()
    out = tmp_path / "out"
    until(lambda: failing(query).keys() == {"7", "11", "20"})
    query.trigger_checkpoint()
    until(lambda: values(out) == without(7, 11, 20))
    assert "unit_timeout" in failing(query)["20"] and "is offline" in failing(query)["11"]
    heal(tmp_path / "faults")
    until(lambda: failing(query) == {})
    query.processAllAvailable()
    assert values(out) == list(range(ROWS))
    assert query.restarts == []
    query.stop()


@pytest.mark.long
def test_a_step_that_ends_its_process_at_a_row_fails_the_split_of_that_row(spark, tmp_path):
    def ends(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 5 + 10 * SPLITS in batch.column("value").to_pylist():
            os._exit(4)
        return batch

    source = faulty(tmp_path / "faults")
    limits = hf.RegionConfig(max_consecutive_failures=1, on_poison="park")
    job = new_job(spark, tmp_path, senders=2, regions=limits, failover=QUICK)
    job.read(source).map_batches(ends, "value BIGINT").write(hf.ParquetSink(f"file://{tmp_path}/out", name="out"))
    query = job.start(hf.available_now())
    assert query.awaitTermination(300)
    assert values(tmp_path / "out") == without(5)
    [found] = query.status["splitsBehind"]
    assert (found["split"], found["parked"]) == ("5", True)


@pytest.mark.long
def test_a_transform_that_raises_fails_its_split_alone(spark, tmp_path):
    source = faulty(tmp_path / "faults")
    limits = hf.RegionConfig(max_consecutive_failures=0, on_poison="park")
    job = new_job(spark, tmp_path, senders=1, regions=limits, failover=QUICK, max_rows_per_batch=ROWS)
    raising = "IF(value = 3, CAST(raise_error('three') AS BIGINT), value) AS value"
    rows = job.read(source).transform(lambda df: df.selectExpr(raising))
    rows.write(hf.ParquetSink(f"file://{tmp_path}/out", name="out"))
    query = job.start(hf.available_now())
    assert query.awaitTermination(300)
    assert values(tmp_path / "out") == without(3)
