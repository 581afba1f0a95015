"""A running job tells its autoscaler of each batch, and shows the advice."""

import job_kit
import pytest

import holdfast as hf
from holdfast import testing
from holdfast.autoscale import rules
from holdfast.errors import SettingsError
from waiting import until


def test_the_advice_is_in_the_status_the_view_and_the_pages_json(monkeypatch):
    monkeypatch.setattr(rules, "BATCHES_MIN", 2)
    feed = job_kit.Feed(name="feed")
    settings = hf.Autoscale(max_task_managers=4, cooldown="1us")
    job = job_kit.new_job(job_kit.new_storage(), parallelism=4, task_managers=2, autoscale=settings)
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="nothing"))
    query = testing.start(job, hf.processing_time("0s"))
    try:
        assert query.status["autoscale"] is None

        def advised() -> bool:
            feed.put(job_kit.pairs((1, 1)))
            query.processAllAvailable()
            return query.status["autoscale"] is not None

        until(advised)
        assert "2" in query.status["autoscale"] and query.view().advice is not None
        assert "rows/s take" in query.view().advice
    finally:
        query.stop()


def test_advice_that_is_applied_changes_the_number_of_task_managers_while_the_job_runs(monkeypatch):
    monkeypatch.setattr(rules, "BATCHES_MIN", 2)
    feed, sink, rows = job_kit.Feed(name="feed"), hf.MemorySink(name="out"), 0
    settings = hf.Autoscale(min_task_managers=1, max_task_managers=1, cooldown="100ms", apply=True)
    job = job_kit.new_job(job_kit.new_storage(), parallelism=4, task_managers=2, autoscale=settings)
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(sink)
    query = testing.start(job, hf.processing_time("0s"))
    try:
        while len(query.taskManagers) > 1:
            feed.put(job_kit.pairs((rows % 7, 1)))
            rows += 1
            query.processAllAvailable()
            assert rows < 10_000
        assert query.status["rescale"] is None and query.restarts == []
        query.stop()
        assert sum(row["n"] for row in job_kit.newest(sink.rows(), "k").values()) == rows
    finally:
        query.stop()


def test_what_drops_rows_does_not_change_by_itself():
    with pytest.raises(SettingsError, match=r"Autoscale\(apply=True\) with on_loss='drop' is not allowed"):
        job_kit.new_job(on_loss="drop", autoscale=hf.Autoscale(apply=True))


def test_another_object_than_its_settings_is_refused():
    with pytest.raises(SettingsError, match="autoscale=3 is not allowed"):
        job_kit.new_job(autoscale=3)
