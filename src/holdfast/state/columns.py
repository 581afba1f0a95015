"""A value column of a table: a NumPy array and a validity, by slot, with conversion to Arrow and back.

Fixed-width Arrow types are kept as their physical values (see `physical`), strings, bytes, decimals and nested values
in an arena (`bytes_column`), and all others (dictionaries, views) as Python objects. A field made by `object_field`
holds any object that msgpack can write, stored as msgpack binary. A blank row's values read 0 or None. Does not own
which slots are in use.
"""

import ctypes
import itertools
import sys
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from holdfast.errors import UserFunctionError
from holdfast.python_values import exact_values
from holdfast.state import arena_kernels, kernels
from holdfast.state.arena import Arena
from holdfast.state.arena_kernels import Handles
from holdfast.state.growing import enlarge
from holdfast.state.physical import (
    Bools,
    Integers,
    Slots,
    fixed_array,
    physical_dtype,
    validity_of,
    values_of,
    variable_array,
)

Values = npt.NDArray[Any]

PIECE_ROWS = 1024
"""Values of object columns, bytes excepted, that are put into an Arrow array at a time."""

ELEMENTS_SIZED = 8
"""Elements of a container that are measured. A higher value estimates mixed containers better, and takes longer."""

_ENCODING = b"holdfast.encoding"
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def object_field(name: str) -> pa.Field:
    """A value field for any object that msgpack can write."""
    return pa.field(name, pa.large_binary(), metadata={_ENCODING: b"msgpack"})


def is_object(field: pa.Field) -> bool:
    """True if a value field holds any object, as `object_field` makes it."""
    return (field.metadata or {}).get(_ENCODING) == b"msgpack"


class Column:
    """`values` and `valid` are written in place by operators, at slots they looked up in this batch.

    Both may be replaced by a lookup; fetch them again after each. Where `valid` is False, the value is null.
    """

    in_blocks = False
    """True if values are kept as blocks (`nested`)."""

    def __init__(self, field: pa.Field, capacity: int, dtype: np.dtype[Any] | None = None) -> None:
        self.field = field
        dtype = dtype or physical_dtype(field.type) or np.dtype(object)
        self.has_objects = dtype.hasobject
        """True if values are Python objects."""
        self.fixed_width = not dtype.hasobject
        """True if `values` are the values themselves."""
        self._msgpack = is_object(field)
        self.values: Values = blank_values(dtype, capacity)
        self.valid: Bools = np.zeros(capacity, np.bool_)

    @property
    def memory_bytes(self) -> int:
        """Memory of the arrays, without the objects of an object column."""
        return self.values.nbytes + self.valid.nbytes

    @property
    def comparable(self) -> bool:
        """True if old and new values can be compared: not if objects may have been changed in place."""
        return not self.has_objects

    def blank(self, count: int) -> tuple[Values, Bools]:
        """Return the values and validity of that many blank rows."""
        return blank_values(self.values.dtype, count), np.zeros(count, np.bool_)

    def grow(self, capacity: int) -> None:
        enlarge(self, "values", capacity)
        enlarge(self, "valid", capacity)

    def compact(self, live: Slots, capacity: int) -> None:
        """Keep only slots `live`, the i-th at slot i."""
        self.values, self.valid = self.gather(live)
        self.grow(capacity)

    def gather(self, slots: Slots) -> tuple[Values, Bools]:
        """Copies of the values and validity of `slots`."""
        return gathered(self.values, slots), gathered(self.valid, slots)

    def scatter(self, slots: Slots, values: Values, valid: Bools) -> None:
        """Write `values` and `valid` at `slots`; if a slot comes twice, its last value stays."""
        scatter(self.valid, slots, valid)
        scatter(self.values, slots, values)

    def clear(self, slots: Slots) -> None:
        kernels.fill(self.valid, slots, False)
        if self.fixed_width:
            kernels.fill(_bits(self.values), slots, 0)
        else:
            self.values[slots] = None

    def mark_changed(self, slots: Slots, old: Values, old_valid: Bools, changed: Bools) -> None:
        """Set `changed` if the value at a slot differs, bit by bit, from the old value."""
        if self.fixed_width:
            kernels.mark_changed(_bits(self.values), self.valid, slots, _bits(old), old_valid, changed)
            return
        valid = kernels.gather(self.valid, slots)
        changed |= (valid != old_valid) | (valid & (self.values[slots] != old).astype(np.bool_))

    def mark_different(self, now: tuple[Values, Bools], old: tuple[Values, Bools], different: Bools) -> None:
        """`mark_changed` for gathered values."""
        (values, valid), (old_values, old_valid) = now, old
        if self.fixed_width:
            kernels.mark_different(_bits(values), valid, _bits(old_values), old_valid, different)
        elif self.comparable:
            different |= (valid != old_valid) | (valid & (values != old_values).astype(np.bool_))
        else:
            different[:] = True

    def to_arrow(self, values: Values, valid: Bools) -> Any:
        """Gathered values as an Arrow array of the field's type; the array may share their memory."""
        if self.fixed_width:
            return fixed_array(values, valid, self.field.type)
        if not valid.all():
            values = values.copy()
            values[~valid] = None
        return self._array_of(values.tolist())

    def _array_of(self, objects: Sequence[Any]) -> Any:
        """The Arrow array of Python objects, None for null."""
        try:
            if self._msgpack:
                encode = msgspec.msgpack.Encoder().encode
                objects = [None if value is None else encode(value) for value in objects]
            return _array(objects, self.field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError, UnicodeEncodeError) as error:
            kind = "a msgpack object" if self._msgpack else str(self.field.type)
            raise UserFunctionError(
                f"state {self.field.name!r} is declared as {kind}, but a value put into it does not fit: {error}"
            ) from error

    def from_arrow(self, array: Any) -> tuple[Values, Bools]:
        """The inverse of `to_arrow`."""
        mask = validity_of(array)
        valid = np.ones(len(array), np.bool_) if mask is None else mask
        if self.fixed_width:
            return values_of(array), valid
        objects = exact_values(array)
        if self._msgpack:
            decode = msgspec.msgpack.Decoder().decode
            objects = [None if value is None else decode(value) for value in objects]
        return _as_objects(objects)[0], valid

    def objects(self, slots: Slots) -> list[Any]:
        """The values at `slots` as Python objects, fixed-width values as physical numbers; None for null."""
        values, valid = self.gather(slots)
        return [value if ok else None for value, ok in zip(values.tolist(), valid.tolist(), strict=True)]

    def list_sizes(self, slots: Slots) -> Integers:
        """The number of elements of the lists, or entries of the maps, at `slots`; 0 for null."""
        return np.fromiter((len(each or ()) for each in self.objects(slots)), np.int64, len(slots))

    def put_objects(self, slots: Slots, objects: Sequence[Any]) -> None:
        """Write Python objects at distinct `slots` of a column that is not of fixed width; None is null."""
        self.scatter(slots, *_as_objects(objects))

    def to_stored(self, values: Values, valid: Bools, arena: Arena) -> Handles:
        """Return the handles of the bytes that a base store keeps for gathered values without a fixed width; new bytes
        go to `arena`."""
        array = self.to_arrow(values, valid)
        if self._msgpack:
            stored = cast(list[bytes | None], array.to_pylist())
        else:
            stored = [_one_row(array.slice(i, 1)) if ok else None for i, ok in enumerate(valid.tolist())]
        parts = [b"" if each is None else each for each in stored]
        ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        return arena.append(np.concatenate(([0], ends)), np.frombuffer(b"".join(parts), np.uint8), valid)

    def from_stored(self, handles: Handles, valid: Bools, as_messages: Bools, arena: Arena) -> Values:
        """The inverse of `to_stored`: values, or handles of bytes in `arena`.

        `as_messages` marks values in an older stored form, Arrow messages, whose column has another stored form now.
        """
        stored = bytes_of(handles, valid)
        if self._msgpack:
            decode = msgspec.msgpack.Decoder().decode
            return _as_objects([None if each is None else decode(each) for each in stored])[0]
        schema = pa.schema([self.field])
        rows = (None if each is None else row_array(each, schema) for each in stored)
        return _as_objects([None if row is None else exact_values(row)[0] for row in rows])[0]

    def object_sizes(self, slots: Slots) -> Integers:
        """The bytes of each object at `slots`; of containers estimated from their first elements."""
        values = self.values[slots].tolist()
        sizes = np.fromiter(map(_size, values), np.int64, len(values))
        sizes[~self.valid[slots]] = 0
        return sizes


def bytes_of(handles: Handles, valid: Bools) -> list[bytes | None]:
    """The bytes of the values of an arena, None for null."""
    offsets = arena_kernels.offsets_of(handles, valid)
    data, ends = arena_kernels.gather_bytes(handles, offsets).tobytes(), offsets.tolist()
    return [data[ends[i] : ends[i + 1]] if ok else None for i, ok in enumerate(valid.tolist())]


def gathered(values: Values, slots: Slots) -> Values:
    """Return `values[slots]`. Other threads can run meanwhile, unless the values are Python objects."""
    if values.dtype.hasobject:
        return values[slots]
    return cast(Values, kernels.gather(_bits(values), slots).view(values.dtype))


def addresses(objects: Values) -> Integers:
    """The addresses of the objects of a contiguous array: equal addresses are the same object."""
    pointers = ctypes.cast(objects.ctypes.data, ctypes.POINTER(ctypes.c_int64))
    return np.ctypeslib.as_array(pointers, (len(objects),)).copy()


def taken(array: Any, places: Slots) -> Any:
    """`array.take(places)`, in half the time where values are of fixed width and none is null."""
    if physical_dtype(array.type) is None or array.null_count:
        return array.take(pa.array(places))
    return fixed_array(gathered(values_of(array), places), None, array.type)


def placed(values: Values, targets: Slots) -> Values:
    """Return the array whose value at `targets[i]` is `values[i]`; `targets` is a permutation of all positions.

    An array of flags that are all set is returned as it is.
    """
    if values.dtype == np.bool_ and values.all():
        return values
    out = np.empty_like(values)
    scatter(out, targets, values)
    return out


def placed_array(array: Any, targets: Slots) -> Any:
    """`placed` for an Arrow array."""
    if physical_dtype(array.type) is None or array.null_count:
        return array.take(pa.array(placed(np.arange(len(targets), dtype=np.int32), targets)))
    return fixed_array(placed(values_of(array), targets), None, array.type)


def scatter(values: Values, slots: Slots, source: Values) -> None:
    """Set `values[slots] = source`. Other threads can run meanwhile, unless the values are Python objects."""
    if values.dtype.hasobject:
        values[slots] = source
    else:
        kernels.scatter(_bits(values), slots, _bits(source))


def scatter_some(values: Values, slots: Slots, source: Values) -> None:
    """`scatter` of fixed-width values, except where the slot is negative."""
    kernels.scatter_some(_bits(values), slots, _bits(source))


def _array(objects: Sequence[Any], kind: Any) -> Any:
    """`pa.array`, but with fewer copies, and in memory of exactly the size it needs.

    An array that grows past 32 MB continues in pages that the system has to clear first. 20,000 values of 1,000 bytes
    took 0.2 microseconds each if joined at once, 0.4 if put together from small arrays, and 1.2 by `pa.array`.
    """
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        joined = _joined(objects, kind)
        if joined is not None:
            return joined
    if pa.types.is_list(kind) and np.ndarray in set(map(type, objects)):
        return list_array(objects, kind)
    starts = range(0, max(1, len(objects)), PIECE_ROWS)
    return pa.concat_arrays([pa.array(objects[start : start + PIECE_ROWS], kind) for start in starts])


def list_array(objects: Sequence[Any], kind: Any) -> Any:
    """An Arrow array of lists of fixed-width values, from NumPy arrays of physical values or Python sequences; None is
    null, and none of the values is.
    """
    of_values = kind.value_type
    values = [each if isinstance(each, np.ndarray) else values_of(pa.array(each or (), of_values)) for each in objects]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    joined = np.concatenate(values) if values else np.zeros(0, physical_dtype(of_values))
    nulls = np.fromiter((each is None for each in objects), np.bool_, len(values))
    return pa.ListArray.from_arrays(
        pa.array(offsets), fixed_array(joined, None, of_values), type=kind, mask=pa.array(nulls)
    )


def _joined(objects: Sequence[Any], kind: Any) -> Any:
    """Return the array of these bytes; None if there are other values too, for which `pa.array` reports the error."""
    valid = np.fromiter((each is not None for each in objects), np.bool_, len(objects))
    values = objects if valid.all() else [b"" if each is None else each for each in objects]
    try:
        data = b"".join(values)
        ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
    except TypeError:
        return None
    if len(data) != (ends[-1] if len(ends) else 0):
        return None  # a value was an array of larger items, which has fewer items than bytes
    return variable_array(np.concatenate(([0], ends)), np.frombuffer(data, np.uint8), valid, kind)


def _as_objects(objects: Sequence[Any]) -> tuple[Values, Bools]:
    """An array of Python objects, even if they are sequences, and a mask of those that are not None."""
    values = np.empty(len(objects), object)
    values[:] = objects
    return values, np.fromiter((each is not None for each in objects), np.bool_, len(objects))


def _one_row(array: Any) -> bytes:
    return cast(bytes, pa.RecordBatch.from_arrays([array], names=["v"]).serialize().to_pybytes())


def row_array(stored: bytes, schema: pa.Schema) -> Any:
    """Return the array of a single value, from its stored form."""
    return pa.ipc.read_record_batch(pa.py_buffer(stored), schema).column(0)


def _size(value: Any) -> int:
    size = sys.getsizeof(value)
    if not isinstance(value, (list, dict, tuple, set)) or not value:
        return size
    elements = value.items() if isinstance(value, dict) else value
    first = list(itertools.islice(elements, ELEMENTS_SIZED))
    return size + sum(map(_size, first)) * len(value) // len(first)


def _bits(values: Values) -> Values:
    """The same memory as unsigned integers, so that kernels are compiled once a width."""
    return values.view(_UNSIGNED[values.dtype.itemsize])


def blank_values(dtype: np.dtype[Any], capacity: int) -> Values:
    """Return the values of that many blank rows."""
    return np.full(capacity, None, dtype) if dtype.hasobject else np.zeros(capacity, dtype)
