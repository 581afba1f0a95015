"""Another layout on Spark: slots, processes and rows over Flight."""

import pytest
from spark_kit import new_job
from test_spark_streams import numbers

import holdfast as hf
from waiting import until


def test_one_task_manager_becomes_two_and_one_again_in_the_slots_that_there_are(spark, tmp_path):
    job = new_job(spark, tmp_path, task_managers=1, parallelism=4)
    numbers(job, 1_000).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="nothing"))
    query = job.start()
    try:
        query.processAllAvailable()
        with pytest.raises(hf.JobRefused, match=r"needs 4 slots for TaskManagers.*Spark has \d+, of which"):
            query.rescale(task_managers=4)
        for wanted in ({"task_managers": 2, "parallelism": 6}, {"task_managers": 1, "senders": 1}):
            rescale = query.rescale(**wanted)
            rescale.wait(60)
            assert sum(len(query.read_state("counts", key={"k": k})) for k in range(5)) == 5
        until(lambda: len(query.taskManagers) == 1)
        senders = [each for each in query.view().processes if each.role == "sender"]
        assert (len(senders), rescale.senders, query.view().parallelism) == (1, 1, 6)
        assert query.restarts == []
    finally:
        query.stop()
