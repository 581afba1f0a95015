"""Aggregates over streams of changes: after every batch they are the query over the table as it is then."""

import math
import random
from typing import Any

import pyarrow as pa
import pytest
from functions_kit import divided, end

import holdfast as hf
from changes_kit import ChangingTable, Told
from holdfast.functions.aggregates.declared import Aggregate
from holdfast.functions.changes.aggregate import ChangesAggregateSpec
from holdfast.functions.operator import BatchContext, Operator, OperatorInput
from holdfast.ids import BatchNumber

SCHEMA = pa.schema(
    [("k", pa.int64()), ("i", pa.int64()), ("d", pa.float64()), ("m", pa.decimal128(12, 2)), ("s", pa.string())]
)
AGGREGATES = {
    "rows": hf.count(),
    "there": hf.count("i"),
    "i_sum": hf.sum("i"),
    "m_sum": hf.sum("m"),
    "d_sum": hf.sum("d"),
    "i_mean": hf.mean("i"),
    "m_mean": hf.mean("m"),
    "d_mean": hf.mean("d"),
    "i_var": hf.variance("i"),
    "d_dev": hf.stddev("d"),
    "i_min": hf.min("i"),
    "s_max": hf.max("s"),
    "d_max": hf.max("d"),
    "words": hf.count_distinct("s"),
    "about": hf.approx_count_distinct("i"),
    "set": hf.collect_set("s"),
    "list": hf.collect_list("i"),
    "best": hf.max_by("s", "i"),
    "least": hf.min_by("i", "s"),
}
QUERY = """
SELECT k, count(*), count(i), sum(i), sum(m), fsum(d), avg(i), avg(m), favg(d), var_samp(i), stddev_samp(d), min(i),
    max(s), max(d), count(DISTINCT s), count(DISTINCT i),
    coalesce(list_sort(list(DISTINCT s) FILTER (s IS NOT NULL)), []),
    coalesce(list_sort(list(i) FILTER (i IS NOT NULL)), []),
    first(s ORDER BY i DESC, s ASC NULLS LAST) FILTER (i IS NOT NULL),
    first(i ORDER BY s ASC, i ASC NULLS LAST) FILTER (s IS NOT NULL)
FROM t GROUP BY k
"""


def operator_of(aggregates: dict[str, Aggregate], changes: bool, schema: pa.Schema = SCHEMA) -> Operator:
    given = OperatorInput(schema.append(pa.field("_change_type", pa.string())), ("k",), kind="changes")
    return ChangesAggregateSpec("a", given, aggregates, changes=changes).create(0, 8)


def step(operator: Operator, number: int, rows: list[pa.RecordBatch], undo: bool = False) -> list[dict[str, Any]]:
    for table in operator.tables.values():
        table.begin(BatchNumber(number))
    context = BatchContext(BatchNumber(number), 0, "a", 0)
    inputs = divided(operator, number, [(0, each) for each in rows])
    out = [row for each in operator.process(inputs, context).output for row in each.to_pylist()]
    end(operator, undo=undo)
    return out


def compare(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    """Compare rows by key; doubles to nine digits, since DuckDB's sums drift."""
    assert [row[0] for row in found] == [row[0] for row in expected]
    names = ["k", *AGGREGATES]
    for one, other in zip(found, expected, strict=True):
        wrong = [(name, a, b) for name, a, b in zip(names, one, other, strict=True) if not _same(a, b)]
        assert not wrong


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9) or (one != one and other != other)
    return bool((list(one) if isinstance(one, tuple) else one) == other)


def by_key(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: row[0])


@pytest.mark.parametrize(("seed", "changes"), [(1, True), (2, False)])
def test_results_are_those_of_the_table_after_every_batch(seed: int, changes: bool) -> None:
    table, told = ChangingTable(seed, SCHEMA), Told(upserts=not changes)
    operator = operator_of(AGGREGATES, changes)
    draw = random.Random(seed)
    for number in range(1, 7):
        made = table.change(draw.choice([1, 3, 20]))
        rows = [table.batch(made)]
        if draw.random() < 0.3:
            step(operator, number, rows, undo=True)
        told.take(step(operator, number, rows))
        compare(by_key(told.now()), by_key(table.query(QUERY)))
    everything = [{**row, "_change_type": "delete"} for row in table.rows]
    told.take(step(operator, 99, [table.batch(everything)]))
    assert told.now() == []
    assert [len(each) for each in operator.tables.values()] == [0] * len(operator.tables)


def test_neither_order_nor_batches_matter_for_the_end() -> None:
    table = ChangingTable(7, SCHEMA)
    changes = [change for _ in range(6) for change in table.change(10)]
    expected = by_key(table.query(QUERY))
    for seed in (1, 2):
        draw = random.Random(seed)
        draw.shuffle(changes)
        told, operator = Told(), operator_of(AGGREGATES, True)
        at = number = 0
        while at < len(changes):
            number += 1
            size = draw.choice([5, 20])
            told.take(step(operator, number, [table.batch(changes[at : at + size])]))
            at += size
        compare(by_key(told.now()), expected)


FLOATS = pa.schema([("k", pa.int64()), ("d", pa.float64())])


def sums_of(*changes: tuple[float, str]) -> list[dict[str, Any]]:
    operator = operator_of({"sum": hf.sum("d"), "mean": hf.mean("d"), "var": hf.variance("d")}, False, FLOATS)
    table = ChangingTable(0, FLOATS)
    out: list[dict[str, Any]] = []
    for number, (value, kind) in enumerate(changes, 1):
        out += step(operator, number, [table.batch([{"k": 1, "d": value, "_change_type": kind}])])
    return out


def test_a_floating_sum_does_not_drift() -> None:
    large = [(1e300, "insert"), (1e-200, "insert"), (-1e300, "insert"), (1e16, "insert")]
    gone = [(value, "delete") for value, _ in large]
    last = sums_of((0.1, "insert"), *large, *gone)[-1]
    assert (last["sum"], last["mean"], last["var"]) == (0.1, 0.1, None)


def test_values_that_are_not_finite_come_back_out_of_a_sum() -> None:
    inf, nan = math.inf, math.nan
    out = sums_of(
        (1.5, "insert"), (inf, "insert"), (-inf, "insert"), (-inf, "delete"), (inf, "delete"), (nan, "insert")
    )
    assert [row["sum"] for row in out[:5]] == pytest.approx([1.5, inf, nan, inf, 1.5], nan_ok=True)
    assert math.isnan(out[5]["sum"])


def test_a_sum_passes_through_values_that_its_type_cannot_hold() -> None:
    schema = pa.schema([("k", pa.int64()), ("i", pa.int64())])
    operator, table, most = operator_of({"sum": hf.sum("i")}, False, schema), ChangingTable(0, schema), 2**63 - 1
    rows = [(most, "insert"), (most, "insert"), (-most - 1, "insert"), (most, "delete")]
    batch = [{"k": 1, "i": value, "_change_type": kind} for value, kind in rows]
    assert [row["sum"] for row in step(operator, 1, [table.batch(batch)])] == [-1]
    for table_ in operator.tables.values():
        table_.begin(BatchNumber(2))
    more = [{"k": 1, "i": most, "_change_type": "insert"}] * 2
    with pytest.raises(hf.BadRecord, match="aggregate 'sum' = sum\\(i\\) of a stream of changes does not fit int64"):
        operator.process([(0, table.batch(more))], BatchContext(BatchNumber(2), 0, "a", 0))


def test_aggregates_that_follow_the_order_of_rows_are_refused() -> None:
    with pytest.raises(hf.JobRefused, match=r"'x' is first\(i\), which depends on the order.*take min_by or max_by"):
        operator_of({"x": hf.first("i")}, True)
    nested = pa.schema([("k", pa.int64()), ("l", pa.list_(pa.int64()))])
    with pytest.raises(hf.JobRefused, match="cannot find values of type list"):
        operator_of({"x": hf.collect_list("l")}, True, nested)
