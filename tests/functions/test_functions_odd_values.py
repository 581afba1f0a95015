"""Operators that keep values as Python objects give odd times back as they came; functions by row never see them."""

import random
from asyncio import CancelledError
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import BatchContext, OperatorInput, OperatorResult
from holdfast.functions.process.declared import Context, ProcessFunction, ProcessSpec
from holdfast.state.arena import Arena
from holdfast.state.bytes_column import new_column
from holdfast.state.columns import Column

YEAR_10000 = 253_402_300_800_000_000
NUMBERS = [0, YEAR_10000, 5, YEAR_10000, -(2**62), 1_764_100_000_123_456_789, 1500, None, 0]
KINDS = [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("s"), pa.duration("s")]
AGGREGATES = {
    "all": hf.collect_list("t"),
    "some": hf.collect_set("t"),
    "distinct": hf.count_distinct("t"),
    "named": hf.max_by("name", "t"),
    "timed": hf.max_by("t", "name"),
    "first": hf.first("t"),
    "last": hf.last("lists"),
}


def outputs(kind: pa.DataType, emit: Any, batches: int) -> dict[str, Any]:
    """The last output for the only key, times as numbers."""
    times = pa.array(NUMBERS, pa.int64()).view(kind)
    names = pa.array([f"n{number}" for number in range(len(NUMBERS))])
    lists = pa.ListArray.from_arrays(pa.array(range(len(NUMBERS) + 1), pa.int32()), times)
    rows = pa.record_batch({"k": pa.array(["a"] * len(NUMBERS)), "t": times, "name": names, "lists": lists})
    spec = AggregateSpec("odd", OperatorInput(rows.schema, ("k",)), AGGREGATES, emit)
    operator = spec.create(0, 128)
    size, found = -(-len(NUMBERS) // batches), pa.record_batch([], names=[])
    for number in range(batches):
        operator.tables["state"].begin(number + 1)
        context = BatchContext(batch=number + 1, batch_time_us=0, operator="odd", subtask=0)
        result = operator.process([(0, rows.slice(number * size, size))], context)
        assert result.bad == []
        found = result.output[-1].slice(result.output[-1].num_rows - 1)
        operator.tables["state"].commit()
    assert operator.tables["state"].snapshot().num_rows == 1
    numbers = pa.list_(pa.int64())
    return {
        "all": found.column("all").cast(numbers)[0].as_py(),
        "some": sorted(found.column("some").cast(numbers)[0].as_py()),
        "distinct": found.column("distinct")[0].as_py(),
        "named": found.column("named")[0].as_py(),
        "timed": found.column("timed").cast(pa.int64())[0].as_py(),
        "first": found.column("first").cast(pa.int64())[0].as_py(),
        "last": found.column("last").cast(numbers)[0].as_py(),
    }


@pytest.mark.parametrize("batches", [1, 3, 9])
@pytest.mark.parametrize("emit", ["changes", "every"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_collections_and_values_by_another_column_keep_odd_times(kind: pa.DataType, emit: Any, batches: int) -> None:
    there = [number for number in NUMBERS if number is not None]
    assert outputs(kind, emit, batches) == {
        "all": there,
        "some": sorted(set(there)),
        "distinct": len(set(there)),
        "named": f"n{NUMBERS.index(max(there))}",
        "timed": NUMBERS[-1],
        "first": NUMBERS[0],
        "last": [NUMBERS[-1]],
    }


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nested_values_come_out_of_a_table_as_they_went_in(kind: pa.DataType) -> None:
    draw = random.Random(3)
    numbers = [draw.choice([*NUMBERS, draw.randrange(-(2**63), 2**63)]) for _ in range(50)]
    times = pa.array(numbers, pa.int64()).view(kind)
    array = pa.StructArray.from_arrays([times, pa.array(range(50))], names=["t", "n"])
    for column in (Column(pa.field("s", array.type), 0), new_column(pa.field("s", array.type), 0, Arena())):
        values, valid = column.from_arrow(array)
        assert column.to_arrow(values, valid).equals(array)
        arena = Arena()
        stored = column.to_stored(values, valid, arena)
        assert column.to_arrow(column.from_stored(stored, valid, ~valid, arena), valid).equals(array)


def test_values_that_python_has_are_kept_as_its_objects() -> None:
    array = pa.array([[datetime(2026, 1, 1)]], pa.list_(pa.timestamp("us")))
    values, _ = Column(pa.field("s", array.type), 0).from_arrow(array)
    assert values[0] == [datetime(2026, 1, 1)]


OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
CONTEXT = BatchContext(batch=4, batch_time_us=1_000_000, operator="visits", subtask=2)


def rows_of(result: OperatorResult) -> list[dict[str, Any]]:
    return [row for batch in result.output for row in batch.to_pylist()]


class Seen(ProcessFunction):
    def process(self, row: Any, ctx: Context) -> Iterator[dict[str, Any]]:
        yield {"k": repr(row.t), "n": row.n}


def see(columns: dict[str, pa.Array], bad_records: Any = "dead_letter") -> OperatorResult:
    rows = pa.record_batch({"k": pa.array(["a"] * 4), **columns})
    spec = ProcessSpec("visits", OperatorInput(rows.schema, ("k",)), Seen(), OUTPUT, bad_records)
    operator = spec.create(2, 128)
    operator.tables["state"].begin(4)
    return operator.process([(0, rows)], CONTEXT)


def test_a_row_with_a_time_that_python_does_not_have_is_bad_alone_and_the_others_keep_their_numbers() -> None:
    times = pa.array([0, YEAR_10000, None, 1], pa.int64())
    found = see({"t": times.cast(pa.timestamp("us")), "n": pa.array([0, 1, 2, 3])})
    assert [row["n"] for row in rows_of(found)] == [0, 2, 3]
    (bad,) = found.bad
    assert bad.position == "row 1 of batch 4, subtask 2" and "column 't' is 253402300800000000" in bad.reason
    with pytest.raises(
        HoldfastError,
        match=r"column 't' is 253402300800000000 .*for which Python has no value .row 1 of batch 4.*leave the column",
    ):
        see({"t": times.cast(pa.timestamp("us")), "n": pa.array([0, 1, 2, 3])}, "fail")


def test_a_row_that_fails_behind_a_bad_row_is_named_by_its_own_number() -> None:
    class Fails(Seen):
        def process(self, row: Any, ctx: Context) -> Iterator[dict[str, Any]]:
            if row.n == 3:
                raise ValueError("three")
            yield from super().process(row, ctx)

    times = pa.array([YEAR_10000, 0, YEAR_10000, 1], pa.int64()).cast(pa.timestamp("us"))
    rows = pa.record_batch({"k": pa.array(["a"] * 4), "t": times, "n": pa.array([0, 1, 2, 3])})
    spec = ProcessSpec("visits", OperatorInput(rows.schema, ("k",)), Fails(), OUTPUT, "dead_letter")
    operator = spec.create(2, 128)
    operator.tables["state"].begin(4)
    found = operator.process([(0, rows)], CONTEXT)
    assert [row["n"] for row in rows_of(found)] == [1]
    assert sorted(bad.position.split()[1] for bad in found.bad) == ["0", "2", "3"]


def test_nanoseconds_reach_a_function_as_the_microsecond_that_they_are_in() -> None:
    times = pa.array([-1, 1999, 0, None], pa.int64()).view(pa.timestamp("ns"))
    found = rows_of(see({"t": times, "n": pa.array([0, 1, 2, 3])}))
    assert found[0]["k"] == repr(datetime(1969, 12, 31, 23, 59, 59, 999999))
    assert found[1]["k"] == repr(datetime(1970, 1, 1, 0, 0, 0, 1))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), CancelledError()], ids=repr)
def test_a_function_that_ends_the_interpreter_fails_like_any_other(error: BaseException) -> None:
    class Ends(ProcessFunction):
        def process(self, row: Any, ctx: Context) -> Iterator[dict[str, Any]]:
            if row.n:
                raise error
            yield {"k": "a", "n": 0}

    rows = pa.record_batch({"k": pa.array(["a"] * 2), "n": pa.array([0, 1])})
    for policy in ("dead_letter", "fail"):
        operator = ProcessSpec("visits", OperatorInput(rows.schema, ("k",)), Ends(), OUTPUT, policy).create(2, 128)
        operator.tables["state"].begin(4)
        if policy == "dead_letter":
            found = operator.process([(0, rows)], CONTEXT)
            assert ([row["n"] for row in rows_of(found)], len(found.bad)) == ([0], 1)
            continue
        with pytest.raises(HoldfastError, match=rf"row 1 of batch 4.*raised {type(error).__name__}"):
            operator.process([(0, rows)], CONTEXT)


class Odd(ProcessFunction):
    """Keeps and gives a value that only some rows have."""

    kept = hf.ValueState(pa.string())
    lived = hf.ValueState(pa.string(), ttl="1h")
    many = hf.MapState(pa.string(), pa.string())
    listed = hf.ListState(pa.string())

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, float]]:
        text = "\ud800" if row.n == 1 else "é"
        {0: self.listed.add, 1: self.kept.update, 2: self.lived.update}.get(row.place, str)(text)
        if row.place == 3:
            self.many.put(text, "x")
        if row.place == 4:
            self.many.put("x", text)
        yield text if row.place == 5 else "x", 1e300 if row.place == 6 and row.n == 1 else 1.0


def test_a_text_that_no_column_holds_is_named_also_where_it_ends_the_query() -> None:
    rows = pa.record_batch({"k": pa.array(["a"] * 2), "n": pa.array([0, 1]), "place": pa.array([4] * 2)})
    output = pa.schema([("text", pa.string()), ("number", pa.float32())])
    for place, named in enumerate(["lis", "kept", "lived", "a map key", "map key 'x'"]):
        given = rows.set_column(2, "place", pa.array([place] * 2))
        operator = ProcessSpec("odd", OperatorInput(given.schema, ("k",)), Odd(), output, "fail").create(2, 128)
        for table in operator.tables.values():
            table.begin(4)
        with pytest.raises(HoldfastError, match=rf"state .*{named}.*(\n|.)*UTF-8 can hold"):
            operator.process([(0, given)], CONTEXT)


@pytest.mark.parametrize("place", range(7), ids=["list", "value", "ttl", "map key", "map value", "text", "number"])
def test_a_row_with_a_text_or_number_that_no_column_holds_is_bad_alone(place: int) -> None:
    rows = pa.record_batch({"k": pa.array(["a"] * 3), "n": pa.array([0, 1, 2]), "place": pa.array([place] * 3)})
    output = pa.schema([("text", pa.string()), ("number", pa.float32())])
    spec = ProcessSpec("odd", OperatorInput(rows.schema, ("k",)), Odd(), output, "dead_letter")
    operator = spec.create(2, 128)
    for table in operator.tables.values():
        table.begin(4)
    found = operator.process([(0, rows)], CONTEXT)
    assert [bad.position.split()[1] for bad in found.bad] == ["1"]
    assert len(rows_of(found)) == 2
