"""The states of an operator, and the form in which the rows of their tables are shown to people. Pure.

    table of the operator    columns as users know them
    state                    key columns, a column for each value-like state or accumulator
    <state>.entries          key columns, map_key, value                    (a map)
    <state>.elements         key columns, position, value                   (a list)
    <state>.list             position, value                                (a list of the subtask)
    timers                   key columns, kind, timestamp
    <state>.broadcast        the broadcast stream's columns, by its own key (the same in every subtask, stored once)

Every table also has `key_group`. If the state has a time to live, the table has a column `…written_at` with the moment
from which it counts. Columns that only Holdfast needs (sizes, positions of map entries) are left out. A state without a
type can hold any object; it is shown as JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.packed_values import unpack
from holdfast.python_values import finite
from holdfast.state.changes import KEY_GROUP, key_schema_of, value_schema_of
from holdfast.state.columns import is_object
from holdfast.state.widening import is_packed

VALUES, TIMERS = "values", "timers"
"""The names by which a reader asks for an operator's states of a single value, and for its timers."""
OWN_TABLE, TIMERS_TABLE = "state", "timers"
MAP, LIST, BROADCAST, SUBTASK_LIST = ".entries", ".elements", ".broadcast", ".list"
TIME = ".time"
SHOWN_NAMES: dict[str, dict[str, str | None]] = {
    "map": {"__map_key": "map_key", "__value": "value", "__time": "written_at", "__position": None},
    "list": {"__position": "position", "__value": "value", "__time": "written_at"},
    "subtask list": {"__seat": None, "__position": "position", "__value": "value"},
    "timers": {"__timer_kind": "kind", "__timer_time": "timestamp"},
}
"""The names under which people see stored columns, by kind of state; None: only Holdfast needs the column."""
TIMESTAMP = pa.timestamp("us", "UTC")
TIMER_KINDS = ("event_time", "processing_time")


@dataclass(frozen=True)
class ReadableState:
    """A state that can be read: its name for readers, its kind for people, and the table that stores it."""

    name: str
    kind: str
    table: str
    hidden: frozenset[str] = frozenset()
    """Columns that only Holdfast needs."""

    @property
    def has_keys(self) -> bool:
        """Return whether its rows belong to keys of the operator, and not to subtasks."""
        return self.kind != "subtask list"


def readable_states(tables: Mapping[str, object]) -> list[ReadableState]:
    """List the states in an operator's tables, given the names of the tables."""
    found = []
    containers = [name.rpartition(".")[0] for name in tables if name.endswith((MAP, LIST))]
    hidden = frozenset(f"{name}.{part}" for name in containers for part in ("size", "start"))
    for table in sorted(tables):
        if table == OWN_TABLE:
            found.append(ReadableState(VALUES, "values", table, hidden))
        elif table == TIMERS_TABLE:
            found.append(ReadableState(TIMERS, "timers", table))
        elif table.endswith(MAP):
            found.append(ReadableState(table.removesuffix(MAP), "map", table))
        elif table.endswith(LIST):
            found.append(ReadableState(table.removesuffix(LIST), "list", table))
        elif table.endswith(BROADCAST):
            found.append(ReadableState(table.removesuffix(BROADCAST), "broadcast", table))
        elif table.endswith(SUBTASK_LIST):
            found.append(ReadableState(table.removesuffix(SUBTASK_LIST), "subtask list", table))
        elif not table.endswith(".order"):
            found.append(ReadableState(table, "table", table))
    return found


def find_state(operator: str, tables: Mapping[str, object], state: str | None) -> ReadableState:
    """Find a state by name; None means the states of a single value. Raises `HoldfastError`, listing all states."""
    states = readable_states(tables)
    for each in states:
        if each.name == (state or VALUES):
            return each
    there = ", ".join(repr(each.name) for each in states)
    raise HoldfastError(f"operator {operator!r} has no state {state or VALUES!r}; it has {there}")


def shown(rows: pa.RecordBatch, state: ReadableState) -> pa.RecordBatch:
    """Turn rows in a table's stored schema into the columns that people know."""
    keys, values = key_schema_of(rows.schema), value_schema_of(rows.schema)
    columns: dict[str, pa.Array] = {}
    for field in [*keys, *values]:
        name = _shown_name(field.name, state)
        if name is not None:
            columns[name] = _shown_column(rows.column(field.name), field, name)
    columns["key_group"] = rows.column(KEY_GROUP)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _shown_name(column: str, state: ReadableState) -> str | None:
    """Return the name under which people see a stored column; None if only Holdfast needs the column."""
    if column in state.hidden:
        return None
    if state.kind in SHOWN_NAMES:
        return SHOWN_NAMES[state.kind].get(column, column)
    return f"{column.removesuffix(TIME)}.written_at" if column.endswith(TIME) else column


def _shown_column(values: pa.Array, field: pa.Field, name: str) -> pa.Array:
    if is_packed(field) or is_object(field):
        return pa.array([None if value is None else _as_json(value) for value in values.to_pylist()], pa.string())
    if name.endswith("written_at") or field.name == "__timer_time":
        return values.cast(TIMESTAMP)
    if field.name == "__timer_kind":
        return pc.take(pa.array(TIMER_KINDS), values)
    return values


def _as_json(packed: bytes) -> str:
    return msgspec.json.encode(finite(unpack(packed))).decode()
