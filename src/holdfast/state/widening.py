"""Which stored type may be read as which declared one: only where no value is lost."""

from typing import Any

import pyarrow as pa


def widens(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Whether every value of `stored` is one of `declared`: the same kind of number with more room."""
    types = pa.types
    for alike in (types.is_signed_integer, types.is_unsigned_integer, types.is_floating):
        if alike(stored) and alike(declared):
            return bool(stored.bit_width <= declared.bit_width)
    if types.is_decimal(stored) and types.is_decimal(declared):
        whole = stored.precision - stored.scale <= declared.precision - declared.scale
        return bool(whole and stored.scale <= declared.scale)
    return bool(stored == declared)


def widened(array: Any, declared: pa.DataType) -> Any:
    """The array as an array of `declared`; its own type must widen to it."""
    if array.type == declared:
        return array
    if array.type == pa.float16():
        return array.cast(pa.float32()).cast(declared)
    return array.cast(declared)
