"""Every world that the journal's model can come to, and the invariants of each."""

from typing import NamedTuple

from journal_model import Model, Thing, Violation, World


def check(world: World) -> None:
    """Raises `Violation` where the world is not as it must be."""
    current = max(((number, rec) for number, rec in world.records if rec.kind == "checkpoint"), default=None)
    if world.lost:
        return  # nothing holds until a newer record is written; the steps say which changes are forbidden then
    if current is None and world.landed:
        raise Violation("there was a checkpoint, and no record of one is left")
    if current is not None and not current[1].things <= world.things:
        missing = sorted(current[1].things - world.things)
        raise Violation(f"the current record {current[0]} names {missing}, which is deleted")
    _check_published(world, current[1].groups if current else ())


def _check_published(world: World, current: tuple[tuple[int, Thing], ...]) -> None:
    contents = [content for _, content in world.published]
    numbers = [number for number, _ in world.published]
    if len(set(contents)) != len(contents) or numbers != sorted(set(numbers)):
        raise Violation(f"published twice or out of order: {world.published}")
    if not set(world.published) <= world.landed:
        raise Violation(f"published although no record held it: {set(world.published) - world.landed}")
    lost = world.landed - set(world.published) - set(current)
    if lost:
        raise Violation(f"groups are lost: {sorted(lost)}")
    hidden = [group for group in current if group not in world.published and numbers and group[0] <= numbers[-1]]
    if hidden:
        raise Violation(f"groups can no longer be published: {hidden}, after {numbers}")


class Explored(NamedTuple):
    """`states` worlds were seen; `trace` leads to the first violation, in the fewest steps."""

    states: int
    violation: str | None = None
    trace: tuple[str, ...] = ()


def explore(model: Model, states_max: int) -> Explored:
    """Breadth first through every world; stops at the first violation. Raises where `states_max` does not suffice."""
    first = model.start()
    parents: dict[World, tuple[World, str] | None] = {first: None}
    layer = [first]
    while layer:
        following: list[World] = []
        for world in layer:
            reached = world
            try:
                for what, after in model.steps(world):
                    if after not in parents:
                        parents[after] = (world, what)
                        reached = after
                        check(after)
                        reached = world
                        following.append(after)
            except Violation as violation:
                return Explored(len(parents), str(violation), _trace(parents, reached))
        if len(parents) > states_max:
            raise AssertionError(f"more than {states_max} states: {len(parents)}")
        layer = following
    return Explored(len(parents))


def _trace(parents: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    steps: list[str] = []
    entry = parents[world]
    while entry is not None:
        steps.append(entry[1])
        entry = parents[entry[0]]
    return tuple(reversed(steps))
