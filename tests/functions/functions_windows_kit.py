"""Helpers that tests of windowed operators share: rows, batches by two senders, output in a short form."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from functions_kit import divided

import holdfast as hf
from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorResult, OperatorSpec
from holdfast.settings import HashMapState, RocksDBState

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
BACKENDS = {"hashmap": HashMapState(), "rocksdb": RocksDBState(), "cache": RocksDBState(cache_max_entries=3)}
AGGREGATES = {"n": hf.count(), "total": hf.sum("v"), "least": hf.min("v"), "mean": hf.mean("v")}
SECOND = 1_000_000

Row = tuple[str, int, int | None]
Shown = dict[tuple[str, int, int], tuple[Any, ...]]


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = [pa.array([row[0] for row in rows], pa.string())]
    columns.append(pa.array([datetime.fromtimestamp(row[1], UTC) for row in rows], pa.timestamp("us", "UTC")))
    columns.append(pa.array([row[2] for row in rows], pa.int64()))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def run_batch(
    operator: Operator, spec: OperatorSpec, number: int, rows: Sequence[Row], marks: tuple[int | None, int | None]
) -> OperatorResult:
    """Begin a batch and process its rows, by two senders; `marks`: the watermark, and that of the batch before."""
    watermark_us, closed_us = (None if mark is None else mark * SECOND for mark in marks)
    inputs: list[tuple[int, pa.RecordBatch]] = []
    for part in (rows[::2], rows[1::2]):
        sender = spec.combiner(bool(number % 3), closed_us)
        assert sender is not None
        if part:
            inputs += sender.take(batch_of(part))
        inputs += sender.finish()
    for table in operator.tables.values():
        table.begin(number)
    return operator.process(
        divided(operator, number, inputs), BatchContext(number, 0, "windows", 0, watermark_us, closed_us)
    )


def commit(operator: Operator) -> None:
    for table in operator.tables.values():
        table.commit()


def undo(operator: Operator) -> None:
    for table in operator.tables.values():
        table.undo()


def restored(operator: Operator, spec: OperatorSpec, tables: NewTable) -> Operator:
    """A new instance with the state of another, as after a restart."""
    made = spec.create(0, 128, tables)
    for name, table in operator.tables.items():
        made.tables[name].apply(table.snapshot(), 0, 128)
        table.close()
    return made


def shown(result: OperatorResult) -> Shown:
    """Output by key and bounds of the window in seconds."""
    found: Shown = {}
    for batch in result.output:
        for row in batch.to_pylist():
            bounds = (round(row["window_start"].timestamp()), round(row["window_end"].timestamp()))
            key = (row.get("k", ""), *bounds)
            assert key not in found, "one row for each key and window"
            found[key] = tuple(row[name] for name in AGGREGATES)
    return found


def aggregated(rows: Sequence[Row]) -> tuple[Any, ...]:
    """`AGGREGATES` of rows, recomputed."""
    values = [value for *_, value in rows if value is not None]
    some = (sum(values), min(values), sum(values) / len(values)) if values else (None, None, None)
    return (len(rows), *some)
