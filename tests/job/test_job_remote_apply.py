"""Remote Apply: standbys that follow materialize the tables, and owners upload logs only."""

import pytest
from job_kit import new_job
from test_job_standby_state import ROWS, Followed, followed

import holdfast as hf
from holdfast.errors import SettingsError
from holdfast.formats.manifests import load_manifests
from holdfast.materialize import policy
from holdfast.storage import names
from holdfast.stored_state.opened import open_checkpoint, open_storage
from holdfast.taskmanager.remote_apply import RemoteApply
from sampling import some
from waiting import until


def by_follower(handles_max: int = 2) -> hf.CheckpointConfig:
    changelog = hf.ChangelogConfig(
        materialized_by="follower", log_handles_max=handles_max, materialization_interval="1h"
    )
    return hf.CheckpointConfig(trigger=hf.manual(), changelog=changelog)


def writers(job: Followed) -> list[int]:
    """The incarnations that have stored the materialized parts of the newest checkpoint."""
    storage = open_storage(job.storage)
    record = open_checkpoint(storage).record
    handles = [
        each for manifest in load_manifests(storage, record.manifests, record.writers()) for each in manifest.tables
    ]
    found = [names.parse(part.object) for each in handles for part in each.materialized]
    return sorted({each.incarnation for each in found if isinstance(each, names.SharedName)})


def incarnation(job: Followed, number: int) -> int:
    return int(job.process(number).incarnation)


def work_until_followers_have_stored(job: Followed) -> None:
    """Change rows of each key group, with checkpoints, until the newest checkpoint names a follower's table."""

    def is_named() -> bool:
        job.work(range(0, ROWS, 3))
        until(job.is_up_to_date)
        return bool(writers(job))

    job.work(range(ROWS))
    until(is_named)


@pytest.mark.parametrize("state", some([hf.HashMapState(), hf.RocksDBState()], 1), ids=["hashmap", "rocksdb"])
def test_a_follower_stores_the_tables_and_a_later_start_continues_from_them(state):
    with followed(state=state, checkpoint=by_follower()) as job:
        work_until_followers_have_stored(job)
        assert writers(job) == [incarnation(job, 2)]
        assert job.query.status["materializedBy"] == "followers"
        owners = [job.process(number).metrics for number in (0, 1)]
        assert not any(each.get("startedMaterialization") for each in owners)
        assert job.query.checkpoints[-1].materialized_bytes > 0
    stored = hf.read_state(job.storage, "counts")
    found = dict(zip(stored.column("k").to_pylist(), stored.column("n.count").to_pylist(), strict=True))
    assert found == job.counts


def test_the_follower_takes_over_and_the_next_follower_stores_the_tables():
    with followed(state=hf.RocksDBState(), checkpoint=by_follower()) as job:
        work_until_followers_have_stored(job)
        job.clusters[0].kill(1)
        until(lambda: len(job.query.restarts) == 1)
        until(lambda: job.query.status["standbyTaskManagers"] == 1)
        [standby] = [each for each in job.query.view().processes if each.is_standby]
        until(lambda: (job.work(range(0, ROWS, 3)), int(standby.incarnation) in writers(job))[1])


def test_without_a_follower_the_owners_store_their_tables_after_a_while_and_the_status_says_so(monkeypatch):
    monkeypatch.setattr("holdfast.taskmanager.hosting.FOLLOWER_S_MAX", 0.01)
    monkeypatch.setattr(RemoteApply, "materialize", lambda self, followed, batch: None)
    assert policy.FOLLOWER_S_MAX > 1
    with followed(checkpoint=by_follower()) as job:
        job.clusters[0].start = lambda start: None  # type: ignore[method-assign]
        job.clusters[0].kill(2)
        until(lambda: job.query.status["standbyTaskManagers"] == 0)
        until(lambda: "owners, in 2 of 2 TaskManagers: no standby" in job.query.status["materializedBy"])
        job.work(range(ROWS))
        until(lambda: (job.work(range(0, ROWS, 3)), writers(job))[1] == [incarnation(job, 0), incarnation(job, 1)])


@pytest.mark.parametrize(
    ("changelog", "settings", "message"),
    [
        ({"materialized_by": "nobody"}, {}, "materialized_by='nobody'"),
        ({"materialized_by": "follower", "enabled": False}, {}, "materialized_by='follower' with enabled=False"),
        ({"materialized_by": "follower"}, {}, "is not allowed without standby_state=True"),
    ],
)
def test_settings_without_somebody_who_follows_are_refused(changelog, settings, message):
    with pytest.raises(SettingsError, match=message):
        new_job(checkpoint=hf.CheckpointConfig(changelog=hf.ChangelogConfig(**changelog)), **settings)
