"""Rows of whole windows: `top` and functions, against a recomputation."""

import math
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from functions_windows_kit import BACKENDS, SCHEMA, SECOND, Row, commit, restored, run_batch, undo

import holdfast as hf
from holdfast.errors import JobRefused, SettingsError, UserFunctionError
from holdfast.functions.operator import EventTime, NewTable, OperatorInput
from holdfast.functions.ranking.window_top import TopSpec
from holdfast.functions.rows.greatest import greatest, last_of_groups
from holdfast.functions.windows.declared import Window
from holdfast.functions.windows.process import WindowProcessSpec
from holdfast.functions.windows.windowed import Windowing
from holdfast.state.backends import tables_of

WINDOWS = {"tumbling": hf.window("at", "10s"), "sliding": hf.window("at", "10s", slide="4s", start="1s")}


@pytest.fixture(params=["hashmap", "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


def input_of(window: Window, keys: tuple[str, ...] = ("k",)) -> OperatorInput:
    return OperatorInput(SCHEMA, keys, EventTime(("at",), "at"), window, len(keys))


def starts_of(window: Window, second: int) -> list[int]:
    size, slide, start = (each // SECOND for each in (window.size_us, window.slide_us, window.start_us))
    last = (second - start) // slide * slide + start
    return [begin for begin in range(last, last - size - slide, -slide) if begin <= second < begin + size]


def top_of(rows: list[Row], n: int, ties: bool) -> list[int | None]:
    values = sorted(
        (value for *_, value in rows), key=lambda value: -math.inf if value is None else value, reverse=True
    )
    if not ties or len(values) <= n:
        return values[:n]
    last = values[n - 1]
    return values[:n] + [value for value in values[n:] if value == last]


@pytest.mark.parametrize("keys", [("k",), ()], ids=["keyed", "alone"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_the_greatest_rows_of_windows_are_what_the_model_recomputes(
    window: Window, keys: tuple[str, ...], tables: NewTable
) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance, ties = random.Random(seed), bool(seed % 2)
    spec = TopSpec("top", input_of(window, keys), 2, "v", ties)
    operator, model = spec.create(0, 128, tables), defaultdict(list)
    now, size = 100, window.size_us // SECOND
    watermark: int | None = None
    closed: int | None = None
    for number in range(1, 40):
        now += chance.choice([0, 1, 3, 9])
        watermark = chance.choice([watermark, max(watermark or 0, now - chance.randrange(12))])
        rows: list[Row] = [
            (chance.choice("ab"), now + chance.randrange(-12, 15), chance.choice([None, *range(4)]))
            for _ in range(chance.choice([0, 3, 9]))
        ]
        if chance.random() < 0.2:
            run_batch(operator, spec, number, rows[::-1], (watermark, closed))
            undo(operator)
        result = run_batch(operator, spec, number, rows, (watermark, closed))
        commit(operator)
        for row in rows:
            for begin in starts_of(window, row[1]):
                if closed is None or begin + size > closed:
                    model[row[0] if keys else "", begin].append(row)
        due = {key: kept for key, kept in model.items() if watermark is not None and key[1] + size <= watermark}
        found = defaultdict(list)
        for batch in result.output:
            for row in batch.to_pylist():
                found[row["k"] if keys else "", round(row["window_start"].timestamp())].append(row["v"])
        assert found == {key: top_of(kept, 2, ties) for key, kept in due.items()}, f"batch {number}"
        for key in due:
            del model[key]
        closed = watermark
        if chance.random() < 0.1:
            operator = restored(operator, spec, tables)
    run_batch(operator, spec, 40, [], (10_000, closed))
    commit(operator)
    assert not any(len(table) for table in operator.tables.values())


def test_rows_of_windows_that_close_at_once_are_never_stored() -> None:
    spec = TopSpec("top", input_of(WINDOWS["tumbling"]), 1, "v")
    operator = spec.create(0, 128)
    result = run_batch(operator, spec, 1, [("a", 101, 5), ("a", 102, 7), ("b", 115, 1)], (110, 100))
    assert [batch.to_pylist()[0]["v"] for batch in result.output] == [7]
    assert {name: len(table) for name, table in operator.tables.items()} == {"state": 1, "rows": 1}


VALUES = {
    "floats": pa.array([1.0, float("nan"), -0.0, 0.0, None, float("-inf"), -3.5, float("inf")]),
    "strings": pa.array(["b", "a", None, "c", "b", "", "zz", "a"]),
    "numbers": pa.array([3, None, -(2**63), 2**63 - 1, 0, 3, -1, 2]),
    "unsigned": pa.array([3, None, 2**64 - 1, 1, 0, 3, 7, 2], pa.uint64()),
}


@pytest.mark.parametrize("least", [False, True], ids=["greatest", "least"])
@pytest.mark.parametrize("ties", [False, True], ids=["exactly", "ties"])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_ranks_are_those_of_sql_whatever_the_type(values: pa.Array, ties: bool, least: bool) -> None:
    listed, groups = values.to_pylist(), np.arange(len(values)) % 2

    def order(row: int) -> tuple[Any, ...]:
        value = listed[row]
        if value is None:
            return (1,)
        place = (1, 0.0) if value != value else (0, value)
        return (0, place)

    expected = []
    for group in (0, 1):
        rows = [row for row in range(len(listed)) if groups[row] == group]
        some = sorted((row for row in rows if listed[row] is not None), key=order, reverse=not least)
        rows = some + [row for row in rows if listed[row] is None]
        expected += [
            row
            for place, row in enumerate(rows)
            if (sum(order(other) != order(row) for other in rows[:place]) if ties else place) < 2
        ]
    assert sorted(greatest(values, groups, 2, ties, least).tolist()) == sorted(expected)


@pytest.mark.parametrize("n", [1, 3, 64, 65, 1_000])
def test_the_greatest_and_the_last_of_many_groups_are_those_of_a_sort(n: int) -> None:
    draw = np.random.default_rng(n)
    groups = np.concatenate([np.arange(40), draw.integers(0, 40, 2_000) ** 2 // 40])
    numbers = draw.integers(-20, 20, len(groups))
    values = pa.array(numbers, mask=draw.random(len(groups)) < 0.1)
    pairs = zip(groups.tolist(), values.to_pylist(), strict=True)
    ranked = [(group, value is None, -(value or 0)) for group, value in pairs]
    order = sorted(range(len(groups)), key=lambda row: (*ranked[row], row))
    begins = {ranked[row][0]: place for place, row in reversed([*enumerate(order)])}
    for ties in (False, True):
        first = {ranked[row]: place for place, row in reversed([*enumerate(order)])}
        places = [first[ranked[row]] if ties else place for place, row in enumerate(order)]
        expected = [row for row, place in zip(order, places, strict=True) if place - begins[ranked[row][0]] < n]
        assert greatest(values, groups, n, ties).tolist() == expected
    last = {ranked[row][0]: row for row in sorted(order, key=lambda row: (*ranked[row], -row), reverse=True)}
    assert last_of_groups(values, groups).tolist() == [last[group] for group in range(40)]


class Median(hf.ProcessFunction):
    def process(self, rows: Any, ctx: Any) -> Any:
        values = sorted(row.v for row in rows)
        if values[0] < 0:
            raise ValueError("below zero")
        yield ctx.key.k, ctx.key.window_end, values[len(values) // 2]


class Spread(hf.BatchFunction):
    def process(self, batch: Any, keys: Any, groups: Any, ctx: Any) -> Any:
        values = batch.column("v").to_numpy()
        made = [int(np.ptp(values[groups == group])) for group in range(keys.num_rows)]
        return pa.record_batch([keys["k"], keys["window_end"], pa.array(made)], names=["k", "end", "v"])


OUT = pa.schema([("k", pa.string()), ("end", pa.timestamp("us", "UTC")), ("v", pa.int64())])
ROWS: list[Row] = [("a", 101, 1), ("b", 102, 7), ("a", 104, 3), ("a", 109, 2), ("a", 113, 9), ("b", 109, 2)]


def outputs(function: Any, rows: list[Row], **windowing: Any) -> tuple[list[tuple[str, int, int]], list[Any]]:
    spec = WindowProcessSpec("f", input_of(WINDOWS["tumbling"]), function, OUT, Windowing(**windowing))
    operator = spec.create(0, 128)
    run_batch(operator, spec, 1, rows[:3], (None, None))
    commit(operator)
    result = run_batch(operator, spec, 2, rows[3:], (110, None))
    found = [row for batch in result.output for row in batch.to_pylist()]
    return [(row["k"], round(row["end"].timestamp()), row["v"]) for row in found], result.bad


def test_functions_get_the_rows_of_whole_windows_when_they_close() -> None:
    assert sorted(outputs(Median(), ROWS)[0]) == [("a", 110, 2), ("b", 110, 7)]
    assert sorted(outputs(Spread(), ROWS)[0]) == [("a", 110, 2), ("b", 110, 5)]


def test_a_window_for_which_a_function_raises_is_bad_alone() -> None:
    rows: list[Row] = [*ROWS, ("b", 105, -1)]
    with pytest.raises(UserFunctionError, match=r"key \{'k': 'b', 'window_start': .*ValueError: below zero"):
        outputs(Median(), rows)
    found, bad = outputs(Median(), rows, bad_records="dead_letter")
    assert found == [("a", 110, 2)]
    assert len(bad) == 1 and '"rows":3' in bad[0].payload


class Stateful(hf.ProcessFunction):
    n = hf.ValueState(pa.int64())

    def process(self, rows: Any, ctx: Any) -> None:
        return None


def test_what_they_refuse() -> None:
    with pytest.raises(JobRefused, match="has states or timers"):
        WindowProcessSpec("f", input_of(WINDOWS["tumbling"]), Stateful(), OUT)
    with pytest.raises(JobRefused, match="there is no such column"):
        TopSpec("top", input_of(WINDOWS["tumbling"]), 1, "z")
    with pytest.raises(SettingsError, match="a whole number of rows from 1"):
        TopSpec("top", input_of(WINDOWS["tumbling"]), 0, "v")
