"""Metrics reach `lastProgress` and Prometheus under their known names, add up, and never go back."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from job_kit import Feed, new_job, own_logs, pairs, store_of
from prometheus_client.parser import text_string_to_metric_families

import holdfast as hf
from holdfast.errors import JobRefused, SettingsError
from holdfast.journal.fence import journal_numbers
from holdfast.metrics import Histogram, quantile
from holdfast.observe.known_metrics import KNOWN, OF_TASK_MANAGERS
from holdfast.observe.metrics import SubtaskId, TaskManagerMetrics, picture
from holdfast.query import Query
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from waiting import until

ROWS = pairs((1, 10), (2, 20), (1, 30), (3, 1), (4, 1), (5, 1))


# --- adding up --------------------------------------------------------------------------------------------------------


def report(incarnation: int = 1, deployments: int = 1, **values: float) -> dict[str, float]:
    return {"incarnation": incarnation, "deployments": deployments, **values}


def test_counters_add_up_over_task_managers_and_never_go_back() -> None:
    metrics = TaskManagerMetrics()
    metrics.update(0, report(1, numberOfUploadRequests=5))
    metrics.update(1, report(2, numberOfUploadRequests=7))
    assert picture(metrics.reports()).values["numberOfUploadRequests"] == 12
    metrics.update(0, report(3, numberOfUploadRequests=6))
    assert picture(metrics.reports()).values["numberOfUploadRequests"] == 18, "a new incarnation begins at 0"
    metrics.update(0, report(3, 2, numberOfUploadRequests=1))
    assert picture(metrics.reports()).values["numberOfUploadRequests"] == 19, "so does a new deployment"
    metrics.update(0, report(3, 2, numberOfUploadRequests=4))
    assert picture(metrics.reports()).values["numberOfUploadRequests"] == 22


def test_gauges_are_those_of_now_alone() -> None:
    metrics = TaskManagerMetrics()
    metrics.update(0, report(1, uploadQueueSize=5, lastCommittedBatch=8))
    metrics.update(1, report(2, uploadQueueSize=1, lastCommittedBatch=9))
    assert picture(metrics.reports()).values == {"uploadQueueSize": 6, "lastCommittedBatch": 9}
    metrics.update(0, report(3, uploadQueueSize=0))
    assert picture(metrics.reports()).values == {"uploadQueueSize": 1, "lastCommittedBatch": 9}


def test_what_a_subtask_reports_is_found_by_operator_and_subtask_even_with_dots_in_the_name() -> None:
    metrics = TaskManagerMetrics()
    metrics.update(0, report(1, **{"stateCacheHitRatio.per.key.0": 0.5}))
    metrics.update(1, report(2, **{"stateCacheHitRatio.per.key.1": 1.0}))
    found = picture(metrics.reports())
    assert found.by_subtask["stateCacheHitRatio"] == {SubtaskId("per.key", 0): 0.5, SubtaskId("per.key", 1): 1.0}
    assert found.values["stateCacheHitRatio"] == 0.75


def test_a_hit_ratio_of_the_job_weighs_subtasks_by_their_look_ups() -> None:
    metrics = TaskManagerMetrics()
    for subtask, (ratio, accesses) in enumerate([(0.0, 10.0), (1.0, 990.0)]):
        gauges = {f"stateCacheHitRatio.count.{subtask}": ratio, f"stateCacheAccesses.count.{subtask}": accesses}
        metrics.update(subtask, report(1, **gauges))
    assert picture(metrics.reports()).values["stateCacheHitRatio"] == 0.99


def test_histograms_add_up_over_deployments_and_task_managers() -> None:
    metrics = TaskManagerMetrics()
    for task_manager, incarnation, value in ((0, 1, 100), (0, 2, 1000), (1, 3, 3)):
        histogram = Histogram()
        histogram.add(value)
        metrics.update(task_manager, report(incarnation, **histogram.values("uploadSizes")))
    found = picture(metrics.reports()).distributions["uploadSizes"]
    assert (found.count, found.sum, found.max) == (3, 1103, 1000)
    assert found.buckets == {2: 1, 7: 1, 10: 1}


def test_a_quantile_is_an_upper_bound_and_at_most_twice_too_high() -> None:
    values = [float(value) for value in range(1, 1001)]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    entries = histogram.values("x")
    buckets = {int(name.partition("le")[2]): count for name, count in entries.items() if "le" in name}
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        exact = values[max(0, round(share * len(values)) - 1)]
        assert exact <= quantile(buckets, share, 1000.0) <= 2 * exact
    assert quantile({}, 0.5, 0.0) == 0.0


# --- a job ------------------------------------------------------------------------------------------------------------


class Running:
    def __init__(self, **settings: Any) -> None:
        self.feed = Feed(name="feed")
        settings.setdefault("parallelism", 2)
        self.job = new_job(metrics_port=0, **{"checkpoint": own_logs()} | settings)
        self.sink = hf.MemorySink(name="out")
        self.job.read(self.feed).key_by("k").aggregate(n=hf.count(), name="per-key").write(self.sink)
        self.cluster: LocalCluster | None = None
        self.query: Query = start(self.job, hf.processing_time("0s"), on_cluster=self._note)

    def _note(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def feed_and_wait(self) -> dict[str, Any]:
        self.feed.put(ROWS)
        self.query.processAllAvailable()
        progress = self.query.lastProgress
        assert progress is not None
        return progress

    def scrape(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Samples by name and labels without the job's."""
        assert self.query.metricsUrl is not None
        with urllib.request.urlopen(self.query.metricsUrl, timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        assert {sample.labels.pop("job") for sample in samples} == {"test"}
        return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


@pytest.fixture(params=[None, hf.RocksDBState(cache_max_entries=3)], ids=["memory", "rocksdb"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    made = Running(state=request.param)
    yield made
    made.query.stop()


def test_every_metric_is_a_known_one_and_all_that_can_be_there_are(running: Running) -> None:
    running.feed_and_wait()
    progress = running.feed_and_wait()
    names = set(progress["metrics"])
    assert names <= set(KNOWN), f"observe/known_metrics.py does not know {names - set(KNOWN)}"
    after_materializing = {metric.name for metric in OF_TASK_MANAGERS if "materialization" in metric.name.lower()}
    local = {"localCopiesBytes"}
    cache = {"stateCacheHitRatio", "stateCacheAccesses"} if running.job.state == hf.HashMapState() else set()
    of_many_keys = {"stateKeyGroupSkew"}
    # No sink has a megabyte of committables, no source stores objects, no log is long enough to be merged, and
    # TaskManagers store their logs themselves.
    lanes = "gathered", "committables", "source", "merge"
    kinds = "Sizes", "LatenciesNanos", "Attempts", "Errors"
    elsewhere = {f"{lane}Upload{kind}" for lane in lanes for kind in kinds}
    assert set(KNOWN) - names <= after_materializing | local | cache | of_many_keys | elsewhere


def test_progress_has_state_by_operator_and_subtask(running: Running) -> None:
    progress = running.feed_and_wait()
    (operator,) = progress["stateOperators"]
    own = operator["customMetrics"]
    assert operator["numRowsTotal"] == 5 == own["stateRows.0"] + own["stateRows.1"]
    assert operator["memoryUsedBytes"] == own["stateBytes.0"] + own["stateBytes.1"] > 0
    assert progress["metrics"]["numRecordsIn"] == own["numRecordsIn.0"] + own["numRecordsIn.1"]
    if running.job.state != hf.HashMapState():
        assert 0 <= own["stateCacheHitRatio"] <= 1


def test_checkpoints_say_how_long_each_part_took(running: Running) -> None:
    running.feed_and_wait()
    running.query.trigger_checkpoint(30)
    last = running.query.totals.checkpoints[-1]
    assert last.sync_s >= 0 and 0 < last.async_s <= last.duration_s and 0 <= last.start_delay_s <= last.duration_s
    assert 0 < last.incremental_bytes <= last.full_bytes
    metrics = running.feed_and_wait()["metrics"]
    assert metrics["numberOfCompletedCheckpoints"] == len(running.query.totals.checkpoints) - 1
    assert metrics["lastCheckpointDuration"] >= metrics["lastCheckpointAsyncDuration"] > 0
    assert metrics["lastCheckpointFullSize"] > 0 and metrics["checkpointDurations"]["count"] > 0


def test_prometheus_shows_the_same_in_seconds_and_bytes(running: Running) -> None:
    running.feed_and_wait()
    progress = running.feed_and_wait()
    shown = running.scrape()
    metrics = progress["metrics"]
    assert shown["holdfast_input_rows_total", ()] == 12 == metrics["numInputRows"]
    assert shown["holdfast_batches_total", ()] == metrics["numBatches"]
    assert shown["holdfast_uploads_total", ()] >= metrics["numberOfUploadRequests"] > 0
    assert shown["holdfast_last_checkpoint_duration_seconds", ()] == pytest.approx(
        running.query.totals.checkpoints[-1].duration_s
    )
    labels = (("operator", "per-key"), ("subtask", "1"))
    assert shown["holdfast_state_rows", labels] == progress["stateOperators"][0]["customMetrics"]["stateRows.1"]
    assert shown["holdfast_source_lag", (("source", "feed"), ("split", "0"))] == 0
    assert shown["holdfast_batch_duration_seconds_count", ()] == metrics["numBatches"]
    assert shown["holdfast_batch_duration_seconds_sum", ()] == pytest.approx(
        sum(running.query.totals.batch_ms) / 1000, rel=1e-6
    )
    buckets = {labels: value for (name, labels), value in shown.items() if name == "holdfast_upload_size_bytes_bucket"}
    assert list(buckets.values()) == sorted(buckets.values()), "cumulative"
    assert buckets[("le", "+Inf"),] == shown["holdfast_upload_size_bytes_count", ()]


def test_prometheus_shows_the_watermark_of_each_source_and_operator() -> None:
    feed, job = Feed("k BIGINT, at TIMESTAMP", name="feed"), new_job(metrics_port=0)
    stream = job.read(feed).with_watermark("at", "5s")
    stream.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count(), name="windows").write(hf.NoopSink())
    query = start(job, hf.processing_time("0s"))
    try:
        for second in (20, 30):
            feed.put([{"k": 1, "at": datetime.fromtimestamp(second, UTC)}])
            query.processAllAvailable()
        assert query.metricsUrl is not None
        with urllib.request.urlopen(query.metricsUrl) as page:
            lines = page.read().decode().splitlines()
    finally:
        query.stop()
    shown = sorted(line for line in lines if line.startswith("holdfast_watermark_timestamp_seconds"))
    name = f'holdfast_watermark_timestamp_seconds{{job="{job.name}",kind='
    assert shown == [f'{name}"operator",name="windows"}} 15.0', f'{name}"source",name="feed"}} 25.0']


def test_counters_outlive_the_task_manager_that_counted(running: Running) -> None:
    running.feed_and_wait()
    before = running.feed_and_wait()["metrics"]  # with the second commit the first checkpoint's uploads are known
    assert before["numberOfUploadRequests"] > 0 and before["uploadSizes"]["count"] > 0
    assert running.cluster is not None
    running.cluster.kill(0)
    until(lambda: bool(running.query.restarts))
    after = running.feed_and_wait()["metrics"]
    assert after["numRestarts"] == 1 and after["numInputRows"] == 18
    assert after["numRecordsIn"] == 18
    assert after["numberOfUploadRequests"] >= before["numberOfUploadRequests"]
    assert after["uploadSizes"]["count"] >= before["uploadSizes"]["count"]


@pytest.mark.parametrize("on_loss", ["rewind", "restart"])
def test_rows_that_are_processed_again_after_a_loss_count_once(on_loss: str) -> None:
    running = Running(task_managers=2, on_loss=on_loss)
    running.feed_and_wait()
    for _ in range(2):
        running.feed.put(ROWS)
        rows = running.query.lastProgress
        assert rows is not None
        until(lambda before=rows: running.query.lastProgress["batchId"] > before["batchId"])  # type: ignore[misc, index]
        assert running.cluster is not None
        restarts = len(running.query.restarts)
        running.cluster.kill(0)
        until(lambda before=restarts: len(running.query.restarts) > before)  # type: ignore[misc]
    metrics = running.feed_and_wait()["metrics"]
    running.query.stop()
    assert metrics["numInputRows"] > 24, "rows were read again"
    assert metrics["numRecordsIn"] == 24
    own = running.query.lastProgress["stateOperators"][0]["customMetrics"]  # type: ignore[index]
    assert own["numRecordsIn.0"] + own["numRecordsIn.1"] == 24


def test_nothing_is_served_without_a_port_or_after_the_end(running: Running) -> None:
    url = running.query.metricsUrl
    assert url is not None and url.startswith("http://127.0.0.1:")
    running.query.stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)
    job = new_job()
    job.read(Feed()).write(hf.NoopSink())
    query = start(job, hf.processing_time())
    assert query.metricsUrl is None
    query.stop()


def test_a_port_that_is_taken_is_refused_before_anything_is_taken_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = new_job(metrics_port=port)
        job.read(Feed()).write(hf.NoopSink())
        with pytest.raises(JobRefused, match=f"metrics_port={port}: nothing can listen there"):
            start(job, hf.processing_time())
        assert journal_numbers(store_of(job)) == []


@pytest.mark.parametrize("port", [-1, 65536, "9000", True])
def test_a_port_that_is_none_is_refused(port: Any) -> None:
    with pytest.raises(SettingsError, match="metrics_port"):
        new_job(metrics_port=port)
