"""Sink for bad rows: a folder of Parquet files, staged and published like any other output."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    def setting(self) -> str:
        """The setting that holds the URL, for messages."""
        return "dead_letters"

    @property
    def private(self) -> bool:
        """True: unchecked rows must be readable by this user only."""
        return True


def merged(bad: Sequence[BadRow]) -> list[BadRow]:
    """Join the bad rows of a row that several targets of its source refuse to a single one, with all operators and
    reasons.

    A row is known by its place, so rows whose position is not exact (`from 7`) stay as they are.
    """
    found: dict[object, BadRow] = {}
    for number, row in enumerate(bad):
        is_exact = row.source and row.position and not row.position.startswith("from ")
        place = (row.source, row.split, row.position, row.payload) if is_exact else number
        known = found.setdefault(place, row)
        if known is not row:
            operators = dict.fromkeys((*known.operator.split(", "), row.operator))
            reason = known.reason if row.reason in known.reason else f"{known.reason}; {row.reason}"
            found[place] = replace(known, operator=", ".join(filter(None, operators)), reason=reason)
    return list(found.values())


def bad_rows_to_batch(bad: Sequence[BadRow]) -> pa.RecordBatch:
    """Convert bad rows to a record batch, in order. Invalid Unicode in them is written as escapes."""
    columns = [pa.array([_text(getattr(row, name)) for row in bad], pa.string()) for name in DEAD_LETTER_COLUMNS]
    return pa.RecordBatch.from_arrays(columns, schema=DEAD_LETTER_SCHEMA)


def _text(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
