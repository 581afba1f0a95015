"""A sum that leaves its type: the row is bad, for all aggregates of the operator or for none."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadRecord
from holdfast.functions.aggregates import declared as hf
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import BatchContext, Operator, OperatorInput, OperatorResult

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
CONTEXT = BatchContext(batch=7, batch_time_us=0, operator="totals", subtask=3)
SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64()), ("d", pa.decimal128(38, 0))])
Row = tuple[int, int | None, int | None, Decimal | None]


def operator_of(emit: str, bad_records: str, **aggregates: hf.Aggregate) -> Operator:
    spec = AggregateSpec("totals", OperatorInput(SCHEMA, ("k",)), aggregates, emit, bad_records)  # type: ignore[arg-type]
    return spec.create(0, 128)


def run(operator: Operator, chunks: list[list[Row]]) -> OperatorResult:
    operator.tables["state"].begin(7)
    batches = [pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, r, strict=True)) for r in c], SCHEMA) for c in chunks]
    result = operator.process([(0, batch) for batch in batches], CONTEXT)
    operator.tables["state"].commit()
    return result


def rows_of(result: OperatorResult) -> list[dict[str, Any]]:
    return [row for batch in result.output for row in batch.to_pylist()]


def test_overflow_fails_naming_operator_key_aggregate_column_and_row() -> None:
    operator = operator_of("changes", "fail", total=hf.sum("a"))
    with pytest.raises(BadRecord) as failed:
        run(operator, [[(1, 5, 0, None)], [(2, 9, 0, None), (1, INT64_MAX, 0, None)]])
    words = ["'totals'", "'total' = sum(a)", "int64", "{'k': 1}", str(INT64_MAX), "row 2 of batch 7", "dead_letter"]
    assert all(word in str(failed.value) for word in words)
    operator.tables["state"].undo()
    assert len(operator.tables["state"]) == 0


def test_an_overflowing_row_becomes_a_dead_letter_and_changes_no_aggregate() -> None:
    every = {
        "n": hf.count(),
        "low": hf.min("a"),
        "b": hf.sum("b"),
        "a": hf.sum("a"),
        "m": hf.mean("b"),
        "z": hf.last("a"),
    }
    operator = operator_of("every", "dead_letter", **every)
    result = run(operator, [[(1, INT64_MAX, 1, None), (1, 1, 10, None), (1, -1, 100, None)]])
    assert rows_of(result) == [
        {"k": 1, "n": 1, "low": INT64_MAX, "b": 1, "a": INT64_MAX, "m": 1.0, "z": INT64_MAX},
        {"k": 1, "n": 2, "low": -1, "b": 101, "a": INT64_MAX - 1, "m": 50.5, "z": -1},
    ]
    [bad] = result.bad
    assert (bad.operator, bad.position) == ("totals", "row 1 of batch 7, subtask 3")
    assert "sum(a)" in bad.reason
    assert json.loads(bad.payload) == {"k": 1, "a": 1, "b": 10, "d": None}


def test_a_key_with_bad_rows_only_is_not_emitted_and_not_kept() -> None:
    operator = operator_of("changes", "dead_letter", a=hf.sum("a"), d=hf.sum("d"))
    run(operator, [[(1, INT64_MIN, 0, None)]])
    too_large = Decimal(10**38 - 1)
    result = run(operator, [[(1, -1, 0, None), (2, 3, 0, None)], [(1, -1, 0, None), (3, 1, 0, too_large)]])
    assert rows_of(result) == [{"k": 2, "a": 3, "d": None}, {"k": 3, "a": 1, "d": too_large}]
    assert [row.position.split()[1] for row in result.bad] == ["0", "2"]
    assert rows_of(run(operator, [[(1, 1, 0, None)]])) == [{"k": 1, "a": INT64_MIN + 1, "d": None}]
    assert len(run(operator, [[(4, None, 0, too_large), (4, None, 0, Decimal(1))]]).bad) == 1


NEAR_BOUND = st.none() | st.sampled_from([INT64_MAX, INT64_MIN, INT64_MAX - 1, 2**62, -(2**62), 1, -1, 0, 7])
DECIMALS = st.none() | st.sampled_from([Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(1), Decimal(-1), Decimal(0)])
ROWS = st.lists(st.tuples(st.integers(0, 2), NEAR_BOUND, NEAR_BOUND, DECIMALS), max_size=12)


class Oracle:
    """Takes a row only if all three sums fit after it."""

    def __init__(self) -> None:
        self.sums: dict[int, list[int | None]] = {}
        self.counts: dict[int, int] = {}

    def take(self, row: Row) -> dict[str, Any] | None:
        key, *values = row
        after: list[int | None] = []
        for old, value in zip(self.sums.get(key, [None, None, None]), values, strict=True):
            after.append(old if value is None else int(value) + (old or 0))
        for total, least, greatest in zip(
            after, (INT64_MIN, INT64_MIN, 1 - 10**38), (INT64_MAX, INT64_MAX, 10**38 - 1), strict=True
        ):
            if total is not None and not least <= total <= greatest:
                return None
        self.sums[key] = after
        self.counts[key] = self.counts.get(key, 0) + 1
        return {
            "k": key,
            "a": after[0],
            "n": self.counts[key],
            "d": None if after[2] is None else Decimal(after[2]),
            "b": after[1],
        }


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(["every", "changes"]), st.lists(st.lists(ROWS, max_size=3), max_size=3))
def test_exactly_the_rows_after_which_a_sum_does_not_fit_are_left_out(
    emit: str, batches: list[list[list[Row]]]
) -> None:
    operator = operator_of(emit, "dead_letter", a=hf.sum("a"), n=hf.count(), d=hf.sum("d"), b=hf.sum("b"))
    oracle = Oracle()
    for chunks in batches:
        taken = [oracle.take(row) for chunk in chunks for row in chunk]
        result = run(operator, chunks)
        assert [bad.position.split()[1] for bad in result.bad] == [
            str(number) for number, row in enumerate(taken) if row is None
        ]
        good = [row for row in taken if row is not None]
        if emit == "every":
            assert rows_of(result) == good
        else:
            assert sorted(map(repr, rows_of(result))) == sorted(map(repr, {row["k"]: row for row in good}.values()))
    assert len(operator.tables["state"]) == len(oracle.sums)
