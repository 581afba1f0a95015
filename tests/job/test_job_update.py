"""Checkpoint settings that change while a query runs."""

import logging
from typing import Any

import pytest
from job_kit import Feed, new_job, new_storage, pairs, store_of

import holdfast as hf
from holdfast.journal.fence import journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from waiting import until


def fed(storage: str | None = None, **settings: Any) -> tuple[hf.Job, Feed]:
    job, feed = new_job(storage, **settings), Feed(name="rows")
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
    return job, feed


def newest_settings(job: hf.Job) -> dict[str, str]:
    store = store_of(job)
    records = [read_record(store, number) for number in sorted(journal_numbers(store))]
    return next(each for each in reversed(records) if isinstance(each, CheckpointRecord)).settings


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
        ({"timeout": 0}, "timeout=0: allowed is anything above zero"),
        (
            {"timeout": "1s", "changelog": hf.ChangelogConfig(retries=hf.RetryPolicy.none())},
            "changelog.retries=RetryPolicy.none()",
        ),
    ],
    ids=["changelog", "uploads", "as a whole", "unknown", "value", "among others"],
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


class Own:
    """A trigger of a user's own."""

    def next_due(self, now_s: float, last_s: float) -> float | None:
        return last_s + 0.02


def test_a_trigger_of_ones_own_is_taken_and_is_recorded_by_its_type() -> None:
    job, feed = fed()
    query = start(job, hf.processing_time())
    query.update(checkpoint=hf.CheckpointConfig(trigger=Own()))
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.completed_checkpoints > 0)
    query.stop()
    assert newest_settings(job)["trigger"] == "Own"
