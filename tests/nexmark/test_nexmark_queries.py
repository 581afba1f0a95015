"""Nexmark's queries over 20,000 events give the results of DuckDB, though a TaskManager is lost on the way."""

import ast
import inspect
import logging
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from benchmarks.nexmark import by_hand, queries
from benchmarks.nexmark.events import KINDS, write_events
from benchmarks.nexmark.expected import SQL, difference, expected
from benchmarks.nexmark.queries import QUERIES, Events
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from sampling import some

EVENTS = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nexmark") / "events"
    write_events(made, EVENTS, seed=1, events_per_file=4_000)
    return made


def test_events_have_the_proportions_and_hot_keys_of_the_original(folder: Path) -> None:
    rows = {kind: pq.read_table(folder / kind).num_rows for kind in KINDS}
    assert rows == {"persons": EVENTS // 50, "auctions": EVENTS * 3 // 50, "bids": EVENTS * 46 // 50}
    bids = pq.read_table(folder / "bids").to_pandas()
    hot = bids.auction.value_counts().head(EVENTS * 3 // 50 // 100).sum() / len(bids)
    assert 0.45 < hot < 0.6, "half of the bids are on hot auctions"
    assert bids.date_time.is_monotonic_increasing


def test_events_are_the_same_for_the_same_seed(folder: Path, tmp_path: Path) -> None:
    write_events(tmp_path / "again", 4_000, seed=1, events_per_file=4_000)
    write_events(tmp_path / "other", 4_000, seed=2, events_per_file=4_000)
    first = pq.read_table(folder / "bids" / "0000.parquet")
    assert pq.read_table(tmp_path / "again/bids").equals(first)
    assert not pq.read_table(tmp_path / "other/bids").equals(first)


def test_each_query_has_its_sql() -> None:
    assert list(QUERIES) == list(SQL)


def parts_of(made: Any, known: list[Any]) -> list[Any]:
    """A function or class of `queries` with those that it uses."""
    known.append(made)
    for node in ast.walk(ast.parse(inspect.getsource(made))):
        used = getattr(queries, node.id, None) if isinstance(node, ast.Name) else None
        ours = (inspect.isfunction(used) or inspect.isclass(used)) and used.__module__ == queries.__name__
        if ours and used is not Events and used not in known:
            parts_of(used, known)
    return known


def lines_of(made: Any) -> int:
    """Lines of code; docstrings are none."""
    source = inspect.getsource(made)
    texts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    places = [(node.lineno, node.end_lineno) for node in texts if isinstance(node.value, ast.Constant)]
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not any(a <= place <= (b or a) for a, b in places) for place, line in lines)


def test_each_query_takes_at_most_15_lines() -> None:
    lines = {name: sum(map(lines_of, parts_of(query.build, []))) for name, query in QUERIES.items()}
    assert max(lines.values()) <= 15, lines
    assert lines["q6"] > lines["q4"] > 6, "the parts that queries share count"


def test_a_missing_and_a_wrong_result_are_told(folder: Path) -> None:
    right = expected("q4", folder)
    assert difference("q4", right, folder) == ""
    assert difference("q4", right.slice(1), folder) == "q4: 1 results are missing, 0 are too many"
    wrong = right.set_column(1, "mean", pc.add(right["mean"], 1.0))
    assert difference("q4", wrong, folder) == "q4: 5 results are missing, 5 are too many"


@pytest.mark.parametrize("way", some([way for way in by_hand.WAYS if "by" in way], 0, 1))
def test_queries_that_are_written_by_hand_give_the_same(way: str, tmp_path: Path) -> None:
    write_events(tmp_path / "events", 8_000, seed=1, events_per_file=4_000)
    _, different = by_hand.run(way, tmp_path / "events", 2_000)
    assert different == ""


@pytest.mark.parametrize("name", QUERIES)
def test_results_are_those_of_a_database(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    query, sink = QUERIES[name], hf.MemorySink()
    job = hf.Job(
        None, name=name, storage=f"memory://nexmark-{name}", parallelism=2, task_managers=2, max_rows_per_batch=4_000
    )
    query.build(Events(job, str(folder))).write(sink)
    clusters: list[LocalCluster] = []
    running = start(job, hf.available_now(drain=True), on_cluster=clusters.append)
    if query.stateful:
        clusters[0].kill(1)
    running.awaitTermination()
    assert len(running.restarts) == query.stateful
    assert difference(name, sink.table(), folder, query.keys) == ""
