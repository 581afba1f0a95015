"""Whether stored state fits the job that wants to restore it: decided by schemas, before anything is read.

Allowed: a value column that the job adds (it starts null for existing keys), and one that it drops.
Everything else is refused, naming operator, state, and both types.
"""

import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.state.changes import key_schema_of


def check_schema(stored: pa.Schema, declared: pa.Schema, operator: str, table: str) -> None:
    """Both are tables' stored schemas (`StateTable.stored_schema()`).

    Raises
    ------
    JobRefused
        The key columns differ in name, type or order, or a value column has another type.
    """
    remedy = f"declare it as it was, or drop the stored state with Job(drop_state=[{operator!r}])"
    stored_keys, declared_keys = _fields(key_schema_of(stored)), _fields(key_schema_of(declared))
    if stored_keys != declared_keys:
        raise JobRefused(
            f"operator {operator!r}, state {table!r}: stored with the key columns {_shown(stored_keys)}, "
            f"declared with {_shown(declared_keys)}; {remedy}"
        )
    stored_types = dict(_fields(stored))
    for name, declared_type in _fields(declared):
        stored_type = stored_types.get(name, declared_type)
        if stored_type != declared_type:
            raise JobRefused(
                f"operator {operator!r}, state {table!r}: column {name!r} is stored as {stored_type}, "
                f"declared as {declared_type}; {remedy}"
            )


def _fields(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _shown(fields: list[tuple[str, pa.DataType]]) -> str:
    return "(" + ", ".join(f"{name} {kind}" for name, kind in fields) + ")"
