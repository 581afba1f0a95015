"""Check by schemas, before any state is read, that stored state fits the job that restores it.

Allowed: a state or value column that the job adds (it starts null for existing keys), a column that it drops, and a
value's type with more room (`state.widening`). Everything else is refused, naming operator, state, and both types.
"""

from collections.abc import Mapping

import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.state.changes import key_schema_of, value_schema_of
from holdfast.state.widening import is_packed, shown_type, widens

_PARTS = {"elements": "elements", "entries": "values", "order": "map keys", "list": "entries"}
"""The content of a state's own table, by the last part of the table's name."""

_KINDS = {
    "elements": "a list",
    "entries": "a map",
    "broadcast": "a broadcast stream",
    "list": "a list of the subtask",
}
"""The kind of state that has a table of this name."""


def check_schema(stored: pa.Schema, declared: pa.Schema, operator: str, table: str) -> None:
    """Compare two stored schemas of a table (`StateTable.stored_schema()`): refuse a restore that cannot work.

    Raises
    ------
    JobRefused
        The key columns differ in name, type or order, or the stored type of a value column does not widen to its
        declared type.
    """
    remedy = f"declare it as it was, or drop the stored state with job.start(drop_state=[{operator!r}])"
    stored_keys, declared_keys = _fields(key_schema_of(stored)), _fields(key_schema_of(declared))
    state, part = _state_of(table)
    if stored_keys != declared_keys:
        if state is not None and stored_keys[:-1] == declared_keys[:-1]:
            stored_keys, declared_keys, what = stored_keys[-1:], declared_keys[-1:], "map keys"
            raise _refusal(operator, state, what, str(stored_keys[0][1]), str(declared_keys[0][1]), remedy)
        raise JobRefused(
            f"operator {operator!r}, state {table!r}: stored with the key columns {_shown(stored_keys)}, "
            f"declared with {_shown(declared_keys)}; {remedy}"
        )
    before = {field.name: field for field in stored}
    for field in declared:
        found = before.get(field.name, field)
        if not widens(found.type, field.type) or is_packed(found) != is_packed(field):
            name = field.name if state is None else state
            raise _refusal(operator, name, part, shown_type(found), shown_type(field), remedy)


def _state_of(table: str) -> tuple[str | None, str]:
    """Return the state to which a table belongs, and the meaning of its values; None: the table is the operator's
    own."""
    state, _, part = table.rpartition(".")
    return (state, _PARTS[part]) if state and part in _PARTS else (None, "")


def _refusal(operator: str, state: str, part: str, stored: str, declared: str, remedy: str) -> JobRefused:
    what = f"{part} stored" if part else "stored"
    return JobRefused(f"operator {operator!r}, state {state!r}: {what} as {stored}, declared as {declared}; {remedy}")


def check_kinds(stored: Mapping[str, pa.Schema], declared: Mapping[str, pa.Schema], operator: str) -> None:
    """Check that each state has the kind it was stored as. `stored` and `declared`: schemas of an operator's tables.

    Raises
    ------
    JobRefused
        A state is stored as one kind and declared as another, for example as a value and as a list.
    """
    before, now = _kinds(stored), _kinds(declared)
    for state, kind in now.items():
        if before.get(state, kind) != kind:
            raise JobRefused(
                f"operator {operator!r}, state {state!r}: stored as {before[state]}, declared as {kind}; give the "
                f"new state another name, declare it as it was, or give it up with job.start(drop_state=[{operator!r}])"
            )


def _kinds(tables: Mapping[str, pa.Schema]) -> dict[str, str]:
    """The kind of each state: lists and maps have tables of their own, named after them."""
    kinds = {}
    for table, schema in tables.items():
        state, _, part = table.rpartition(".")
        if not state:
            kinds.update({name: "a value" for name in value_schema_of(schema).names if "." not in name})
        elif part in _KINDS:
            kinds[state] = _KINDS[part]
    return kinds


def _fields(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _shown(fields: list[tuple[str, pa.DataType]]) -> str:
    return "(" + ", ".join(f"{name} {kind}" for name, kind in fields) + ")"
