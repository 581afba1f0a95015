"""Objects that dead processes left are found and deleted while the job goes on. In process."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from kills_in_process import Driver, Pause, die_at
from kills_pipelines import Shape, check

from holdfast import failpoints
from holdfast.cleanup.janitor import EpochJanitor
from holdfast.storage import names
from holdfast.storage.store import ObjectStore, open_store
from waiting import until

SHAPE = Shape("every", "parquet", rows=2400, rows_per_batch=40, interval_s=0.005)
LARGE = replace(SHAPE, rows=60_000, rows_per_batch=30_000, keys=20_000, parallelism=1, task_managers=1)


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


def staged(folder: Path) -> list[str]:
    return [info.name for info in open_store((folder / "out").as_uri()).list("_staging/")]


def test_what_an_older_epoch_staged_at_a_sinks_own_target_is_swept_after_the_takeover(tmp_path):
    assert die_at(LARGE, tmp_path, "jobmaster.record.before")
    left = staged(tmp_path)
    assert left, "nothing was staged when it died"
    deployed = Pause()
    failpoints.arm("jobmaster.deploy.after", deployed)
    driver = Driver(LARGE, tmp_path).start()
    assert deployed.held.wait(60)
    until(lambda: not set(left) & set(staged(tmp_path)))
    deployed.go_on()
    driver.finish()
    check(LARGE, tmp_path)


def test_what_the_base_is_still_to_publish_is_not_swept(tmp_path):
    assert die_at(LARGE, tmp_path, "jobmaster.publish.before")
    assert staged(tmp_path)
    publishing, deployed, swept = Pause(), Pause(), threading.Event()
    failpoints.arm("jobmaster.publish.before", publishing)
    failpoints.arm("jobmaster.deploy.after", deployed)
    with mock.patch("holdfast.cleanup.janitor.EpochJanitor.run", _then(EpochJanitor.run, swept.set)):
        driver = Driver(LARGE, tmp_path).start()
        assert publishing.held.wait(60) and deployed.held.wait(60) and swept.wait(60)
    publishing.go_on()
    deployed.go_on()
    driver.finish()
    check(LARGE, tmp_path)


def _then(call: Callable[..., None], after: Callable[[], None]) -> Callable[..., None]:
    def both(*args: object) -> None:
        call(*args)
        after()

    return both


def logs(store: ObjectStore) -> set[str]:
    """Names of the objects with logs; the manifest of a checkpoint lies behind the last of its logs."""
    return {info.name for info in store.list(names.CHANGELOG)}


def test_manifests_whose_acknowledgements_died_with_their_task_manager_are_deleted_after_the_failover(tmp_path):
    store = open_store((tmp_path / "storage").as_uri())
    alone = replace(SHAPE, gathered_size_max=0)  # manifests that travel leave nothing
    driver = Driver(alone, tmp_path)
    committed = Pause()
    left: list[str] = []

    def kill_all() -> None:
        failpoints.disarm()
        for index in range(alone.task_managers):
            driver.kill_task_manager(index)
        left.extend(logs(store))  # of the first checkpoint: no record names any of them
        failpoints.arm("jobmaster.committed", committed)

    failpoints.arm("taskmanager.cut.manifest", kill_all)
    driver.start()
    assert committed.held.wait(60)
    assert left
    until(lambda: not set(left) & logs(store))
    committed.go_on()
    driver.finish()
    check(alone, tmp_path)
