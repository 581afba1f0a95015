"""Progress of a running query, for users: PySpark's progress keys as plain dicts, checkpoint figures, metrics. Threads
of the JobMaster write it; any thread may read it. Metrics are combined when they are read.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.behind import Behind
from holdfast.checkpoint.outcomes import Outcome
from holdfast.clock import Clock
from holdfast.formats.history import CheckpointStats
from holdfast.graph.plan import Plan
from holdfast.graph.program import Program
from holdfast.ids import BatchNumber
from holdfast.jobmaster.batches.hot_keys import HotKeys
from holdfast.jobmaster.batches.runner import BatchOutcome
from holdfast.metrics import Histogram
from holdfast.observe.metrics import Picture, Reports, TaskManagerMetrics, over_subtasks, picture
from holdfast.observe.view import Batch, Restart
from holdfast.printable import logger
from holdfast.sources.bad_reasons import OTHER_REASONS, BadReason

log = logger(__name__)

RECENT_MAX = 100
BAD_REASONS_MAX = 100
"""Number of reasons of bad rows that are counted separately; a higher value shows more reasons."""
FIGURES_MAX = 100_000
"""Number of batches whose time and number of rows are kept. Each takes 16 bytes and two number objects."""
CHECKPOINTS_MAX = 5_000
"""Number of checkpoints whose figures are kept, each with some 700 bytes. The figures of each TaskManager are left out:
with them, a checkpoint of twelve subtasks would take 11 KB, which is 40 MB an hour at a checkpoint a second."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Lag = dict[str, dict[str, int]]
"""Available data not yet processed, by source and split, in the source's unit."""


@dataclass(frozen=True)
class Standing:
    """Positions of sources after a batch: their remaining data, and their watermarks in microseconds."""

    lag: Lag
    watermarks: Mapping[str, int]


@dataclass(frozen=True)
class Totals:
    """Figures since the start of a query. Of long runs the lists keep the last `FIGURES_MAX` batches and the last
    `CHECKPOINTS_MAX` checkpoints, without the parts of TaskManagers (`Query.checkpoints` has those of the newest)."""

    rows: int
    bad_rows: int
    batch_ms: list[float]
    batch_rows: list[int]
    checkpoints: list[CheckpointStats]
    failed_checkpoints: int
    aborted_checkpoints: int
    """Aborted checkpoints that do not count as failed: subsumed, declined softly, ended by a restart."""
    refused_checkpoints: int
    """Checkpoints put off to a later batch, since a function, a source or a sink refused the boundary, hard or
    softly."""
    batches: int
    completed_checkpoints: int

    def __repr__(self) -> str:
        """Show the figures, without the lists."""
        checkpoints = (f"{outcome}_checkpoints" for outcome in ("completed", "failed", "aborted", "refused"))
        names = ("rows", "bad_rows", "batches", *checkpoints)
        return f"Totals({', '.join(f'{name}={getattr(self, name)}' for name in names)})"


@dataclass(frozen=True)
class _Entry:
    """A batch's progress, the watermarks of its operators, and the metrics at its end."""

    watermarks: Mapping[str, int]
    progress: dict[str, Any]
    started_s: float
    ended_s: float
    reports: Reports
    own: Mapping[str, float]


class Progress:
    """Progress of a query. Thread-safe. `recent` keeps the last `RECENT_MAX` batches; figures: see `Totals`."""

    def __init__(
        self,
        name: str,
        program: Program,
        clock: Clock,
        gauges: Callable[[], Mapping[str, float]],
        behind: Callable[[], Behind] = dict,
    ) -> None:
        self._behind = behind
        self._gauges = gauges
        self._name = name
        self._program = program
        self._clock = clock
        self._lock = threading.Lock()
        self._task_managers = TaskManagerMetrics()
        self._recent: deque[_Entry] = deque(maxlen=RECENT_MAX)
        self._batch_ms: deque[float] = deque(maxlen=FIGURES_MAX)
        self._batch_rows: deque[int] = deque(maxlen=FIGURES_MAX)
        self._checkpoints: deque[CheckpointStats] = deque(maxlen=CHECKPOINTS_MAX)
        self._outcomes: deque[CheckpointStats] = deque(maxlen=RECENT_MAX)
        self._rows = 0
        self._bad_rows = 0
        self._bad_reasons: Counter[BadReason] = Counter()
        self._hot_keys = HotKeys()
        self._sink_rows: Counter[str] = Counter()
        self._counted: dict[str, float] = dict.fromkeys(
            (
                "numberOfCompletedCheckpoints",
                "numberOfFailedCheckpoints",
                "numberOfAbortedCheckpoints",
                "numberOfRefusedCheckpoints",
                "numBatches",
                "numRestarts",
                "numSplitFailures",
            ),
            0.0,
        )
        self._checkpoint_durations = Histogram()
        self._batch_durations = Histogram()
        self._standing = Standing({}, {})
        self._operator_watermarks: Mapping[str, int] = {}
        self._restarts: deque[Restart] = deque(maxlen=RECENT_MAX)
        self._last_batch_s: float | None = None

    def batch(self, plan: Plan, outcome: BatchOutcome, duration_s: float, standing: Standing) -> None:
        """Note a committed batch."""
        now_s, ended_s = self._clock.monotonic(), self._clock.now()
        since_s = duration_s if self._last_batch_s is None else now_s - self._last_batch_s
        durations_ms = {phase: round(spent_ms) for phase, spent_ms in outcome.durations_ms.items()}
        entry = {
            "name": self._name,
            "timestamp": datetime.fromtimestamp(plan.batch_time_us / 1e6, UTC).isoformat(timespec="milliseconds"),
            "batchId": plan.batch,
            "batchDuration": round(duration_s * 1000),
            "durationMs": {**durations_ms, "triggerExecution": round(duration_s * 1000)},
            "numInputRows": outcome.rows_in,
            "inputRowsPerSecond": outcome.rows_in / max(since_s, 1e-6),
            "processedRowsPerSecond": outcome.rows_in / max(duration_s, 1e-6),
            "badRows": outcome.bad_rows,
            "sources": [self._source(name, plan, outcome, standing) for name in self._program.sources],
            "eventTime": _event_time(plan.watermarks),
            "sink": {"description": ", ".join(self._program.sinks), "numOutputRows": outcome.rows_out},
            "sinks": [
                {"description": name, "numOutputRows": outcome.rows_by_sink.get(name, 0)}
                for name in self._program.sinks
            ],
        }
        for task_manager, values in outcome.metrics.items():
            self._task_managers.update(task_manager, values)
        self._task_managers.mark(plan.batch)
        self._batch_durations.add(duration_s * 1000)
        with self._lock:
            self._standing = standing
            self._operator_watermarks = plan.watermarks
            self._counted["numBatches"] += 1
            self._counted["numSplitFailures"] += len(outcome.failed_splits)
            self._last_batch_s = now_s
            self._rows += outcome.rows_in
            self._bad_rows += outcome.bad_rows
            self._count_reasons(outcome.bad_reasons)
            hot = self._hot_keys.note(outcome.key_samples)
            self._sink_rows.update(outcome.rows_by_sink)
            self._batch_ms.append(duration_s * 1000)
            self._batch_rows.append(outcome.rows_in)
            self._recent.append(
                _Entry(
                    plan.watermarks, entry, ended_s - duration_s, ended_s, self._task_managers.reports(), self._own()
                )
            )
        for operator, key, share in hot:
            log.warning(
                "%s: some %.0f %% of the rows of operator %r have the key %s. They all go to one subtask, which "
                "bounds what further subtasks are good for",
                self._name,
                share * 100,
                operator,
                key,
            )

    def _source(self, name: str, plan: Plan, outcome: BatchOutcome, standing: Standing) -> dict[str, Any]:
        return {
            "description": name,
            "startOffset": plan.start[name],
            "endOffset": plan.to[name],
            "numInputRows": outcome.rows_by_source.get(name, 0),
            "lag": standing.lag.get(name, {}),
            "watermark": _shown_time(standing.watermarks.get(name)),
        }

    def checkpoint(self, stats: CheckpointStats) -> None:
        self._checkpoint_durations.add(stats.duration_s * 1000)
        self._task_managers.forget_marks_before(stats.batch)
        with self._lock:
            self._checkpoints.append(replace(stats, task_managers=()))
            self._outcomes.append(stats)
            self._counted["numberOfCompletedCheckpoints"] += 1

    def not_completed(self, stats: CheckpointStats) -> None:
        """Note a trigger that did not lead to a checkpoint, or was refused and waits."""
        is_refused = stats.outcome == Outcome.REFUSED.value
        with self._lock:
            self._outcomes.append(stats)
            self._counted["numberOfRefusedCheckpoints"] += float(is_refused)
            self._counted["numberOfFailedCheckpoints"] += float(stats.counted)
            self._counted["numberOfAbortedCheckpoints"] += float(not stats.counted and not is_refused)

    def outcomes(self) -> list[CheckpointStats]:
        """The last `RECENT_MAX` triggers of this start, oldest first, with their outcomes."""
        with self._lock:
            return list(self._outcomes)

    def restarted(self, reason: str, task_managers: Collection[int], batch: BatchNumber) -> None:
        """Note a return to the checkpoint after `batch`; `task_managers` hold the state from then on."""
        self._task_managers.go_back(batch)
        self._task_managers.keep_gauges_of(task_managers)
        with self._lock:
            self._restarts.append(Restart(self._clock.now(), reason))
            self._counted["numRestarts"] += 1

    def joined(self, task_managers: Collection[int]) -> None:
        """Note that these TaskManagers hold the state from now on."""
        self._task_managers.keep_gauges_of(task_managers)

    def restarts(self) -> tuple[Restart, ...]:
        """The last `RECENT_MAX` restarts, oldest first."""
        with self._lock:
            return tuple(self._restarts)

    def totals(self) -> Totals:
        with self._lock:
            return Totals(
                self._rows,
                self._bad_rows,
                list(self._batch_ms),
                list(self._batch_rows),
                list(self._checkpoints),
                int(self._counted["numberOfFailedCheckpoints"]),
                int(self._counted["numberOfAbortedCheckpoints"]),
                int(self._counted["numberOfRefusedCheckpoints"]),
                int(self._counted["numBatches"]),
                int(self._counted["numberOfCompletedCheckpoints"]),
            )

    def recent(self) -> list[dict[str, Any]]:
        with self._lock:
            entries = list(self._recent)
        return [self._shown(entry) for entry in entries]

    def last(self) -> dict[str, Any] | None:
        with self._lock:
            entry = self._recent[-1] if self._recent else None
        return None if entry is None else self._shown(entry)

    def batches(self) -> tuple[Batch, ...]:
        """The last `RECENT_MAX` batches, oldest first, without metrics."""
        with self._lock:
            return tuple(Batch(entry.progress, entry.started_s, entry.ended_s) for entry in self._recent)

    def last_metrics(self) -> Mapping[int, Mapping[str, float]]:
        """Last reported metrics of each TaskManager, by its number."""
        return self._task_managers.last()

    def picture(self) -> Picture:
        """Return the current values of all metrics."""
        with self._lock:
            own = self._own()
        return picture(self._task_managers.reports(), own)

    def sink_rows(self) -> Mapping[str, int]:
        """Rows that were staged for each sink, in committed batches."""
        with self._lock:
            return dict(self._sink_rows)

    def bad_reasons(self) -> tuple[tuple[BadReason, int], ...]:
        """Bad rows by source, operator and reason, the most frequent first."""
        with self._lock:
            return tuple(self._bad_reasons.most_common())

    def hot_keys(self) -> dict[str, tuple[tuple[str, float], ...]]:
        """The most frequent keys of each operator's rows, each with its share of the rows."""
        with self._lock:
            return self._hot_keys.shares()

    def _count_reasons(self, found: Mapping[BadReason, int]) -> None:
        """Count bad rows by reason; the lock is held."""
        for reason, rows in found.items():
            is_kept = reason in self._bad_reasons or len(self._bad_reasons) < BAD_REASONS_MAX
            self._bad_reasons[reason if is_kept else OTHER_REASONS] += rows

    def lag(self) -> Lag:
        """Lag of each source and split, after the last batch."""
        with self._lock:
            return self._standing.lag

    def watermarks(self) -> dict[str, Mapping[str, int]]:
        """Watermarks in microseconds, by "source" (after the last batch) and "operator" (in the last batch)."""
        with self._lock:
            return {"source": self._standing.watermarks, "operator": self._operator_watermarks}

    def _shown(self, entry: _Entry) -> dict[str, Any]:
        found = picture(entry.reports, entry.own)
        operators = [_operator(name, found, entry.watermarks.get(name)) for name in self._program.operators]
        return {**entry.progress, "stateOperators": operators, "metrics": found.summary()}

    def _own(self) -> dict[str, float]:
        """Values of the JobMaster itself; the lock is held."""
        behind = [each for splits in self._behind().values() for each in splits.values()]
        values = dict(self._counted) | {
            "failingSplits": float(sum(bool(each.reason) and not each.parked for each in behind)),
            "parkedSplits": float(sum(each.parked for each in behind)),
            "numInputRows": float(self._rows),
            "badRows": float(self._bad_rows),
            **self._gauges(),
        }
        if self._checkpoints:
            last = self._checkpoints[-1]
            values |= {
                "lastCheckpointDuration": last.duration_s * 1000,
                "lastCheckpointStartDelay": last.start_delay_s * 1000,
                "lastCheckpointSyncDuration": last.sync_s * 1000,
                "lastCheckpointAsyncDuration": last.async_s * 1000,
                "lastCheckpointSize": float(last.incremental_bytes),
                "lastCheckpointFullSize": float(last.full_bytes),
            }
        values |= self._checkpoint_durations.values("checkpointDurations")
        return values | self._batch_durations.values("batchDurations")


def _event_time(watermarks: Mapping[str, int]) -> dict[str, str]:
    """PySpark's key for the watermark; the least over all operators."""
    shown = _shown_time(min(watermarks.values(), default=None))
    return {} if shown is None else {"watermark": shown}


def _shown_time(time_us: int | None) -> str | None:
    if time_us is None:
        return None
    return (EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _operator(name: str, found: Picture, watermark_us: int | None) -> dict[str, Any]:
    """PySpark's keys for an operator's state, its watermark; its own metrics by name, and by name and subtask."""
    own: dict[str, dict[int, float]] = {
        metric: {place.subtask: value for place, value in sorted(values.items()) if place.operator == name}
        for metric, values in found.by_subtask.items()
    }
    ratios = {at: value for at, value in found.by_subtask.get("stateCacheHitRatio", {}).items() if at.operator == name}
    custom = {"stateCacheHitRatio": over_subtasks("stateCacheHitRatio", ratios, found.by_subtask)} if ratios else {}
    for metric, values in own.items():
        custom |= {f"{metric}.{subtask}": value for subtask, value in values.items()}
    return {
        "operatorName": name,
        "numRowsTotal": int(sum(own.get("stateRows", {}).values())),
        "memoryUsedBytes": int(sum(own.get("stateBytes", {}).values())),
        "watermark": _shown_time(watermark_us),
        "customMetrics": custom,
    }
