"""A value column of variable width: `values` are handles of bytes in the table's arena (`arena_kernels`).

    strings, bytes                          the bytes themselves
    decimals, lists, maps, structs          blocks (`nested`)

The bytes that a handle names never change, so rows are saved, put back and compared by their handles; only values with
different handles are compared byte by byte. A handle in a copy of a row is valid as long as the copy holds the arena's
spaces; a handle that a batch works with is valid until the batch ends.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.python_values import exact_values
from holdfast.state import arena_kernels, kernels
from holdfast.state.arena import Arena
from holdfast.state.arena_kernels import Handles
from holdfast.state.columns import Column, Values, bytes_of, is_object, row_array
from holdfast.state.nested import array_of, blocks_of, has_blocks
from holdfast.state.physical import (
    Bools,
    Bytes,
    Integers,
    Slots,
    fixed_bytes_array,
    fixed_bytes_of,
    physical_dtype,
    validity_of,
    variable_array,
    variable_bytes_of,
)


class BytesColumn(Column):
    """Strings or bytes, or, in a subclass, other values.

    Operators write it only through its methods, except that they may set `valid` to False.
    """

    def __init__(self, field: pa.Field, capacity: int, arena: Arena) -> None:
        super().__init__(field, capacity, np.dtype(np.uint64))
        self.fixed_width = False
        self._arena = arena
        self._width = field.type.byte_width if pa.types.is_fixed_size_binary(field.type) else None

    def scatter(self, slots: Slots, values: Values, valid: Bools) -> None:
        self._arena.live_bytes += arena_kernels.scatter(self.values, slots, values)
        kernels.scatter(self.valid, slots, valid)

    def clear(self, slots: Slots) -> None:
        kernels.fill(self.valid, slots, False)
        self._arena.live_bytes -= arena_kernels.clear(self.values, slots)

    def mark_changed(self, slots: Slots, old: Values, old_valid: Bools, changed: Bools) -> None:
        self.mark_different(self.gather(slots), (old, old_valid), changed)

    def mark_different(self, now: tuple[Values, Bools], old: tuple[Values, Bools], different: Bools) -> None:
        arena_kernels.mark_different(*now, *old, different)

    def to_arrow(self, values: Values, valid: Bools) -> Any:
        if self._width is not None:
            data = arena_kernels.gather_fixed(values, valid, self._width)
            return fixed_bytes_array(data, valid, self.field.type)
        offsets = arena_kernels.offsets_of(values, valid)
        try:
            return variable_array(offsets, arena_kernels.gather_bytes(values, offsets), valid, self.field.type)
        except OverflowError as error:
            raise UserFunctionError(f"state {self.field.name!r}: {error}") from error

    def from_arrow(self, array: Any) -> tuple[Values, Bools]:
        if array.type != self.field.type:
            array = array.cast(self.field.type)
        mask = validity_of(array)
        valid = np.ones(len(array), np.bool_) if mask is None else mask
        return self._arena.append(*self._bytes_of(array), valid), valid

    def _bytes_of(self, array: Any) -> tuple[Integers, Bytes]:
        """Offsets and data of the bytes of each value."""
        if self._width is not None:
            return np.arange(len(array) + 1, dtype=np.int64) * self._width, fixed_bytes_of(array)
        return variable_bytes_of(array)

    def objects(self, slots: Slots) -> list[Any]:
        return exact_values(self.to_arrow(*self.gather(slots)))

    def put_objects(self, slots: Slots, objects: Sequence[Any]) -> None:
        self.scatter(slots, *self.from_arrow(self._array_of(objects)))

    def to_stored(self, values: Values, valid: Bools, arena: Arena) -> Handles:
        return values

    def from_stored(self, handles: Handles, valid: Bools, as_messages: Bools, arena: Arena) -> Values:
        return handles

    def replaced_bytes(self, slots: Slots, present: Bools, old: Values) -> int:
        """Return the bytes of the old values that are no longer at `slots`; `present` marks the slots whose rows are
        there."""
        return int(arena_kernels.replaced_bytes(kernels.gather(self.values, slots), present, old))


class BlocksColumn(BytesColumn):
    """Decimals and nested values. A base store keeps their blocks; its older records hold an Arrow message for each
    value."""

    in_blocks = True

    def to_arrow(self, values: Values, valid: Bools) -> Any:
        offsets = arena_kernels.offsets_of(values, valid)
        try:
            return array_of(offsets, arena_kernels.gather_bytes(values, offsets), valid, self.field.type)
        except OverflowError as error:
            raise UserFunctionError(f"state {self.field.name!r}: {error}") from error

    def _bytes_of(self, array: Any) -> tuple[Integers, Bytes]:
        return blocks_of(array)

    def list_sizes(self, slots: Slots) -> Integers:
        sizes: Integers = arena_kernels.first_words(*self.gather(slots))  # a list's block begins with its length
        return sizes

    def from_stored(self, handles: Handles, valid: Bools, as_messages: Bools, arena: Arena) -> Values:
        older = np.flatnonzero(as_messages & valid)
        if len(older):
            schema = pa.schema([self.field])
            messages = bytes_of(handles[older], np.ones(len(older), np.bool_))
            arrays = [row_array(cast(bytes, each), schema) for each in messages]
            handles[older] = arena.append(*blocks_of(pa.concat_arrays(arrays)), np.ones(len(older), np.bool_))
        return handles


def new_column(field: pa.Field, capacity: int, arena: Arena) -> Column:
    """A column for values of a field, whose bytes, if they are of variable width, go to `arena`."""
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    if not is_object(field) and field.type != pa.binary(0) and any(is_type(field.type) for is_type in tests):
        return BytesColumn(field, capacity, arena)
    if physical_dtype(field.type) is None and not is_object(field) and has_blocks(field.type):
        return BlocksColumn(field, capacity, arena)
    return Column(field, capacity)
