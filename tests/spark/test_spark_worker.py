"""Objects that a Python worker of Spark keeps from task to task; without a session."""

import gc
from types import SimpleNamespace

import cloudpickle
import msgspec
import pytest

from holdfast.graph.program import Program
from holdfast.spark import tasks


@pytest.fixture
def fresh_worker():
    tasks._workers.clear()
    gc.unfreeze()
    yield
    tasks._workers.clear()
    gc.unfreeze()
    gc.freeze()  # collected tests are out of sight again, as conftest.py has it


def shipment(secret: str):
    program = cloudpickle.dumps(Program({}, (), {}, {}, {}, {}, {}))
    return SimpleNamespace(value=msgspec.msgpack.encode(tasks.Shipment("job", program, "memory://worker", {}, secret)))


def test_what_a_worker_has_loaded_is_searched_for_garbage_a_few_times_only(fresh_worker):
    job = shipment("first")
    assert tasks.worker_for(job) is tasks.worker_for(job)
    loaded = gc.get_freeze_count()
    assert loaded > 10_000
    for _ in range(tasks.TASKS_THAT_LOAD_MAX):
        tasks.worker_for(job)
    spared = gc.get_freeze_count()
    kept = [[number] for number in range(1000)]
    tasks.worker_for(job)
    assert gc.get_freeze_count() < spared + len(kept)


def test_a_worker_that_gets_another_job_lets_go_of_the_last_one(fresh_worker):
    for _ in range(3):
        tasks.worker_for(shipment("first"))
    tasks.worker_for(shipment("second"))
    assert gc.get_freeze_count() == 0
    assert len(tasks._workers) == 1
