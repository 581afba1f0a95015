"""State as a DataFrame, read in Spark's tasks while a job runs."""

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf

pytestmark = pytest.mark.spark


def test_state_of_a_running_job_is_a_dataframe(spark: Any, tmp_path: Path) -> None:
    job = hf.Job(
        spark,
        name="inspected",
        storage=tmp_path.as_uri(),
        parallelism=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
    )
    numbers = job.read(hf.SequenceSource(rows=10_000, name="numbers"))
    mod = numbers.map_batches(_mod, "k BIGINT, v BIGINT")
    mod.key_by("k").aggregate(n=hf.count(), total=hf.sum("v"), name="totals").write(hf.NoopSink())
    query = job.start()
    try:
        query.processAllAvailable()
        state = spark.read.format("holdfast").option("storage", job.storage).option("operator", "totals").load()
        assert state.rdd.getNumPartitions() == 2
        found = {row["k"]: (row["n.count"], row["total.sum"]) for row in state.collect()}
        assert found == {k: (100, sum(range(k, 10_000, 100))) for k in range(100)}
    finally:
        query.stop()


def _mod(batch: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    values = batch.column("value").to_numpy()
    return pa.RecordBatch.from_arrays([pa.array(np.mod(values, 100)), batch.column("value")], ["k", "v"])
