"""Checks of a random world: nothing needed is gone; at its end, output was published once, and nothing is left over."""

from typing import TYPE_CHECKING

from holdfast.checkpoint import events as ev

if TYPE_CHECKING:
    from checkpoint_world import World

CLOSE = "close-"
UPDATE = "update-"


def check_published_exactly_once(world: "World") -> None:
    newest = world.newest()
    record = world.journal[newest] if newest is not None else None
    for sink, shown in world.shown.items():
        assert list(shown) == sorted(shown)
        offsets = [int(one.split(b"/")[-1]) for number in shown for one in shown[number]]
        assert offsets == list(range(record.offset if record else 0)), f"{sink} shows {offsets}"


def check_nothing_is_left(world: "World") -> None:
    newest = world.newest()
    assert [number for number, record in world.journal.items() if record is not None] == [newest]
    record = world.journal[newest]  # type: ignore[index]
    assert record is not None
    groups = [group for each in record.groups.values() for group in each]
    needed = record.objects() | {group.object for group in groups}
    needed |= {name for task_manager in world.task_managers.values() for name in task_manager.held()}
    assert world.store == needed, f"left over: {world.store - needed}; missing: {needed - world.store}"
    staged = {one for group in groups for one in world.contents[group.object]}
    assert world.staged.keys() == staged, f"staged and left over: {world.staged.keys() - staged}"
    assert all(world.requests.values()), "a request without an answer"


def check_nothing_needed_is_gone(world: "World") -> None:
    """Check that every object exists that a restart, a pending checkpoint or a live log needs."""
    newest = world.newest()
    if newest is not None:
        record = world.journal[newest]
        assert record is not None
        assert record.objects() <= world.store, f"record {newest} lost {record.objects() - world.store}"
        for each in record.groups.values():
            for group in each:
                assert group.object in world.store, f"record {newest} lost {group}"
                assert all(one in world.staged for one in world.contents[group.object]), f"{group} was discarded"
    for checkpoint_id, names in world.needed.items():
        assert names <= world.store, f"checkpoint {checkpoint_id} lost {names - world.store}"
    if world.running:
        for task_manager in world.task_managers.values():
            missing = task_manager.held() - world.store
            assert not missing, f"TaskManager {task_manager.number} lost {missing}"


def check_last_record(world: "World") -> None:
    newest = world.newest()
    record = world.journal[newest] if newest is not None else None
    assert record is None or not record.groups, "what is published would be published again"
    assert record is None or record.kept == world.kept, "an update is lost"
    check_nothing_is_left(world)


def check_answer(world: "World", command: ev.Resolve) -> None:
    assert not world.requests[command.request_id], "a request is answered once"
    newest = world.newest()
    if command.request_id.startswith(UPDATE) and newest is not None:
        record = world.journal[newest]
        assert record is not None and record.kept == world.kept, "an update was said to be recorded"
    assert command.request_id.startswith(CLOSE) or command.failure is not None or command.number == newest
