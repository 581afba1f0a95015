"""Jobs without a changelog on Spark: switched off, on and off again between starts, at another parallelism each
time.
"""

import pyarrow as pa
import pyarrow.compute as pc
from spark_kit import new_job, newest, run

import holdfast as hf

KEYS = 64


def by_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    value = batch.column("value")
    return pa.record_batch([pc.bit_wise_and(value, KEYS - 1), value], names=["k", "v"])


def test_the_changelog_is_switched_between_starts_at_another_parallelism(spark, tmp_path):
    sink = hf.MemorySink(name="out")
    for number, (on, parallelism) in enumerate([(False, 1), (True, 2), (False, 1)], 1):
        rows = 2000 * number
        job = new_job(
            spark,
            tmp_path,
            parallelism=parallelism,
            state=hf.RocksDBState(cache_max_entries=8),
            checkpoint=hf.CheckpointConfig(trigger=hf.every("100ms"), changelog=on),
            max_rows_per_batch=500,
        )
        stream = job.read(hf.SequenceSource(rows, splits=2, name="numbers")).map_batches(by_key, "k BIGINT, v BIGINT")
        stream.key_by("k").aggregate(total=hf.sum("v"), name="total").write(sink)
        query = run(job)
        assert query.totals.checkpoints[-1].materialized_bytes > 0 or on
        assert query.totals.checkpoints[-1].full_bytes == query.totals.checkpoints[-1].materialized_bytes or on
        assert newest(sink) == {k: sum(range(k, rows, KEYS)) for k in range(KEYS)}
