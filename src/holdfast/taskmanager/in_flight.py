"""The batch in flight of a TaskManager, in words, and the rows that came for it."""

from typing import NamedTuple

from holdfast.errors import HoldfastError
from holdfast.ids import BatchNumber, RunNumber
from holdfast.taskmanager.subtask import Subtask


class BatchInFlight(NamedTuple):
    """The batch that was begun and neither committed nor undone."""

    run: RunNumber
    batch: BatchNumber
    levels: tuple[int, ...]


def named(in_flight: BatchInFlight | None) -> str:
    """Word the batch in flight."""
    return "no batch" if in_flight is None else f"batch {in_flight.batch} of run {in_flight.run}"


def check_hosted(found: set[tuple[str, int]], subtasks: list[Subtask]) -> None:
    """Raise `HoldfastError` if rows arrived for a subtask that is not among those of the level."""
    hosted = {(each.name, each.subtask) for each in subtasks}
    strange = sorted(found - hosted)
    if strange:
        raise HoldfastError(f"rows arrived for {strange}, hosted here at this level are {sorted(hosted)}")
