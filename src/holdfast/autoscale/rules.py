"""Rules that choose a number of TaskManagers, after DS2 ("Three steps is all you need", OSDI 2018).

    facts of each batch ─► a window of batches ─► seconds that a row takes ─► load(n) ─► the least n within the target
                                                  rows that come a second

DS2 measures the *true* rate of an operator: rows per second of work, and not per second that passed. Here a batch is
the unit of work. The job is busy from a batch's plan to its commit. `process_s` of that is the time of the
TaskManagers, which more TaskManagers divide. The rest (planning, reading, sending, committing) does not change.

    load(n) = rows that come a second · (other seconds a row + process seconds a row · ratio(n))

- `ratio(n)` is the time of n TaskManagers by the time of the present number: `now / n` if all subtasks have the same
  work and divide evenly. Otherwise the busiest TaskManager counts (`work.py`), so that no number is advised to which a
  hot key or the number of subtasks does not let the job grow.
- The estimate is linear. If a job does not scale so well, an estimate for more TaskManagers is too low, and the next
  window shows that; an estimate for fewer is too high, so that fewer are advised too late rather than too early.
- Fewer are advised only if their load stays below the target by `DOWN_MARGIN`, and more only if the load is above it by
  `UP_MARGIN`. Between the two the number stays the same, even if measurements vary.
- The number is large enough to work off a backlog within the cooldown.
"""

from collections import deque
from dataclasses import dataclass, field

from holdfast.autoscale.settings import Autoscale
from holdfast.autoscale.work import SubtaskSeconds, SubtaskWork

WINDOW_S_MAX = 60.0
"""Bound in seconds on the time that a measurement covers. A higher value reacts later, and less to single batches."""
BATCHES_MIN = 5
"""Least number of batches in a measurement."""
BATCHES_MAX = 10_000
"""Bound on the batches that are kept for a measurement."""
DOWN_MARGIN = 0.85
"""The share of the target up to which the load of fewer TaskManagers may rise. A lower value keeps more of them, and
changes their number less often."""
UP_MARGIN = 1.1
"""The multiple of the target up to which the number of TaskManagers does not change."""
GAIN_MIN = 0.1
"""The least share by which all further TaskManagers together have to shorten the work, if no number reaches the target.
A higher value leaves a job that cannot grow with fewer of them."""


@dataclass(frozen=True)
class BatchFacts:
    """A committed batch. `lag`: the number of available rows that are not processed after it; 0 if it is not known."""

    at_s: float
    """Time of its commit, by a monotonic clock."""
    rows: int
    busy_s: float
    process_s: float
    lag: int
    task_managers: int
    subtasks: SubtaskSeconds = field(default_factory=dict)
    """Seconds for which each subtask has processed, by level; empty if they are not known."""


@dataclass(frozen=True)
class Advice:
    """The number of TaskManagers that the job needs, how many it has, and why."""

    task_managers: int
    now: int
    why: str

    def __str__(self) -> str:
        if self.task_managers == self.now:
            return f"{self.now} TaskManagers fit: {self.why}"
        return f"{self.task_managers} TaskManagers instead of {self.now}: {self.why}"


class AutoscaleRules:
    """The state of the autoscaler. Only `handle` changes it. `advice` is None until the first measurement."""

    def __init__(self, settings: Autoscale) -> None:
        self.advice: Advice | None = None
        self._settings = settings
        self._window_s = min(WINDOW_S_MAX, settings.cooldown_s)
        self._facts: deque[BatchFacts] = deque(maxlen=BATCHES_MAX)
        self._changed_s = float("-inf")

    def handle(self, fact: BatchFacts) -> Advice | None:
        """Add a batch to the measurement. Returns advice if it is new."""
        if self._facts and self._facts[-1].task_managers != fact.task_managers:
            self._facts.clear()
            self._changed_s = fact.at_s
        self._facts.append(fact)
        if len(self._facts) <= BATCHES_MIN or fact.at_s - self._facts[0].at_s < self._window_s:
            return None
        advice = self._measure()
        first = self._facts[-1]
        self._facts.clear()
        self._facts.append(first)
        return self._told(advice, fact.at_s)

    def _told(self, advice: Advice, now_s: float) -> Advice | None:
        """Set the advice. A different number waits for the end of the cooldown."""
        before = self.advice
        differs = before is None or (before.task_managers, before.now) != (advice.task_managers, advice.now)
        if advice.task_managers != advice.now and now_s - self._changed_s < self._settings.cooldown_s:
            return None
        self.advice = advice
        return advice if differs else None

    def _measure(self) -> Advice:
        begin, end = self._facts[0], self._facts[-1]
        batches = list(self._facts)[1:]
        now, seconds = end.task_managers, end.at_s - begin.at_s
        rows = sum(each.rows for each in batches)
        busy_s, process_s = sum(each.busy_s for each in batches), sum(each.process_s for each in batches)
        if not rows:
            return self._chosen(now, self._settings.min_task_managers, "no rows come")
        comes = max(0.0, rows + end.lag - begin.lag) / seconds + end.lag / self._settings.cooldown_s
        other_row_s, process_row_s = max(0.0, busy_s - process_s) / rows, min(process_s, busy_s) / rows
        work = SubtaskWork(each.subtasks for each in batches)

        def load(task_managers: int) -> float:
            return comes * (other_row_s + process_row_s * work.ratio(task_managers, now))

        share = f"{comes:,.0f} rows/s take {load(now):.0%} of the time"
        least, most = self._settings.min_task_managers, self._settings.max_task_managers
        target = self._settings.target
        if load(now) > target * UP_MARGIN:
            found = next((each for each in range(now + 1, most + 1) if load(each) <= target), None)
            if found is None:
                found, why = now, _other(other_row_s, process_row_s)
                if process_row_s >= other_row_s:  # otherwise more TaskManagers are not worth it
                    enough = load(most) / (1 - GAIN_MIN if work.is_known else 1)
                    found = next((each for each in range(now, most) if load(each) <= enough), most)
                    why = work.bound if found < most else f", and at most {most} are allowed"
                share += why
            return self._chosen(now, found, share)
        fewer = [each for each in range(least, now) if load(each) <= target * DOWN_MARGIN]
        return self._chosen(now, min(fewer, default=now), share)

    def _chosen(self, now: int, wanted: int, why: str) -> Advice:
        within = max(self._settings.min_task_managers, min(wanted, self._settings.max_task_managers))
        return Advice(within, now, why)


def _other(other_row_s: float, process_row_s: float) -> str:
    share = other_row_s / (other_row_s + process_row_s)
    return (
        f"; {share:.0%} of it is planning, reading, sending and committing, which more TaskManagers do not shorten: "
        "more senders or larger batches may"
    )
