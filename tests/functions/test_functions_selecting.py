"""`drop_duplicates` and `last` against a recomputation in Python, over undo, restarts and late rows."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from functions_kit import divided
from functions_windows_kit import BACKENDS, SCHEMA, SECOND, Row, batch_of, commit, restored, undo

from holdfast.errors import JobRefused
from holdfast.functions.duplicates.duplicates import DuplicatesSpec
from holdfast.functions.operator import (
    BatchContext,
    EventTime,
    NewTable,
    Operator,
    OperatorInput,
    OperatorResult,
    OperatorSpec,
)
from holdfast.functions.ranking.last import LastSpec
from holdfast.state.backends import tables_of

INPUT = OperatorInput(SCHEMA, ("k",), EventTime(("at",), "at"))


@pytest.fixture(params=["hashmap", "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


def run_batch(
    operator: Operator,
    spec: OperatorSpec,
    number: int,
    rows: Sequence[Row],
    marks: tuple[int | None, int | None] = (None, None),
) -> OperatorResult:
    """Begin a batch and process its rows in order; `marks`: the watermark, and that of the batch before, in seconds."""
    watermark_us, closed_us = (None if mark is None else mark * SECOND for mark in marks)
    inputs: list[tuple[int, pa.RecordBatch]] = []
    for part in (rows[:3], rows[3:]):
        sender = spec.combiner(True, closed_us)
        inputs += [(0, batch_of(part))] if sender is None or not part else sender.take(batch_of(part))
    for table in operator.tables.values():
        table.begin(number)
    return operator.process(
        divided(operator, number, inputs), BatchContext(number, 0, "chosen", 0, watermark_us, closed_us)
    )


def shown(result: OperatorResult) -> list[tuple[Any, ...]]:
    return [(row["k"], round(row["at"].timestamp()), row["v"]) for batch in result.output for row in batch.to_pylist()]


def rank(row: Row) -> int:
    """The place of a row's value, of which null is the least."""
    return -1 if row[2] is None else row[2]


def some_rows(chance: random.Random, now: int) -> list[Row]:
    count = chance.choice([0, 1, 3, 12])
    return [
        (chance.choice("abcdefg"), now + chance.randrange(-25, 5), chance.choice([None, *range(9)]))
        for _ in range(count)
    ]


@pytest.mark.parametrize("within", [None, 12])
def test_duplicates_are_dropped_as_a_recomputation_does(within: int | None, tables: NewTable) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    spec = DuplicatesSpec("chosen", INPUT, None if within is None else within * SECOND)
    operator, kept = spec.create(0, 128, tables), dict[str, int]()
    now, watermark, late = 100, None, 0
    for number in range(1, 80):
        now += chance.choice([0, 1, 5, 15])
        closed = watermark
        watermark = chance.choice([watermark, max(watermark or 0, now - chance.randrange(5, 30))])
        if chance.random() < 0.2:
            run_batch(operator, spec, number, some_rows(chance, now), (watermark, closed))
            undo(operator)
        rows, expected = some_rows(chance, now), []
        for key, at, value in rows:
            if within is not None and closed is not None and at < closed:
                late += 1
            elif key not in kept or (within is not None and at > kept[key] + within):
                kept[key] = at
                expected.append((key, at, value))
        result = run_batch(operator, spec, number, rows, (watermark, closed))
        late -= result.late
        assert shown(result) == expected, f"batch {number}"
        commit(operator)
        if chance.random() < 0.1:
            operator = restored(operator, spec, tables)
    assert late == 0
    run_batch(operator, spec, 80, [], (10_000, watermark))
    commit(operator)
    assert len(operator.tables["state"]) == (0 if within is not None else len(kept))


def test_last_is_what_a_recomputation_gives(tables: NewTable) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    spec = LastSpec("chosen", INPUT, "v")
    operator, last = spec.create(0, 128, tables), dict[str, Row]()
    for number in range(1, 80):
        if chance.random() < 0.2:
            run_batch(operator, spec, number, some_rows(chance, number))
            undo(operator)
        rows, before = some_rows(chance, number), dict(last)
        for row in rows:
            if row[0] not in last or rank(row) >= rank(last[row[0]]):
                last[row[0]] = row
        changed = {key: row for key, row in last.items() if row is not before.get(key)}
        result = run_batch(operator, spec, number, rows)
        assert {row[0]: row for row in shown(result)} == changed
        assert len(shown(result)) == len(changed)
        commit(operator)
        if chance.random() < 0.1:
            operator = restored(operator, spec, tables)
    assert len(operator.tables["state"]) == len(last)


@pytest.mark.parametrize(
    ("kind", "values", "greatest"),
    [
        (pa.string(), ["b", "abc", None, "bb"], "bb"),
        (pa.float64(), [1.0, float("nan"), -0.0], None),
        (pa.timestamp("ms"), [5, 7, 6], None),
        (pa.decimal128(9, 2), [None, None], None),
    ],
    ids=str,
)
def test_last_orders_values_of_any_type(kind: pa.DataType, values: list[Any], greatest: Any) -> None:
    schema = pa.schema([("k", pa.int64()), ("by", kind), ("n", pa.int64())])
    spec = LastSpec("chosen", OperatorInput(schema, ("k",)), "by")
    operator = spec.create(0, 128)
    wanted = {"string": 3, "double": 1, "timestamp[ms]": 1, "decimal128(9, 2)": 1}[str(kind)]
    found = []
    for number, value in enumerate(values):
        operator.tables["state"].begin(number)
        rows = [pa.array([1]), pa.array([value], kind), pa.array([number])]
        result = operator.process(
            [(0, pa.RecordBatch.from_arrays(rows, schema=schema))], BatchContext(number, 0, "", 0)
        )
        found += [row["n"] for batch in result.output for row in batch.to_pylist()]
        commit(operator)
    assert found[-1] == wanted
    assert operator.tables["state"].snapshot().column("n").to_pylist() == [wanted]


def test_what_is_refused() -> None:
    with pytest.raises(JobRefused, match="needs a watermark, by which keys are forgotten"):
        DuplicatesSpec("chosen", OperatorInput(SCHEMA, ("k",)), 1)
    with pytest.raises(JobRefused, match="has no column 'at' any more"):
        DuplicatesSpec("chosen", OperatorInput(SCHEMA, ("k",), EventTime(("at",), None)), 1)
    with pytest.raises(JobRefused, match="is a key column"):
        LastSpec("chosen", INPUT, "k")
    with pytest.raises(JobRefused, match="the column is not there; its input has k, at, v"):
        LastSpec("chosen", INPUT, "w")
    assert "remembers every key for ever" in DuplicatesSpec("chosen", INPUT, None).grows
