"""Joins as of a time against a recomputation: random batches, undo, restarts, late and equal times."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from functions_joins_kit import (
    CLICKS,
    EVERYTHING_US,
    VISITS,
    Feed,
    Rows,
    order_short_keys,
    restored,
    run_batch,
    settings,
    shown,
)
from functions_windows_kit import BACKENDS, commit, undo

import holdfast as hf
from holdfast.errors import JobRefused
from holdfast.functions.joins.declared import JoinSpec
from holdfast.functions.operator import EventTime, NewTable, OperatorInput
from holdfast.state.backends import tables_of
from holdfast.testing import Eof, TestSource, run

SECOND = 1_000_000


@pytest.fixture(params=["hashmap", "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


def spec_of(tolerance: Any = None, left: Any = None, right: Any = None) -> JoinSpec:
    inputs = (
        OperatorInput(CLICKS, ("user",), EventTime(("clicked",), "clicked"), left),
        OperatorInput(VISITS, ("id",), EventTime(("begun",), "begun"), right),
    )
    return settings("asof", tolerance=tolerance).spec("joined", inputs)


def expected(clicks: Rows, visits: Rows, tolerance_s: int | None) -> Counter[tuple[Any, ...]]:
    """Each click with the newest visit that is not after it; of visits at the same time the last that came."""
    found: Counter[tuple[Any, ...]] = Counter()
    for click in clicks:
        earliest = -EVERYTHING_US if tolerance_s is None else click[1] - tolerance_s * SECOND
        known = [(visit[1], place) for place, visit in enumerate(visits) if visit[0] == click[0]]
        met = [(at, place) for at, place in known if earliest <= at <= click[1]]
        found[(*click, *(visits[max(met)[1]] if met else (None,) * 4))] += 1
    return found


def numbers(rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Rows with their times as microseconds."""
    epoch = pa.scalar(0, VISITS.field("begun").type).as_py()
    return Counter(
        tuple(round((value - epoch).total_seconds() * SECOND) if hasattr(value, "year") else value for value in row)
        for row in rows.elements()
    )


@pytest.fixture(params=["few", "many"])
def rows_of_a_key(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys with few rows, or (`many`) each key with two rows counts as a key with very many."""
    if request.param == "many":
        order_short_keys(monkeypatch)


@pytest.mark.usefixtures("rows_of_a_key")
@pytest.mark.parametrize("tolerance_s", [None, 0, 7])
def test_each_row_meets_the_newest_row_that_is_not_after_it(tolerance_s: int | None, tables: NewTable) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    feed, spec = Feed(seed), spec_of(tolerance_s)
    operator = spec.create(0, 128, tables)
    all_clicks: Rows = []
    all_visits: Rows = []
    found: Counter[tuple[Any, ...]] = Counter()
    for number in range(1, 40):
        marks = feed.move()
        if feed.chance.random() < 0.2:
            run_batch(operator, number, *feed.rows(), marks)
            undo(operator)
        clicks, visits = feed.rows()
        result = run_batch(operator, number, clicks, visits, marks)
        commit(operator)
        found += shown(result.output)
        on_time = [[row for row in rows if marks[1] is None or row[1] >= marks[1]] for rows in (clicks, visits)]
        assert result.late == len(clicks) + len(visits) - len(on_time[0]) - len(on_time[1])
        all_clicks += on_time[0]
        all_visits += on_time[1]
        if feed.chance.random() < 0.1:
            operator = restored(operator, spec, tables)
    found += shown(run_batch(operator, 40, [], [], (EVERYTHING_US, feed.watermark)).output)
    commit(operator)
    assert numbers(found) == expected(all_clicks, all_visits, tolerance_s)
    kept = {name: len(table) for name, table in operator.tables.items()}
    keys = len({visit[0] for visit in all_visits})
    assert spec.grows == "", "a row for each key is no reason to warn"
    assert kept == ({"heads": keys, "left": 0, "right": keys} if tolerance_s is None else dict.fromkeys(kept, 0))


def test_the_state_of_a_key_is_its_newest_row_and_those_after_the_watermark(tables: NewTable) -> None:
    operator = spec_of().create(0, 128, tables)
    for number in range(1, 50):
        visits = [("a", number * SECOND, None, str(number))]
        run_batch(operator, number, [], visits, ((number - 3) * SECOND, (number - 4) * SECOND))
        commit(operator)
        assert len(operator.tables["right"]) <= 5
    result = run_batch(operator, 50, [("a", 49 * SECOND + 1, "/", 1)], [], (300 * SECOND, 46 * SECOND))
    assert [row["agent"] for part in result.output for row in part.to_pylist()] == ["49"]
    assert len(operator.tables["right"]) == 1


def test_a_join_as_of_a_time_behind_windows_is_refused() -> None:
    with pytest.raises(JobRefused, match="leave within, between, ttl and how='asof' out"):
        spec_of(left=hf.window("clicked", 10), right=hf.window("begun", 10))


def test_trades_get_the_quote_of_their_time() -> None:
    sink = hf.MemorySink()
    job = hf.Job(None, name="trades", storage="memory://trades-as-of", task_managers=2, parallelism=2)
    trades = [{"item": "tea", "at": 5, "n": 1}, {"item": "tea", "at": 20, "n": 2}, {"item": "jam", "at": 6, "n": 3}]
    quotes = [{"item": "tea", "quoted": at, "price": at * 10} for at in (1, 4, 5, 19)]
    left, right = (
        job.read(
            TestSource([[row | {time: row[time] * SECOND} for row in rows], Eof(drain=True)], schema)
        ).with_watermark(time, "1s")
        for rows, time, schema in (
            (trades, "at", pa.schema([("item", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])),
            (
                quotes,
                "quoted",
                pa.schema([("item", pa.string()), ("quoted", pa.timestamp("us", "UTC")), ("price", pa.int64())]),
            ),
        )
    )
    left.key_by("item").join(right.key_by("item"), how="asof", tolerance="10s").write(sink)
    run(job)
    assert sorted((row["n"], row["price"]) for row in sink.rows()) == [(1, 50), (2, 190), (3, None)]
