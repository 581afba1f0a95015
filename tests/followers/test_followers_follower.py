"""A follower of a TaskManager's subtasks holds the owner's state at each checkpoint; it names missing objects."""

from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from holdfast.errors import StorageError
from holdfast.followers.follower import Follower
from holdfast.formats.handles import TableHandle
from holdfast.graph.program import Program
from holdfast.settings import HashMapState, RocksDBState, StateBackend
from taskmanager_kit import MAX_PARALLELISM, OneTaskManager, counting, program


class Followed:
    """An owner with two subtasks, and a follower of both."""

    def __init__(self, tmp_path: Path, state: StateBackend) -> None:
        self.shipped = program(counting(), state=state)
        self.owner = OneTaskManager(tmp_path)
        self.owner.task_manager.deploy(self.owner.deployment(shipped=self.shipped))
        self.follower = self.new_follower(tmp_path)
        self.checkpoint_id = 0

    def new_follower(self, tmp_path: Path) -> Follower:
        made: Program = cloudpickle.loads(self.shipped)
        local = str(tmp_path / "followed")
        return Follower(made, self.owner.subtasks([]), MAX_PARALLELISM, self.owner.store, local_dir=local)

    def checkpoint(self, batch: int) -> list[TableHandle]:
        self.checkpoint_id += 1
        self.owner.task_manager.cut(1, self.checkpoint_id, batch)
        handles = self.owner.handles(self.owner.acknowledged(self.checkpoint_id))
        self.owner.task_manager.complete(1, self.checkpoint_id)
        return handles

    def counts(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for each in self.follower._subtasks:
            rows = each.operator.tables["state"].snapshot()
            found |= dict(zip(rows["k"].to_pylist(), rows["n.count"].to_pylist(), strict=True))
        return found

    def close(self) -> None:
        self.follower.close()
        self.owner.task_manager.close()


@pytest.fixture(params=[HashMapState(), RocksDBState()], ids=["hashmap", "rocksdb"])
def followed(request: Any, tmp_path: Path) -> Any:
    made = Followed(tmp_path, request.param)
    yield made
    made.close()


def test_a_follower_holds_the_owners_state_at_each_checkpoint(followed):
    for batch in range(6):
        followed.owner.batch(batch, *range(batch, 100 + batch))
        handles = followed.checkpoint(batch)
        assert followed.follower.follow(batch + 1, handles) == batch + 1
        assert followed.counts() == followed.owner.counts()
    assert followed.follower.followed.made_anew == 2
    assert followed.follower.follow(6, []) == 6, "it holds that checkpoint already"


def test_a_follower_needs_the_new_pieces_alone(followed):
    followed.owner.batch(0, *range(100))
    first = followed.checkpoint(0)
    assert set(followed.follower.needed(first)) == {name for each in first for name in each.objects()}
    followed.follower.follow(1, first)
    assert followed.follower.needed(first) == []
    followed.owner.batch(1, 1)
    second = followed.checkpoint(1)
    new = {name for each in second for name in each.objects()} - {name for each in first for name in each.objects()}
    assert set(followed.follower.needed(second)) == new
    assert followed.follower.objects == {name for each in first for name in each.objects()}


def test_a_follower_that_misses_an_object_names_it_and_goes_on_with_a_later_checkpoint(followed):
    followed.owner.batch(0, *range(100))
    handles = followed.checkpoint(0)
    lost = [
        msgspec.structs.replace(each, log=[msgspec.structs.replace(p, object="dstl/gone") for p in each.log])
        for each in handles
    ]
    with pytest.raises(StorageError, match=r"(?s)operator 'count', subtask .*dstl/gone"):
        followed.follower.follow(1, lost)
    assert followed.follower.followed.number is None
    followed.owner.batch(1, 5)
    followed.follower.follow(2, followed.checkpoint(1))
    assert followed.counts() == followed.owner.counts()


def test_a_follower_that_was_ended_begins_no_further_subtask(followed):
    followed.owner.batch(0, *range(100))
    followed.follower.end()
    assert followed.follower.follow(1, followed.checkpoint(0)) is None
    taken = followed.follower.take()
    assert set(taken) == {("count", 0), ("count", 1)}
    for each in taken.values():
        each.close()
