"""The message of a job that waits: it names the newest cause, a store that is away or TaskManagers that end."""

from holdfast.clock import SystemClock
from holdfast.jobmaster.outages import BATCHES, RESTORES, Outages


def test_the_message_names_what_came_last_an_outage_or_a_loss() -> None:
    outages = Outages("job", "memory://x", SystemClock(), lambda: (60.0, "1min"))
    outages.failed(RESTORES, "StorageError: away")
    assert outages.message is not None and "Waiting for store or disk" in outages.message
    outages.lost("TaskManager 0 ended: killed")
    assert outages.message == "Recovering: TaskManager 0 ended: killed"
    outages.failed(RESTORES, "StorageError: away again")
    assert outages.message is not None and "away again" in outages.message
    outages.lost("TaskManager 0 ended: killed")
    outages.answered(BATCHES)
    assert outages.message is not None and "Waiting for store or disk" in outages.message
    outages.lost("TaskManager 0 ended: killed")
    outages.answered(RESTORES)
    assert outages.message is None
