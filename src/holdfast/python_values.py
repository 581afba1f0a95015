"""Conversions of Arrow values to Python objects.

Python's calendar covers the years 1 to 9999, and its times have no nanoseconds. An Arrow column may hold other times,
and `to_pylist` raises for them, whichever row is needed. So all of Holdfast uses one of these three conversions, and
calls `to_pylist` only for types without times:

    python_values   for user code: a timestamp in nanoseconds is rounded down to microseconds. Raises for a value that
                    Python cannot hold; `unrepresentable` finds the rows of such values beforehand
    exact_values    for state and collections: a time that Python cannot hold exactly stays the number that Arrow
                    stores, which `pyarrow.array` takes back. Never raises
    shown_rows      for messages, dead letters and people: times are text in ISO 8601, those outside of the calendar the
                    number that Arrow stores, as text. Never raises
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.arrays import rebuilt
from holdfast.casts import UNITS_PER_SECOND

Numbers = npt.NDArray[np.int64]
EPOCH = date(1970, 1, 1).toordinal()
DAY_US = 86_400_000_000
FIRST, LAST = np.datetime64("0001-01-02", "D"), np.datetime64("9999-12-30", "D")
"""Times that Python can hold in every time zone."""
DURATION_US_MAX = 2**62
"""The longest duration that becomes a `timedelta`, 146,000 years. Arrow does not take back those near 2^63."""


@cache
def has_times(kind: pa.DataType) -> bool:
    """True if values of the type are or contain times, dates or durations."""
    if pa.types.is_temporal(kind):
        return bool(kind != pa.month_day_nano_interval())
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return has_times(kind.value_type)
    return any(has_times(kind.field(place).type) for place in range(kind.num_fields))


def python_values(array: pa.Array) -> list[Any]:
    """Return the values for user code. Raises `ValueError` for a value that no Python object can represent."""
    if not has_times(array.type):
        return _plain_values(array)
    if not pa.types.is_temporal(array.type):
        return list(rebuilt(array, _without_nanoseconds).to_pylist())
    values = _values(_without_nanoseconds(array))
    for value in values if _is_odd(array) else ():
        if type(value) is int:
            raise ValueError(f"Python has no {array.type} of {value}")
    return values


def exact_values(array: pa.Array) -> list[Any]:
    """Return the values. A time that Python cannot hold exactly is the number that Arrow stores."""
    if not has_times(array.type):
        return _plain_values(array)
    if pa.types.is_temporal(array.type):
        return _values(array)
    if _has_nanoseconds(array.type) or _any_odd(array):
        return [_exact(value) for value in array]
    return list(array.to_pylist())


def exact_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return the rows with `exact_values`."""
    return _rows(rows, exact_values)


def shown_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return the rows for people to read: times are text, and all other values are as in `to_pylist`."""
    return _rows(rows, shown_values)


def _rows(rows: pa.RecordBatch | pa.Table, values_of: Callable[[pa.Array], list[Any]]) -> list[dict[str, Any]]:
    batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
    found: list[dict[str, Any]] = []
    for batch in batches:
        columns = [values_of(column) for column in batch.columns]
        found += [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
    return found


def shown_values(array: pa.Array) -> list[Any]:
    """Return the values of a column as `shown_rows` gives them."""
    return _text_where_broken(rebuilt(array, _shown) if has_times(array.type) else array)


def payload_of(row: Mapping[str, Any]) -> str:
    """Return a row of `shown_rows`, possibly with additional values, as JSON for a dead letter."""
    return msgspec.json.encode(finite(dict(row)), enc_hook=str).decode()


def unrepresentable(rows: pa.RecordBatch) -> dict[int, str]:
    """Return the rows with a value for which `python_values` would raise, each with the reason."""
    found: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for row in _odd_rows(column) if has_times(column.type) else ():
            shown = shown_values(column.slice(row, 1))[0]
            found.setdefault(row, f"column {name!r} is {shown} ({column.type}), for which Python has no value")
    return dict(sorted(found.items()))


def _odd_rows(column: pa.Array) -> list[int]:
    """Return the rows of a column whose times no Python object can represent."""
    if pa.types.is_temporal(column.type):
        return list(map(int, np.flatnonzero(_odd(column)))) if _is_odd(column) else []
    if not _any_odd(column):
        return []
    return [row for row in range(len(column)) if not _is_representable(column.slice(row, 1))]


def _any_odd(array: pa.Array) -> bool:
    """Check the times inside nested values quickly, as `_is_odd` does."""
    found: list[bool] = []

    def note(leaf: pa.Array) -> pa.Array:
        found.append(pa.types.is_temporal(leaf.type) and has_times(leaf.type) and _is_odd(leaf))
        return leaf

    rebuilt(array, note)
    return any(found)


def _is_representable(array: pa.Array) -> bool:
    try:
        python_values(array)
    except (ValueError, OverflowError):
        return False
    return True


def _plain_values(array: pa.Array) -> list[Any]:
    """Return values without times, by way of NumPy where it has loops: `to_pylist` makes two objects a value."""
    kind, types = array.type, pa.types
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if any(is_text(kind) for is_text in texts):
        values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return values
    if types.is_list(kind) or types.is_large_list(kind):
        ends = array.offsets.to_numpy()
        elements = _plain_values(array.values.slice(ends[0], ends[-1] - ends[0]))
        places = (ends - ends[0]).tolist()
        values = [elements[begin:end] for begin, end in pairwise(places)]
    elif types.is_integer(kind) or types.is_float64(kind) or types.is_boolean(kind):
        filled = pc.fill_null(array, pa.scalar(0).cast(kind)) if array.null_count else array
        values = filled.to_numpy(zero_copy_only=False).tolist()
    else:
        return list(array.to_pylist())
    for place in np.flatnonzero(array.is_null()).tolist() if array.null_count else ():
        values[place] = None
    return values


def _numbers(array: pa.Array) -> tuple[Numbers, npt.NDArray[np.bool_] | None]:
    """Return the stored numbers of times, with 0 for nulls, and a mask of the nulls if there are any."""
    stored = array.buffers()[1]
    width = np.int32 if array.type.bit_width == 32 else np.int64
    if stored is None or not len(array):
        return np.zeros(len(array), np.int64), np.ones(len(array), np.bool_)
    numbers = np.frombuffer(stored, width, len(array), array.offset * width().itemsize).astype(np.int64, copy=False)
    if not array.null_count:
        return numbers, None
    null = array.is_null().to_numpy(zero_copy_only=False)
    return np.where(null, 0, numbers), null


def _unit_of(kind: pa.DataType) -> str:
    """Return the unit of a type's numbers as NumPy names it."""
    if pa.types.is_date(kind):
        return "D" if kind == pa.date32() else "ms"
    return str(kind.unit)


def _odd(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Mark the times that no Python object can represent. Nulls are not marked."""
    numbers, null = _numbers(array)
    kind = array.type
    if pa.types.is_duration(kind):
        most = min(DURATION_US_MAX * UNITS_PER_SECOND[kind.unit] // 1_000_000, 2**63 - 1)
        odd = (numbers > most) | (numbers < -most)
    elif pa.types.is_time(kind):
        per_s = UNITS_PER_SECOND[kind.unit]
        odd = (numbers < 0) | (numbers >= 86_400 * per_s) | (numbers % max(1, per_s // 1_000_000) != 0)
    else:
        odd = _outside(numbers, kind)
    return odd if null is None else odd & ~null


def _outside(numbers: Numbers, kind: pa.DataType) -> npt.NDArray[np.bool_]:
    """Mark the times outside Python's calendar. On its first and last day this depends on the time zone."""
    unit = _unit_of(kind)
    first, last = np.datetime64("0001-01-01", "D"), np.datetime64("10000-01-01", "D")
    days = _days(numbers, unit)
    odd: npt.NDArray[np.bool_] = (days < first.astype(np.int64)) | (days >= last.astype(np.int64))
    near = np.flatnonzero(~odd & ((days < FIRST.astype(np.int64)) | (days > LAST.astype(np.int64))))
    for place in near.tolist() if pa.types.is_timestamp(kind) and kind.tz is not None else ():
        odd[place] = type(_slow(int(numbers[place]), kind)) is int
    return odd


def _days(numbers: Numbers, unit: str) -> Numbers:
    return numbers if unit == "D" else numbers // (86_400 * UNITS_PER_SECOND[unit])


def _is_odd(array: pa.Array) -> bool:
    """Check times quickly: False if Python can represent each of them, True if `_odd` must look at each."""
    kind = array.type
    numbers, _ = _numbers(array)
    if not len(numbers):
        return False
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return bool(_odd(array).any())
    unit = _unit_of(kind)
    ends = _days(np.array([numbers.min(), numbers.max()]), unit)
    return bool(ends[0] < FIRST.astype(np.int64) or ends[1] > LAST.astype(np.int64))


def _has_nanoseconds(kind: pa.DataType) -> bool:
    if pa.types.is_temporal(kind):
        return getattr(kind, "unit", "") == "ns"
    return any(_has_nanoseconds(kind.field(place).type) for place in range(kind.num_fields))


def _without_nanoseconds(array: pa.Array) -> pa.Array:
    """Return timestamps in nanoseconds rounded down to microseconds, and other arrays unchanged."""
    kind = array.type
    if not pa.types.is_timestamp(kind) or kind.unit != "ns":
        return array
    numbers, null = _numbers(array)
    return pa.array(numbers // 1000, pa.int64(), mask=null).view(pa.timestamp("us", kind.tz))


def _values(array: pa.Array) -> list[Any]:
    """Return times as Python objects, or as numbers if no Python object represents them exactly."""
    kind = array.type
    numbers, null = _numbers(array)
    if pa.types.is_time(kind) or pa.types.is_duration(kind) or _is_odd(array) or _unit_of(kind) == "ns":
        values = [_slow(number, kind) for number in numbers.tolist()]
    else:
        values = _quick(numbers, kind)
    for place in () if null is None else np.flatnonzero(null).tolist():
        values[place] = None
    return values


def _quick(numbers: Numbers, kind: pa.DataType) -> list[Any]:
    """Convert dates and timestamps by NumPy: 0.05 µs each, 0.1 in UTC, 0.7 in other zones; `to_pylist` takes 2.6."""
    if kind == pa.date64():
        numbers, kind = numbers // 86_400_000, pa.date32()
    zone = None if pa.types.is_date(kind) or kind.tz is None else _zone(kind.tz)
    if zone is not None and zone.utcoffset(None) == timedelta(0):
        epoch = datetime(1970, 1, 1, tzinfo=zone)
        return [epoch + since for since in numbers.view(f"m8[{_unit_of(kind)}]").tolist()]
    values: list[Any] = numbers.view(f"M8[{_unit_of(kind)}]").tolist()
    return values if zone is None else [zone.fromutc(value.replace(tzinfo=zone)) for value in values]


def _slow(number: int, kind: pa.DataType) -> Any:
    """Return the object for a single stored number, or the number itself if no object represents it exactly."""
    try:
        if pa.types.is_date(kind):
            return date.fromordinal(EPOCH + (number if kind == pa.date32() else number // 86_400_000))
        us, rest = divmod(number * 1_000_000, UNITS_PER_SECOND[kind.unit])
        if rest:
            return number
        if pa.types.is_duration(kind):
            return timedelta(microseconds=us) if abs(us) <= DURATION_US_MAX else number
        if pa.types.is_time(kind):
            return (datetime.min + timedelta(microseconds=us)).time() if 0 <= us < DAY_US else number
        naive = datetime(1970, 1, 1) + timedelta(microseconds=us)
        zone = None if kind.tz is None else _zone(kind.tz)
        return naive if zone is None else zone.fromutc(naive.replace(tzinfo=zone))
    except (OverflowError, ValueError):
        return number


@cache
def _zone(name: str) -> Any:
    """Return the time zone object that Arrow uses for its values."""
    return pa.scalar(0, pa.timestamp("s", tz=name)).as_py().tzinfo


def _exact(value: pa.Scalar) -> Any:
    """Return a single value, as `exact_values` does."""
    kind = value.type
    if not value.is_valid:
        return None
    if not has_times(kind):
        return value.as_py()
    if pa.types.is_temporal(kind):
        return _slow(value.value, kind)
    if pa.types.is_struct(kind):
        return {field.name: _exact(value[place]) for place, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return [(_exact(entry[0]), _exact(entry[1])) for entry in value.values]
    if pa.types.is_dictionary(kind):
        return _exact(value.value)
    return [_exact(item) for item in value.values]


def _shown(leaf: pa.Array) -> pa.Array:
    """Return times as text, and other arrays unchanged."""
    kind = leaf.type
    if not (pa.types.is_temporal(kind) and has_times(kind)):
        return leaf
    numbers, null = _numbers(leaf)
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        texts = [_clock_text(number, kind) for number in numbers.tolist()]
    else:
        unit = "D" if pa.types.is_date(kind) else _unit_of(kind)
        zoned = "Z" if pa.types.is_timestamp(kind) and kind.tz is not None else ""
        times = (_days(numbers, "ms") if kind == pa.date64() else numbers).view(f"M8[{unit}]")
        found = np.datetime_as_string(times, unit=unit).tolist()  # type: ignore[call-overload]
        texts = [_short(text) + zoned for text in found]
        for place in np.flatnonzero(_outside(numbers, kind)).tolist() if _is_odd(leaf) else ():
            texts[place] = str(numbers[place])
    return pa.array(texts, pa.string(), mask=null)


def _short(text: str) -> str:
    """Return a time in ISO 8601 without a fraction of zeros."""
    whole, _, fraction = text.partition(".")
    return text if fraction.strip("0") else whole


def _clock_text(number: int, kind: pa.DataType) -> str:
    per_s = UNITS_PER_SECOND[kind.unit]
    seconds, rest = divmod(abs(number), per_s)
    digits = len(str(per_s)) - 1
    fraction = f".{rest:0{digits}d}" if rest else ""
    sign = "-" if number < 0 else ""
    if pa.types.is_duration(kind):
        return f"{sign}PT{seconds}{fraction}S"
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


def _text_where_broken(array: pa.Array) -> list[Any]:
    """Return the values of an array without times. Invalid UTF-8 in text becomes escapes."""
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return list(rebuilt(array, _escaped).to_pylist())


def _escaped(leaf: pa.Array) -> pa.Array:
    if not (pa.types.is_string(leaf.type) or pa.types.is_large_string(leaf.type)):
        return leaf
    values = pc.cast(leaf, pa.large_binary() if pa.types.is_large_string(leaf.type) else pa.binary()).to_pylist()
    return pa.array([None if value is None else value.decode(errors="backslashreplace") for value in values])


def _finite_key(key: Any) -> Any:
    return msgspec.json.encode(key).decode() if key is None or isinstance(key, bool) else finite(key)


def finite(value: Any) -> Any:
    """Return a value in which numbers and keys that JSON cannot represent are text."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_finite_key(name): finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value
