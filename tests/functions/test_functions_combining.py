"""Combined rows against the rows themselves: the same output and state, over key kinds, types, nulls and aggregates."""

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadRecord, RowsNeeded
from holdfast.functions.aggregates import combining as module
from holdfast.functions.aggregates import declared as hf
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import COMBINED_INPUT, BatchContext, OperatorInput, OperatorResult

CONTEXT = BatchContext(batch=7, batch_time_us=0, operator="sums", subtask=0)
DAYS = [datetime.date(2013, 1, day) for day in (1, 2, 3)]
KEY_KINDS: dict[str, list[tuple[pa.DataType, list[Any]]]] = {
    "int64": [(pa.int64(), [0, 1, -(2**63), 2**63 - 1])],
    "int32": [(pa.int32(), [0, 1, -5, 2**31 - 1])],
    "string": [(pa.string(), ["", "a", "b", "a longer key, and a longer one"])],
    "binary": [(pa.binary(), [b"", b"\0", b"\0\0"])],
    "boolean": [(pa.bool_(), [False, True])],
    "date": [(pa.date32(), DAYS)],
    "timestamp": [(pa.timestamp("us"), [datetime.datetime(2013, 1, day) for day in (1, 2, 3)])],
    "decimal": [(pa.decimal128(10, 2), [Decimal("0.00"), Decimal("1.50"), Decimal("-1.50")])],
    "composite": [(pa.string(), ["", "a"]), (pa.int64(), [0, 1]), (pa.date32(), DAYS[:2])],
}
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**40), 2**40),
    pa.int8(): st.integers(-128, 127),
    pa.uint32(): st.integers(0, 2**32 - 1),
    # Sums of these and of the following, also as doubles, are exact in any order.
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, -2.25, 1024.0, math.inf, math.nan]),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from(["", "a", "b", "ab"]),
    pa.date32(): st.sampled_from(DAYS),
    pa.decimal128(10, 2): st.integers(-4000, 4000).map(lambda quarters: Decimal(quarters) / 4),
    pa.decimal128(38, 0): st.integers(-(10**12), 10**12).map(Decimal),
    pa.list_(pa.int64()): st.lists(st.integers(0, 3), max_size=2),
}
EXACT: tuple[hf.AggregateFunction, ...] = (
    "count",
    "sum",
    "min",
    "max",
    "mean",
    "first",
    "last",
    "count_distinct",
    "collect_list",
)
"""Functions whose results do not depend on the order in which states are added."""
Rows = list[tuple[tuple[Any, ...], Any]]


def spec_of(keys: str, kind: pa.DataType, combine: bool = True, bad_records: Any = "fail") -> AggregateSpec:
    names = tuple(f"k{number}" for number in range(len(KEY_KINDS[keys])))
    schema = pa.schema(
        [*((name, kind) for name, (kind, _) in zip(names, KEY_KINDS[keys], strict=True)), pa.field("v", kind)]
    )
    fitting = {name: hf.Aggregate(name, "v") for name in EXACT if hf.fits(name, kind)}
    return AggregateSpec(
        "sums", OperatorInput(schema, names), {"rows": hf.count(), **fitting}, "changes", bad_records, combine
    )


def batch_of(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*((*key, value) for key, value in rows), strict=True)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def sent(spec: AggregateSpec, senders: list[list[Rows]]) -> list[tuple[int, pa.RecordBatch]]:
    """Combine the rows of some senders, each in batches; return the rows that arrive."""
    arrived = []
    for batches in senders:
        combiner = spec.combiner()
        for rows in batches:
            batch = batch_of(rows, spec.input.schema)
            arrived += [(0, batch)] if combiner is None else combiner.take(batch)
        arrived += [] if combiner is None else combiner.finish()
    return arrived


def take(operator: Any, inputs: list[tuple[int, pa.RecordBatch]]) -> OperatorResult:
    operator.tables["state"].begin(0)
    try:
        result: OperatorResult = operator.process(inputs, CONTEXT)
    except BaseException:
        operator.tables["state"].undo()
        raise
    operator.tables["state"].commit()
    return result


@pytest.fixture(scope="module", autouse=True)
def small_steps():
    """Steps so small that a few rows go through all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SAMPLE_ROWS", 3)
        patch.setattr(module, "ROWS_AT_ONCE_MAX", 5)
        patch.setattr(module, "KEYS_MAX", 4)
        yield


@st.composite
def histories(draw: Any) -> tuple[str, pa.DataType, list[list[list[Rows]]]]:
    """Key kind, type of the values, and for each batch and sender its rows in batches."""
    keys, kind = draw(st.sampled_from(list(KEY_KINDS))), draw(st.sampled_from(list(VALUES)))
    key = st.tuples(*(st.sampled_from(values) for _, values in KEY_KINDS[keys]))
    rows = st.lists(st.tuples(key, st.none() | VALUES[kind]), min_size=1, max_size=12)
    return keys, kind, draw(st.lists(st.lists(st.lists(rows, max_size=3), max_size=3), max_size=3))


@settings(deadline=None, max_examples=20)
@given(histories())
def test_combined_rows_give_the_same_output_and_state_as_the_rows_themselves(
    history: tuple[str, pa.DataType, list[list[list[Rows]]]],
) -> None:
    keys, kind, batches = history
    with_combining, without = spec_of(keys, kind), spec_of(keys, kind, combine=False)
    combined, plain = with_combining.create(0, 128), without.create(0, 128)
    for senders in batches:
        found, expected = (
            take(combined, sent(with_combining, senders)),
            take(plain, sent(without, senders)),
        )
        assert [repr(each.to_pylist()) for each in found.output] == [repr(each.to_pylist()) for each in expected.output]
        assert all(each.schema == with_combining.output_schema for each in found.output)
        tables = combined.tables["state"].snapshot(), plain.tables["state"].snapshot()
        assert len({repr(table.to_pylist()) for table in tables}) == 1


def test_of_many_rows_only_distinct_keys_travel() -> None:
    rows: Rows = [((number % 2,), number) for number in range(4000)]
    ((number, batch),) = sent(spec_of("int64", pa.int64()), [[rows[:1000], rows[1000:]]])
    assert number == COMBINED_INPUT
    assert batch.num_rows == 2
    assert batch.column("sum.sum").to_pylist() == [sum(range(0, 4000, 2)), sum(range(1, 4000, 2))]


def test_rows_whose_keys_hardly_repeat_travel_as_they_came() -> None:
    spec = spec_of("int64", pa.int64())
    rows: Rows = [((number,), number) for number in range(100)]
    assert sent(spec, [[rows]]) == [(0, batch_of(rows, spec.input.schema))]
    assert spec.combiner().finish() == []  # type: ignore[union-attr]


def test_combining_stops_where_keys_no_longer_repeat_and_the_rows_that_are_left_come_last() -> None:
    spec = spec_of("int64", pa.int64())
    rows: Rows = [((0,), 1)] * 5 + [((number,), number) for number in range(100)]
    (number, combined), (of_rest, rest) = sent(spec, [[rows]])
    assert (number, of_rest) == (COMBINED_INPUT, 0)
    assert combined.column("rows.count").to_pylist() == [6, 1, 1, 1, 1]
    assert rest.column("v").to_pylist() == list(range(5, 100))


def test_every_row_is_sent_where_every_row_is_output() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    assert AggregateSpec("o", OperatorInput(schema, ("k",)), {"n": hf.count()}, "every").combiner() is None
    assert AggregateSpec("o", OperatorInput(schema, ("k",)), {"n": hf.count()}, "changes").combiner() is not None


def test_a_key_column_named_like_a_column_of_combined_rows_keeps_them_from_being_combined() -> None:
    schema = pa.schema([("s.sum.max", pa.int64()), ("v", pa.int64())])
    assert AggregateSpec("o", OperatorInput(schema, ("s.sum.max",)), {"s": hf.sum("v")}).combiner() is None


EDGES = {
    pa.int64(): [2**62, -(2**62), 2**62 - 1, 2**63 - 1, -(2**63), 1, -1],
    pa.decimal128(38, 0): [Decimal(sign * number) for sign in (1, -1) for number in (10**38 - 1, 5 * 10**37, 1)],
}


@st.composite
def overflowing(draw: Any) -> tuple[pa.DataType, list[list[list[Rows]]]]:
    kind = draw(st.sampled_from(list(EDGES)))
    key = st.sampled_from([0, 1]).map(lambda key: (key,))
    rows = st.lists(st.tuples(key, st.none() | st.sampled_from(EDGES[kind])), min_size=1, max_size=8)
    return kind, draw(st.lists(st.lists(st.lists(rows, max_size=2), max_size=3), max_size=3))


@settings(deadline=None, max_examples=20)
@given(overflowing())
def test_rows_are_asked_for_exactly_where_one_of_them_overflows_a_sum_or_could(
    history: tuple[pa.DataType, list[list[list[Rows]]]],
) -> None:
    kind, batches = history
    with_combining, without = spec_of("int64", kind), spec_of("int64", kind, combine=False)
    combined, plain = with_combining.create(0, 128), without.create(0, 128)
    for senders in batches:
        overflows, asked, expected = False, False, None
        try:
            expected = take(plain, sent(without, senders))
        except BadRecord:
            overflows = True
        try:
            found = take(combined, sent(with_combining, senders))
        except RowsNeeded:
            asked = True
        except BadRecord:
            # Nothing was combined: the samples were too small, or showed no repeats.
            assert overflows
            return
        if asked or overflows:
            # Asked for in vain only where a sender's own sum overflows, and the state is far on the other side.
            assert asked
            return
        assert expected is not None
        # Means are doubles: of numbers as large as these they depend on the order.
        assert [each.drop_columns(["mean"]) for each in found.output] == [
            each.drop_columns(["mean"]) for each in expected.output
        ]


def test_a_sum_that_fits_again_at_the_end_but_not_between_asks_for_the_rows() -> None:
    spec = spec_of("int64", pa.int64())
    operator = spec.create(0, 128)
    take(operator, sent(spec, [[[((0,), 2**62)] * 1]]))
    high: Rows = [((0,), value) for value in (2**62, 1, -(2**62), -1)]
    with pytest.raises(RowsNeeded, match="'sums'"):
        take(operator, sent(spec, [[high]]))
    low: Rows = [((0,), value) for value in (-(2**62), -1, 2**62 - 1, 2)]
    assert take(operator, sent(spec, [[low]])).output[0].column("sum").to_pylist() == [2**62]
