"""Nexmark's queries in SQL give the results of DuckDB."""

from pathlib import Path

import pytest

import holdfast as hf
from benchmarks.nexmark.events import write_events
from benchmarks.nexmark.expected import difference
from benchmarks.nexmark.queries import QUERIES, Events
from benchmarks.nexmark.sql import SQL_QUERIES, built
from holdfast.testing import start

QUICK = ("q14", "q18")
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
    job = hf.Job(None, name=name, storage=f"memory://nexmark-sql-{name}", parallelism=2, max_rows_per_batch=9_000)
    built(name, job, Events(job, str(folder))).write(sink)
    start(job, hf.available_now(drain=True)).awaitTermination()
    assert difference(name, sink.table(), folder, QUERIES[name].keys) == ""
