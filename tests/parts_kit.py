"""Helpers for parts that came with acknowledgements: a coordinator with a TaskManager whose parts travel."""

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.ids import BatchNumber, CheckpointId, Incarnation, JournalNumber, RunNumber
from holdfast.settings import CheckpointConfig, every

FIRST, SECOND = (f"gathered/000000000001/00000000000{number}/" + "a" * 32 for number in (1, 2))


def reference(name: str) -> str:
    return f"{name}@16+100=tm-000000000000"


class Driver:
    """A coordinator with a single TaskManager whose parts travel, and two checkpoints at once."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(CheckpointConfig(trigger=every(1), max_concurrent=2))
        self.commands: list[ev.Command] = []
        self.now_s = 0.0
        self.sequence = 0
        self.tell(ev.CoordinatorStarted(0.0, 0.0, None))
        self.tell(ev.TaskManagersChanged(RunNumber(1), {0: Incarnation(1)}))

    def tell(self, event: ev.Event) -> list[ev.Command]:
        answered = self.coordinator.handle(event)
        self.coordinator.validate()
        self.commands += answered
        for each in answered:
            if isinstance(each, ev.ExpireRecords):
                self.tell(ev.RecordsExpired(frozenset(each.numbers)))
        return answered

    def cut(self, batch: int) -> None:
        position = ev.Position(batch, {"source": {"split": batch}})
        self.tell(ev.CommitAcknowledged(BatchNumber(batch), position, True, {}))
        self.tick()

    def tick(self) -> list[ev.Command]:
        self.now_s += 1.0
        return self.tell(ev.CoordinatorTick(self.now_s, self.now_s))

    def acknowledge(self, checkpoint: int, *objects: str, informed: int = -1) -> list[ev.Command]:
        self.sequence += 1
        named, batch = frozenset(objects), BatchNumber(checkpoint)
        event = ev.Acknowledged(
            CheckpointId(checkpoint),
            0,
            Incarnation(1),
            batch,
            "",
            named,
            frozenset(),
            self.sequence,
            CheckpointId(informed),
        )
        return self.tell(event)

    def written(self, checkpoint: int, name: str) -> list[ev.Command]:
        parts, number = {0: reference(name)}, JournalNumber(checkpoint + 10)
        return self.tell(ev.RecordWritten(CheckpointId(checkpoint), number, {}, parts))

    @property
    def deleted(self) -> list[str]:
        return [name for each in self.commands if isinstance(each, ev.DeleteObjects) for name in each.names]


def acknowledge_before_the_news(driver: Driver) -> list[str]:
    """Complete two checkpoints, the second acknowledged by a log that does not know yet where its part of the first
    lies; return the objects that are deleted."""
    driver.cut(1)
    driver.cut(2)
    driver.acknowledge(1)
    driver.written(1, FIRST)
    driver.acknowledge(2)
    driver.written(2, SECOND)
    for _ in range(5):
        driver.tick()
    return driver.deleted
