"""Aggregates against a plain Python oracle, over types, nulls, both emit modes, several batches, undo between."""

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates import declared as hf
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import BatchContext, Operator, OperatorInput, OperatorResult

UTC = ZoneInfo("UTC")
CONTEXT = BatchContext(batch=7, batch_time_us=0, operator="delays", subtask=0)
MOMENTS = [datetime.datetime(2013, 1, day, day, tzinfo=UTC) for day in (1, 2, 3)]

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-1000, 1000),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e300, math.inf, -math.inf, math.nan]),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from(["", "a", "b", "ab", "\U0001f600", "\ue000"]),
    pa.timestamp("us", tz="UTC"): st.sampled_from(MOMENTS),
    pa.date32(): st.sampled_from([moment.date() for moment in MOMENTS]),
    pa.decimal128(10, 2): st.decimals(-1000, 1000, places=2),
    pa.list_(pa.int64()): st.lists(st.integers(0, 3), max_size=2),
}
NUMBERS = (pa.int64(), pa.int8(), pa.float64(), pa.decimal128(10, 2))
Rows = list[tuple[Any, Any]]


def functions_of(kind: pa.DataType) -> list[str]:
    if pa.types.is_list(kind):
        return ["count", "first", "last"]
    plain = ["count", "min", "max", "first", "last"]
    return [*plain, "sum", "mean"] if kind in NUMBERS else plain


def spec_of(kind: pa.DataType, emit: str = "changes", bad_records: str = "fail", **aggregates: Any) -> AggregateSpec:
    schema = pa.schema([("k", pa.string()), ("v", kind)])
    return AggregateSpec("delays", OperatorInput(schema, ("k",)), aggregates, emit, bad_records)  # type: ignore[arg-type]


def batch_of(rows: Rows, kind: pa.DataType) -> pa.RecordBatch:
    schema = pa.schema([("k", pa.string()), ("v", kind)])
    return pa.RecordBatch.from_arrays(
        [pa.array([k for k, _ in rows], pa.string()), pa.array([v for _, v in rows], kind)], schema=schema
    )


def run(operator: Operator, chunks: list[Rows], kind: pa.DataType, *, commit: bool = True) -> OperatorResult:
    table = operator.tables["state"]
    table.begin(0)
    result = operator.process([(0, batch_of(rows, kind)) for rows in chunks], CONTEXT)
    if commit:
        table.commit()
    else:
        table.undo()
    return result


def rows_of(result: OperatorResult) -> list[dict[str, Any]]:
    return [row for batch in result.output for row in batch.to_pylist()]


def above(a: Any, b: Any) -> bool:
    """Spark's order: NaN above everything, equal to itself."""
    if isinstance(a, float) and math.isnan(a):
        return not math.isnan(b)
    return not (isinstance(b, float) and math.isnan(b)) and bool(a > b)


def expected(function: str, values: list[Any]) -> Any:
    some = [value for value in values if value is not None]
    if function == "count":
        return len(some)
    if function in ("first", "last"):
        return values[0] if function == "first" else values[-1]
    if not some:
        return None
    if function in ("sum", "mean"):
        total: Any = 0.0 if isinstance(some[0], float) or function == "mean" else some[0] - some[0]
        for value in some:
            total += float(value) if function == "mean" else value
        return total / len(some) if function == "mean" else total
    best = some[0]
    for value in some[1:]:
        if above(value, best) if function == "max" else above(best, value):
            best = value
    return best


class Oracle:
    def __init__(self, functions: list[str]) -> None:
        self.functions = functions
        self.seen: dict[Any, list[Any]] = {}

    def row(self, key: Any) -> dict[str, Any]:
        values = self.seen[key]
        return {"k": key, "rows": len(values), **{name: expected(name, values) for name in self.functions}}

    def process(self, chunks: list[Rows], emit: str) -> list[dict[str, Any]]:
        rows = [row for chunk in chunks for row in chunk]
        out = []
        for key, value in rows:
            self.seen.setdefault(key, []).append(value)
            if emit == "every":
                out.append(self.row(key))
        return out if emit == "every" else [self.row(key) for key in dict.fromkeys(key for key, _ in rows)]


@st.composite
def histories(draw: Callable[[Any], Any]) -> tuple[pa.DataType, str, list[tuple[bool, list[Rows]]]]:
    kind = draw(st.sampled_from(list(VALUES)))
    row = st.tuples(st.sampled_from(["", "a", "b", "c"]), st.none() | VALUES[kind])
    chunks = st.lists(st.lists(row, max_size=6), max_size=3)
    return (
        kind,
        draw(st.sampled_from(["changes", "every"])),
        draw(st.lists(st.tuples(st.booleans(), chunks), max_size=4)),
    )


@settings(deadline=None, max_examples=25)
@given(histories())
def test_aggregates_give_what_a_recomputation_gives(
    history: tuple[pa.DataType, str, list[tuple[bool, list[Rows]]]],
) -> None:
    kind, emit, batches = history
    functions = functions_of(kind)
    spec = spec_of(kind, emit, rows=hf.count(), **{name: hf.Aggregate(name, "v") for name in functions})  # type: ignore[arg-type]
    operator = spec.create(0, 128)
    oracle = Oracle(functions)
    for undone, chunks in batches:
        if undone:
            run(operator, [[(key, value) for key, value in reversed(rows)] for rows in chunks], kind, commit=False)
        result = run(operator, chunks, kind)
        assert repr(rows_of(result)) == repr(oracle.process(chunks, emit))
        assert all(batch.schema == spec.output_schema for batch in result.output)
        assert all(batch.num_rows for batch in result.output)
    assert len(operator.tables["state"]) == len(oracle.seen)


def test_output_has_the_keys_in_key_by_order_then_the_aggregates_in_keyword_order() -> None:
    schema = pa.schema([("v", pa.int32()), ("a", pa.string()), ("b", pa.int64(), False)])
    aggregates = {"z": hf.count(), "y": hf.sum("v"), "x": hf.mean("v"), "w": hf.max("v"), "u": hf.first("a")}
    spec = AggregateSpec("o", OperatorInput(schema, ("b", "a")), aggregates)
    assert spec.output_schema == pa.schema(
        [
            pa.field("b", pa.int64(), False),
            ("a", pa.string()),
            pa.field("z", pa.int64(), False),
            ("y", pa.int64()),
            ("x", pa.float64()),
            ("w", pa.int32()),
            ("u", pa.string()),
        ]
    )
    operator = spec.create(0, 128)
    operator.tables["state"].begin(0)
    rows = pa.RecordBatch.from_pylist([{"v": 3, "a": "x", "b": 1}, {"v": 5, "a": "x", "b": 1}], schema=schema)
    [batch] = operator.process([(0, rows)], CONTEXT).output
    assert batch.to_pylist() == [{"b": 1, "a": "x", "z": 2, "y": 8, "x": 4.0, "w": 5, "u": "x"}]


@pytest.mark.parametrize(
    ("function", "kind", "result"),
    [
        ("sum", pa.int8(), pa.int64()),
        ("sum", pa.uint32(), pa.int64()),
        ("sum", pa.float32(), pa.float64()),
        ("sum", pa.decimal128(10, 2), pa.decimal128(20, 2)),
        ("sum", pa.decimal128(35, 2), pa.decimal128(38, 2)),
        ("mean", pa.decimal128(10, 2), pa.float64()),
        ("min", pa.date32(), pa.date32()),
        ("last", pa.list_(pa.string()), pa.list_(pa.string())),
        ("count", pa.struct([("x", pa.int64())]), pa.int64()),
    ],
)
def test_result_types_follow_spark(function: Any, kind: pa.DataType, result: pa.DataType) -> None:
    spec = spec_of(kind, n=hf.Aggregate(function, "v"))
    assert spec.output_schema.field("n").type == result
    assert spec.output_schema.field("n").nullable == (function != "count")


def test_uint8_bool_and_float32_columns_are_aggregated_in_their_own_type() -> None:
    for kind, values, least in ((pa.uint8(), [200, 3, 255], 3), (pa.float32(), [2.5, 0.5, math.nan], 0.5)):
        operator = spec_of(kind, low=hf.min("v"), end=hf.last("v")).create(0, 128)
        [row] = rows_of(run(operator, [[("a", value) for value in values]], kind))
        assert row["low"] == least
        assert repr(row["end"]) == repr(pa.scalar(values[-1], kind).as_py())


def test_sliced_input_is_read_at_its_offset() -> None:
    kind = pa.bool_()
    operator = spec_of(kind, "every", low=hf.min("v"), n=hf.count("v")).create(0, 128)
    rows: Rows = [("a", index % 3 != 0 if index % 5 else None) for index in range(40)]
    operator.tables["state"].begin(0)
    result = operator.process([(0, batch_of(rows, kind).slice(11, 20))], CONTEXT)
    oracle = Oracle([])
    values = [value for _, value in rows[11:31]]
    oracle.seen["a"] = values
    assert rows_of(result)[-1] == {"k": "a", "low": expected("min", values), "n": expected("count", values)}


def test_emit_changes_gives_nothing_for_an_empty_batch() -> None:
    operator = spec_of(pa.int64(), n=hf.count()).create(0, 128)
    assert run(operator, [[]], pa.int64()).output == []
    assert run(operator, [], pa.int64()).output == []


def test_key_column_of_every_row_output_is_the_input_column_itself() -> None:
    operator = spec_of(pa.int64(), "every", n=hf.count()).create(0, 128)
    rows = batch_of([("a", 1), ("b", 2), ("a", 3)], pa.int64())
    operator.tables["state"].begin(0)
    [batch] = operator.process([(0, rows)], CONTEXT).output
    assert batch.column(0).buffers()[2].address == rows.column(0).buffers()[2].address
    assert batch.column("n").to_pylist() == [1, 1, 2]


def test_a_new_aggregate_on_existing_keys_starts_null_and_counts_at_zero() -> None:
    kind = pa.int64()
    old = spec_of(kind, n=hf.count()).create(0, 128)
    run(old, [[("a", 5), ("a", 6), ("b", 7)]], kind)
    every: dict[str, Any] = {name: hf.Aggregate(name, "v") for name in functions_of(kind)}  # type: ignore[arg-type]
    new = spec_of(kind, n=hf.count(), **every).create(0, 128)
    new.tables["state"].apply(old.tables["state"].snapshot(), 0, 128)
    [row] = rows_of(run(new, [[("a", None)]], kind))
    nothing: dict[str, Any] = dict.fromkeys(["min", "max", "first", "last", "sum", "mean"])
    assert row == {"k": "a", "n": 3, "count": 0, **nothing}
    [row] = rows_of(run(new, [[("b", 4)]], kind))
    values = dict.fromkeys(["min", "max", "first", "last", "sum", "mean"], 4)
    assert row == {"k": "b", "n": 2, "count": 1, **values}


def test_an_aggregate_whose_function_was_changed_starts_anew() -> None:
    kind = pa.int64()
    old = spec_of(kind, n=hf.count()).create(0, 128)
    run(old, [[("a", 5), ("a", 6)]], kind)
    new = spec_of(kind, n=hf.sum("v")).create(0, 128)
    new.tables["state"].apply(old.tables["state"].snapshot(), 0, 128)
    assert rows_of(run(new, [[("a", 5)]], kind)) == [{"k": "a", "n": 5}]


def test_stored_state_continues_where_it_was() -> None:
    for kind, values in ((pa.int64(), [3, None, 9, 4]), (pa.decimal128(10, 2), [Decimal("1.50"), None, Decimal(-2)])):
        names = functions_of(kind)
        spec = spec_of(kind, **{name: hf.Aggregate(name, "v") for name in names})  # type: ignore[arg-type]
        operator = spec.create(0, 128)
        for value in values:
            row = rows_of(run(operator, [[("a", value)]], kind))[0]
            restored = spec.create(0, 128)
            restored.tables["state"].apply(operator.tables["state"].snapshot(), 0, 128)
            operator = restored
        assert row == {"k": "a", **{name: expected(name, values) for name in names}}
        assert operator.tables["state"].snapshot().column("first.first.seen").null_count == 0


@pytest.mark.parametrize(
    ("aggregate", "kind", "words"),
    [
        (hf.sum("v"), pa.string(), ["'delays'", "'n'", "sum(v)", "string"]),
        (hf.mean("v"), pa.bool_(), ["'delays'", "'n'", "mean(v)", "bool"]),
        (hf.sum("v"), pa.uint64(), ["uint64"]),
        (hf.max("v"), pa.list_(pa.int64()), ["max(v)", "list"]),
        (hf.first("v"), pa.dictionary(pa.int32(), pa.string()), ["first(v)", "dictionary"]),
        (hf.min("w"), pa.int64(), ["'delays'", "'n'", "'w'", "k, v"]),
    ],
)
def test_a_column_that_is_missing_or_does_not_fit_is_refused_by_name(
    aggregate: hf.Aggregate, kind: pa.DataType, words: list[str]
) -> None:
    with pytest.raises(JobRefused) as refused:
        spec_of(kind, n=aggregate)
    assert all(word in str(refused.value) for word in words)


def test_names_that_collide_are_refused() -> None:
    with pytest.raises(JobRefused, match="name of a key column"):
        spec_of(pa.int64(), k=hf.count())
    schema = pa.schema([("n.count", pa.string())])
    with pytest.raises(JobRefused, match=r"keeps state named 'n\.count'"):
        AggregateSpec("o", OperatorInput(schema, ("n.count",)), {"n": hf.count()})
    with pytest.raises(JobRefused, match="2 columns of that name"):
        AggregateSpec("o", OperatorInput(pa.schema([("a", pa.int64()), ("a", pa.int64())]), ("a",)), {"n": hf.count()})
    with pytest.raises(JobRefused, match="its key reads column 'z'"):
        AggregateSpec("o", OperatorInput(schema, ("z",)), {"n": hf.count()})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: spec_of(pa.int64(), "sometimes", n=hf.count()), "emit is 'sometimes'"),
        (lambda: spec_of(pa.int64(), "every", "ignore", n=hf.count()), "bad_records is 'ignore'"),
        (lambda: spec_of(pa.int64()), "at least one aggregate"),
        (lambda: spec_of(pa.int64(), n="count"), "aggregate 'n' is 'count'"),
        (lambda: spec_of(pa.int64(), __n=hf.count()), "begin with '__'"),
        (lambda: hf.sum(""), "takes the name of a column"),
        (lambda: hf.Aggregate("median", "v"), "'median'"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_are_not_allowed_are_named(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        make()
