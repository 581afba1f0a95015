"""Reading of JSON records as rows: a record is an object whose fields are columns, or it is bad. For files and Kafka.

Records are independent: neither a row nor the reason why a record is bad depends on the records read with it. Two ways
lead to the same row:

    records ──► plain? ──no──────────────────────────────► msgspec, field by field (`values.py`)
                  │ yes                                        ▲
                  ▼                                            │ at most `GROUP_MIN` records
                PyArrow's JSON reader, all at once ──refused──► each half of the records by itself
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.json_rows.nesting import BARE_NOT_FINITE, TOO_DEEP, is_too_deep, quote_not_finite
from holdfast.json_rows.quick import QuickReader, is_quick
from holdfast.json_rows.values import OBJECT, WrongValue, read_field, texts_of

RECORDS_MAX = 65_536
"""Records that are read at once: PyArrow's reader takes at most 100,000. A higher value needs more memory."""
GROUP_MIN = 128
"""Number of records that are read one by one if PyArrow refuses them together. A lower value calls PyArrow more often,
with fewer records."""


class BadJson(NamedTuple):
    """A record that was left out: its place among the records, and the reason."""

    place: int
    reason: str


class JsonRows(NamedTuple):
    """The rows of the good records, and the bad records, both in order."""

    rows: pa.RecordBatch
    bad: list[BadJson]


class JsonReader:
    """Reads records as rows of a schema.

    Fields that are no columns are left out, or, with `refused`, make their record bad: the function is given their
    names, without those in `known`, and returns the reason.
    """

    def __init__(
        self, schema: pa.Schema, *, refused: Callable[[list[str]], str] | None = None, known: Collection[str] = ()
    ) -> None:
        self.schema = schema
        self._refused = refused
        self._known = frozenset([*schema.names, *known])
        self._quick = QuickReader(schema, refuse_unknown=refused is not None) if is_quick(schema) else None

    def read(self, records: pa.Array) -> JsonRows:
        """Read an array of bytes; a null is a bad record."""
        found = _Found(self.schema)
        for start in range(0, len(records), RECORDS_MAX):
            part = records.slice(start, RECORDS_MAX)
            places = np.arange(start, start + len(part))
            plain = self._quick.takes(part) if self._quick is not None else np.zeros(len(part), bool)
            if plain.all():
                self._read_plain(part, places, found)
                continue
            if plain.any():
                self._read_plain(part.filter(pa.array(plain)), places[plain], found)
            self._read_any(part.filter(pa.array(~plain)), places[~plain], found)
        return found.joined()

    def _read_plain(self, records: pa.Array, places: npt.NDArray[np.int64], found: "_Found") -> None:
        """Read records at once; if PyArrow refuses them, read halves of them, until only few records are left for
        `_read_any`."""
        rows = self._quick.read(records) if self._quick is not None else None
        if rows is not None:
            found.add(rows, places)
        elif len(records) <= GROUP_MIN:
            self._read_any(records, places, found)
        else:
            half = len(records) // 2
            self._read_plain(records[:half], places[:half], found)
            self._read_plain(records[half:], places[half:], found)

    def _read_any(self, records: pa.Array, places: npt.NDArray[np.int64], found: "_Found") -> None:
        """Read records one by one."""
        rows: list[dict[str, Any]] = []
        good: list[int] = []
        for place, record in zip(places.tolist(), records.to_pylist(), strict=True):
            row = self._checked(as_object(record))
            if isinstance(row, str):
                found.bad.append(BadJson(place, row))
                continue
            rows.append(row)
            good.append(place)
        wrong: dict[int, WrongValue] = {}
        columns = []
        for column in self.schema:
            array, faults = read_field(texts_of([row.get(column.name) for row in rows]), column)
            columns.append(array)
            wrong = {place: fault.below(column.name) for place, fault in faults.items()} | wrong
        found.bad += [BadJson(good[n], f"column {path!r} {problem}") for n, (path, problem) in wrong.items()]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        fine = np.isin(np.arange(len(rows)), list(wrong), invert=True)
        found.add(batch.filter(pa.array(fine)) if wrong else batch, np.array(good, np.int64)[fine])

    def _checked(self, row: dict[str, Any] | str) -> dict[str, Any] | str:
        """Return the reason instead of a row with unknown fields, if such rows are refused."""
        if self._refused is None or isinstance(row, str) or row.keys() <= self._known:
            return row
        return self._refused(sorted(row.keys() - self._known))


@dataclass
class _Found:
    """Rows with the places of their records, and bad records."""

    schema: pa.Schema
    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[npt.NDArray[np.int64]] = field(default_factory=list)
    bad: list[BadJson] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch, places: npt.NDArray[np.int64]) -> None:
        self.batches.append(rows)
        self.places.append(places)

    def joined(self) -> JsonRows:
        if len(self.batches) == 1:
            return JsonRows(self.batches[0], sorted(self.bad))
        table = pa.Table.from_batches(self.batches, self.schema)
        places = np.concatenate([np.empty(0, np.int64), *self.places])
        if (np.diff(places) < 0).any():
            table = table.take(pa.array(np.argsort(places)))
        rows = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], self.schema)]
        return JsonRows(rows[0], sorted(self.bad))


def as_object(record: bytes | None) -> dict[str, Any] | str:
    """Return the fields of a record, each as a JSON text, or the reason why it is bad."""
    if record is None:
        return "has no value"
    if is_too_deep(record):
        return TOO_DEEP
    try:
        record.decode()
        return OBJECT.decode(record)
    except UnicodeDecodeError as error:
        return f"not a JSON object: {error}"
    except msgspec.MsgspecError as error:
        if BARE_NOT_FINITE.search(record) is not None:
            with_texts = quote_not_finite(record)
            if with_texts != record:
                return as_object(with_texts)
        return f"not a JSON object: {error}"
