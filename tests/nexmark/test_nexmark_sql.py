"""Nexmark's queries in SQL give the results of DuckDB, though a TaskManager is lost on the way."""

from pathlib import Path

import pytest
from pyarrow.dataset import dataset

import holdfast as hf
from benchmarks.nexmark.events import write_events
from benchmarks.nexmark.expected import difference
from benchmarks.nexmark.queries import QUERIES, Events
from benchmarks.nexmark.sql import SQL_QUERIES, built
from holdfast.testing import start
from holdfast.testing.local import LocalCluster

QUICK = ("q7", "q9", "q18")
EVENTS = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nexmark") / "events"
    write_events(made, EVENTS, seed=1, events_per_file=8_000)
    return made


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in SQL_QUERIES]
)
def test_a_query_in_sql_gives_the_results_of_a_database(name: str, folder: Path) -> None:
    sink = hf.MemorySink()
    storage = f"memory://nexmark-sql-{name}"
    job = hf.Job(None, name=name, storage=storage, parallelism=2, task_managers=2, max_rows_per_batch=9_000)
    built(name, job, Events(job, str(folder))).write(sink)
    clusters: list[LocalCluster] = []
    running = start(job, hf.available_now(drain=True), on_cluster=clusters.append)
    if QUERIES[name].stateful:
        clusters[0].kill(1)
    running.awaitTermination()
    assert len(running.restarts) == QUERIES[name].stateful
    assert difference(name, sink.table(), folder, QUERIES[name].keys) == ""


def test_each_query_has_its_sql() -> None:
    assert list(SQL_QUERIES) == list(QUERIES)


def test_results_are_written_to_folders_by_their_time(folder: Path, tmp_path: Path) -> None:
    job = hf.Job(None, name="q10", storage="memory://nexmark-files")
    built("q10", job, Events(job, str(folder))).write(QUERIES["q10"].sink(f"{tmp_path}/out"))
    start(job, hf.available_now()).awaitTermination()
    found = dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table()
    assert [part.name for part in (tmp_path / "out").glob("*=*")] == ["day=2015-07-15"]
    assert difference("q10", found, folder) == ""
