"""Committables and small parts are stored ahead where only parts that TaskManagers store themselves are missing."""

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.ahead import StoreAhead
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.ids import BatchNumber, CheckpointId, Incarnation, JournalNumber, RunNumber
from holdfast.settings import CheckpointConfig, manual

POSITION = ev.Position(1, {})


class Driver:
    """A coordinator of two TaskManagers, whose checkpoint n cuts batch n."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(CheckpointConfig(trigger=manual()))
        self.commands: list[ev.Command] = []
        self.tell(ev.CoordinatorStarted(0.0, 0.0, None))
        self.tell(ev.TaskManagersChanged(RunNumber(1), {0: Incarnation(1), 1: Incarnation(1)}))

    def tell(self, event: ev.Event) -> None:
        self.commands += self.coordinator.handle(event)
        self.coordinator.validate()

    def cut(self, batch: int, committables: bool = True) -> None:
        self.commands.clear()
        staged = {"sink": [b"staged"]} if committables else {}
        self.tell(ev.CommitAcknowledged(BatchNumber(batch), POSITION, True, staged))
        self.tell(ev.TriggerRequested(str(batch)))

    def acknowledge(self, checkpoint: int, task_manager: int, manifest: str = "") -> None:
        objects = frozenset([manifest] if manifest else [])
        answer = CheckpointId(checkpoint), task_manager, Incarnation(1), BatchNumber(checkpoint), manifest, objects
        self.tell(ev.Acknowledged(*answer, frozenset(), checkpoint))

    def written(self, checkpoint: int, parts: dict[int, str]) -> None:
        [sent] = self.of(ev.StoreAndRecord)
        assert isinstance(sent, ev.StoreAndRecord)
        stored = dict.fromkeys(sent.committables, f"gathered-{checkpoint}")
        self.tell(ev.RecordWritten(CheckpointId(checkpoint), JournalNumber(checkpoint), stored, parts))

    def of(self, kind: type[ev.Command]) -> list[ev.Command]:
        return [each for each in self.commands if isinstance(each, kind)]


def with_a_large_part() -> Driver:
    """TaskManager 1 stored its part of the newest record itself."""
    driver = Driver()
    driver.cut(1)
    driver.acknowledge(1, 0)
    assert not driver.of(StoreAhead), "nobody is known to have large parts"
    driver.acknowledge(1, 1, "large-1")
    driver.written(1, {0: "gathered-1"})
    return driver


def test_what_is_there_is_stored_while_a_large_part_is_and_the_record_waits_for_its_acknowledgement() -> None:
    driver = with_a_large_part()
    driver.cut(2)
    assert not driver.of(StoreAhead), "the small part will come along"
    driver.acknowledge(2, 0)
    [ahead] = driver.of(StoreAhead)
    assert isinstance(ahead, StoreAhead)
    assert (ahead.committables, ahead.carried_parts) == ({"sink": [b"staged"]}, ((0, 1),))
    assert not driver.of(ev.StoreAndRecord), "the large part may not be stored"
    driver.acknowledge(2, 1, "large-2")
    [sent] = driver.of(ev.StoreAndRecord)
    assert isinstance(sent, ev.StoreAndRecord)
    assert (sent.committables, sent.carried_parts) == (ahead.committables, ahead.carried_parts)
    assert len(driver.of(StoreAhead)) == 1


def test_a_checkpoint_of_large_parts_alone_stores_its_committables_at_the_cut() -> None:
    driver = Driver()
    driver.cut(1)
    driver.acknowledge(1, 0, "a")
    driver.acknowledge(1, 1, "b")
    driver.written(1, {})
    driver.cut(2)
    [ahead] = driver.of(StoreAhead)
    assert isinstance(ahead, StoreAhead) and ahead.carried_parts == ()


def test_nothing_is_ordered_ahead_where_there_is_nothing_to_store() -> None:
    driver = Driver()
    driver.cut(1)
    driver.acknowledge(1, 0, "a")
    driver.acknowledge(1, 1, "b")
    driver.written(1, {})
    driver.cut(2, committables=False)
    assert not driver.of(StoreAhead)


def test_a_part_that_comes_along_against_the_guess_is_in_the_record_all_the_same() -> None:
    driver = with_a_large_part()
    driver.cut(2)
    driver.acknowledge(2, 0)
    driver.acknowledge(2, 1)
    [sent] = driver.of(ev.StoreAndRecord)
    assert isinstance(sent, ev.StoreAndRecord) and sent.carried_parts == ((0, 1), (1, 1))
    driver.written(2, {0: "gathered-2", 1: "gathered-2"})
    driver.cut(3)
    driver.acknowledge(3, 0)
    assert not driver.of(StoreAhead), "the guess follows the newest record"
