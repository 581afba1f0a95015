"""The cost of a job with little to do: processor time, not wall time, so that other load on the machine matters little.

    python -m benchmarks.quiet --json

First `--rows` rows a second (250) go through six operators with RocksDB, local recovery and a checkpoint a second, for
`--seconds`; then the same job gets no input for as long.

    driver_core_share        processor time of the driver's Python process, as a share of one core
    task_manager_core_share  of a TaskManager, on average; `sender_core_share` of a sender
    idle_core_share          of all Python processes of the job together, without input
    requests_per_hour        objects of logs and tables that TaskManagers store, while rows come
    s3_per_hour              with `--s3`: requests by kind that an S3 stand-in gets from all processes, while rows come
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

import holdfast as hf
from benchmarks.count import session
from benchmarks.job_processes import cpu_by_thread, cpu_s_of, processes_of, thread_names
from benchmarks.s3_counted import counted_s3

WARMUP_S = 6.0
KEYS = 100
TOP_THREADS = 12


def keyed(rows: pa.RecordBatch) -> pa.RecordBatch:
    values = rows.column(0)
    keys = pa.array(values.to_numpy() % KEYS)
    return pa.record_batch([keys, values], names=["k", "x"])


def quiet_job(spark: Any, folder: Path, rows_per_second: float | None, options: argparse.Namespace) -> hf.Job:
    """A job with six operators. `rows_per_second`: None for a source that never has rows."""
    job = hf.Job(
        spark,
        name="quiet",
        storage=options.storage or (folder / "storage").as_uri(),
        storage_options=options.storage_options,
        parallelism=2,
        task_managers=options.task_managers,
        senders=1,
        state=hf.RocksDBState(),
        checkpoint=hf.CheckpointConfig(trigger=hf.every(options.interval)),
        task_manager=hf.TaskManagerConfig(memory=options.memory, local_recovery=True, local_dir=str(folder / "local")),
    )
    source = (
        hf.SequenceSource(rows=0) if rows_per_second is None else hf.SequenceSource(rows_per_second=rows_per_second)
    )
    rows = job.read(source).map_batches(keyed, "k BIGINT, x BIGINT")
    for number in range(6):
        counts = rows.key_by("k").aggregate(name=f"count-{number}", emit="changes", n=hf.count(), total=hf.sum("x"))
        counts.write(hf.NoopSink())
    return job


def core_shares(query: hf.Query, seconds: float, with_threads: bool) -> dict[str, float]:
    """Watch a query; return the share of a core that each process took."""
    processes = processes_of(query)
    before = {name: cpu_s_of(process) for name, process in processes.items()}
    by_thread = {name: cpu_by_thread(process) for name, process in processes.items() if with_threads}
    began_s = time.monotonic()
    query.awaitTermination(seconds)
    took_s = time.monotonic() - began_s
    shares = {name: (cpu_s_of(process) - before[name]) / took_s for name, process in processes.items()}
    if with_threads:
        for name, process in processes.items():
            _print_threads(name, process, by_thread[name], took_s)
    return shares


def _print_threads(name: str, process: psutil.Process, before: Mapping[int, float], took_s: float) -> None:
    used = {task: (s - before.get(task, 0.0)) / took_s for task, s in cpu_by_thread(process).items()}
    print(f"--- {name}: {len(used)} threads, {dict(thread_names(process))}", file=sys.stderr)
    for task in sorted(used, key=lambda each: -used[each])[:TOP_THREADS]:
        comm = Path(f"/proc/{process.pid}/task/{task}/comm")
        label = comm.read_text().strip() if comm.exists() else "ended"
        print(f"    {used[task]:.4f}  {label} {task}", file=sys.stderr)


def run(spark: Any, rows_per_second: float | None, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-quiet-") as name:
        query = quiet_job(spark, Path(name), rows_per_second, options).start(
            trigger=hf.processing_time(options.trigger)
        )
        query.awaitTermination(WARMUP_S)
        begun, requests, asked = query.totals, _requests(query), options.counts()
        shares = core_shares(query, options.seconds, options.threads)
        ended, requests, asked = query.totals, _requests(query) - requests, options.counts() - asked
        query.stop()
    return {
        "shares": shares,
        "batches_per_s": round((ended.batches - begun.batches) / options.seconds, 2),
        "checkpoints_per_s": round((len(ended.checkpoints) - len(begun.checkpoints)) / options.seconds, 2),
        "requests_per_hour": round(requests * 3600 / options.seconds),
        **(
            {"s3_per_hour": {kind: round(each * 3600 / options.seconds) for kind, each in asked.items()}}
            if asked
            else {}
        ),
    }


def _requests(query: hf.Query) -> float:
    return sum(each.metrics.get("numberOfUploadRequests", 0.0) for each in query.view().processes)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    spark = session("local[4]")
    with counted_s3() if options.s3 else nullcontext() as s3:
        options.counts = Counter if s3 is None else s3.counts
        options.storage_options = {} if s3 is None else s3.options
        runs = []
        for number, rows in enumerate((options.rows, None)):
            options.storage = "" if s3 is None else f"s3://bucket/quiet-{number}"
            runs.append(run(spark, rows, options))
    busy, idle = runs
    spark.stop()
    figures = {"rows_per_s": options.rows, "trigger": options.trigger}
    for role, shown in (("driver", "driver"), ("taskmanager", "task_manager"), ("sender", "sender"), ("jvm", "jvm")):
        of_role = [share for name, share in busy["shares"].items() if name.replace("_", "").startswith(role)]
        figures[f"{shown}_core_share"] = round(sum(of_role) / max(1, len(of_role)), 4)
    python = [share for name, share in idle["shares"].items() if name != "jvm"]
    figures["idle_core_share"] = round(sum(python), 4)
    figures["idle"] = {name: round(share, 4) for name, share in idle["shares"].items()}
    return figures | {name: value for name, value in busy.items() if name != "shares"}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=250)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--task-managers", type=int, default=2)
    parser.add_argument("--trigger", default="250ms", help="interval of batches")
    parser.add_argument("--interval", default="1s", help="interval of checkpoints")
    parser.add_argument("--memory", default="1GB", help="of a TaskManager")
    parser.add_argument("--s3", action="store_true", help="keep the storage in an S3 stand-in, and count its requests")
    parser.add_argument("--threads", action="store_true", help="print the busiest threads of each process")
    parser.add_argument("--json", action="store_true", help="one line")
    options = parser.parse_args(arguments)
    figures = measure(options)
    print(json.dumps(figures, indent=None if options.json else 2))


if __name__ == "__main__":
    main(sys.argv[1:])
