"""Keys of rows, as arrays that kernels can hash and compare exactly.

    key schema                                         kept as
    an integer-like column (integers, boolean,         int64 values, without a copy where the column is int64
      date, time, timestamp, duration)
    a column of float or double                        int64 values, made of the bits of the normalised value
    a column of strings, binary, decimals              the values' own bytes: offsets and data, without a copy
    several columns                                    bytes in the form of `encoding`, a null bit in each field

The module `equality` decides which values are the same key: floating-point numbers are normalised before they are
encoded. The kind follows from the key schema alone, never from the rows, so a key has a single form and hash for ever.
A null key of a single column is a flag beside the values (`nulls`); tables refuse it, and so does the exchange.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.equality import normalised
from holdfast.errors import BadRecord, JobRefused
from holdfast.state import encoding, hashing
from holdfast.state.physical import (
    Bools,
    Bytes,
    Integers,
    byte_width,
    fixed_array,
    fixed_bytes_array,
    fixed_bytes_of,
    physical_dtype,
    validity_of,
    values_of,
    variable_array,
    variable_bytes_of,
)

_GROUP_COLUMNS = b"holdfast.group_columns"


@dataclass(frozen=True)
class Keys:
    """The keys of n rows: `values` for keys of integer kind, else `offsets` and `data`; `nulls` if any key is null."""

    values: Integers | None
    offsets: Integers | None = None
    data: Bytes | None = None
    nulls: Bools | None = None

    def __len__(self) -> int:
        return len(self.values) if self.values is not None else len(self.byte_offsets) - 1

    @property
    def byte_offsets(self) -> Integers:
        assert self.offsets is not None, "these keys are integers"
        return self.offsets

    @property
    def bytes(self) -> Bytes:
        assert self.data is not None, "these keys are integers"
        return self.data

    @property
    def memory_bytes(self) -> int:
        arrays = (self.values, self.offsets, self.data, self.nulls)
        return sum(array.nbytes for array in arrays if array is not None)

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Stable forever: equal keys have equal hashes, in whichever batch they occur."""
        if self.values is not None:
            hashes = hashing.hash_integers(self.values)
        else:
            hashes = hashing.hash_bytes(self.byte_offsets, self.bytes)
        if self.nulls is not None:
            hashes[self.nulls] = hashing.NULL_HASH
        return hashes


def encode_keys(rows: pa.RecordBatch, key_columns: Sequence[str]) -> Keys:
    """The keys of `rows`, in row order.

    Raises
    ------
    JobRefused
        A key column has a type that cannot be a key.
    """
    return encode_columns([rows.column(name) for name in key_columns], key_columns)


def declared_columns(rows: pa.RecordBatch, key_schema: pa.Schema) -> list[Any]:
    """The key columns of `rows`.

    Raises
    ------
    BadRecord
        A key column is missing or has another type than declared.
    """
    arrays = []
    for field in key_schema:
        place = rows.schema.get_field_index(field.name)
        found = f"type {rows.schema.field(place).type}" if place >= 0 else f"no such column among {rows.schema.names}"
        if place < 0 or rows.schema.field(place).type != field.type:
            raise BadRecord(f"key column {field.name!r} is declared as {field.type}; the rows have {found}")
        arrays.append(rows.column(place))
    return arrays


def encode_columns(columns: Sequence[Any], names: Sequence[str]) -> Keys:
    """`encode_keys` for arrays; `names` are for messages."""
    check_key_types(pa.schema([pa.field(name, array.type) for name, array in zip(names, columns, strict=True)]))
    columns = [normalised(array) for array in columns]
    return _encode_one(columns[0]) if len(columns) == 1 else _encode_several(columns)


def check_key_types(key_schema: pa.Schema) -> None:
    """Refuse, by `JobRefused`, a key schema that is empty or has a column of a type that cannot be a key."""
    if len(key_schema) == 0:
        raise JobRefused("a key needs a column; key_by got none")
    for field in key_schema:
        if not can_be_key(field.type):
            raise JobRefused(
                f"key column {field.name!r} has type {field.type}; a key is made of integers, floats, doubles, "
                "booleans, dates, times, timestamps, durations, decimals, strings or binary. Cast the column before "
                "key_by."
            )


def can_be_key(kind: pa.DataType) -> bool:
    """Return whether values of the type can be in a key."""
    fixed = byte_width(kind) not in (None, 0) and not pa.types.is_float16(kind)
    return fixed or _is_variable(kind)


def grouped_by(key_schema: pa.Schema, columns: int) -> pa.Schema:
    """Return a key schema in which only the first `columns` columns decide the key group."""
    return key_schema.with_metadata({_GROUP_COLUMNS: str(columns)})


def group_columns(key_schema: pa.Schema) -> int:
    """Number of leading key columns that decide the key group: all, unless the schema comes from `grouped_by`."""
    return int((key_schema.metadata or {}).get(_GROUP_COLUMNS, len(key_schema)))


def is_integer_kind(key_schema: pa.Schema) -> bool:
    """Return whether keys of this schema are kept as int64 values."""
    return len(key_schema) == 1 and physical_dtype(key_schema.field(0).type) is not None


def fixed_widths(key_schema: pa.Schema) -> list[int]:
    """The bytes of each key column's values; none if values of some column have no fixed width."""
    widths = [None if _is_variable(field.type) else byte_width(field.type) for field in key_schema]
    return [] if None in widths else [width for width in widths if width is not None]


def key_groups(keys: Keys, max_parallelism: int) -> npt.NDArray[np.int32]:
    """The key group of each key: `hash mod max_parallelism`. Stored: it never changes."""
    return hashing.groups_of(keys.hashes, max_parallelism)


def refuse_nulls(keys: Keys, names: Sequence[str]) -> None:
    """Raise `BadRecord` if a key of a single column is null."""
    if keys.nulls is not None:
        row = int(np.argmax(keys.nulls))
        raise BadRecord(
            f"row {row} has a null in key column {names[0]!r}; state needs a key. Filter nulls before key_by, "
            'or use bad_records="dead_letter".'
        )


def decode_integers(values: Integers, key_schema: pa.Schema) -> list[Any]:
    """The key columns of integer keys."""
    key_type = key_schema.field(0).type
    dtype = physical_dtype(key_type)
    assert dtype is not None
    if dtype.kind == "f":
        return [fixed_array(values.astype(f"i{dtype.itemsize}", copy=False).view(dtype), None, key_type)]
    return [fixed_array(values.astype(dtype, copy=False), None, key_type)]


def decode_bytes(offsets: Integers, data: Bytes, key_schema: pa.Schema) -> list[Any]:
    """Return the key columns of byte keys; `offsets` start at 0 and no other object shares `data`."""
    if len(key_schema) == 1:
        key_type = key_schema.field(0).type
        if _is_variable(key_type):
            return [variable_array(offsets, data, None, key_type)]
        return [fixed_bytes_array(data, None, key_type)]
    return decode_rows(offsets, data, key_schema.types)


def encode_rows(columns: Sequence[Any]) -> tuple[Integers, Bytes]:
    """Offsets and bytes of rows, in the form of keys of several columns: rows are equal exactly if their bytes are."""
    keys = _encode_several([normalised(array) for array in columns])
    return keys.byte_offsets, keys.bytes


def decode_rows(offsets: Integers, data: Bytes, kinds: Sequence[Any]) -> list[Any]:
    """The columns, of these types, of rows that `encode_rows` made; `data` is not shared with anyone."""
    cursors = offsets[:-1].copy()
    return [_decode_field(data, cursors, kind) for kind in kinds]


def _is_variable(arrow_type: Any) -> bool:
    types = pa.types
    return any(
        is_type(arrow_type)
        for is_type in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _encode_one(array: Any) -> Keys:
    valid = validity_of(array)
    nulls = None if valid is None else ~valid
    if physical_dtype(array.type) is not None:
        values = values_of(array)
        values = values.view(f"i{values.dtype.itemsize}") if values.dtype.kind == "f" else values
        integers = values.view(np.int64) if values.dtype.itemsize == 8 else values.astype(np.int64)
        return Keys(integers if valid is None else np.where(valid, integers, 0), nulls=nulls)
    if _is_variable(array.type):
        offsets, data = variable_bytes_of(array)
        return Keys(None, offsets, data, nulls)
    width = byte_width(array.type)
    assert width is not None
    return Keys(None, np.arange(len(array) + 1, dtype=np.int64) * width, fixed_bytes_of(array), nulls)


def _encode_several(columns: Sequence[Any]) -> Keys:
    rows = len(columns[0])
    widths = [byte_width(array.type) for array in columns]
    if not any(array.null_count for array in columns) and None not in widths:
        return _encode_fixed(columns, [width for width in widths if width is not None])
    valid = [_all_valid(rows) if (mask := validity_of(array)) is None else mask for array in columns]
    variable = [variable_bytes_of(array) if _is_variable(array.type) else None for array in columns]
    lengths = np.full(rows, len(columns), np.int64)
    for array, mask, parts in zip(columns, valid, variable, strict=True):
        lengths += mask * ((byte_width(array.type) or 0) if parts is None else 4 + np.diff(parts[0]))
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    cursors = offsets[:-1].copy()
    for array, mask, parts in zip(columns, valid, variable, strict=True):
        if parts is None:
            encoding.write_fixed(fixed_bytes_of(array), byte_width(array.type) or 0, mask, cursors, out)
        else:
            encoding.write_variable(parts[0], parts[1], mask, cursors, out)
    return Keys(None, offsets, out)


def _encode_fixed(columns: Sequence[Any], widths: Sequence[int]) -> Keys:
    """`_encode_several` for columns of fixed width without nulls."""
    stride, rows, begin = sum(widths) + len(widths), len(columns[0]), 0
    out = np.empty(rows * stride, np.uint8)
    for array, width in zip(columns, widths, strict=True):
        encoding.write_present(fixed_bytes_of(array), width, begin, stride, out)
        begin += 1 + width
    return Keys(None, np.arange(rows + 1) * stride, out)


def _decode_field(data: Bytes, cursors: Integers, arrow_type: Any) -> Any:
    valid = np.empty(len(cursors), np.bool_)
    if _is_variable(arrow_type):
        offsets = np.zeros(len(cursors) + 1, np.int64)
        encoding.read_lengths(data, cursors, offsets, valid)
        values = np.empty(int(offsets[-1]), np.uint8)
        encoding.read_variable(data, cursors, offsets, valid, values)
        return variable_array(offsets, values, valid, arrow_type)
    width = byte_width(arrow_type)
    assert width is not None
    values = np.zeros(len(cursors) * width, np.uint8)
    encoding.read_fixed(data, width, cursors, values, valid)
    return fixed_bytes_array(values, valid, arrow_type)


def _all_valid(rows: int) -> Bools:
    return np.ones(rows, np.bool_)
