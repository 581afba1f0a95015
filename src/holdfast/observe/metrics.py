"""Metrics of the TaskManagers, combined for the whole job. Pure bookkeeping, thread-safe.

A TaskManager's values begin again with each deployment (`incarnation`, `deployments`). The values that its counters and
histograms had reached before are kept, so that the job's values only grow. Gauges of TaskManagers that are gone are
forgotten. Counters of rows (`goes_back`) count only rows of batches that count: after a loss they return to the values
after the last batch of the checkpoint, as state does.
"""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.ids import BatchNumber
from holdfast.metrics import BUCKET, SEPARATOR, quantile
from holdfast.observe.known_metrics import KNOWN

IDENTITY = ("incarnation", "deployments")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class SubtaskId(NamedTuple):
    operator: str
    subtask: int


@dataclass(frozen=True)
class Distribution:
    """A combined histogram: the number of values in each bucket (by exponent of two), their sum and maximum."""

    buckets: Mapping[int, float]
    count: float
    sum: float
    max: float

    def summary(self) -> dict[str, float]:
        """Return a summary for people. Quantiles are upper bounds, at most twice the exact value."""
        found = {name: quantile(self.buckets, share, self.max) for name, share in QUANTILES.items()}
        return {"count": self.count, "mean": self.sum / self.count if self.count else 0.0, **found, "max": self.max}


@dataclass(frozen=True)
class Picture:
    """All metrics at a certain time, by known name."""

    values: Mapping[str, float] = field(default_factory=dict)
    by_subtask: Mapping[str, Mapping[SubtaskId, float]] = field(default_factory=dict)
    distributions: Mapping[str, Distribution] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        """Return a summary for `lastProgress`, with an entry for each name."""
        return {**self.values, **{name: each.summary() for name, each in self.distributions.items()}}


Reports = Sequence[tuple[Mapping[str, float], Mapping[str, float]]]
"""A pair for each TaskManager: the final values of earlier deployments, and the last reported values."""


@dataclass
class _Reported:
    """A TaskManager's values: the final values of earlier deployments, and the values of the current deployment."""

    identity: tuple[float, ...] = ()
    before: Mapping[str, float] = field(default_factory=dict)
    now: Mapping[str, float] = field(default_factory=dict)

    def end(self) -> None:
        """Keep the counts of the deployment, since it has ended. The maps are replaced, because marks refer to the old
        maps."""
        before = dict(self.before)
        _add(before, {name: each for name, each in self.now.items() if _grows(name)})
        self.before, self.now = before, {}

    def go_back(self, to: "_Reported") -> None:
        """Reset the row counters to the snapshot `to`."""
        before, now = to.before, to.now
        if to.identity != self.identity:
            total = dict(before)
            _add(total, now)
            before, now = total, {}
        self.before, self.now = _with_rows_of(before, self.before), _with_rows_of(now, self.now)


class TaskManagerMetrics:
    """Collects the metrics of TaskManagers; the JobMaster calls `update` after each commit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: dict[int, _Reported] = {}
        self._marks: dict[int, dict[int, _Reported]] = {}
        """The values after each batch to which the job may return."""

    def update(self, task_manager: int, values: Mapping[str, float]) -> None:
        """Record the flat map (`holdfast.metrics`) that a TaskManager sent."""
        identity = tuple(values.get(name, 0.0) for name in IDENTITY)
        with self._lock:
            reported = self._reported.setdefault(task_manager, _Reported(identity))
            if reported.identity != identity:
                reported.end()
                reported.identity = identity
            reported.now = {name: each for name, each in values.items() if name not in IDENTITY}

    def keep_gauges_of(self, task_managers: Collection[int]) -> None:
        """Forget the gauges of all other TaskManagers, which have no state any more. Their counters are kept."""
        with self._lock:
            for number, reported in self._reported.items():
                if number not in task_managers:
                    reported.end()

    def mark(self, batch: BatchNumber) -> None:
        """Remember the values after a batch, since the job may return to it."""
        with self._lock:
            self._marks[batch] = {number: replace(each) for number, each in self._reported.items()}

    def forget_marks_before(self, batch: BatchNumber) -> None:
        with self._lock:
            self._marks = {number: mark for number, mark in self._marks.items() if number >= batch}

    def go_back(self, batch: BatchNumber) -> None:
        """Reset the row counters to the rows of the batches up to this batch; to 0 if it was before this start."""
        with self._lock:
            mark = self._marks.get(batch, {})
            for number, reported in self._reported.items():
                reported.go_back(mark.get(number, _Reported(reported.identity)))
            self._marks = {number: each for number, each in self._marks.items() if number <= batch}

    def last(self) -> dict[int, Mapping[str, float]]:
        """Return the last reported values of each TaskManager, by its number."""
        with self._lock:
            return {number: each.now for number, each in self._reported.items()}

    def reports(self) -> Reports:
        """Return the current reports of all TaskManagers. The call is cheap; `picture` combines them on demand."""
        with self._lock:
            return [(dict(each.before), each.now) for each in self._reported.values()]


def picture(reports: Reports, own: Mapping[str, float] | None = None) -> Picture:
    """Combine the metrics of all TaskManagers with the JobMaster's `own` values, which are also a flat map."""
    gathered: dict[str, list[float]] = {name: [value] for name, value in (own or {}).items()}
    for before, now in reports:
        total = dict(before)
        _add(total, now)
        for name, value in total.items():
            gathered.setdefault(name, []).append(value)
    return _picture({name: _across(name, values) for name, values in gathered.items()})


def distribution_of(values: Mapping[str, float], name: str) -> Distribution:
    """Reconstruct a histogram from its entries in a flat map."""
    head = name + SEPARATOR
    buckets = {
        int(key.removeprefix(head + BUCKET)): value for key, value in values.items() if key.startswith(head + BUCKET)
    }
    return Distribution(buckets, *(values.get(head + part, 0.0) for part in ("count", "sum", "max")))


def _picture(flat: Mapping[str, float]) -> Picture:
    values: dict[str, float] = {}
    by_subtask: dict[str, dict[SubtaskId, float]] = {}
    distributions: dict[str, dict[str, float]] = {}
    for name, value in flat.items():
        base, separator, _ = name.partition(SEPARATOR)
        metric, dot, place = base.partition(".")
        if separator:
            distributions.setdefault(base, {})[name] = value
        elif dot:
            operator, _, subtask = place.rpartition(".")
            by_subtask.setdefault(metric, {})[SubtaskId(operator, int(subtask))] = value
        else:
            values[base] = value
    for name, each in by_subtask.items():
        if name not in values:
            values[name] = over_subtasks(name, each, by_subtask)
    return Picture(
        values, by_subtask, {name: distribution_of(distributions[name], name) for name in sorted(distributions)}
    )


def over_subtasks(
    metric: str, values: Mapping[SubtaskId, float], by_subtask: Mapping[str, Mapping[SubtaskId, float]]
) -> float:
    """Combine a metric's values of several subtasks; the values of a mean are weighted by the metric in `weight`."""
    known = KNOWN.get(metric)
    weights = {} if known is None or known.weight is None else by_subtask.get(known.weight, {})
    total = sum(weights.get(place, 0.0) for place in values)
    if not total:
        return _joined(metric, values.values())
    return sum(value * weights.get(place, 0.0) for place, value in values.items()) / total


def _across(name: str, values: list[float]) -> float:
    if name.endswith(f"{SEPARATOR}max"):
        return max(values)
    return sum(values) if SEPARATOR in name else _joined(_metric_of(name), values)


def _joined(metric: str, values: Iterable[float]) -> float:
    found = list(values)
    across = KNOWN[metric].across if metric in KNOWN else "sum"
    return max(found) if across == "max" else sum(found) / (len(found) if across == "mean" else 1)


def _add(into: dict[str, float], values: Mapping[str, float]) -> None:
    """Add values: counters and histograms add up, a gauge replaces the earlier value."""
    for name, value in values.items():
        if name.endswith(f"{SEPARATOR}max"):
            into[name] = max(value, into.get(name, 0.0))
        else:
            into[name] = value + (into.get(name, 0.0) if _grows(name) else 0.0)


def _with_rows_of(found: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Return the counters that go back with the values of `found`, and all other metrics with those of `others`."""
    kept = {name: value for name, value in others.items() if not _goes_back(name)}
    return kept | {name: value for name, value in found.items() if _goes_back(name)}


def _goes_back(name: str) -> bool:
    metric = KNOWN.get(_metric_of(name))
    return metric is not None and metric.goes_back


def _grows(name: str) -> bool:
    if SEPARATOR in name:
        return True
    metric = KNOWN.get(_metric_of(name))
    return metric is not None and metric.kind == "counter"


def _metric_of(name: str) -> str:
    return name.partition(".")[0]
