"""A TaskManager's part of a checkpoint that is too large to travel: logs and manifest in one object, in one request."""

import random
import threading

from msgspec.structs import replace

from holdfast.changelog_config import ChangelogConfig, RetryPolicy
from holdfast.references import object_of
from holdfast.storage import names
from holdfast.storage.store import open_store
from holdfast.testing.stores import Fault, FaultyStore
from taskmanager_kit import NotingJobMaster, OneTaskManager
from waiting import until

KEYS = random.Random(1).sample(range(1 << 60), 2_000)
"""Keys whose changes take more bytes than travel."""


class Puts:
    """A `FaultyStore`'s decision: puts fail while `failing`, and wait until they are let go."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failing = False
        self.let_go = threading.Event()
        self.let_go.set()

    def __call__(self, operation: str, name: str) -> Fault | None:
        if operation != "put":
            return None
        self.names.append(name)
        assert self.let_go.wait(60)
        return Fault.FAIL if self.failing else None


def world(tmp_path, puts, **settings):
    store = FaultyStore(open_store(f"file://{tmp_path}/store"), puts)
    made = OneTaskManager(tmp_path, parallelism=1, store=store, job_master=NotingJobMaster())
    settings = {"persist_delay": 0, "gathered_size_max": 4_000, "retries": RetryPolicy.none()} | settings
    changelog = ChangelogConfig(**settings)
    made.task_manager.deploy(replace(made.deployment(), changelog=changelog.settings()))
    return made


def cut(made, checkpoint, batch, *keys):
    made.batch(batch, *keys)
    made.task_manager.cut(1, checkpoint, batch)


def restored(made, tmp_path, acknowledgement):
    other = OneTaskManager(tmp_path, 1, store=made.store, incarnation=2)
    other.task_manager.deploy(other.deployment(restore=made.handles(acknowledgement)))
    counts = other.counts()
    other.task_manager.close()
    return counts


def test_logs_and_manifest_are_one_object_which_is_acknowledged_once_it_is_stored(tmp_path):
    puts = Puts()
    puts.let_go.clear()
    made = world(tmp_path, puts)
    cut(made, 1, 0, *KEYS)
    until(lambda: puts.names)
    assert not made.job_master.acknowledgements
    puts.let_go.set()
    acknowledgement = made.acknowledged(1)
    assert puts.names == [object_of(acknowledgement.manifest)] == acknowledgement.objects
    assert names.meaning(acknowledgement.manifest) == names.ManifestName(1, 1, 0)
    assert acknowledgement.part == b""
    assert restored(made, tmp_path, acknowledgement) == dict.fromkeys(KEYS, 1)
    made.task_manager.close()


def test_the_next_checkpoint_names_the_logs_where_they_lie_whether_or_not_the_first_completed(tmp_path):
    puts = Puts()
    made = world(tmp_path, puts)
    cut(made, 1, 0, *KEYS)
    made.acknowledged(1)
    made.task_manager.abort_checkpoint(1, 1)
    cut(made, 2, 1, KEYS[0])
    second = made.acknowledged(2)
    assert second.part and len(puts.names) == 1, "the new log is small"
    gathered = names.gathered_object(1, 2)
    made.store.put(gathered, second.part)
    place = second.manifest_start, len(second.part) - second.manifest_start
    second = replace(second, manifest=names.manifest_part(gathered, *place, 0))
    assert restored(made, tmp_path, second) == dict.fromkeys(KEYS, 1) | {KEYS[0]: 2}
    made.task_manager.close()


def test_logs_that_could_not_be_stored_go_with_the_manifest_of_the_next_checkpoint(tmp_path):
    puts = Puts()
    puts.failing = True
    made = world(tmp_path, puts)
    cut(made, 1, 0, *KEYS)
    until(lambda: made.job_master.declines)
    made.job_master.declines.clear()
    made.task_manager.abort_checkpoint(1, 1)
    puts.failing = False
    cut(made, 2, 1, KEYS[0])
    second = made.acknowledged(2)
    assert second.objects == [puts.names[-1]] and len(puts.names) == 2
    assert restored(made, tmp_path, second) == dict.fromkeys(KEYS, 1) | {KEYS[0]: 2}
    made.task_manager.close()


def test_logs_of_several_objects_are_stored_side_by_side_and_the_manifest_behind_them(tmp_path):
    puts = Puts()
    made = world(tmp_path, puts, object_size_max=10_000, gathered_size_max=0)
    cut(made, 1, 0, *KEYS)
    acknowledgement = made.acknowledged(1)
    assert len(puts.names) > 2 and puts.names[-1] == object_of(acknowledgement.manifest)
    assert set(puts.names) == set(acknowledgement.objects)
    assert restored(made, tmp_path, acknowledgement) == dict.fromkeys(KEYS, 1)
    made.task_manager.close()
