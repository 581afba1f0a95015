"""Draws of the storages in which a life's logs and materialized tables lie (`holdfast.storage.routing`)."""

import random
from typing import TypedDict

ELSEWHERE_RATIO = 0.2
"""Share of the seeds with logs or tables in other storages than the job's own."""
LOGS = (None, "simulated://quick", "simulated://quicker")
TABLES = ("simulated://tables-1", "simulated://tables-2")


class Storages(TypedDict):
    """Fields of a life."""

    logs_at: str | None
    tables_at: tuple[str, ...]


def storages(seed: int, lives: int) -> list[Storages]:
    """Draw storages for each life of a seed; most seeds have all objects in the job's own storage."""
    rng = random.Random(f"storages of {seed}")
    if rng.random() >= ELSEWHERE_RATIO:
        return [Storages(logs_at=None, tables_at=())] * lives
    tables: list[tuple[str, ...]] = [(), TABLES[:1], TABLES]
    return [Storages(logs_at=rng.choice(LOGS), tables_at=rng.choice(tables)) for _ in range(lives)]
