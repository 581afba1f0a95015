"""Arrow arrays as NumPy arrays and back, without copies where the memory layout allows.

Fixed-width values are seen as their *physical* type: dates, times, timestamps and durations are the
integers that Arrow stores, in the unit of their type. A null has any value: look at the validity.
Arrays seen this way may be read-only.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]
"""Slots of a table, or numbers of rows, where kernels read and write. A table has less than 2^31 of them, and they are
most of the memory that a batch leaves behind."""
Bytes = npt.NDArray[np.uint8]

_PHYSICAL: dict[Any, Any] = {
    **{t: np.dtype(str(t)) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{t: np.dtype(str(t)) for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    pa.bool_(): np.dtype(np.bool_),
    pa.float16(): np.dtype(np.float16),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
    pa.date32(): np.dtype(np.int32),
    pa.date64(): np.dtype(np.int64),
    pa.time32("s"): np.dtype(np.int32),
    pa.time32("ms"): np.dtype(np.int32),
    pa.time64("us"): np.dtype(np.int64),
    pa.time64("ns"): np.dtype(np.int64),
}


def physical_dtype(arrow_type: Any) -> np.dtype[Any] | None:
    """The NumPy type of a fixed-width type's values; None for types that have none (decimals, strings, lists, …)."""
    if pa.types.is_timestamp(arrow_type) or pa.types.is_duration(arrow_type):
        return np.dtype(np.int64)
    return _PHYSICAL.get(arrow_type)


def values_of(array: Any) -> npt.NDArray[Any]:
    """The values of an array whose type has a `physical_dtype`; booleans are unpacked, the rest is not copied."""
    dtype = physical_dtype(array.type)
    if dtype is None:
        raise TypeError(f"{array.type} has no fixed-width NumPy type")
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), dtype)
    if dtype == np.bool_:
        return _unpack(buffer, array.offset, len(array))
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def validity_of(array: Any) -> Bools | None:
    """Marks the values that are not null; None if no value is null."""
    if array.null_count == 0:
        return None
    buffer = array.buffers()[0]
    if buffer is None:
        return np.zeros(len(array), np.bool_)
    return _unpack(buffer, array.offset, len(array))


def byte_width(arrow_type: Any) -> int | None:
    """Return the bytes that a value of a fixed-width type takes (a boolean: 1); None for other types."""
    if pa.types.is_boolean(arrow_type):
        return 1
    if pa.types.is_decimal(arrow_type) or pa.types.is_fixed_size_binary(arrow_type):
        return int(arrow_type.byte_width)
    dtype = physical_dtype(arrow_type)
    return None if dtype is None else dtype.itemsize


def fixed_bytes_of(array: Any) -> Bytes:
    """The values of a fixed-width array as `len(array) * byte_width` bytes."""
    width = byte_width(array.type)
    assert width is not None, array.type
    if physical_dtype(array.type) is not None:
        return np.ascontiguousarray(values_of(array)).view(np.uint8)
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) * width, np.uint8)
    return np.frombuffer(buffer, np.uint8, len(array) * width, array.offset * width)


def variable_bytes_of(array: Any) -> tuple[Integers, Bytes]:
    """Offsets (a number more than values) and data of a string or binary array, small or large."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64), np.empty(0, np.uint8)
    dtype = np.dtype(np.int64 if large else np.int32)
    starts = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return starts.astype(np.int64, copy=False), _bytes(data)


def fixed_array(values: npt.NDArray[Any], valid: Bools | None, arrow_type: Any) -> Any:
    """Return an Arrow array from physical values; only booleans and validity are copied."""
    packed = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(arrow_type, len(values), [_bitmap(valid), pa.py_buffer(packed)])


def fixed_bytes_array(data: Bytes, valid: Bools | None, arrow_type: Any) -> Any:
    """The inverse of `fixed_bytes_of`."""
    dtype = physical_dtype(arrow_type)
    if dtype is not None:
        return fixed_array(data.view(dtype), valid, arrow_type)
    length = len(data) // arrow_type.byte_width
    return pa.Array.from_buffers(arrow_type, length, [_bitmap(valid), pa.py_buffer(data)])


def variable_array(offsets: Integers, data: Bytes, valid: Bools | None, arrow_type: Any) -> Any:
    """The inverse of `variable_bytes_of`. Data past 2 GB needs a large type."""
    large = pa.types.is_large_string(arrow_type) or pa.types.is_large_binary(arrow_type)
    if not large and len(data) > np.iinfo(np.int32).max:
        raise OverflowError(f"{len(data)} bytes of {arrow_type} values do not fit a single array; use a large type")
    starts = offsets if large else offsets.astype(np.int32)
    return pa.Array.from_buffers(
        arrow_type, len(offsets) - 1, [_bitmap(valid), pa.py_buffer(starts), pa.py_buffer(data)]
    )


def _bitmap(valid: Bools | None) -> Any:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _bytes(buffer: Any) -> Bytes:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _unpack(buffer: Any, offset: int, length: int) -> Bools:
    first = offset // 8
    octets = np.frombuffer(buffer, np.uint8)[first : (offset + length + 7) // 8]
    return np.unpackbits(octets, bitorder="little")[offset - first * 8 :][:length].view(np.bool_)
