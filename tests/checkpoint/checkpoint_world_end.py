"""The end of a random world: output was published exactly once, and nothing is left that nobody needs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkpoint_world import World


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
