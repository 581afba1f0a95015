"""The JSON under `/api/v1/`, which the page and `holdfast top` show. Pure: it turns a `JobView` into plain values.

Names are snake_case. Times are seconds since the Unix epoch (`…_at_s`), durations are seconds (`…_s`) or milliseconds
(`…_ms`), sizes are bytes (`…_bytes`). docs/guide/page.md describes each field.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from math import ceil
from typing import Any

import msgspec

from holdfast.checkpoint.outcomes import Outcome
from holdfast.formats.history import CheckpointStats, LostRows
from holdfast.formats.store_use import rates
from holdfast.graph.keygroups import key_group_range
from holdfast.observe.metrics import picture
from holdfast.observe.view import Batch, GraphEdge, JobView

Json = dict[str, Any]

SUMMARIZED = ("duration_s", "start_delay_s", "sync_s", "async_s", "incremental_bytes", "full_bytes")
PERCENTILES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p99_9": 999}
"""The percentiles by name, in thousandths."""
RATE_S = 10.0
"""Period in seconds, up to the last batch, over which rates are computed. A higher value smooths and delays them."""
PROCESS_METRICS = {
    "memory_bytes": "processMemoryBytes",
    "state_rows": "stateRows",
    "state_bytes": "stateBytes",
    "undo_bytes": "stateUndoBytes",
    "exchange_memory_bytes": "exchangeMemoryBytes",
    "exchange_spilled_bytes": "exchangeSpilledBytes",
    "uploads_queued": "uploadQueueSize",
    "upload_in_flight_bytes": "uploadBytesInFlight",
    "upload_target_size_bytes": "uploadTargetSize",
    "upload_back_pressured": "uploadBackPressured",
}
"""The metrics of a TaskManager that are shown, by their names in the JSON."""
SUBTASK_METRICS = {
    "rows": "stateRows",
    "bytes": "stateBytes",
    "key_group_skew": "stateKeyGroupSkew",
    "records_in": "numRecordsIn",
    "records_out": "numRecordsOut",
    "late_records": "numLateRecordsDropped",
    "cache_hit_ratio": "stateCacheHitRatio",
    "log_bytes": "lastFullSizeOfNonMaterialization",
    "materialized_bytes": "lastFullSizeOfMaterialization",
}


def job(view: JobView) -> Json:
    """Return the overview of the job: identity, phase, graph with rates, lag and back-pressure, last batches."""
    completed = [each for each in view.checkpoints if each.outcome == Outcome.COMPLETED.value]
    last = completed[-1] if completed else None
    return {
        "name": view.name,
        "job_id": view.job_id,
        "run_id": view.run_id,
        "epoch": view.epoch,
        "storage": view.storage,
        "started_at_s": view.started_s,
        "now_s": view.now_s,
        "phase": view.phase,
        "is_active": view.is_active,
        "message": view.message,
        "error": view.error,
        "rows": int(view.metrics.values.get("numInputRows", 0)),
        "bad_rows": int(view.metrics.values.get("badRows", 0)),
        "dead_letters": view.dead_letters,
        "bad_reasons": [
            {"source": source, "operator": operator, "reason": reason, "rows": rows}
            for (source, operator, reason), rows in view.bad_reasons
        ],
        "batches_committed": int(view.metrics.values.get("numBatches", 0)),
        "rows_per_s": _rate(view, lambda batch: batch.rows),
        "restarts": int(view.metrics.values.get("numRestarts", 0)),
        "last_restart": {"at_s": view.restarts[-1].at_s, "reason": view.restarts[-1].reason} if view.restarts else None,
        "advice": view.advice,
        "rescale": view.rescale,
        "materialized_by": view.materialized_by,
        "since_checkpoint_s": None if last is None else max(0.0, view.now_s - _ended_at_s(last)),
        "splits_behind": [asdict(each) for each in view.behind],
        "nodes": [*_sources(view), *_operators(view), *_sinks(view)],
        "edges": [_edge(view, edge) for edge in view.graph.edges],
        "batches": [_batch(each) for each in view.batches],
    }


def checkpoints(view: JobView) -> Json:
    """Return counts since the start, the newest checkpoint of each kind, statistics, history, and current settings."""
    completed = [each for each in view.checkpoints if each.outcome == Outcome.COMPLETED.value]
    values = view.metrics.values
    return {
        "counts": {
            "completed": int(values.get("numberOfCompletedCheckpoints", 0)),
            "failed": int(values.get("numberOfFailedCheckpoints", 0)),
            "aborted": int(values.get("numberOfAbortedCheckpoints", 0)),
            "refused": int(values.get("numberOfRefusedCheckpoints", 0)),
        },
        "latest": {
            "completed": _latest(view.checkpoints, lambda each: each.outcome == Outcome.COMPLETED.value),
            "failed": _latest(view.checkpoints, lambda each: each.counted),
            "refused": _latest(view.checkpoints, lambda each: each.outcome == Outcome.REFUSED.value),
            "savepoint": _latest(completed, lambda each: "savepoint" in each.trigger),
        },
        "restored": view.restored,
        "summary": {name: summary([getattr(each, name) for each in completed]) for name in SUMMARIZED},
        "history": [msgspec.to_builtins(each) for each in view.checkpoints],
        "savepoints": [asdict(each) for each in view.savepoint_history],
        "epoch": view.epoch,
        "store_use": {
            **asdict(view.store_use),
            "currency": view.prices.currency,
            "lanes": [each._asdict() for each in rates(view.store_use, view.prices)],
        },
        "settings": dict(view.settings),
        "kept_settings": dict(view.kept),
        "now_s": view.now_s,
    }


def processes(view: JobView) -> Json:
    """Return the TaskManagers and senders that are in service."""
    return {
        "processes": [
            {
                "role": each.role,
                "number": each.number,
                "incarnation": each.incarnation,
                "address": each.address,
                "standby": each.is_standby,
                "follower": None if each.follower is None else asdict(each.follower),
                "cache_hit_ratio": picture([({}, each.metrics)]).values.get("stateCacheHitRatio"),
                **{shown: each.metrics[name] for shown, name in PROCESS_METRICS.items() if name in each.metrics},
            }
            for each in view.processes
        ]
    }


def state(view: JobView) -> Json:
    """Return the state of each operator and of its subtasks, and how unevenly keys are distributed among them."""
    return {"operators": [_state_of(view, name) for name in view.graph.operators]}


def restarts(view: JobView) -> Json:
    """Return the error that ended the query, the restarts within it, and the last events of the JobMaster's loops."""
    return {
        "error": view.error,
        "restarts": [{"at_s": each.at_s, "reason": each.reason} for each in view.restarts],
        "lost_rows": [_lost(each) for each in view.losses],
        "dropping": view.dropping,
        "events": [
            {
                "at_s": each.at_s,
                "loop": each.loop,
                "kind": "command" if each.is_command else "event",
                "name": each.name,
                "values": each.values,
            }
            for each in view.events
        ],
    }


ENDPOINTS: Mapping[str, Callable[[JobView], Json]] = {
    "job": job,
    "checkpoints": checkpoints,
    "processes": processes,
    "state": state,
    "restarts": restarts,
}
"""The documents by name, below `/api/v1/`."""


def summary(values: list[float]) -> Json | None:
    """Return the lowest, mean and highest value and percentiles, which are among the values; None without values."""
    if not values:
        return None
    found = sorted(values)
    quantiles = {name: found[ceil(len(found) * share / 1000) - 1] for name, share in PERCENTILES.items()}
    return {"min": found[0], "mean": sum(found) / len(found), **quantiles, "max": found[-1]}


def _sources(view: JobView) -> list[Json]:
    return [
        {
            "kind": "source",
            "name": name,
            "rows_per_s": _rate(view, lambda batch, name=name: _rows_of_source(batch, name)),  # type: ignore[misc]
            "lag": sum(view.lag.get(name, {}).values()),
            "splits": len(view.lag.get(name, {})),
            "watermark_us": view.source_watermarks.get(name),
        }
        for name in view.graph.sources
    ]


def _operators(view: JobView) -> list[Json]:
    return [
        {
            "kind": "operator",
            "name": name,
            "records_in": _of_operator(view, "numRecordsIn", name),
            "records_out": _of_operator(view, "numRecordsOut", name),
            "state_rows": _of_operator(view, "stateRows", name),
            "state_bytes": _of_operator(view, "stateBytes", name),
            "watermark_us": view.operator_watermarks.get(name),
        }
        for name in view.graph.operators
    ]


def _sinks(view: JobView) -> list[Json]:
    return [
        {
            "kind": "sink",
            "name": name,
            "rows": view.sink_rows.get(name, 0),
            "rows_per_s": _rate(view, lambda batch, name=name: _rows_of_sink(batch, name)),  # type: ignore[misc]
            "unpublished_groups": view.backlog.get(name, 0),
            "holds_planning": name in view.paused_by,
        }
        for name in view.graph.sinks
    ]


def _edge(view: JobView, edge: GraphEdge) -> Json:
    kind, _, name = edge.target.partition("/")
    uploads_wait = view.metrics.values.get("uploadBackPressured", 0) > 0
    pressed = name in view.paused_by if kind == "sink" else uploads_wait
    return {
        "from": edge.origin,
        "to": edge.target,
        "steps": list(edge.steps),
        "in_python": edge.in_python,
        "back_pressured": pressed,
    }


def _batch(batch: Batch) -> Json:
    progress = batch.progress
    return {
        "batch": progress["batchId"],
        "timestamp": progress["timestamp"],
        "rows": progress["numInputRows"],
        "bad_rows": progress["badRows"],
        "duration_ms": progress["batchDuration"],
        "phases_ms": {name: ms for name, ms in progress["durationMs"].items() if name != "triggerExecution"},
    }


def _state_of(view: JobView, operator: str) -> Json:
    subtasks = [_subtask(view, operator, subtask) for subtask in range(view.parallelism)]
    rows = [each.get("rows", 0.0) for each in subtasks]
    mean = sum(rows) / len(rows)
    return {
        "operator": operator,
        "watermark_us": view.operator_watermarks.get(operator),
        "rows": sum(rows),
        "bytes": sum(each.get("bytes", 0.0) for each in subtasks),
        "skew": max(rows) / mean if mean else None,
        "key_group_skew": max((each["key_group_skew"] for each in subtasks if "key_group_skew" in each), default=None),
        "subtasks": subtasks,
        "hot_keys": [{"key": key, "share": share} for key, share in view.hot_keys.get(operator, ())],
    }


def _subtask(view: JobView, operator: str, subtask: int) -> Json:
    first, stop = key_group_range(subtask, view.parallelism, view.max_parallelism)
    found = {
        shown: value
        for shown, name in SUBTASK_METRICS.items()
        for place, value in view.metrics.by_subtask.get(name, {}).items()
        if place == (operator, subtask)
    }
    return {"subtask": subtask, "key_groups": [first, stop], **found}


def _lost(lost: LostRows) -> Json:
    shown = ("at_s", "epoch", "checkpoint", "cause", "rows", "acknowledged")
    return {
        **{name: getattr(lost, name) for name in shown},
        "rows_dropped": sum(lost.rows_dropped.values()),
        "rows_forgotten": sum(lost.rows_forgotten.values()),
        "ranges": [
            {"source": source, "split": split, "start": start, "stop": stop}
            for source, splits in lost.positions.items()
            for split, (start, stop) in splits.items()
        ],
    }


def _of_operator(view: JobView, metric: str, operator: str) -> float:
    return sum(value for place, value in view.metrics.by_subtask.get(metric, {}).items() if place.operator == operator)


def _rows_of_source(batch: Batch, source: str) -> int:
    return sum(each["numInputRows"] for each in batch.progress["sources"] if each["description"] == source)


def _rows_of_sink(batch: Batch, sink: str) -> int:
    return sum(each["numOutputRows"] for each in batch.progress["sinks"] if each["description"] == sink)


def _rate(view: JobView, rows: Callable[[Batch], int]) -> float:
    """Return rows per second over the last `RATE_S` seconds, or since the first batch kept if that is shorter."""
    recent = [each for each in view.batches if each.ended_s > view.now_s - RATE_S]
    if not recent:
        return 0.0
    since_s = max(recent[0].started_s, view.now_s - RATE_S)
    return sum(rows(each) for each in recent) / max(view.now_s - since_s, 1e-3)


def _latest(found: Iterable[CheckpointStats], wanted: Callable[[CheckpointStats], bool]) -> Json | None:
    matching = [each for each in found if wanted(each)]
    return msgspec.to_builtins(matching[-1]) if matching else None


def _ended_at_s(checkpoint: CheckpointStats) -> float:
    return checkpoint.at_s + checkpoint.duration_s
