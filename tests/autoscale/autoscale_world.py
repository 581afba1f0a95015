"""A job under a load, in manual time: batches take what rows cost, and an advice is followed after a while."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.autoscale.rules import AutoscaleRules, BatchFacts
from holdfast.autoscale.settings import Autoscale
from holdfast.execution.places import owners_of

BATCH_ROWS_MAX = 20_000
RESCALE_S = 2.0


@dataclass
class JobWorld:
    """`row_us`: processor time of a row in a TaskManager; `overhead`: share that each further TaskManager adds to it,
    since work does not divide evenly; `other_us`: time of a row that TaskManagers do not divide; `shares`: each
    subtask's share of the rows, which TaskManagers process one subtask after the other; empty: work divides evenly."""

    settings: Autoscale
    load: Callable[[float], float]
    row_us: float = 100.0
    overhead: float = 0.05
    other_us: float = 5.0
    batch_s: float = 0.02
    noise: float = 0.05
    task_managers: int = 1
    seed: int = 0
    shares: Sequence[float] = ()
    now_s: float = 0.0
    lag: float = 0.0
    changes: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rules = AutoscaleRules(self.settings)
        self.random = random.Random(self.seed)

    def seconds(self, rows: float, task_managers: int) -> tuple[float, float]:
        """Time of a batch, and the TaskManagers' part of it."""
        row_us = self.row_us * (1 + self.overhead * (task_managers - 1))
        process_s = rows * row_us * 1e-6 * self.busiest(task_managers)
        return self.batch_s + rows * self.other_us * 1e-6 + process_s, process_s

    def busiest(self, task_managers: int) -> float:
        """The share of the rows that the busiest TaskManager processes."""
        places = [0.0] * task_managers
        for subtask, place in enumerate(owners_of(len(self.shares), task_managers)):
            places[place] += self.shares[subtask]
        return max(places) if self.shares else 1 / task_managers

    def share(self, task_managers: int, rate: float) -> float:
        """Share of the time that so many TaskManagers need for a rate, with batches of a second or the largest."""
        rows = min(BATCH_ROWS_MAX, max(1.0, rate))
        return self.seconds(rows, task_managers)[0] * rate / rows

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.batch()

    def batch(self) -> None:
        rows = min(BATCH_ROWS_MAX, int(self.lag))
        busy_s, process_s = self.seconds(rows, self.task_managers)
        factor = self.random.uniform(1 - self.noise, 1 + self.noise)
        busy_s, process_s = busy_s * factor, process_s * factor
        passed_s = busy_s if rows == BATCH_ROWS_MAX else max(busy_s, 1.0)
        self.lag += self.load(self.now_s) * passed_s - rows
        self.now_s += passed_s
        subtasks = {1: [share * process_s for share in self.shares]} if self.shares else {}
        fact = BatchFacts(self.now_s, rows, busy_s, process_s, int(self.lag), self.task_managers, subtasks)
        advice = self.rules.handle(fact)
        if advice is not None and advice.task_managers != self.task_managers:
            self.task_managers = advice.task_managers
            self.changes.append((self.now_s, self.task_managers))
            self.lag += self.load(self.now_s) * RESCALE_S
            self.now_s += RESCALE_S

    def fitting(self, rate: float) -> int:
        """The least number within the target."""
        least, most = self.settings.min_task_managers, self.settings.max_task_managers
        found = [each for each in range(least, most + 1) if self.share(each, rate) <= self.settings.target]
        return min(found, default=most)
