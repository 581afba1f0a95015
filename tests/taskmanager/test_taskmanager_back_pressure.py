"""A batch waits for room in upload, and for nothing else that is going on."""

import threading

import msgspec
import pytest

from holdfast.changelog_config import ChangelogConfig, RetryPolicy
from holdfast.errors import StaleCall
from holdfast.storage.store import open_store
from holdfast.testing.stores import Fault, FaultyStore
from taskmanager_kit import HOOKS, OneTaskManager
from waiting import until


class Held:
    """Uploads of logs wait until they are let go; `order` notes the events."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.order: list[str] = []

    def __call__(self, operation: str, name: str) -> Fault | None:
        if operation == "put" and name.startswith("dstl/"):
            assert self.opened.wait(60)
            self.order.append("stored")
        return None


@pytest.fixture
def held():
    held = Held()
    HOOKS.before = lambda context: held.order.append(f"processed {context.batch}")
    yield held
    held.opened.set()
    HOOKS.before = lambda context: None


@pytest.fixture
def world(tmp_path, held):
    store = FaultyStore(open_store(f"file://{tmp_path}/store"), held)
    world = OneTaskManager(tmp_path, parallelism=1, store=store)
    patient = RetryPolicy(timeout=None)
    bounds = {"persist_size_threshold": 1, "in_flight_max": 1, "gathered_size_max": 0}
    small = ChangelogConfig(persist_delay=0, retries=patient, **bounds).settings()
    world.task_manager.deploy(msgspec.structs.replace(world.deployment(), changelog=small))
    yield world
    held.opened.set()
    world.task_manager.close()


def test_past_the_bound_in_flight_the_next_batch_begins_only_when_something_was_stored(world, held):
    world.batch(0, 1, 2, 3)
    world.task_manager.cut(1, 1, 0)
    until(lambda: world.task_manager.metrics()["uploadBackPressured"] == 1)
    processing = threading.Thread(target=world.process, args=(1, world.send(1, 1, 2, 3)))
    processing.start()
    held.opened.set()
    processing.join(60)
    assert held.order[:2] == ["processed 0", "stored"]  # the log; the manifest behind it may be stored later
    assert "processed 1" in held.order
    assert world.task_manager.metrics()["uploadBackPressured"] == 0


def test_a_batch_that_waits_for_room_is_given_up_when_the_run_ends_or_the_task_manager_is_deployed_anew(world, held):
    world.batch(0, 1, 2, 3)
    world.task_manager.cut(1, 1, 0)
    until(lambda: world.task_manager.metrics()["uploadBackPressured"] == 1)
    streams = world.send(1, 1, 2, 3)
    refused: list[BaseException] = []

    def process() -> None:
        with pytest.raises(StaleCall) as refusal:
            world.process(1, streams)
        refused.append(refusal.value)

    processing = threading.Thread(target=process)
    processing.start()
    world.task_manager.undo(2)
    world.task_manager.deploy(world.deployment(run=3))
    processing.join(60)
    assert len(refused) == 1
    assert held.order == ["processed 0"]
