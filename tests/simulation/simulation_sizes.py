"""Searches for seeds begin with small jobs: where a pinned seed has moved, it is replaced by one that costs little."""

from collections.abc import Iterable

from simulation_settings import Settings, draw


def size(drawn: Settings) -> int:
    """Estimate what the simulation of a job costs, beside that of other jobs."""
    operators = drawn.windowed, drawn.joined, drawn.ruled, drawn.marked, drawn.chained, drawn.listed
    return drawn.rows * len(drawn.lives) * (1 + sum(map(bool, operators)))


def small_first(seeds: Iterable[int]) -> list[int]:
    """Return the seeds in the order of their jobs' sizes."""
    return sorted(seeds, key=lambda seed: size(draw(seed)))
