"""Sink for bad rows: a folder of Parquet files, staged and published like any other output."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.sinks.parquet import ParquetSink
from holdfast.sources.base import BadRow

DEAD_LETTER_COLUMNS = ("source", "split", "position", "operator", "reason", "payload")
DEAD_LETTER_SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in DEAD_LETTER_COLUMNS])


@dataclass(repr=False)
class DeadLetterSink(ParquetSink):
    """Takes rows of `DEAD_LETTER_SCHEMA`; made from `Job(dead_letters=url)`."""

    @property
    def kind(self) -> str:
        return "dead-letters"

    @property
    def private(self) -> bool:
        """Rows that nobody checked are for this user alone."""
        return True


def bad_rows_to_batch(bad: Sequence[BadRow]) -> pa.RecordBatch:
    """Convert bad rows to a record batch, in order. Invalid Unicode in them is written as escapes."""
    columns = [pa.array([_text(getattr(row, name)) for row in bad], pa.string()) for name in DEAD_LETTER_COLUMNS]
    return pa.RecordBatch.from_arrays(columns, schema=DEAD_LETTER_SCHEMA)


def _text(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
