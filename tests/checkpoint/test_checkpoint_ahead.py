"""Parts that are announced while large logs are being stored: their object is stored ahead, and completes nothing."""

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.ahead import Announced, StoreAhead
from holdfast.ids import BatchNumber, CheckpointId, Incarnation, RunNumber
from parts_kit import Driver


def announced(checkpoint: int, task_manager: int = 0, incarnation: int = 1, carried: bool = True) -> Announced:
    return Announced(CheckpointId(checkpoint), task_manager, Incarnation(incarnation), BatchNumber(checkpoint), carried)


def of(driver: Driver, kind: type[ev.Command]) -> list[ev.Command]:
    return [each for each in driver.commands if isinstance(each, kind)]


def acknowledged(task_manager: int, manifest: str = "") -> ev.Acknowledged:
    return ev.Acknowledged(
        CheckpointId(1), task_manager, Incarnation(1), BatchNumber(1), manifest, frozenset(), frozenset()
    )


def two_task_managers() -> Driver:
    driver = Driver()
    driver.tell(ev.TaskManagersChanged(RunNumber(2), {0: Incarnation(1), 1: Incarnation(1)}))
    driver.cut(1)
    return driver


def test_once_all_parts_are_here_their_object_is_stored_ahead_and_the_record_waits_for_acknowledgements() -> None:
    driver = two_task_managers()
    driver.tell(announced(1, 0))
    assert not of(driver, StoreAhead), "a part may still come along"
    driver.tell(announced(1, 1))
    [ahead] = of(driver, StoreAhead)
    assert isinstance(ahead, StoreAhead) and ahead.carried_parts == ((0, 1), (1, 1))
    assert not of(driver, ev.StoreAndRecord), "no log is known to be stored"
    driver.tell(acknowledged(0))
    assert not of(driver, ev.StoreAndRecord)
    driver.tell(acknowledged(1))
    [sent] = of(driver, ev.StoreAndRecord)
    assert isinstance(sent, ev.StoreAndRecord) and sent.carried_parts == ahead.carried_parts
    assert sent.committables == ahead.committables and sent.position == ahead.position


def test_parts_that_came_with_acknowledgements_are_stored_ahead_beside_those_that_were_announced() -> None:
    driver = two_task_managers()
    driver.tell(acknowledged(1))
    driver.tell(announced(1, 0))
    [ahead] = of(driver, StoreAhead)
    assert isinstance(ahead, StoreAhead) and ahead.carried_parts == ((0, 1), (1, 1))


def test_a_part_that_its_task_manager_stores_itself_is_not_waited_for() -> None:
    driver = two_task_managers()
    driver.tell(announced(1, 0, carried=False))
    driver.tell(announced(1, 1))
    driver.tell(announced(1, 1))
    [ahead] = of(driver, StoreAhead)
    assert isinstance(ahead, StoreAhead) and ahead.carried_parts == ((1, 1),)


def test_nothing_is_stored_ahead_where_the_announcement_is_of_another_checkpoint_or_incarnation() -> None:
    driver = two_task_managers()
    driver.tell(announced(1, 0))
    driver.tell(announced(1, 1, incarnation=2))
    driver.tell(announced(2, 1))
    driver.tell(announced(1, 7))
    assert not of(driver, StoreAhead)


def test_a_checkpoint_without_parts_and_committables_stores_nothing_ahead() -> None:
    driver = two_task_managers()
    driver.tell(announced(1, 0, carried=False))
    driver.tell(announced(1, 1, carried=False))
    assert not of(driver, StoreAhead)
