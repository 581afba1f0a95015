"""The quick way from JSON records to rows: PyArrow's reader takes all of them at once, or refuses all of them.

It gives the same rows as `values.py`, but refuses more records: it knows no maps, no numbers in place of texts, and no
repeated fields. To make sure that it never gives a different row,

- a record has to be plain: UTF-8, a brace at its beginning and at its end, not too many levels (PyArrow has no bound);
- texts that become times or bytes are read as texts, and then cast as they are in `leaves.py`;
- a float that is infinite counts as refused, since PyArrow makes it of numbers beyond the range of the type;
- a record with decimals must not have a number of so many digits that PyArrow wraps around (`decimals.py`).
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from holdfast.json_rows.leaves import is_bytes, is_text, is_time, read_texts
from holdfast.json_rows.nesting import DEPTH_MAX, is_too_deep

CASE_BIT = np.uint8(0xFF ^ 0x20)
"""The bits that `[` and `{` have in common."""
BLANK = np.isin(np.arange(256), list(b" \t\r\n"))


class QuickReader:
    """Reads plain records at once."""

    def __init__(self, schema: pa.Schema, *, refuse_unknown: bool) -> None:
        self._schema = schema
        read_as = pa.schema([(field.name, quick_type(field.type)) for field in schema])
        unknown = "error" if refuse_unknown else "ignore"
        self._long_numbers = long_numbers(schema)
        self._options = pj.ParseOptions(explicit_schema=read_as, unexpected_field_behavior=unknown)

    def takes(self, records: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which records are plain."""
        plain = are_plain(records)
        if self._long_numbers is not None:
            long = pc.match_substring_regex(records, self._long_numbers)
            plain &= ~long.fill_null(False).to_numpy(zero_copy_only=False)
        return plain

    def read(self, records: pa.Array) -> pa.RecordBatch | None:
        """Return the rows of plain records; None if PyArrow refuses one of them.

        A plain record begins with `{` and ends with `}`, so that it gives a row at least, or an error. If there are as
        many rows as records, each record has therefore given a single row.
        """
        offsets, _ = parts(records)
        joined = records.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        reading = pj.ReadOptions(use_threads=False, block_size=joined.size + 1)
        try:
            table = pj.read_json(pa.BufferReader(joined), reading, self._options)
        except (pa.ArrowException, ValueError):
            return None
        if table.num_rows != len(records):
            return None
        columns = []
        for field in self._schema:
            column = as_typed(table.column(field.name).combine_chunks(), field.type)
            if column is None or (column.null_count and not field.nullable):
                return None
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def long_numbers(schema: pa.Schema) -> str | None:
    """Return a pattern of numbers with too many digits for PyArrow, or with hidden digits; None if there are no
    decimals.

    PyArrow multiplies a number with ten to the scale of its type, in 128 bits, which hold 38 digits.
    """
    scales = [leaf.scale for field in schema for leaf in leaf_types(field.type) if pa.types.is_decimal(leaf)]
    return rf"[0-9.]{{{max(1, 39 - max(scales))}}}|[0-9.][eE][+-]?[0-9]|\\u00[23]" if scales else None


def leaf_types(type_: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types without parts within a type."""
    if type_.num_fields == 0:
        yield type_
    for place in range(type_.num_fields):
        yield from leaf_types(type_.field(place).type)


def has_fitting_digits(array: pa.Array) -> bool:
    """Return whether no decimal has more digits than its type: PyArrow's reader looks at the text's digits alone."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def are_plain(records: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which records begin and end as an object, are UTF-8, and do not have too many levels."""
    offsets, data = parts(records)
    starts, ends = offsets[:-1], offsets[1:]
    if len(starts) == 0 or len(data) == 0:
        return np.zeros(len(starts), bool)
    last = np.maximum(ends - 1, 0)
    for _ in range(2):  # a line ends with LF, CR LF or CR
        last = np.maximum(last - BLANK[data[last]], 0)
    plain: npt.NDArray[np.bool_] = (
        (last > starts) & (data[np.minimum(starts, len(data) - 1)] == ord("{")) & (data[last] == ord("}"))
    )
    if records.null_count:
        plain &= records.is_valid().to_numpy(zero_copy_only=False)
    if (ends - starts > 2 * DEPTH_MAX).any():  # Shorter records have no room for more levels that open and close.
        opened = np.flatnonzero((data[offsets[0] : offsets[-1]] & CASE_BIT) == ord("["))
        counts = np.diff(np.searchsorted(opened, offsets - offsets[0]))
        for place in np.flatnonzero(counts > DEPTH_MAX).tolist():
            plain[place] &= not is_too_deep(records[place].as_py() or b"")
    if not is_utf8(records):
        plain &= np.array([is_utf8(records[place : place + 1]) for place in range(len(records))], bool)
    return plain


def is_utf8(records: pa.Array) -> bool:
    try:
        records.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def is_quick(schema: pa.Schema) -> bool:
    """Return whether PyArrow can read JSON values of all columns."""
    return all(quick_type(field.type) is not None for field in schema)


def quick_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type with which PyArrow reads JSON values of `type_`; None if it would read them differently."""
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return type_
    if pa.types.is_float32(type_) or pa.types.is_float64(type_) or pa.types.is_decimal128(type_):
        return type_
    if is_text(type_) or is_bytes(type_) or is_time(type_):
        return pa.string()
    if pa.types.is_struct(type_) and type_.num_fields:
        fields = [(field.name, quick_type(field.type)) for field in type_ if field.nullable]
        return pa.struct(fields) if len([kind for _, kind in fields if kind]) == type_.num_fields else None
    if pa.types.is_list(type_):
        item = quick_type(type_.value_type)
        return pa.list_(item) if item is not None and type_.value_field.nullable else None
    return None


def as_typed(array: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Convert values that were read as `quick_type` to their type; None if a value must be read in another way."""
    if pa.types.is_floating(type_):
        return None if pc.any(pc.is_inf(array)).as_py() else array
    if pa.types.is_decimal(type_):
        return array if has_fitting_digits(array) else None
    if is_text(type_) or is_bytes(type_) or is_time(type_):
        typed, reasons = read_texts(array, type_)
        return None if reasons else typed
    if pa.types.is_struct(type_):
        children = [as_typed(child, field.type) for child, field in zip(array.flatten(), type_, strict=True)]
        if any(child is None for child in children):
            return None
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    if pa.types.is_list(type_):
        items = as_typed(array.values, type_.value_type)
        if items is None:
            return None
        return pa.ListArray.from_arrays(array.offsets, items, type=type_, mask=array.is_null())
    return array


def parts(records: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the offsets and bytes of a binary array."""
    _, offsets, data = records.buffers()
    found = np.frombuffer(offsets, np.int32)[records.offset : records.offset + len(records) + 1]
    return found, np.frombuffer(data, np.uint8)
