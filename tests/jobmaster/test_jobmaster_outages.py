"""The message of a job that waits: it names the newest cause, a store that is away or TaskManagers that end."""

import pytest

from holdfast.clock import ManualClock, SystemClock
from holdfast.errors import StorageError
from holdfast.execution.events import LossExplained, Lost
from holdfast.ids import Incarnation, ProcessId, Role
from holdfast.jobmaster.checkpoints.outages import BATCHES, CHECKPOINTS, RESTORES, Outages

FIRST, SECOND = (ProcessId(Role.TASK_MANAGER, number, Incarnation(1)) for number in range(2))


def new_outages() -> Outages:
    return Outages("job", "memory://x", SystemClock(), lambda: (60.0, "1min"))


def test_the_message_names_what_came_last_an_outage_or_a_loss() -> None:
    outages = new_outages()
    outages.failed(RESTORES, "StorageError: away")
    assert outages.message is not None and "Waiting for store, disk or service" in outages.message
    outages.note_loss(Lost(FIRST, "killed"))
    assert outages.message == "Recovering: TaskManager 0 ended: killed"
    outages.failed(RESTORES, "StorageError: away again")
    assert outages.message is not None and "away again" in outages.message
    outages.note_loss(Lost(FIRST, "killed"))
    outages.answered(BATCHES)
    assert outages.message is not None and "Waiting for store, disk or service" in outages.message
    outages.note_loss(Lost(FIRST, "killed"))
    outages.answered(RESTORES)
    assert outages.message is None


def test_a_loss_that_is_explained_later_is_named_with_its_true_reason() -> None:
    outages = new_outages()
    outages.failed(RESTORES, "StorageError: away")
    outages.note_loss(LossExplained(FIRST, "killed"))
    assert outages.message is not None and "Waiting for store, disk or service" in outages.message
    outages.note_loss(Lost(FIRST, "its connection broke off"))
    outages.note_loss(LossExplained(SECOND, "out of memory"))
    assert outages.message == "Recovering: TaskManager 0 ended: its connection broke off"
    outages.note_loss(LossExplained(FIRST, "killed"))
    assert outages.message == "Recovering: TaskManager 0 ended: killed"


def test_an_outage_does_not_last_over_failures_of_another_kind() -> None:
    clock = ManualClock()
    outages = Outages("job", "memory://x", clock, lambda: (60.0, "1min"))
    outages.failed(RESTORES, "StorageError: away")
    clock.advance(50.0)
    outages.failed_otherwise(RESTORES)  # the store answered, and a TaskManager ended
    clock.advance(50.0)
    outages.failed(RESTORES, "StorageError: away again")
    assert outages.waited_s == 0.0
    clock.advance(61.0)
    with pytest.raises(StorageError, match="a restore has failed for 61 s"):
        outages.failed(RESTORES, "StorageError: still away")


def test_the_time_in_which_a_step_is_not_tried_is_no_outage() -> None:
    clock = ManualClock()
    outages = Outages("job", "memory://x", clock, lambda: (30.0, "30s"))
    outages.failed(CHECKPOINTS, "StorageError: away", clock.monotonic() - 1.0)
    clock.advance(15.0)
    outages.failed(CHECKPOINTS, "StorageError: away", clock.monotonic() - 1.0)
    assert outages.waited_s == 11.0, "a pause of at most 10 s, and an attempt of 1 s"
    clock.advance(300.0)  # the job restores its state
    assert outages.waited_s == 21.0
    outages.failed(CHECKPOINTS, "StorageError: away again", clock.monotonic() - 2.0)
    assert outages.waited_s == 23.0
    clock.advance(8.0)
    with pytest.raises(StorageError, match="a checkpoint has failed for 31 s"):
        outages.failed(CHECKPOINTS, "StorageError: away again", clock.monotonic() - 8.0)


def test_attempts_side_by_side_count_once() -> None:
    clock = ManualClock()
    outages = Outages("job", "memory://x", clock, lambda: (30.0, "30s"))
    began_s = clock.monotonic()
    for after_s in (20.0, 1.0, 1.0):
        clock.advance(after_s)
        outages.failed(CHECKPOINTS, "StorageError: away", began_s)
    assert outages.waited_s == 2.0
