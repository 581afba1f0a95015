"""The rule for reading a stored type as another declared type: only if no value is lost.

A binary column may hold objects packed as msgpack. Its field is marked (`packed_field`), since the user did not declare
a binary column.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.state.changes import value_schema_of

_KEPT = b"holdfast.kept"


def packed_field(name: str) -> pa.Field:
    """A value field for objects that were packed to bytes before they reach the table."""
    return pa.field(name, pa.binary(), metadata={_KEPT: b"msgpack"})


def is_packed(field: pa.Field) -> bool:
    return (field.metadata or {}).get(_KEPT) is not None


def shown_type(field: pa.Field) -> str:
    """A value field's type as its user declared it."""
    return "any msgpack-able object" if is_packed(field) else str(field.type)


def widens(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether every value of `stored` is a value of `declared`: the same kind of number with more room."""
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


def check_stored(stored: pa.Schema, declared: pa.Schema) -> Sequence[str]:
    """Return the column names of the schema `stored`, after checking that a table of schema `declared` can take its
    rows.

    Value columns may be missing, or of a narrower type.

    Raises
    ------
    JobRefused
        A column has another type than declared, or a key column is missing.
    """
    names: list[str] = stored.names
    values = value_schema_of(declared).names
    for field in declared:
        found = stored.field(field.name).type if field.name in names else None
        if found != field.type and not (field.name in values and (found is None or widens(found, field.type))):
            raise JobRefused(
                f"state column {field.name!r} is declared as {field.type}, but stored as {found or 'nothing'}; "
                "declare it as stored, or drop the operator's state (drop_state)"
            )
    return names
