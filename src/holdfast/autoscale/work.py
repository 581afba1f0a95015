"""The subtasks' share of the work in a measurement, and how it divides among other numbers of TaskManagers.

    seconds of each subtask, by level ─► of n TaskManagers the busiest of each level ─► seconds of n beside now

A level ends when its last TaskManager has processed it. So the busiest TaskManager counts, and with it keys that many
rows have, and subtasks that do not divide evenly among the TaskManagers. Subtasks that share a TaskManager count as
though they work one after the other.
"""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.execution.places import owners_of

SubtaskSeconds = Mapping[int, Sequence[float]]
"""Seconds for which each subtask has processed, by level. Operators of a level are added up."""

HOT = 2.0
"""The multiple of the mean work from which on a subtask is named as the reason why more TaskManagers do not help. A
higher value names only subtasks whose work differs more."""


class SubtaskWork:
    """The work of the subtasks in all batches of a measurement."""

    def __init__(self, batches: Iterable[SubtaskSeconds]) -> None:
        self._levels: dict[int, list[float]] = {}
        """The sums of all batches; empty if the work of the subtasks is not known."""
        for batch in batches:
            for level, seconds in batch.items():
                before = self._levels.get(level, [])
                if len(before) != len(seconds):  # the first batch, or the first one at another parallelism
                    before = [0.0] * len(seconds)
                self._levels[level] = [has + more for has, more in zip(before, seconds, strict=True)]

    def ratio(self, task_managers: int, now: int) -> float:
        """Return the time that so many TaskManagers need for the work, by the time that the present number needs."""
        needed, needs = self._busiest_s(task_managers), self._busiest_s(now)
        return needed / needs if needs > 0 else now / task_managers

    @property
    def is_known(self) -> bool:
        """False if the work of the subtasks is not known, and counts as even."""
        return bool(self._levels)

    def _busiest_s(self, task_managers: int) -> float:
        """The seconds of the busiest TaskManager, added up over the levels."""
        return sum(max(self._of_places(seconds, task_managers)) for seconds in self._levels.values())

    @staticmethod
    def _of_places(seconds: Sequence[float], task_managers: int) -> list[float]:
        places = [0.0] * task_managers
        for subtask, place in enumerate(owners_of(len(seconds), task_managers)):
            places[place] += seconds[subtask]
        return places

    @property
    def bound(self) -> str:
        """The reason why more TaskManagers would not process faster, in words."""
        level, seconds = max(self._levels.items(), key=lambda each: max(each[1]), default=(0, [0.0]))
        subtask = max(range(len(seconds)), key=lambda each: seconds[each])
        share = seconds[subtask] / (sum(seconds) or 1.0)
        if share * len(seconds) >= HOT:
            return f"; subtask {subtask} does {share:.0%} of the work of level {level}: some keys have too many rows"
        return f"; each operator has {len(seconds)} subtasks, which do not divide further: a higher parallelism would"
