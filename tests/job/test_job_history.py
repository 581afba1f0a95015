"""Outcomes of triggers: in the query, in the storage over restarts, and by `holdfast checkpoints`."""

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_kit import Feed, new_job, new_storage, pairs, store_of
from typer.testing import CliRunner

import holdfast as hf
from holdfast import cli
from holdfast.formats.history import SubtaskPart, read_stored, stored_epochs
from holdfast.formats.store_use import rates
from holdfast.storage import names
from holdfast.storage.store import open_store
from holdfast.testing import FaultyStore, run, start
from holdfast.testing.local import LocalCluster
from holdfast.testing.stores import Fault
from waiting import until

SOFT = hf.SnapshotAvailability.SOFT_FAILURE


class Refuses(hf.ProcessFunction):
    """Refuses as often as it is told to."""

    def __init__(self, times: int) -> None:
        self.times = times

    def process(self, row: Any, ctx: Any) -> Any:
        return ()

    def is_snapshot_available(self) -> hf.SnapshotAvailability:
        self.times -= 1
        return SOFT.because("not now") if self.times >= 0 else hf.SnapshotAvailability.AVAILABLE


def fed(storage: str, refusals: int = 0, **settings: Any) -> tuple[hf.Job, Feed]:
    job, feed = new_job(storage, **settings), Feed(name="rows")
    job.read(feed).key_by("k").process(Refuses(refusals), "k BIGINT", name="op").write(hf.NoopSink())
    return job, feed


def test_a_refused_and_a_completed_trigger_stand_in_the_history_with_their_figures() -> None:
    job, feed = fed(new_storage(), refusals=1)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.batches == 1)
    query.trigger_checkpoint(timeout=30)
    query.stop()
    refused, completed = query.checkpoints
    assert (refused.outcome, refused.trigger, refused.number) == ("refused", "request", -1)
    assert refused.reason == "refused by operator 'op', subtask 0 (soft): not now"
    assert not refused.counted
    assert (completed.outcome, completed.trigger, completed.reason) == ("completed", "request", "")
    assert completed.number > 0 and completed.batch == 2
    assert completed.at_s >= refused.at_s > 1.7e9
    (part,) = completed.task_managers
    assert part.answered and part.address == "in process"
    assert part.incremental_bytes == completed.incremental_bytes
    assert part.subtasks == {"op, key groups 0 to 127": SubtaskPart(part.incremental_bytes, part.full_bytes)}


def test_a_failed_checkpoint_stands_in_the_history_with_its_cause_and_who_answered() -> None:
    patient = hf.CheckpointConfig(
        trigger=hf.manual(),
        tolerable_failed_checkpoints=5,
        timeout="20s",
        changelog=hf.ChangelogConfig(retries=hf.RetryPolicy.none(), gathered_size_max=0),
    )
    job, feed = new_job(new_storage(), checkpoint=patient), Feed(name="rows")
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
    failing = True

    def decide(operation: str, name: str) -> Fault | None:
        return Fault.FAIL if failing and operation == "put" and name.startswith(names.CHANGELOG) else None

    query = start(job, hf.processing_time(), store=FaultyStore(store_of(job), decide))
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.batches == 1)
    with pytest.raises(hf.CheckpointFailed):
        query.trigger_checkpoint(timeout=30)
    failing = False
    query.processAllAvailable()
    query.stop()
    failed, *_, completed = query.checkpoints
    assert (failed.outcome, failed.counted, failed.number) == ("declined", True, -1)
    assert "declined by TaskManager 0" in failed.reason
    assert not failed.task_managers[0].answered
    assert completed.outcome == "completed"
    assert read_stored(store_of(job)).checkpoints == query.checkpoints


def test_uploads_that_were_tried_again_are_counted_for_the_checkpoint_and_the_subtask_that_they_held_up() -> None:
    retries = hf.RetryPolicy.fixed(3, next_attempt_delay="1ms")
    changelog = hf.ChangelogConfig(retries=retries, gathered_size_max=0)
    patient = hf.CheckpointConfig(trigger=hf.manual(), changelog=changelog)
    job, feed = new_job(new_storage(), checkpoint=patient), Feed(name="rows")
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
    failures = [Fault.FAIL, Fault.FAIL]

    def decide(operation: str, name: str) -> Fault | None:
        return failures.pop() if failures and operation == "put" and name.startswith(names.CHANGELOG) else None

    query = start(job, hf.processing_time(), store=FaultyStore(store_of(job), decide))
    for key in (1, 2):
        feed.put(pairs((key, 1)))
        query.processAllAvailable()
    query.stop()
    first, second = query.checkpoints
    (part,) = first.task_managers
    (subtask,) = part.subtasks.values()
    assert [(each.retries, each.hedges) for each in (first, part, subtask)] == [(2, 0)] * 3
    assert (second.retries, second.hedges) == (0, 0)


def test_a_checkpoint_that_a_lost_task_manager_ended_says_so() -> None:
    clusters: list[LocalCluster] = []
    job, feed = fed(new_storage(), refusals=10_000)
    query = start(job, hf.processing_time(), on_cluster=clusters.append)
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.batches == 1)
    with pytest.raises(TimeoutError):
        query.trigger_checkpoint(timeout=0.01)
    clusters[0].kill(0)
    until(lambda: len(query.restarts) == 1)
    query.stop()
    assert [each.outcome for each in query.checkpoints][:1] == ["refused"]


def test_the_storage_keeps_the_history_over_restarts_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = new_storage()
    found: list[Any] = []
    for refusals in (0, 1, 0):
        job, feed = fed(storage, refusals)
        query = start(job, hf.processing_time())
        feed.put(pairs((1, 1)) * (len(found) + 1))
        query.processAllAvailable()
        query.stop()
        found += query.checkpoints
        assert read_stored(store_of(job)).checkpoints == found
        assert len(stored_epochs(store_of(job))) == 1, "older objects go"
    assert [each.outcome for each in found if each.outcome != "completed"] == ["refused"]
    assert len({each.epoch for each in found}) == 3
    monkeypatch.setattr("holdfast.jobmaster.checkpoints.history.ENTRIES_MAX", 2)
    job, feed = fed(storage)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)) * 10)
    query.processAllAvailable()
    query.stop()
    assert read_stored(store_of(job)).checkpoints == [*found, *query.checkpoints][-2:]


def test_a_damaged_history_keeps_no_job_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    storage = new_storage()
    job, feed = fed(storage)
    store_of(job).put(names.history(1), b"damaged")
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)))
    query.processAllAvailable()
    query.stop()
    assert "the history of checkpoints begins anew" in caplog.text
    assert read_stored(store_of(job)).checkpoints == query.checkpoints


def test_the_command_lists_what_became_of_triggers(tmp_path: Path) -> None:
    job, feed = fed(f"file://{tmp_path}", refusals=1)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)))
    query.processAllAvailable()
    query.stop()
    shown = CliRunner().invoke(cli.app, ["checkpoints", str(tmp_path)])
    assert shown.exit_code == 0
    assert "refused" in shown.output and "completed" in shown.output and "not now" in shown.output
    read = CliRunner().invoke(cli.app, ["checkpoints", str(tmp_path), "--json"])
    entries = json.loads(read.output)["checkpoints"]
    assert [each["outcome"] for each in entries] == [each.outcome for each in query.checkpoints]
    assert entries[-1]["task_managers"][0]["answered"] is True


def test_files_and_targets_outside_of_the_storage_are_counted_too(tmp_path: Path) -> None:
    """Requests of a source's files and of a sink's folder have their price as well."""
    rows = open_store("memory://counted-rows")
    table = io.BytesIO()
    pq.write_table(pa.table({"v": range(100_000)}), table)
    rows.put("a.parquet", table.getvalue())
    job = new_job(new_storage())
    job.read(hf.FileSource("memory://counted-rows/*.parquet")).write(hf.ParquetSink(f"file://{tmp_path}/out"))
    query = run(job)
    lanes = {each.lane: each for each in query.view().store_use.lanes}
    [file] = (tmp_path / "out").glob("part-*")
    assert (lanes["senders"].requests, lanes["senders"].size_bytes) == (1, file.stat().st_size)
    assert lanes["reads"].size_bytes > len(table.getvalue()) // 2 + file.stat().st_size


def test_the_requests_that_a_query_shows_are_those_that_reach_its_storage(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()

    def note(operation: str, name: str) -> None:
        asked[f"{operation} {name.partition('/')[0]}"] += 1

    job, feed = fed(tmp_path.as_uri(), prices=hf.StorePrices(per_1000_puts=1000.0))
    query = start(job, hf.processing_time("0s"), store=FaultyStore(store_of(job), note))

    def requests() -> dict[str, int]:
        """Requests by lane, once a batch after the checkpoint has told those of the TaskManager."""
        feed.put(pairs((1, 1)))
        query.trigger_checkpoint(timeout=30)
        feed.put(pairs((1, 1)))
        query.processAllAvailable()
        return {each.lane: each.requests for each in query.view().store_use.lanes}

    before, asked_before = requests(), asked.copy()
    requests()
    after, made = requests(), asked - asked_before
    growth = Counter(after) - Counter(before)
    assert growth["gathered"] == made["put gathered"] == 2
    assert growth["record"] == made["create journal"] == 2
    puts = sum(each for kind, each in made.items() if kind.startswith(("put", "create")))
    assert sum(growth[lane] for lane in ("gathered", "record", "log", "other")) == puts
    shown = {each.lane: each for each in rates(query.view().store_use, job.prices)}
    assert shown["record"].cost_per_hour == pytest.approx(shown["record"].requests_per_hour)
    query.stop()
    result = CliRunner().invoke(cli.app, ["checkpoints", str(tmp_path), "--json", "--prices", "1,0,0"])
    *lanes, total = json.loads(result.stdout)["store_use"]["lanes"]
    assert {each["lane"] for each in lanes} >= {"gathered", "record", "listings"}
    puts = sum(each["requests_per_hour"] for each in lanes if each["kind"] in ("put", "list"))
    assert total["lane"] == "all" and total["cost_per_hour"] == pytest.approx(puts / 1000)
    text = CliRunner().invoke(cli.app, ["checkpoints", str(tmp_path)]).stdout
    assert "requests to the storage" in text and "USD an hour" in text
