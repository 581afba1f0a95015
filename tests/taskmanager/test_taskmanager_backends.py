"""State in RocksDB: its local folders, its gauges, and a cut that restores elsewhere."""

import itertools

import pytest

from holdfast.settings import RocksDBState
from taskmanager_kit import OneTaskManager, counting, program
from waiting import until


@pytest.fixture
def world(tmp_path):
    world = OneTaskManager(tmp_path, parallelism=2)
    yield world
    world.task_manager.close()


def deploy(world: OneTaskManager, limit: int = 0, **more) -> None:
    shipped = program(counting(), state=RocksDBState(cache_max_entries=limit))
    world.task_manager.deploy(world.deployment(shipped=shipped, **more))


def test_each_table_has_a_fresh_local_folder_that_ends_with_its_deployment(world, tmp_path):
    spill = tmp_path / "spill"
    left_by_a_crash = spill / "holdfast-state-left"
    left_by_a_crash.mkdir(parents=True)
    deploy(world)
    assert not left_by_a_crash.exists()
    first = {each.name for each in spill.iterdir()}
    assert len(first) == 2
    world.batch(0, 1, 2, 3)
    world.run = 2
    deploy(world, run=2)
    second = {each.name for each in spill.iterdir()}
    assert len(second) == 2
    assert not first & second
    assert world.counts() == {}
    world.task_manager.close()
    assert not list(spill.iterdir())


def test_the_share_of_rows_found_in_memory_is_a_gauge_of_each_task(world):
    deploy(world, limit=100)
    batches = itertools.count()

    def found() -> dict[str, float]:
        world.batch(next(batches), *range(50))
        metrics = world.task_manager.metrics()
        return {name: value for name, value in metrics.items() if name.startswith("stateCacheHitRatio")}

    assert set(found()) == {"stateCacheHitRatio.count.0", "stateCacheHitRatio.count.1"}
    # It is that of the last second: the first batch, which found nothing, may have had a ratio of its own.
    until(lambda: all(0.0 < value <= 1.0 for value in found().values()))
    assert world.task_manager.metrics()["stateRows"] == 50


@pytest.mark.parametrize("limit", [0, 5])
def test_a_cut_restores_at_another_parallelism_and_on_another_backend(world, tmp_path, limit):
    deploy(world, limit)
    world.batch(0, *range(50))
    world.batch(1, *range(25))
    world.task_manager.cut(1, 1, 1)
    acknowledgement = world.acknowledged(1)
    world.batch(2, *range(50))
    world.task_manager.complete(1, 1)
    for again in (program(), program(state=RocksDBState(cache_max_entries=3))):
        other = OneTaskManager(tmp_path, parallelism=3, store=world.store, incarnation=2)
        handles = world.handles(acknowledgement)
        other.task_manager.deploy(other.deployment(shipped=again, restore=handles, first_batch=2))
        assert other.counts() == {key: 2 if key < 25 else 1 for key in range(50)}
        other.task_manager.close()
