"""Whether stored state fits the job that wants to restore it: decided by schemas, before anything is read.

Allowed: a state or value column that the job adds (it starts null for existing keys), one that it drops, and a
value's type with more room (`state.widening`). Everything else is refused, naming operator, state, and both types.
"""

from collections.abc import Mapping

import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.state.changes import key_schema_of, value_schema_of
from holdfast.state.widening import widens


def check_schema(stored: pa.Schema, declared: pa.Schema, operator: str, table: str) -> None:
    """Both are tables' stored schemas (`StateTable.stored_schema()`).

    Raises
    ------
    JobRefused
        The key columns differ in name, type or order, or a value column has a type that the stored one does not
        widen to.
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
        if not widens(stored_type, declared_type):
            raise JobRefused(
                f"operator {operator!r}, state {table!r}: column {name!r} is stored as {stored_type}, "
                f"declared as {declared_type}; {remedy}"
            )


def check_kinds(stored: Mapping[str, pa.Schema], declared: Mapping[str, pa.Schema], operator: str) -> None:
    """Both are the stored schemas of all tables of an operator, by table. A state's name does not change its kind.

    Raises
    ------
    JobRefused
        A state is stored as a value and declared as a list, or the like.
    """
    before, now = _kinds(stored), _kinds(declared)
    for state, kind in now.items():
        if before.get(state, kind) != kind:
            raise JobRefused(
                f"operator {operator!r}, state {state!r}: stored as {before[state]}, declared as {kind}; give the "
                f"new state another name, declare it as it was, or give it up with Job(drop_state=[{operator!r}])"
            )


def _kinds(tables: Mapping[str, pa.Schema]) -> dict[str, str]:
    """The kind of each state: lists and maps have tables of their own, named after them."""
    kinds = {}
    for table, schema in tables.items():
        state, _, part = table.rpartition(".")
        if not state:
            kinds.update({name: "a value" for name in value_schema_of(schema).names if "." not in name})
        elif part in _OWN_TABLES:
            kinds[state] = _OWN_TABLES[part]
    return kinds


_OWN_TABLES = {"elements": "a list", "entries": "a map"}


def _fields(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _shown(fields: list[tuple[str, pa.DataType]]) -> str:
    return "(" + ", ".join(f"{name} {kind}" for name, kind in fields) + ")"
