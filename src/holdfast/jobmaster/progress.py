"""What the user sees of a running query: PySpark's progress keys as plain dicts, and checkpoint figures.

Written by the JobMaster's threads, read by anybody. Owns no policy.
"""

import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.clock import Clock
from holdfast.graph.plan import Plan
from holdfast.graph.program import Program
from holdfast.jobmaster.batches import BatchOutcome
from holdfast.jobmaster.control import CheckpointStats

RECENT_MAX = 100
FIGURES_MAX = 100_000


@dataclass(frozen=True)
class Totals:
    """Figures since the start of a query. Of long runs the lists keep the last `FIGURES_MAX` entries."""

    rows: int
    bad_rows: int
    batch_ms: list[float]
    batch_rows: list[int]
    checkpoints: list[CheckpointStats]
    failed_checkpoints: int


class Progress:
    """Thread-safe. `recent` keeps the last `RECENT_MAX` batches; figures keep the last `FIGURES_MAX`."""

    def __init__(self, name: str, program: Program, clock: Clock) -> None:
        self._name = name
        self._program = program
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)
        self._batch_ms: deque[float] = deque(maxlen=FIGURES_MAX)
        self._batch_rows: deque[int] = deque(maxlen=FIGURES_MAX)
        self._checkpoints: deque[CheckpointStats] = deque(maxlen=FIGURES_MAX)
        self._rows = 0
        self._bad_rows = 0
        self._failed_checkpoints = 0
        self._restarts: deque[str] = deque(maxlen=RECENT_MAX)
        self._last_batch_s: float | None = None

    def batch(self, plan: Plan, outcome: BatchOutcome, duration_s: float, lag: dict[str, dict[str, int]]) -> None:
        """A batch was committed."""
        now_s = self._clock.monotonic()
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
            "stateOperators": [{"operatorName": name} for name in self._program.operators],
            "sources": [self._source(name, plan, outcome, lag) for name in self._program.sources],
            "sink": {"description": ", ".join(self._program.sinks), "numOutputRows": outcome.rows_out},
        }
        with self._lock:
            self._last_batch_s = now_s
            self._rows += outcome.rows_in
            self._bad_rows += outcome.bad_rows
            self._batch_ms.append(duration_s * 1000)
            self._batch_rows.append(outcome.rows_in)
            self._recent.append(entry)

    def _source(self, name: str, plan: Plan, outcome: BatchOutcome, lag: dict[str, dict[str, int]]) -> dict[str, Any]:
        return {
            "description": name,
            "startOffset": plan.start[name],
            "endOffset": plan.to[name],
            "numInputRows": outcome.rows_by_source.get(name, 0),
            "lag": lag.get(name, {}),
        }

    def checkpoint(self, stats: CheckpointStats) -> None:
        with self._lock:
            self._checkpoints.append(stats)

    def checkpoint_failed(self) -> None:
        with self._lock:
            self._failed_checkpoints += 1

    def restarted(self, reason: str) -> None:
        with self._lock:
            self._restarts.append(reason)

    def restarts(self) -> list[str]:
        with self._lock:
            return list(self._restarts)

    def totals(self) -> Totals:
        with self._lock:
            return Totals(
                self._rows,
                self._bad_rows,
                list(self._batch_ms),
                list(self._batch_rows),
                list(self._checkpoints),
                self._failed_checkpoints,
            )

    def recent(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._recent)

    def last(self) -> dict[str, Any] | None:
        with self._lock:
            return self._recent[-1] if self._recent else None
