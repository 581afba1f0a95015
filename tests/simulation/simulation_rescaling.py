"""Jobs that get other layouts while they run, through deaths of each party in each step."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulation_settings import Event, Life, Settings, draw, dropping

from holdfast import errors

if TYPE_CHECKING:
    from simulation_world import Started, World

SUBTASKS_MAX = 9
"""Bound on the parallelism that a rescale asks for."""
PLACES = (
    "taskmanager.move.before",
    "jobmaster.hand.over",
    "jobmaster.moved",
    "taskmanager.deploy.table",
    "jobmaster.follow",
)
"""Steps of a rescale in which a process crashes."""


def rescaling(seed: int) -> Settings:
    """The same as `draw`, with rescales; a start may find the layout that the start before it left."""
    rng = random.Random(f"rescales of {seed}")
    drawn = draw(seed)
    lives = tuple(_rescaling(rng, life) for life in drawn.lives)
    return replace(drawn, lives=lives, rows=max(200, drawn.rows), rows_over_s=max(6.0, drawn.rows_over_s))


def _rescaling(rng: random.Random, life: Life) -> Life:
    parallelism = max(4, life.parallelism)
    events = [*life.events, *(Event(rng.randint(20, 400), "rescale") for _ in range(rng.choice([1, 2, 3, 5])))]
    events += [Event(1, "crash", at=place) for place in PLACES if rng.random() < 0.1]
    return replace(
        life,
        parallelism=parallelism,
        task_managers=rng.choice([2, 2, 3]),
        on_loss="rewind",
        events=tuple(sorted(events, key=lambda event: event.hit)),
    )


def rescaling_drops(seed: int) -> Settings:
    """The same as `dropping`, with rescales."""
    rng = random.Random(f"rescales of {seed}")
    drawn = dropping(seed)
    events = [Event(rng.randint(20, 200), "rescale") for _ in range(rng.choice([1, 2, 3]))]
    lives = tuple(
        replace(each, events=tuple(sorted([*each.events, *events], key=lambda event: event.hit)))
        for each in drawn.lives
    )
    return replace(drawn, lives=lives, rows=max(200, drawn.rows), rows_over_s=6.0)


def rescale(world: "World", started: "Started") -> None:
    """Ask for another layout, as the seed draws it."""
    query = started.query
    assert query is not None
    wanted: dict[str, Any] = {"task_managers": world.rng.randint(1, started.life.parallelism)}
    rng = random.Random(f"layout {len(world.rescales)} of {world.settings.seed}")
    if rng.random() < 0.4:
        wanted["parallelism"] = rng.randint(wanted["task_managers"], SUBTASKS_MAX)
    if started.life.senders and rng.random() < 0.4:
        wanted["senders"] = rng.randint(1, 4)
    if rng.random() < 0.2:
        del wanted["task_managers"]
    wanted["in_place"] = rng.random() < 0.25
    try:
        made = query.rescale(**wanted, timeout="60s")
    except errors.HoldfastError as error:
        world.runtime.note("rescale", f"to {wanted} is refused: {error}")
        return
    world.rescales.append(made)
    world.runtime.note("rescale", repr(made))
