"""Casts of Arrow columns to another type. No value wraps around or is truncated, and no value makes the cast fail.

A value that the wanted type cannot hold is null in the result, and its row is marked. A time in a finer unit is rounded
down, also before 1970, so that 23:59:59.9999999 stays within its day. The caller decides whether a cast between two
types makes sense at all: for instance, text is parsed as numbers only if `pc.cast` does so.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.json_rows.decimals import to_decimals

UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
INT64 = np.iinfo(np.int64)
INFINITY = r"(?i)^\s*[+-]?inf(inity)?\s*$"
"""Texts that PyArrow reads as infinity."""
HEXADECIMAL = r"^\s*[+-]?0[xX]"
"""Texts that PyArrow reads as integers of hexadecimal digits. Other readers, such as Spark, find no number in them."""
DIGITS_MAX = 38
"""Most digits of a decimal of 128 bits, the type in which `pc.cast` calculates."""


class Cast(NamedTuple):
    """The values in the wanted type, and a mask of the rows that the type cannot hold; None if it can hold all."""

    values: pa.Array
    outside: np.ndarray | None


def cast_in_range(array: pa.Array, wanted: pa.DataType) -> Cast:
    """Cast a column, which may be nested. A row is marked if the wanted type cannot hold one of the values in it.

    Raises `pa.ArrowNotImplementedError` if there is no cast between the two types.
    """
    found = array.type
    if found == wanted:
        return Cast(array, None)
    if isinstance(array, pa.ExtensionArray):
        return cast_in_range(array.storage, wanted)
    if pa.types.is_dictionary(found):
        return cast_in_range(array.dictionary_decode(), wanted)
    if _has_unit(found) and _has_unit(wanted) and _kind(found) == _kind(wanted):
        return _in_unit(array, wanted)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted) and found.num_fields == wanted.num_fields:
        return _struct(array, wanted)
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return _map(array, wanted)
    if _is_list(found) and _is_list(wanted):
        return _list(array, wanted)
    if _is_text(found) and pa.types.is_integer(wanted):
        return _integers(array, wanted)
    return _plain(array, wanted)


def _plain(array: pa.Array, wanted: pa.DataType) -> Cast:
    """Cast values that are not nested. Halving the rows again and again finds the values that the cast refuses."""
    if pa.types.is_floating(array.type) and pa.types.is_floating(wanted):
        return _narrowed(array, wanted)
    if pa.types.is_decimal(wanted) and _may_wrap(array.type, wanted):
        values, reasons = to_decimals(pc.cast(array, pa.string()), wanted)
        return Cast(values, np.isin(np.arange(len(values)), list(reasons)) if reasons else None)
    try:
        values = pc.cast(array, wanted)
        return _of_texts(array, values) if _is_text(array.type) and pa.types.is_floating(wanted) else Cast(values, None)
    except pa.ArrowInvalid:
        if len(array) == 1:
            return Cast(pa.nulls(1, wanted), np.ones(1, dtype=bool))
    half = len(array) // 2
    parts = [_plain(array[:half], wanted), _plain(array[half:], wanted)]
    masks = [np.zeros(len(part.values), dtype=bool) if part.outside is None else part.outside for part in parts]
    return Cast(pa.concat_arrays([part.values for part in parts]), np.concatenate(masks))


def _integers(texts: pa.Array, wanted: pa.DataType) -> Cast:
    """Cast texts to integers. Texts with hexadecimal digits are marked."""
    decimal, hexadecimal = _without(texts, is_hexadecimal(texts))
    values, outside = _plain(decimal, wanted)
    masks = [mask for mask in (outside, hexadecimal) if mask is not None]
    return Cast(values, np.logical_or.reduce(masks) if masks else None)


def is_hexadecimal(texts: pa.Array) -> np.ndarray:
    """Mark the texts that PyArrow would read by hexadecimal digits."""
    found: np.ndarray = pc.match_substring_regex(texts, HEXADECIMAL).fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _may_wrap(found: pa.DataType, wanted: pa.DataType) -> bool:
    """True if `pc.cast` may wrap around, or refuses values that fit: it wraps texts, and decimals that could get more
    than 38 digits, and takes integers only if all integers of their type fit."""
    if pa.types.is_integer(found):
        return bool(wanted.precision - wanted.scale < len(str(2**found.bit_width)))
    if pa.types.is_decimal(found):
        return bool(found.precision - found.scale + wanted.scale > DIGITS_MAX)
    return _is_text(found)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _of_texts(texts: pa.Array, numbers: pa.Array) -> Cast:
    """Mark texts of numbers that became infinite since they are beyond the range of their type."""
    infinite = pc.match_substring_regex(texts, INFINITY)
    return _without(numbers, pc.and_not(pc.is_inf(numbers), infinite).fill_null(False).to_numpy(False))


def _narrowed(array: pa.Array, wanted: pa.DataType) -> Cast:
    """Cast floating-point numbers. A number that becomes infinite is marked; a number that is only rounded is not."""
    values = pc.cast(array, wanted)
    if wanted.bit_width >= array.type.bit_width:
        return Cast(values, None)
    return _without(values, pc.and_(pc.is_inf(values), pc.is_finite(array)).fill_null(False).to_numpy(False))


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def _has_unit(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time(type_))


def _kind(type_: pa.DataType) -> str:
    return "timestamp" if pa.types.is_timestamp(type_) else "duration" if pa.types.is_duration(type_) else "time"


def _in_unit(array: pa.Array, wanted: pa.DataType) -> Cast:
    """Cast times to another unit of the same kind. A time zone is only for display, and is replaced."""
    numbers = _numbers(array)
    per, wanted_per = UNITS_PER_SECOND[array.type.unit], UNITS_PER_SECOND[wanted.unit]
    outside = np.zeros(0, dtype=bool)
    if wanted_per > per:
        factor = wanted_per // per
        low, high = -(-INT64.min // factor) if INT64.min % factor else INT64.min // factor, INT64.max // factor
        if len(numbers) and (numbers.min() < low or numbers.max() > high):
            outside = (numbers < low) | (numbers > high)
            numbers = np.where(outside, 0, numbers)
        numbers = numbers * factor
    elif wanted_per < per:
        if len(numbers) and numbers.min() >= 0 and wanted.bit_width == 64:
            return Cast(pc.cast(array, wanted, safe=False), None)  # Cuts towards 1970, which is floor after 1970.
        numbers = numbers // (per // wanted_per)
    absent = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    stored = pa.int32() if wanted.bit_width == 32 else pa.int64()
    values = pa.array(numbers.astype(stored.to_pandas_dtype(), copy=False), mask=absent).view(wanted)
    if not outside.any():
        return Cast(values, None)
    return _without(values, outside if absent is None else outside & ~absent)


def _numbers(array: pa.Array) -> np.ndarray:
    """Return the stored numbers of times, with any number where the time is null."""
    stored = array.buffers()[1]
    if stored is None or not len(array):
        return np.zeros(len(array), dtype=np.int64)
    width = np.int32 if array.type.bit_width == 32 else np.int64
    numbers = np.frombuffer(stored, dtype=width)[array.offset : array.offset + len(array)]
    return numbers.astype(np.int64, copy=False)


def _without(values: pa.Array, outside: np.ndarray) -> Cast:
    if not outside.any():
        return Cast(values, None)
    return Cast(pc.if_else(pa.array(outside), pa.scalar(None, values.type), values), outside)


def _struct(array: pa.StructArray, wanted: pa.StructType) -> Cast:
    parts = [cast_in_range(child, field.type) for child, field in zip(array.flatten(), wanted, strict=True)]
    absent = array.is_null() if array.null_count else None
    values = pa.StructArray.from_arrays([part.values for part in parts], fields=list(wanted), mask=absent)
    masks = [part.outside for part in parts if part.outside is not None]
    return Cast(values, np.logical_or.reduce(masks) if masks else None)


def _list(array: pa.Array, wanted: pa.DataType) -> Cast:
    if pa.types.is_fixed_size_list(array.type):
        array = pc.cast(array, pa.list_(array.type.value_type))
    if not pa.types.is_list(wanted):
        inner = _list(array, pa.list_(wanted.value_field))
        outer = _plain(inner.values, wanted)
        masks = [part.outside for part in (inner, outer) if part.outside is not None]
        return Cast(outer.values, np.logical_or.reduce(masks) if masks else None)
    offsets, first, last = _offsets(array)
    items = cast_in_range(array.values.slice(first, last - first), wanted.value_type)
    absent = array.is_null() if array.null_count else None
    values = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items.values, type=wanted, mask=absent)
    return Cast(values, _rows_outside(offsets, [items], absent))


def _map(array: pa.MapArray, wanted: pa.MapType) -> Cast:
    offsets, first, last = _offsets(array)
    keys = cast_in_range(array.keys.slice(first, last - first), wanted.key_type)
    items = cast_in_range(array.items.slice(first, last - first), wanted.item_type)
    absent = array.is_null() if array.null_count else None
    outside = _rows_outside(offsets, [keys, items], absent)
    if keys.outside is not None and outside is not None:
        # A map cannot have a null key, so these rows are made without their entries.
        stored = np.zeros(len(array) + 1, dtype=np.int64)
        np.cumsum(np.where(outside, 0, np.diff(offsets)), out=stored[1:])
        kept = pa.array(np.repeat(~outside, np.diff(offsets)))
        keys, items, offsets = Cast(keys.values.filter(kept), None), Cast(items.values.filter(kept), None), stored
    values = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys.values, items.values, wanted, mask=absent)
    return Cast(values, outside)


def _offsets(array: pa.Array) -> tuple[np.ndarray, int, int]:
    """Return the offset of each row's entries, relative to the first row's, and the range of all entries."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    if not len(offsets):
        return np.zeros(1, dtype=np.int64), 0, 0
    return offsets - offsets[0], int(offsets[0]), int(offsets[-1])


def _rows_outside(offsets: np.ndarray, parts: list[Cast], absent: pa.Array | None) -> np.ndarray | None:
    masks = [part.outside for part in parts if part.outside is not None]
    if not masks:
        return None
    counted = np.concatenate([[0], np.cumsum(np.logical_or.reduce(masks))])
    outside = counted[offsets[1:]] > counted[offsets[:-1]]
    if absent is not None:
        outside &= ~absent.to_numpy(zero_copy_only=False)
    return outside if outside.any() else None
