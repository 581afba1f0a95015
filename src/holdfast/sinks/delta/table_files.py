"""Data files in a Delta table's folder, with the statistics that let readers skip them.

Invariants: a file that no commit names is invisible and left to the table's VACUUM; this module deletes nothing. A
statistic is left out if it might be wrong or could not be written exactly.
"""

import datetime
import math
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from holdfast.errors import ObjectNotFound, PublishFailed
from holdfast.sinks.base import Owner
from holdfast.sinks.partitions import divide, folder, parquet_bytes
from holdfast.sinks.staging import StagedDeltaFile, data_file, transfer
from holdfast.storage.store import ObjectStore

INDEXED_COLUMNS_MAX = 32
"""Bound on columns with statistics, as in Delta's default: only the first columns have them."""

STRING_CHARACTERS_MAX = 32

DECIMAL_DIGITS_MAX = 15
"""Bound on a decimal's precision for statistics: readers parse the JSON number as a double, which holds no more digits
exactly."""

UNCHECKED_AGE_S = 3600.0
"""Age in seconds above which the existence of a file is checked before its commit; VACUUM cannot have deleted a younger
file."""

_encoder = msgspec.json.Encoder(decimal_format="number")


def write_files(rows: pa.Table, partition_by: Sequence[str], store: ObjectStore, owner: Owner) -> list[StagedDeltaFile]:
    """Write rows of the stored schema, a file per partition."""
    staged = []
    for part in divide(rows, partition_by):
        data = parquet_bytes(part.rows)
        path = f"{folder(part.values)}{data_file(owner)}"
        store.put(path, data)
        staged.append(
            StagedDeltaFile(
                part.rows.num_rows, len(data), path, part.values, int(time.time() * 1000), statistics(part.rows)
            )
        )
    return staged


def add_action(staged: StagedDeltaFile) -> AddAction:
    """Build the commit's entry for a file. delta-rs escapes the path itself."""
    return AddAction(
        path=staged.path,
        size=staged.size_bytes,
        partition_values=staged.partition_values,
        modification_time=staged.modification_time_ms,
        data_change=True,
        stats=staged.stats,
    )


def require_files(staged: Sequence[StagedDeltaFile], store: ObjectStore, sink: str) -> None:
    """Make sure that files staged long ago are still there: a table that names a missing file cannot be read.

    Raises
    ------
    PublishFailed
        A file is gone.
    """
    now_ms = time.time() * 1000
    young = range(int(now_ms - UNCHECKED_AGE_S * 1000), int(now_ms) + 1)  # a future time comes from a wrong clock
    transfer(lambda one: _require(one, store, sink), [one for one in staged if one.modification_time_ms not in young])


def _require(staged: StagedDeltaFile, store: ObjectStore, sink: str) -> None:
    try:
        store.get_range(staged.path, 0, 4)
    except ObjectNotFound as error:
        raise PublishFailed(
            f"sink {sink!r}: data file {staged.path!r} with {staged.rows} rows is gone from {store.url} before it was "
            "committed: the retention of VACUUM has to exceed the longest time that output waits for publication"
        ) from error


def statistics(rows: pa.Table) -> str:
    """Delta's statistics of a file as JSON: rows, and nulls, minimum and maximum of the first columns."""
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for field in list(rows.schema)[:INDEXED_COLUMNS_MAX]:
        column = rows.column(field.name)
        if pa.types.is_nested(field.type):
            continue
        nulls[field.name] = column.null_count
        found = _bounds(column, field.type)
        if found is not None:
            least[field.name] = found[0]
            if found[1] is not None:
                greatest[field.name] = found[1]
    counts = {"numRecords": rows.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return _encoder.encode(counts).decode()


def _bounds(column: pa.ChunkedArray, kind: pa.DataType) -> tuple[Any, Any] | None:
    if column.null_count == len(column) or pa.types.is_boolean(kind) or pa.types.is_binary(kind):
        return None
    if pa.types.is_decimal(kind) and kind.precision > DECIMAL_DIGITS_MAX:
        return None
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        return None
    bounds = pc.min_max(column)
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return _times(bounds, kind)
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    if isinstance(least, str):
        return least[:STRING_CHARACTERS_MAX], greatest if len(greatest) <= STRING_CHARACTERS_MAX else None
    if isinstance(least, float):
        return _zero(least, -1.0), _zero(greatest, 1.0)
    if isinstance(least, int | Decimal):
        return least, greatest
    return None


def _zero(value: float, sign: float) -> float:
    """Return a zero with the given sign: the two zeros are equal, so a bound has to include both."""
    return value if value else math.copysign(0.0, sign)


def _times(bounds: pa.StructScalar, kind: pa.DataType) -> tuple[str, str] | None:
    try:
        least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    except (ValueError, OverflowError):
        return None  # before the year 1 or after 9999: readers could not parse it
    if pa.types.is_date32(kind):
        return least.isoformat(), greatest.isoformat()
    return _timestamp(least, kind), _timestamp(greatest, kind)


def _timestamp(value: datetime.datetime, kind: pa.TimestampType) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
    return text if kind.tz is None else text + "Z"
