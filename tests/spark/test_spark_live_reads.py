"""State of a key read from its owner over Flight while the query runs."""

from spark_kit import new_job
from test_spark_streams import numbers

import holdfast as hf


def test_each_key_is_read_from_the_task_manager_that_owns_it(spark, tmp_path):
    job = new_job(spark, tmp_path, task_managers=2, parallelism=4, senders=1)
    keyed = numbers(job, 1_000).key_by("k")
    keyed.aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="nothing"))
    query = job.start()
    try:
        query.processAllAvailable()
        query.trigger_checkpoint(60)
        stored = hf.read_state(job.storage, "counts")
        for expected in stored.to_pylist():
            read = query.read_state("counts", key={"k": expected["k"]})
            assert read.to_pylist() == [expected]
        assert query.read_state("counts", key={"k": -1}).num_rows == 0
    finally:
        query.stop()
