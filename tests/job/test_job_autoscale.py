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


def test_another_object_than_its_settings_is_refused():
    with pytest.raises(SettingsError, match="autoscale=3 is not allowed"):
        job_kit.new_job(autoscale=3)
