"""Row groups of Parquet files, and the bounds of their columns: groups without a wanted row are skipped."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.casts import UNITS_PER_SECOND, cast_in_range
from holdfast.expressions.group_bounds import ValueBounds
from holdfast.sources.files.columnar import KeptRanges, StoredGroups
from holdfast.sources.wanted import WantedRows
from holdfast.watermarks import END_US, FIRST_US


class RowGroup(NamedTuple):
    """A row group: its number, and the positions of its first row and behind its last."""

    number: int
    start: int
    stop: int


def touched_groups(metadata: pq.FileMetaData, start: int, stop: int) -> list[RowGroup]:
    """Return the row groups that hold rows of `[start, stop)`."""
    found, position = [], 0
    for number in range(metadata.num_row_groups):
        end = position + metadata.row_group(number).num_rows
        if position < stop and end > start:
            found.append(RowGroup(number, position, end))
        position = end
    return found


class RowGroups(StoredGroups):
    """The row groups of a file with their statistics."""

    def __init__(self, found: pa.Schema, metadata: pq.FileMetaData) -> None:
        self._found = found
        self._metadata = metadata

    def kept(self, start: int, stop: int, schema: pa.Schema, wanted: WantedRows) -> KeptRanges:
        groups = touched_groups(self._metadata, start, stop)
        rows = np.array([group.stop - group.start for group in groups], np.int64)
        names = wanted.columns
        bounds = {name: each for name in names if (each := self._bounds(name, groups, schema)) is not None}
        may_hold = wanted.may_hold(bounds, rows)
        newest = None
        if wanted.time is not None and not may_hold.all():
            times = self._bounds(wanted.time, groups, schema)
            if times is None:
                return KeptRanges([(start, stop)])
            is_divided = [not start <= group.start or not group.stop <= stop for group in groups]
            may_hold |= ~_in_calendar(times) | np.array(is_divided, np.bool_)
            newest = times.greatest.filter(pa.array(~may_hold))
        kept = [group for group, is_kept in zip(groups, may_hold, strict=True) if is_kept]
        return KeptRanges(_ranges(kept, start, stop), newest if newest is not None and len(newest) else None)

    def _bounds(self, name: str, groups: Sequence[RowGroup], schema: pa.Schema) -> ValueBounds | None:
        """Return the bounds of a column of the source in its type; None if the file has none of them."""
        place = self._leaf(name)
        if place is None or name not in schema.names:
            return None
        found = [self._metadata.row_group(group.number).column(place).statistics for group in groups]
        stored = StoredType.of(self._found.field(name).type, self._metadata.schema.column(place))
        if stored is None:
            return None
        try:
            least, greatest = (
                cast_in_range(stored.array(found, end), schema.field(name).type).values for end in ("min", "max")
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # A value that Python does not have.
            return None
        nulls = [each.null_count if each is not None and each.has_null_count else -1 for each in found]
        return ValueBounds(least, greatest, np.array(nulls, np.int64))

    def _leaf(self, name: str) -> int | None:
        """Return the place of a column among the leaves; None for a nested column, and one that is not there."""
        schema = self._metadata.schema
        return next((place for place in range(len(schema)) if schema.column(place).path == name), None)


class StoredType(NamedTuple):
    """The type in which the statistics of a column are read. `raw`: by their numbers as they are stored."""

    kind: pa.DataType
    raw: pa.DataType | None = None

    @classmethod
    def of(cls, kind: pa.DataType, column: pq.ColumnSchema) -> "StoredType | None":
        """Return the type of a column of a file; None if its statistics are not read."""
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_date32(kind):
            return cls(kind, pa.int32())
        if pa.types.is_timestamp(kind):
            unit = _UNITS.get(json.loads(column.logical_type.to_json()).get("timeUnit"))
            return None if unit is None else cls(pa.timestamp(unit, kind.tz), pa.int64())
        is_read = pa.types.is_signed_integer(kind) or any(test(kind) for test in _READ)
        return cls(kind) if is_read else None

    def array(self, found: Sequence[Any], end: str) -> pa.Array:
        """Return the least ("min") or greatest values of groups, null where they are unknown."""
        values = [self._value(each, end) for each in found]
        return pa.array(values, self.kind) if self.raw is None else pa.array(values, self.raw).cast(self.kind)

    def _value(self, statistics: Any, end: str) -> Any:
        if statistics is None or not statistics.has_min_max:
            return None
        value = getattr(statistics, end if self.raw is None else f"{end}_raw")
        return None if value != value else value


_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_READ = (pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)


def _in_calendar(times: ValueBounds) -> Any:
    """Return the groups whose event times are all within the years 1 to 9999, or null: others hold bad records."""
    unit = UNITS_PER_SECOND[times.least.type.unit]
    first, last = (pa.scalar(limit_us * unit // 1_000_000, times.least.type) for limit_us in (FIRST_US, END_US))
    inside = pc.and_(pc.greater_equal(times.least, first), pc.less_equal(times.greatest, last))
    return np.asarray(pc.fill_null(inside, False))


def _ranges(groups: Sequence[RowGroup], start: int, stop: int) -> list[tuple[int, int]]:
    """Return the rows of groups within `[start, stop)` as ranges; neighbours make one."""
    found: list[tuple[int, int]] = []
    for group in groups:
        begin, end = max(start, group.start), min(stop, group.stop)
        if found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found
