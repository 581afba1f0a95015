"""A PySpark `DataSourceStreamReader` as a source. PySpark is not imported: only the reader's methods are used.

A batch has a read for each of the reader's `partitions(start, end)`. Partitions travel to tasks by cloudpickle, as in
PySpark, and are stored nowhere. A reader may limit its steps (its default read limit, PySpark 4.2): then a batch goes
from one offset of the reader to the next.
"""

import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pyarrow as pa

from holdfast.availability import SnapshotAvailability, answered
from holdfast.code_shipping import pickled
from holdfast.errors import BadRecord, JobRefused, SettingsError
from holdfast.python_values import exact_rows, finite, shown_values
from holdfast.schema import to_arrow_schema
from holdfast.sources.base import (
    BadRow,
    Enumerator,
    EnumeratorContext,
    Offsets,
    Source,
    SourceBatch,
    SourcePlan,
    SplitRead,
)
from holdfast.sources.offsets import flat_offsets
from holdfast.sources.schema_fit import conformed, fits, forbidden_nulls
from holdfast.value_fits import fit_for, fitted_array

ROWS_PER_BATCH = 16_384
"""Rows of a reader that become an Arrow batch. A higher value needs more memory in each task."""
STEPS_AT_ONCE_MAX = 64
"""Number of steps that a look requests from a limited reader. A higher value sees more of a backlog at once, and takes
longer."""
STEPS_MAX = 1_024
"""Steps that are remembered since the last checkpoint. A higher value needs more memory in the driver."""
STREAM_METHODS = ("initialOffset", "latestOffset", "partitions", "read")


class DataSourceReaderSource(Source):
    """The rows of a PySpark data source.

    The watermark follows the newest row, as in Spark. A reader may have a method `is_snapshot_available(end)`: it gets
    the offsets at which a batch ends, and answers with a `SnapshotAvailability` whether a checkpoint may be cut there.

    Parameters
    ----------
    reader
        A `DataSourceStreamReader`; or a `DataSource`, or its class, from which `streamReader` makes the reader. The
        reader's offsets must be flat dicts from split to position.
    schema
        A `pyarrow.Schema`, a Spark `StructType` or a DDL string. A `DataSource` knows its own schema.
    options
        Options for the `DataSource` class.
    name
        Identifies the source's positions when the job is started again.
    starting
        The offsets to start from if there is no checkpoint, instead of `initialOffset()`.

    Raises
    ------
    JobRefused
        The reader cannot be replayed from offsets.
    """

    kind = "datasource"

    def __init__(
        self,
        reader: Any,
        schema: Any = None,
        *,
        options: Mapping[str, str] | None = None,
        name: str | None = None,
        starting: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._reader, self._schema = opened(reader, schema, dict(options or {}))
        self._starting = None if starting is None else flat_offsets(f"{self!r}: starting", starting)

    @property
    def divisible(self) -> bool:
        """False: a batch reads everything up to the latest offset."""
        return False

    def schema(self) -> pa.Schema:
        return self._schema

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        return ReaderEnumerator(context.source, self._reader, self._starting)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        rows = iter(self._reader.read(cloudpickle.loads(read.detail)))
        position = 0
        for chunk in chunks(rows):
            for batch, bad in converted(chunk, self._schema, repr(self)):
                behind = str(position + batch.num_rows)
                reported = BadRow(self.name or self.kind, read.split, behind, *bad) if bad else None
                yield SourceBatch(batch, position, [reported] if reported else [])
                position += batch.num_rows + (1 if bad else 0)

    def __repr__(self) -> str:
        return f"DataSourceReaderSource({type(self._reader).__name__}, name={self.name!r})"


class ReaderEnumerator(Enumerator):
    """Asks the reader for offsets, and remembers those that a limited reader gave since the last checkpoint."""

    def __init__(self, source: str, reader: Any, starting: Offsets | None) -> None:
        self._source = source
        self._reader = reader
        self._starting = starting
        self._takes_limit = bool(inspect.signature(reader.latestOffset).parameters)
        self._steps: list[Offsets] = []
        self._stopped = False

    def initial(self) -> Offsets:
        first = (
            self._starting if self._starting is not None else self._flat("initialOffset", self._reader.initialOffset())
        )
        if not self._steps:
            self._steps = [dict(first)]
        return dict(first)

    @property
    def initial_varies(self) -> bool:
        return self._starting is None

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        self._steps = [dict(offsets)]

    def latest(self) -> Offsets:
        if not self._takes_limit:
            return self._flat("latestOffset", self._reader.latestOffset())
        if not self._steps:
            self.initial()
        limit = self._reader.getDefaultReadLimit()
        repeats = 1 if type(limit).__name__ == "ReadAllAvailable" else STEPS_AT_ONCE_MAX
        for _ in range(min(repeats, STEPS_MAX - len(self._steps))):
            last = self._steps[-1]
            found = self._flat("latestOffset", self._reader.latestOffset(dict(last), limit))
            if found == last:
                break
            self._steps.append(found)
        return dict(self._steps[-1])

    def open_splits(self, offsets: Offsets) -> Collection[str]:
        """Return nothing: each batch reads its partitions to their end, and the next batch has other partitions."""
        return []

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        if start == until:
            return SourcePlan(start, [], self._availability(start))
        to = self._step(start, until)
        partitions = self._reader.partitions(dict(start), dict(to))
        reads = [
            SplitRead(f"partition {index}", 0, None, detail=pickled(partition))
            for index, partition in enumerate(partitions)
        ]
        return SourcePlan(dict(to), reads, self._availability(to))

    def _availability(self, end: Offsets) -> SnapshotAvailability:
        """Ask the reader whether a checkpoint may be cut at these offsets, if it has the method for it."""
        ask = getattr(self._reader, "is_snapshot_available", None)
        return SnapshotAvailability.AVAILABLE if ask is None else answered(lambda: ask(dict(end)))

    def completed(self, offsets: Offsets) -> None:
        if offsets in self._steps:
            self._steps = self._steps[self._steps.index(offsets) :]
        self._reader.commit(dict(offsets))

    def close(self) -> None:
        stop = getattr(self._reader, "stop", None)
        if stop is not None and not self._stopped:
            self._stopped = True
            stop()

    def _step(self, start: Offsets, until: Offsets) -> Offsets:
        """Return the reader's next offsets after `start`, on the way to `until`."""
        if start in self._steps and until in self._steps:
            after = self._steps.index(start) + 1
            if after <= self._steps.index(until):
                return self._steps[after]
        return until

    def _flat(self, method: str, offsets: Any) -> Offsets:
        return flat_offsets(f"source {self._source!r}: {type(self._reader).__name__}.{method}()", offsets)


class UnfitRow(NamedTuple):
    """A row that does not fit the schema."""

    reason: str
    payload: str


def opened(reader: Any, schema: Any, options: dict[str, str]) -> tuple[Any, pa.Schema]:
    """Return the stream reader and its schema, from a reader, a data source or its class."""
    if isinstance(reader, type):
        reader = reader(options)
    kind = type(reader).__name__
    if hasattr(reader, "streamReader"):
        try:
            schema = reader.schema() if schema is None else schema
            declared = schema if callable(getattr(schema, "jsonValue", None)) else reader.schema()
            reader = reader.streamReader(declared)
        except Exception as error:
            raise JobRefused(
                f"data source {kind}: gives no stream reader: {error}: implement streamReader() (a simpleStreamReader "
                "does not say where a read ends before it has read, so it cannot be planned) or give a reader"
            ) from error
    missing = [method for method in STREAM_METHODS if not callable(getattr(reader, method, None))]
    if hasattr(reader, "readBetweenOffsets") or missing:
        reason = f"has no {', '.join(missing)}" if missing else "is a SimpleDataSourceStreamReader"
        raise JobRefused(
            f"reader {type(reader).__name__}: {reason}: a batch is planned before it is read; implement PySpark's "
            "DataSourceStreamReader (initialOffset, latestOffset, partitions, read) instead"
        )
    if schema is None:
        raise JobRefused(f"reader {type(reader).__name__}: its schema is not known: give schema=")
    return reader, to_arrow_schema(schema)


def chunks(rows: Iterator[Any]) -> Iterator[pa.RecordBatch | list[Any]]:
    """Yield a reader's record batches as they are, and its rows in lists of bounded length."""
    for first in rows:
        if isinstance(first, pa.RecordBatch):
            yield first
        else:
            yield list(islice(chain([first], rows), ROWS_PER_BATCH))


def converted(
    chunk: pa.RecordBatch | list[Any], schema: pa.Schema, whose: str
) -> Iterator[tuple[pa.RecordBatch, UnfitRow | None]]:
    """Yield rows in order, each time with the bad row that follows them, or None."""
    if isinstance(chunk, pa.RecordBatch):
        wrong = sorted(set(chunk.schema.names) ^ set(schema.names)) or [
            field.name for field in schema if not fits(chunk.schema.field(field.name).type, field.type)
        ]
        if wrong:
            raise BadRecord(f"{whose}: gave a batch of {chunk.schema}, expected {schema}: columns {wrong} differ")
        yield from _between_unfit(chunk, schema)
    else:
        yield from _salvage(chunk, schema)


def _between_unfit(chunk: pa.RecordBatch, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, UnfitRow | None]]:
    """Yield the rows of a batch whose columns fit, between the rows with values that do not."""
    rows, reasons = conformed(chunk, schema)
    nulls = forbidden_nulls(rows)
    if nulls is not None:
        reasons = dict.fromkeys(np.flatnonzero(nulls[0]).tolist(), f"column {nulls[1]!r} is null") | reasons
    begin = 0
    for row in sorted(reasons):
        values = exact_rows(chunk.slice(row, 1).select(schema.names))[0].values()
        yield rows.slice(begin, row - begin), UnfitRow(reasons[row], _shown(tuple(values), schema))
        begin = row + 1
    yield rows.slice(begin), None


def _salvage(rows: list[Any], schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, UnfitRow | None]]:
    found = _columns(rows, schema)
    if isinstance(found, pa.RecordBatch):
        yield found, None
    elif len(rows) == 1:
        yield _columns([], schema), UnfitRow(found, _shown(rows[0], schema))
    else:
        half = len(rows) // 2
        yield from _salvage(rows[:half], schema)
        yield from _salvage(rows[half:], schema)


def _columns(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch | str:
    """Return the tuples as Arrow rows, or the reason why that is impossible."""
    width = len(schema)
    for row in rows:
        if not isinstance(row, tuple | list):
            return f"is {type(row).__name__}, expected a tuple or a Row"
        if len(row) != width:
            return f"has {len(row)} values, expected {width}"
    columns = []
    for index, field in enumerate(schema):
        try:
            columns.append(_array([row[index] for row in rows], field))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return f"column {field.name!r} is no {field.type}: {error}"
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    nulls = forbidden_nulls(batch)
    return f"column {nulls[1]!r} is null" if nulls else batch


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        fit = fit_for(field.type)
    except SettingsError:  # a type without a check, such as a list of a fixed size
        return pa.array(values, type=field.type)
    return fitted_array(values, field.with_nullable(True), fit)


def _shown(row: Any, schema: pa.Schema) -> str:
    """Return a row as JSON for a dead letter. Times are written as in the dead letters of all sources."""
    if not isinstance(row, tuple | list):
        return json.dumps(_shown_value(row, pa.null()), default=str)
    kinds = chain((field.type for field in schema), repeat(pa.null()))
    return json.dumps([_shown_value(*each) for each in zip(row, kinds, strict=False)], default=str)


def _shown_value(value: Any, kind: pa.DataType) -> Any:
    """Return a value in the form of `shown_rows`: in the column's type, in the value's own type, or else as text."""
    for given in ({"type": kind}, {}):
        try:
            return finite(shown_values(pa.array([value], **given))[0])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return str(value)
