"""Steps over batches: what a row or a value that fails costs, and what a function of users may give."""

import re
from asyncio import CancelledError
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.errors import BadRecord, UserFunctionError
from holdfast.exchange.step import made as made_by
from holdfast.graph.program import MapBatches
from holdfast.graph.projecting import Projection, Selection

ROWS = pa.record_batch({"a": [1, 2**63 - 1, 5, -(2**63), 7], "b": [1, 0, 0, -1, 2], "s": ["1", "x", "3", "4", "1.5"]})


def run(step: MapBatches, rows: pa.RecordBatch = ROWS) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows that a step makes, and the rows that are refused with the reasons."""
    refused: dict[int, str] = {}

    def refuse(found: pa.RecordBatch, reasons: Mapping[int, str], is_result: bool) -> None:
        assert found.num_rows == rows.num_rows
        refused.update(reasons)

    made = [row for batch in made_by(step, rows, lambda: "here", refuse) for row in batch.to_pylist()]
    return made, refused


def expression(step: Projection | Selection) -> MapBatches:
    return MapBatches(step, step.schema_of(ROWS.schema), str(step), by_row=True)


FAILING = {
    "overflow": (pc.field("a") + 1, [1]),
    "division": (pc.field("a") / pc.field("b"), [1, 2, 3]),
    "cast": (pc.field("s").cast("int64"), [1, 4]),
    "narrow": (pc.field("a").cast("int8"), [1, 3]),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_row_for_which_an_expression_fails_is_refused_and_the_others_go_on(name: str) -> None:
    failing, bad = FAILING[name]
    good = [row["a"] for number, row in enumerate(ROWS.to_pylist()) if number not in bad]
    made, refused = run(expression(Projection({"a": None, "ok": pc.field("b") + 1, "x": failing})))
    assert ([row["a"] for row in made], list(refused)) == (good, bad)
    assert all(f"failed: x={failing}: " in reason for reason in refused.values())
    kept, refused = run(expression(Selection(pc.is_valid(failing))))
    assert ([row["a"] for row in kept], list(refused)) == (good, bad)


def test_few_evaluations_find_a_row_among_many() -> None:
    calls = 0

    def counted(rows: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal calls
        calls += 1
        return rows.set_column(0, "a", pc.add_checked(rows.column(0), 1))

    values = [0] * 5_000 + [2**63 - 1] + [0] * 5_000
    made, refused = run(
        MapBatches(counted, pa.schema([("a", pa.int64())]), by_row=True), pa.record_batch({"a": values})
    )
    assert (len(made), list(refused)) == (10_000, [5_000])
    assert calls < 40


def giving(column: pa.Array, kind: pa.DataType, nullable: bool = True) -> MapBatches:
    schema = pa.schema([pa.field("v", kind, nullable)])
    return MapBatches(lambda rows: pa.record_batch([column], names=["v"]), schema, "given")


CONVERTED = [
    (pa.array([1, None], pa.int64()), pa.int32()),
    (pa.array([1, None], pa.int64()), pa.float64()),
    (pa.array(["a", None]).dictionary_encode(), pa.string()),
    (pa.array(["a", None], pa.string_view()), pa.string()),
    (pa.array([0, None], pa.int64()).view(pa.timestamp("ns")), pa.timestamp("us")),
    (pa.array([[1], None], pa.list_(pa.int64())), pa.list_(pa.int16())),
    (pa.array([None, None]), pa.string()),
]


@pytest.mark.parametrize(("column", "kind"), CONVERTED, ids=[f"{one.type} to {kind}" for one, kind in CONVERTED])
def test_a_function_may_give_the_same_values_in_another_width_unit_or_layout(
    column: pa.Array, kind: pa.DataType
) -> None:
    made, refused = run(giving(column, kind))
    assert ([row["v"] for row in made], refused) == (pa.array(exact(column), kind).to_pylist(), {})


def exact(column: pa.Array) -> list[Any]:
    return column.cast(pa.timestamp("us")).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()


OTHERS = [
    (pa.array(["5"]), pa.int64()),
    (pa.array([1]), pa.bool_()),
    (pa.array([True]), pa.int64()),
    (pa.array([1.0]), pa.int64()),
    (pa.array([0], pa.int64()).view(pa.timestamp("us")), pa.timestamp("us", "UTC")),
    (pa.array([0], pa.int64()), pa.timestamp("us")),
    (pa.array([1]), pa.string()),
    (pa.array([["5"]]), pa.list_(pa.int64())),
    (pa.array([b"a"]), pa.string()),
]


@pytest.mark.parametrize(("column", "kind"), OTHERS, ids=[f"{one.type} to {kind}" for one, kind in OTHERS])
def test_a_function_that_gives_another_kind_of_value_is_refused_by_name(column: pa.Array, kind: pa.DataType) -> None:
    expected = f"given gave column 'v' as {column.type}, declared is {kind}: cast it in the function"
    with pytest.raises(UserFunctionError, match=re.escape(expected)):
        run(giving(column, kind))


def test_a_value_that_the_declared_column_cannot_hold_makes_its_row_bad() -> None:
    rows = pa.record_batch({"a": [1, 2]})
    made, refused = run(giving(pa.array([1, 2**40]), pa.int32()), rows)
    assert (made, list(refused)) == ([{"v": 1}], [1])
    assert "'v' a value that int32 cannot hold" in refused[1]
    made, refused = run(giving(pa.array([2**62, 1]).cast(pa.timestamp("s")), pa.timestamp("us")), rows)
    assert (len(made), list(refused)) == (1, [0])
    made, refused = run(giving(pa.array([None, 1], pa.int64()), pa.int32(), nullable=False), rows)
    assert (made, list(refused)) == ([{"v": 1}], [0])


def test_a_row_that_nobody_keeps_ends_the_step_with_the_reason() -> None:
    with pytest.raises(BadRecord, match=r"select\(.*failed: x=add_checked\(a, 1\): overflow"):
        list(made_by(expression(Projection({"x": pc.field("a") + 1})), ROWS, lambda: "here"))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), CancelledError()], ids=repr)
@pytest.mark.parametrize("late", [False, True], ids=["at once", "behind a batch"])
def test_a_function_that_ends_the_interpreter_fails_like_any_other(error: BaseException, late: bool) -> None:
    def ends(rows: pa.RecordBatch) -> Any:
        if late:
            yield rows
        raise error

    def at_once(rows: pa.RecordBatch) -> Any:
        raise error

    step = MapBatches(ends if late else at_once, ROWS.schema)
    expected = rf"raised {type(error).__name__}: .*\(test_exchange_step.py, line \d+\) at here, 5 rows"
    with pytest.raises(UserFunctionError, match=expected):
        list(made_by(step, ROWS, lambda: "here"))


def test_a_reader_that_wants_no_more_rows_closes_the_steps() -> None:
    rows = made_by(MapBatches(lambda batch: iter([batch, batch]), ROWS.schema), ROWS, lambda: "here")
    next(rows)
    rows.close()  # type: ignore[attr-defined]
