"""Checkpoint settings that change while a query runs."""

import logging
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
from job_kit import Feed, new_job, new_storage, pairs, store_of

import holdfast as hf
from holdfast.checkpoint.trigger_texts import text_of, trigger_of
from holdfast.journal.fence import journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from waiting import until


def fed(storage: str | None = None, **settings: Any) -> tuple[hf.Job, Feed]:
    job, feed = new_job(storage, **settings), Feed(name="rows")
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
    return job, feed


def newest_record(job: hf.Job) -> CheckpointRecord:
    store = store_of(job)
    records = [read_record(store, number) for number in sorted(journal_numbers(store))]
    return next(each for each in reversed(records) if isinstance(each, CheckpointRecord))


def newest_settings(job: hf.Job) -> dict[str, str]:
    return newest_record(job).settings


MANUAL = hf.CheckpointConfig(trigger=hf.manual())


class Own:
    """A trigger of a user's own."""

    def next_due(self, now_s: float, last_s: float) -> float | None:
        return last_s + 0.02


class HeldSink(hf.MemorySink):
    """A sink whose target takes output only once it is let go."""

    open = threading.Event()

    def let_go(self) -> None:
        self.open.set()

    def publish(self, *arguments: Any) -> Any:
        if not self.open.is_set():
            raise OSError("the target is away")
        return super().publish(*arguments)


def test_single_settings_change_and_the_others_stay() -> None:
    patient = hf.CheckpointConfig(trigger=hf.manual(), timeout="7min", tolerable_failed_checkpoints=3)
    job, feed = fed(checkpoint=patient)
    query = start(job, hf.processing_time())
    query.update(trigger=hf.every("20ms"))
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.completed_checkpoints > 0)
    query.update(trigger=hf.manual(), min_pause="1s")
    feed.put(pairs((2, 2)))
    query.processAllAvailable()
    query.stop()
    found = newest_settings(job)
    assert (found["trigger"], found["timeout"], found["min_pause"]) == ("Manual()", "'7min'", "'1s'")
    assert found["tolerable_failed_checkpoints"] == "3"


def test_what_changed_survives_a_failover_and_the_next_start_goes_by_its_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "holdfast.jobmaster")
    clusters: list[LocalCluster] = []
    storage = new_storage()
    job, feed = fed(storage)
    query = start(job, hf.processing_time(), on_cluster=clusters.append)
    query.update(trigger=hf.every("20ms"), timeout="9min")
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.completed_checkpoints > 0)
    clusters[0].kill(0)
    until(lambda: len(query.restarts) == 1)
    before = query.totals.completed_checkpoints
    feed.put(pairs((2, 2)))
    until(lambda: query.totals.completed_checkpoints > before)
    query.stop()
    assert newest_settings(job)["timeout"] == "'9min'"
    start(fed(storage)[0], hf.processing_time()).stop()
    said = [each.getMessage() for each in caplog.records if "differ from those of the last checkpoint" in each.message]
    assert len(said) == 1
    assert "trigger=Manual() (was Every(interval='20ms')), timeout='10min' (was '9min')" in said[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"changelog": False}, "changelog.enabled=False: this query runs with changelog.enabled=True, and it can be"),
        (
            {"changelog": hf.ChangelogConfig(persist_delay="1s")},
            "changelog.persist_delay='1s': this query runs with changelog.persist_delay='10ms'",
        ),
        (
            {"checkpoint": hf.CheckpointConfig(changelog=hf.ChangelogConfig(log_handles_max=2))},
            "changelog.log_handles_max=2: this query runs with",
        ),
        ({"interval": "1s"}, "update() got interval, which CheckpointConfig does not have"),
        ({"trigger": hf.on_watermark("1h")}, "no source of this job has a watermark"),
        ({"keep": True}, "update(keep=True) names no setting"),
        ({"trigger": Own(), "keep": True}, "the trigger Own is a class of your own, which no record can hold"),
        ({"timeout": 0}, "timeout=0: allowed is anything above zero"),
        (
            {"timeout": "1s", "changelog": hf.ChangelogConfig(retries=hf.RetryPolicy.none())},
            "changelog.retries=RetryPolicy.none()",
        ),
    ],
    ids=["changelog", "uploads", "as a whole", "unknown", "never due", "nothing", "own", "value", "among others"],
)
def test_an_update_that_cannot_be_is_refused_by_name_and_changes_nothing(
    settings: dict[str, Any], message: str
) -> None:
    job, feed = fed(checkpoint=hf.CheckpointConfig(trigger=hf.manual()))
    query = start(job, hf.processing_time())
    with pytest.raises(hf.SettingsError) as raised:
        query.update(**settings)
    assert message in str(raised.value)
    feed.put(pairs((1, 1)))
    query.processAllAvailable()
    query.stop()
    assert newest_settings(job)["timeout"] == "'10min'"


def test_updates_that_are_kept_hold_over_restarts_until_they_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.jobmaster")
    job, feed = fed(storage := new_storage(), checkpoint=MANUAL)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)))
    query.processAllAvailable()
    query.update(timeout=timedelta(minutes=9), retained=3, keep=True)
    query.update(min_pause="1s")
    query.stop()
    assert newest_record(job).kept == {"timeout": 540.0, "retained": 3}
    query = start(fed(storage, checkpoint=hf.CheckpointConfig(timeout="1min", min_pause="2s"))[0], hf.processing_time())
    try:
        settings = query.view().settings
        assert (settings["timeout"], settings["retained"], settings["min_pause"]) == ("540.0", "3", "'2s'")
        assert query.status["keptSettings"] == {"timeout": "540.0", "retained": "3"}
        said = sorted(each.getMessage() for each in caplog.records if "was kept by an update" in each.message)
        assert len(said) == 2 and "timeout=540.0" in said[1] and "takes the place of timeout='1min'" in said[1]
        query.update(forget=True)
        assert query.view().settings["timeout"] == "'1min'" and query.status["keptSettings"] == {}
    finally:
        query.stop()
    assert newest_record(job).kept == {}


@pytest.mark.parametrize(
    "trigger",
    [
        hf.every(timedelta(seconds=20)),
        hf.cron("0 * * * *", "Europe/Berlin"),
        hf.manual(),
        hf.every("20ms"),
        hf.on_watermark("1h"),
    ],
    ids=str,
)
def test_each_trigger_is_kept_as_text_and_comes_back(trigger: Any) -> None:
    text = text_of(trigger)
    assert text is not None and trigger_of(text).next_due(1e9, 9e8) == trigger.next_due(1e9, 9e8)
    assert type(trigger_of(text)) is type(trigger) and text_of(trigger_of(text)) == text


def test_an_update_is_kept_while_no_row_comes_and_before_the_first_checkpoint() -> None:
    job, feed = fed(checkpoint=MANUAL)
    query = start(job, hf.processing_time())
    query.update(timeout="3min", keep=True)
    feed.put(pairs((1, 1)))
    query.processAllAvailable()
    first = newest_record(job)
    query.update(retained=2, keep=True)
    again = newest_record(job)
    query.stop()
    assert first.kept == {"timeout": "3min"} and again.kept == {"timeout": "3min", "retained": 2}
    assert (again.batch, again.manifests, again.settings["retained"]) == (first.batch, first.manifests, "2")


def test_an_update_is_recorded_with_output_that_waits_and_publishes_it_once() -> None:
    job, feed = new_job(storage := new_storage(), checkpoint=MANUAL), Feed(name="rows")
    sink = HeldSink(name="out")
    job.read(feed).write(sink)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1), (2, 2)))
    until(lambda: query.totals.rows == 2)
    query.trigger_checkpoint(30)
    query.update(retained=2, keep=True)
    record = newest_record(job)
    assert record.kept == {"retained": 2} and len(record.groups["out"]) == 1
    sink.let_go()
    query.processAllAvailable()
    query.stop()
    assert sorted(row["k"] for row in sink.rows()) == [1, 2]
    assert newest_record(job).groups == {} and newest_record(job).kept == {"retained": 2}
    assert store_of(job).url == storage


def test_a_start_takes_back_what_was_kept_and_refuses_what_does_not_fit() -> None:
    feed = Feed("at TIMESTAMP_NTZ", name="rows")

    def made(watermark: bool, **settings: Any) -> hf.Job:
        job = new_job(storage, checkpoint=MANUAL, **settings)
        rows = job.read(feed)
        (rows.with_watermark("at", "0s") if watermark else rows).write(hf.NoopSink())
        return job

    storage = new_storage()
    job = made(True)
    query = start(job, hf.processing_time())
    feed.put([{"at": datetime(2026, 1, 1)}])
    query.processAllAvailable()
    query.update(trigger=hf.on_watermark("1h"), keep=True)
    query.stop()
    with pytest.raises(hf.JobRefused, match=r"trigger: kept by query.*no source of this job has a watermark.*forget_"):
        start(made(False), hf.processing_time())
    start(made(False, forget_updates=True), hf.processing_time()).stop()
    assert newest_record(job).kept == {}


def test_a_trigger_of_ones_own_is_taken_and_is_recorded_by_its_type() -> None:
    job, feed = fed()
    query = start(job, hf.processing_time())
    query.update(checkpoint=hf.CheckpointConfig(trigger=Own()))
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.completed_checkpoints > 0)
    query.stop()
    assert newest_settings(job)["trigger"] == "Own"
