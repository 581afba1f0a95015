"""Tasks of Spark that store the rows of an epoch: each partition as parts, in objects of their own.

PySpark is not imported: `StoreParts` is the function of a `mapInArrow`, and its result rows describe the parts. A part
counts only if a segment names it later; parts of repeated tasks or dead drivers do not.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.arrays import invalid_rows
from holdfast.errors import BadRecord
from holdfast.python_values import shown_rows
from holdfast.sources.spark_stream.epoch_head import EpochHead
from holdfast.sources.spooled.segments import SegmentPart, decode_head, encode_segment
from holdfast.storage import names
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import open_store

PART_BYTES_MAX = 32 << 20
"""Bytes of Arrow rows that become a part. A higher value makes fewer objects, and takes more memory in each task."""
ROWS = "rows"
PARTS_DDL = "object STRING, offset LONG, length LONG, crc LONG, rows LONG"
"""Columns of the rows that `StoreParts` returns."""
_PARTS = pa.schema([("object", pa.string()), *((name, pa.int64()) for name in ("offset", "length", "crc", "rows"))])


class StoreParts:
    """Stores the Arrow batches of a partition, with the declared schema, as parts of the segment of that name."""

    def __init__(
        self, storage: str, options: Mapping[str, str], segment: str, number: int, query: str, schema: pa.Schema
    ) -> None:
        self._storage = storage
        self._options = dict(options)
        self._segment = segment
        self._number = number
        self._query = query
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = RetryingStore(open_store(self._storage, self._options))
        for rows in _grouped(self._fitted(batch) for batch in batches if batch.num_rows):
            name = names.segment_part(self._segment)
            data, part = self._encoded(name, rows)
            store.put(name, data)
            described = {"object": name, "offset": part.offset, "length": part.length, "crc": part.crc}
            yield pa.RecordBatch.from_pylist([{**described, "rows": part.rows}], _PARTS)

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the declared schema. Raises `BadRecord` for a value that could not be read again."""
        rows = batch.cast(self._schema)
        for number, reason in invalid_rows(rows).items():
            raise BadRecord(
                f"batch {self._number} of query {self._query}: {reason}: {shown_rows(rows.slice(number, 1))[0]}; "
                "correct the value in the DataFrame, or leave the column out"
            )
        return rows

    def _encoded(self, name: str, rows: pa.Table) -> tuple[bytes, SegmentPart]:
        ends = np.array([rows.num_rows], np.int32).tobytes()
        head = EpochHead(
            number=self._number, sequences=rows.num_rows, ends=ends, parts={}, query=self._query, named=name
        )
        data = encode_segment(head, {ROWS: rows})
        return data, decode_head(name, data, EpochHead).parts[ROWS]


def part_of(row: Any) -> SegmentPart:
    """Return the part that a result row of `StoreParts` describes."""
    return SegmentPart(row["offset"], row["length"], row["crc"], row["rows"], row["object"])


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Gather batches into tables of about `PART_BYTES_MAX`."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= PART_BYTES_MAX:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)
