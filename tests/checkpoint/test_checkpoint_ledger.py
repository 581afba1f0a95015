"""Output kept between two checkpoints is bounded in memory, whole and in order when a record is written."""

import tracemalloc
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.gathering import Gather, Gathered, GatherFailed
from holdfast.checkpoint.ledger import GATHER_BYTES_MAX, PAUSE_RATIO, RETRY_PAUSE_S
from holdfast.ids import BatchNumber, Epoch, JournalNumber, RunNumber
from holdfast.settings import CheckpointConfig, manual
from holdfast.sinks.base import Owner
from holdfast.sinks.gathered import Expanded, gather
from holdfast.sinks.staging import StagedRows, encode
from holdfast.storage import names
from holdfast.storage.store import open_store
from sampling import some

TASKS = 8
PIECE_BYTES = 8_000
OWNER = Owner("out", "0f" * 16)
STAGED = f"{names.staging_folder('0f' * 16, Epoch(1), RunNumber(1))}/out"


def piece(batch: int, task: int) -> bytes:
    """A committable with rows inside it; no two are equal, and none shares its bytes."""
    return encode(StagedRows(1, PIECE_BYTES, 0, PIECE_BYTES, data=f"{batch:06d}/{task}".encode().ljust(PIECE_BYTES)))


class Driver:
    """A coordinator without TaskManagers whose gatherings are stored, unless `failing`."""

    def __init__(self, url: str | None = None) -> None:
        self.store = open_store(url or f"memory://{uuid4().hex}")
        self.coordinator = Coordinator(CheckpointConfig(trigger=manual()))
        self.failing = False
        self.now_s = 0.0
        self.planning_stands = False
        self.gathers = 0
        self.records: list[ev.StoreAndRecord] = []
        self.tell(ev.CoordinatorStarted(0.0, 0.0, None))
        self.tell(ev.TaskManagersChanged(RunNumber(1), {}))

    def tell(self, event: ev.Event) -> None:
        for command in self.coordinator.handle(event):
            match command:
                case Gather():
                    self.gathers += 1
                    self.answer(command)
                case ev.StoreAndRecord():
                    self.records.append(command)
                case ev.PausePlanning():
                    self.planning_stands = True
                case ev.ResumePlanning():
                    self.planning_stands = False
        self.coordinator.validate()

    def answer(self, command: Gather) -> None:
        if self.failing:
            self.tell(GatherFailed(command.sink, command.gathering))
            return
        one = gather(command.committables, f"{STAGED}/gathered-{command.gathering}", self.store)
        self.tell(Gathered(command.sink, command.gathering, one))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(ev.CoordinatorTick(self.now_s, self.now_s))

    def commit(self, batch: int) -> None:
        committables = {"out": [piece(batch, task) for task in range(TASKS)]}
        self.tell(ev.CommitAcknowledged(BatchNumber(batch), ev.Position(batch, {}), True, committables))

    def checkpoint(self) -> list[bytes]:
        """Cut; return the sink's committables in the record, from wherever they are stored."""
        self.tell(ev.TriggerRequested("now"))
        sent = self.records[-1]
        stored = {sink: f"object-{len(self.records)}" for sink in sent.committables}
        self.tell(ev.RecordWritten(sent.checkpoint_id, JournalNumber(len(self.records)), stored))
        return list(Expanded(sent.committables["out"], self.store, OWNER))


def expected(batches: Any) -> list[bytes]:
    return [piece(batch, task) for batch in batches for task in range(TASKS)]


@pytest.mark.parametrize("batches", some([1_200, 3_600], 0))
def test_memory_stays_flat_over_many_batches_without_a_checkpoint(tmp_path: Path, batches: int) -> None:
    """The batches of an hour have 230 MB of committables in all."""
    driver = Driver(tmp_path.as_uri())
    sizes = []
    tracemalloc.start()
    for batch in range(batches):
        driver.commit(batch)
        if (batch + 1) % (batches // 36) == 0:
            sizes.append(tracemalloc.get_traced_memory()[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * GATHER_BYTES_MAX, f"{peak:,} bytes at most"
    assert max(sizes[18:]) < max(sizes[:18]) + GATHER_BYTES_MAX / 4, sizes
    assert driver.checkpoint() == expected(range(batches))


def test_little_output_is_not_gathered() -> None:
    driver = Driver()
    driver.commit(0)
    assert driver.checkpoint() == expected(range(1))
    assert not driver.gathers


def test_a_pending_checkpoint_takes_the_batches_up_to_its_cut_and_no_others() -> None:
    driver = Driver()
    for batch in range(5):
        driver.commit(batch)
    driver.tell(ev.TriggerRequested("early"))
    sent = driver.records[-1]
    for batch in range(5, 50):
        driver.commit(batch)
    assert driver.gathers
    assert list(Expanded(sent.committables["out"], driver.store, OWNER)) == expected(range(5))
    driver.tell(ev.RecordWritten(sent.checkpoint_id, JournalNumber(1), {"out": "object-1"}))
    assert driver.checkpoint() == expected(range(5, 50))


def test_while_the_store_takes_nothing_planning_stands_still_and_then_goes_on() -> None:
    driver = Driver()
    driver.failing = True
    batches = 0
    while not driver.planning_stands:
        driver.commit(batches)
        batches += 1
        assert batches * TASKS * PIECE_BYTES <= (PAUSE_RATIO + 1) * GATHER_BYTES_MAX, "memory is not bounded"
    driver.failing = False
    driver.wait(RETRY_PAUSE_S)
    assert not driver.planning_stands
    assert driver.checkpoint() == expected(range(batches))


def test_an_object_that_is_stored_after_the_job_went_back_stands_for_nothing() -> None:
    driver = Driver()
    answers: list[Gather] = []
    driver.answer = answers.append  # type: ignore[method-assign]
    for batch in range(40):
        driver.commit(batch)
    driver.tell(ev.FailoverBegan("lost"))
    driver.tell(ev.TaskManagersChanged(RunNumber(2), {}))
    Driver.answer(driver, answers[0])
    driver.commit(40)
    assert driver.checkpoint() == expected([40])
