"""Helpers for the tests on Spark: jobs on a folder of the test, files to read, waiting."""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf

WAIT_S_MAX = 60.0
SENDERS: int | None = None
"""How many senders of a job stay where a test does not say: as many as fit. Test modules run with 0 as well."""
_times = itertools.count(1_000_000_000)


def new_job(spark: Any, folder: Path, **settings: Any) -> hf.Job:
    """A job on Spark with its storage in `folder`; checkpoints only on request."""
    settings.setdefault("checkpoint", hf.CheckpointConfig(trigger=hf.manual()))
    settings.setdefault("parallelism", 2)
    settings.setdefault("senders", SENDERS)
    settings.setdefault("name", "test")
    settings.setdefault("storage", f"file://{folder}/storage")
    return hf.Job(spark, **settings)


def run(job: hf.Job) -> hf.Query:
    """Run a job until everything its sources have is processed and published."""
    query = job.start(hf.available_now())
    query.awaitTermination()
    return query


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A Parquet file, moved into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name("_" + path.name)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), hidden)
    hidden.rename(path)


def tuples(sink: hf.MemorySink) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in sink.rows())


def newest(sink: hf.MemorySink) -> dict[Any, Any]:
    """The last value of each key, of rows (key, value)."""
    return dict(tuple(row.values()) for row in sink.rows())


def kill_task_manager(query: hf.Query, number: int) -> None:
    """SIGKILL to the worker that listens where that TaskManager is."""
    worker_at(query.taskManagers[number]["address"]).kill()


def senders(query: hf.Query) -> dict[int, psutil.Process]:
    """The workers of the senders that serve now, by their incarnations."""
    serving = list(query._master.parts.senders._serving.values())
    return {each.process.incarnation: worker_at(each.address) for each in serving}


def worker_at(address: str) -> psutil.Process:
    """The process that listens there."""
    port = int(address.rsplit(":", 1)[1])
    for process in psutil.Process().children(recursive=True):
        try:
            if any(each.laddr.port == port for each in process.net_connections("tcp") if each.status == "LISTEN"):
                return process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    raise AssertionError(f"nobody listens on port {port}")
