"""A query of Nexmark, end to end: Parquet files → state → checkpoints every second, with a changelog → `NoopSink`.

The clock runs from the first batch's plan to the end of the query, last checkpoint included. Starting Spark and the
processes is not part of it, as with the others that are measured beside.
"""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import holdfast as hf
from benchmarks.count import percentile
from benchmarks.nexmark.events import KINDS, write_events
from benchmarks.nexmark.queries import QUERIES, Events

PEER_LIMIT_S = 900
"""How long another engine may take for a query; a higher value waits longer before the query counts as failed."""


class PeerFailed(Exception):
    """Another engine ended a query with an error, or did not end it; the message names engine and query."""


def run_peer(what: str, command: Sequence[str]) -> str:
    """Run another engine's process, named `what` in errors; the last line of its output."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PEER_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"{what} has not ended after {PEER_LIMIT_S} s") from error
    if ended.returncode != 0:
        raise PeerFailed(f"{what} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
    return ended.stdout.strip().splitlines()[-1]


def events_folder(events: int, seed: int) -> Path:
    """Return the folder with so many events, which is written once and stays in the temporary directory."""
    folder = Path(tempfile.gettempdir()) / f"holdfast-nexmark-side-{events}-{seed}"
    if not folder.exists():
        unfinished = Path(tempfile.mkdtemp(prefix="holdfast-nexmark-")) / "events"
        write_events(unfinished, events, seed)
        unfinished.rename(folder)
    return folder


def rows_of(folder: Path) -> dict[str, int]:
    """How many rows there are of each kind."""
    from pyarrow import parquet

    kinds = (*KINDS, "side")
    return {kind: sum(parquet.read_metadata(file).num_rows for file in (folder / kind).iterdir()) for kind in kinds}


def run_query(spark: Any, name: str, folder: Path, options: Any) -> dict[str, Any]:
    """Run a query; its figures."""
    query = QUERIES[name]
    with tempfile.TemporaryDirectory(prefix="holdfast-nexmark-state-") as storage:
        job = hf.Job(
            spark,
            name=name,
            storage=Path(storage, "job").as_uri(),
            parallelism=options.parallelism,
            task_managers=options.task_managers,
            senders=options.senders,
            checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
            task_manager=hf.TaskManagerConfig(memory="6GB"),
            failover=hf.FailoverConfig(start_timeout="10min"),
            max_rows_per_batch=options.rows_per_batch,
            max_event_time_skew="10s",
        )
        query.build(Events(job, str(folder))).write(query.sink(f"{storage}/out"))
        running = job.start(trigger=hf.available_now(drain=True))
        running.awaitTermination()
        ended_s = time.time()
        return figures_of(running, ended_s)


def figures_of(query: hf.Query, ended_s: float) -> dict[str, Any]:
    """The figures of a query that has ended."""
    progress, totals = query.recentProgress, query.totals
    begun = datetime.fromisoformat(progress[0]["timestamp"].replace("Z", "+00:00"))
    seconds = ended_s - begun.timestamp()
    durations_ms = [1000 * each.duration_s for each in totals.checkpoints]
    state_bytes = [sum(each["memoryUsedBytes"] for each in one["stateOperators"]) for one in progress]
    return {
        "rows": totals.rows,
        "seconds": round(seconds, 2),
        "rows_per_s": round(totals.rows / seconds),
        "batches": totals.batches,
        "state_bytes_max": max(state_bytes, default=0),
        "checkpoints": totals.completed_checkpoints,
        "checkpoint_p99_ms": percentile(durations_ms, 99),
    }
