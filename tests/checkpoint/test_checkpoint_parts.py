"""Parts that came with acknowledgements: their object is held for each log that sent a part, until the log knows it."""

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.holding import BaseMade, HandOn
from holdfast.checkpoint.registry import LogHolder, ObjectRegistry, PartHolder
from holdfast.ids import CheckpointId, Incarnation
from parts_kit import FIRST, SECOND, Driver, acknowledge_before_the_news, reference


def test_a_record_of_parts_that_travelled_leaves_their_places_open_and_the_news_tells_them() -> None:
    driver = Driver()
    driver.cut(1)
    [sent] = [each for each in driver.acknowledge(1) if isinstance(each, ev.StoreAndRecord)]
    assert (sent.manifests, sent.carried_parts) == ([""], ((0, 1),))
    [news] = [each for each in driver.written(1, FIRST) if isinstance(each, ev.NotifyCompleted)]
    assert news.parts == {0: reference(FIRST)}


def test_an_acknowledgement_composed_before_the_news_does_not_cost_the_log_its_object() -> None:
    driver = Driver()
    assert not acknowledge_before_the_news(driver), "the log is about to name the first"
    driver.cut(3)
    driver.acknowledge(3, FIRST, informed=2)
    driver.written(3, "gathered/000000000001/000000000003/" + "b" * 32)
    for _ in range(5):
        driver.tick()
    assert driver.deleted == [SECOND], "the log knows of both, and names the first"


def test_the_objects_of_a_record_that_was_not_written_are_deleted() -> None:
    driver = Driver()
    driver.cut(1)
    driver.acknowledge(1)
    driver.tell(ev.RecordFailed(CheckpointId(1), "no storage", frozenset([FIRST])))
    driver.tick()
    assert driver.deleted == [FIRST]


def test_parts_of_a_log_that_died_are_let_go_of() -> None:
    registry, log = ObjectRegistry(), LogHolder(0, Incarnation(1))
    registry.hold_part(log, CheckpointId(1), FIRST)
    registry.acknowledge([FIRST])
    registry.release_dead_logs({0: Incarnation(1)})
    assert registry.names(PartHolder(log, CheckpointId(1))) == {FIRST}
    registry.release_dead_logs({0: Incarnation(2)})
    registry.validate()
    assert registry.take(0.0) == [FIRST]


def test_a_log_that_is_informed_lets_go_of_older_parts_alone() -> None:
    registry, log = ObjectRegistry(), LogHolder(0, Incarnation(1))
    registry.hold_part(log, CheckpointId(1), FIRST)
    registry.hold_part(log, CheckpointId(2), SECOND)
    registry.acknowledge([FIRST, SECOND])
    registry.informed(log, CheckpointId(1))
    registry.validate()
    assert registry.take(0.0) == [FIRST]


def made(owner: int | None = 0, *reused: str) -> BaseMade:
    return BaseMade(owner, frozenset([FIRST]), frozenset(reused), "a table")


def test_a_table_that_a_follower_has_made_is_held_until_its_owner_has_had_the_news() -> None:
    driver = Driver()
    driver.cut(1)
    assert HandOn(0, "a table") in driver.tell(made())
    driver.acknowledge(1)
    driver.written(1, SECOND)
    driver.cut(2)
    driver.acknowledge(2, informed=1)
    driver.written(2, "gathered/000000000001/000000000002/" + "c" * 32)
    assert FIRST not in driver.deleted, "the news of the second checkpoint may be on their way"
    driver.cut(3)
    driver.acknowledge(3, informed=2)
    driver.written(3, "gathered/000000000001/000000000003/" + "c" * 32)
    driver.tick()
    assert FIRST in driver.deleted, "the owner has refused it"


def test_the_owner_that_has_taken_a_table_holds_it() -> None:
    driver = Driver()
    driver.tell(made())
    for number, named in ((1, []), (2, [FIRST]), (3, [FIRST])):
        driver.cut(number)
        driver.acknowledge(number, *named, informed=number - 1)
        driver.written(number, f"gathered/000000000001/00000000000{number}/" + "d" * 32)
        driver.tick()
    assert FIRST not in driver.deleted


def test_a_table_without_an_owner_or_with_objects_that_are_gone_is_deleted() -> None:
    for event in (made(None), made(7), made(0, SECOND)):
        driver = Driver()
        assert not [each for each in driver.tell(event) if isinstance(each, HandOn)]
        driver.tick()
        assert driver.deleted == [FIRST]
