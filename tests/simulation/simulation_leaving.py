"""Jobs whose machines go after a notice, in all weather: the notice may come late, and the machine may go too soon."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from simulation_rescaling import rescaling
from simulation_settings import Event, Settings

if TYPE_CHECKING:
    from simulation_world import Started, World

WARNINGS_S = (0.0, 0.2, 1.0, 5.0, 30.0)
"""Seconds between a notice and the end of the process."""


def leaving(seed: int) -> Settings:
    """The same as `rescaling`, with notices."""
    rng = random.Random(f"notices of {seed}")
    drawn = rescaling(seed)
    lives = []
    for life in drawn.lives:
        events = [each for each in life.events if each.action != "rescale" or rng.random() < 0.3]
        events += [Event(rng.randint(20, 400), "notice") for _ in range(rng.choice([1, 2, 3, 6]))]
        lives.append(replace(life, events=tuple(sorted(events, key=lambda event: event.hit))))
    return replace(drawn, lives=tuple(lives))


def give_notice(world: "World", started: "Started") -> None:
    """Tell of a process, as the seed draws it, that its machine is to go; after a while the machine goes."""
    cluster = started.cluster
    if cluster is None or not cluster.hosted:
        return
    hosted = world.rng.choice(list(cluster.hosted.values()))
    world.notices += 1
    world.runtime.note("notice", hosted.process.name)
    hosted.start.leaving(hosted.start.process, "its machine is to go")
    world.runtime.later(world.rng.choice(WARNINGS_S), hosted.process.kill)
