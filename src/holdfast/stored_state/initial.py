"""Initial state: rows that a user gives become the stored state from which a new job starts.

    Arrow table of an operator ──checked──► rows in the stored schemas of its tables ──► parts below shared/ ──► handles

TaskManagers restore the handles as they restore those of a checkpoint, so the first checkpoint contains the rows, which
never pass through a function. The columns are those that `read_state` returns, without `key_group`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.casts import cast_in_range
from holdfast.errors import JobRefused
from holdfast.formats.handles import MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.formats.snapshots import encode_part, in_parts
from holdfast.ids import BatchNumber, Epoch, Incarnation
from holdfast.python_values import shown_rows, shown_values
from holdfast.state.changes import DELETED, KEY_GROUP, stored_schema
from holdfast.state.columns import is_object
from holdfast.state.keys import encode_keys, group_columns, key_groups
from holdfast.state.widening import is_packed
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.stored_state.initial_entries import SUBTASK_LIST, TIME, lay_out, lay_out_shares, with_sizes
from holdfast.stored_state.states import OWN_TABLE, VALUES, ReadableState, readable_states

CONTAINERS = ("map", "list")
"""The kinds of state whose rows belong to keys, and whose sizes lie in the operator's own table."""
EMPTY = "broadcast"
"""The kind of a state that begins without rows, because its stream brings them."""
BY_NOBODY = Incarnation(0)
"""The incarnation in the names of these objects, which are stored before any process is started."""
BEFORE_ALL = 0
"""The rows are stored as the state after the change set and the batch with this number."""


Schemas = Mapping[str, tuple[pa.Schema, pa.Schema]]
"""Key columns and value columns of an operator's tables, by name."""


@dataclass(frozen=True)
class InitialRows:
    """The rows of a table of an operator, in its stored schema and in order of key groups."""

    operator: str
    table: str
    rows: pa.RecordBatch


def initial_tables(
    operator: str, given: Mapping[str, pa.Table], tables: Schemas, max_parallelism: int
) -> list[InitialRows]:
    """Turn the rows that a user gave, by state, into rows of the operator's tables.

    Raises
    ------
    JobRefused
        The operator has other state than values, maps and lists, or no state of that name; a key column is missing or
        has nulls; a key occurs twice; or a column does not belong to the state, or has another type.
    """
    states = {each.name: each for each in readable_states(tables)}
    _refuse_other_states(operator, given, states, tables)
    keys, values = tables[OWN_TABLE]
    hidden = states[VALUES].hidden
    own = given.get(VALUES, keys.empty_table())
    _check_columns(operator, own, keys, pa.schema([field for field in values if field.name not in hidden]))
    who = {name: f"initial_state of operator {operator!r}, state {name!r}" for name in given}
    laid = {
        name: lay_out(who[name], states[name], rows, keys.names)
        for name, rows in given.items()
        if states[name].kind in CONTAINERS
    }
    shares = {
        states[name].table: lay_out_shares(who[name], states[name], rows, max_parallelism)
        for name, rows in given.items()
        if states[name].kind == SUBTASK_LIST
    }
    own = with_sizes(own, laid, [name for name, each in states.items() if each.kind in CONTAINERS], keys.names)
    starts = [name for name in values.names if name in hidden and name.endswith(".start")]
    for name in starts:
        own = own.append_column(name, pa.array(np.zeros(len(own), np.int64)))
    named = {OWN_TABLE: own, **shares}
    named |= {table: rows for each in laid.values() for table, rows in each.tables.items()}
    return [_stored_rows(operator, table, rows, *tables[table], max_parallelism) for table, rows in named.items()]


def _refuse_other_states(
    operator: str, given: Mapping[str, pa.Table], states: Mapping[str, ReadableState], tables: Schemas
) -> None:
    more = sorted(each.table for each in states.values() if each.kind not in (*CONTAINERS, SUBTASK_LIST, VALUES, EMPTY))
    if more:
        raise JobRefused(
            f"initial_state of operator {operator!r}: this operator also keeps {', '.join(more)}, which rows cannot "
            "fill; give initial state to operators with values, maps, lists or aggregates only"
        )
    for name in given:
        if name not in states or states[name].kind == EMPTY:
            raise JobRefused(
                f"initial_state of operator {operator!r} names state {name!r}; it has "
                f"{', '.join(repr(each.name) for each in states.values() if each.kind != EMPTY)}"
            )
        if TIME in tables[states[name].table][1].names:
            raise JobRefused(
                f"initial_state of operator {operator!r}: state {name!r} has a time to live, and rows do not say from "
                "when it counts; begin without this state"
            )


def _stored_rows(
    operator: str, table: str, given: pa.Table, keys: pa.Schema, values: pa.Schema, max_parallelism: int
) -> InitialRows:
    """Return rows with the columns of a table in its stored schema."""
    schema = stored_schema(keys, values)
    _refuse_untyped(operator, given, values)
    columns = [_column(operator, given, field) for field in [*keys, *values]]
    typed = pa.RecordBatch.from_arrays(columns, schema=pa.schema([*keys, *values]))
    key_names = list(keys.names)
    grouping = key_names[: group_columns(keys)]
    nulls = [name for name in key_names if typed.column(name).null_count]
    if nulls:
        raise JobRefused(
            f"initial_state of operator {operator!r}: key column {nulls[0]!r} has nulls; leave these rows out"
        )
    encoded = encode_keys(typed, grouping)
    groups = key_groups(encoded, max_parallelism)
    _refuse_doubles(operator, typed.select(key_names))
    order = np.argsort(groups, kind="stable")
    taken = typed.take(pa.array(order))
    leading = {
        KEY_GROUP: pa.array(groups[order], pa.int32()),
        DELETED: pa.array(np.zeros(len(order), np.bool_)),
    }
    return InitialRows(operator, table, pa.RecordBatch.from_arrays([*leading.values(), *taken.columns], schema=schema))


def store_initial(store: ObjectStore, epoch: Epoch, found: InitialRows, max_parallelism: int) -> TableHandle:
    """Store the rows as materialized parts; returns the handle of the complete table. Raises `StorageError`."""
    log = LogId(found.operator, found.table, 0, max_parallelism)
    parts: list[MaterializedPart] = []
    for rows in in_parts([found.rows] if found.rows.num_rows else []):
        data, part = encode_part(log, rows, BEFORE_ALL, BatchNumber(BEFORE_ALL))
        name = names.shared_object(epoch, BY_NOBODY)
        store.put(name, data)
        parts.append(MaterializedPart(name, part.offset, part.length, part.key_group_start, part.key_group_stop))
    stored = found.rows.schema.serialize().to_pybytes()
    return TableHandle(found.operator, found.table, 0, max_parallelism, stored, parts, [], found.rows.num_rows)


def _check_columns(operator: str, given: pa.Table, keys: pa.Schema, values: pa.Schema) -> None:
    missing = [name for name in keys.names if name not in given.column_names]
    unknown = [name for name in given.column_names if name not in {*keys.names, *values.names}]
    expected = f"it has the key columns {', '.join(keys.names)} and the state columns {', '.join(values.names)}"
    if missing:
        raise JobRefused(f"initial_state of operator {operator!r}: key column {missing[0]!r} is missing; {expected}")
    if unknown:
        raise JobRefused(
            f"initial_state of operator {operator!r}: column {unknown[0]!r} is none of its own; {expected}"
        )
    _refuse_untyped(operator, given, values)


def _refuse_untyped(operator: str, given: pa.Table, values: pa.Schema) -> None:
    for field in values:
        if field.name in given.column_names and (is_packed(field) or is_object(field)):
            raise JobRefused(
                f"initial_state of operator {operator!r}: {_shown(field)!r} has no Arrow type, so its values cannot be "
                "given; declare the state with a type"
            )


def _column(operator: str, given: pa.Table, field: pa.Field) -> pa.Array:
    """A column in the stored type; nulls where it is not given."""
    if field.name not in given.column_names:
        return pa.nulls(len(given), field.type)
    column = given.column(field.name).combine_chunks()
    problem = f"column {_shown(field)!r} is {column.type}, expected {field.type}"
    try:
        column.validate(full=True)
        if pa.types.is_nested(field.type):
            return column.cast(field.type)
        if not _is_alike(column.type, field.type):
            raise pa.ArrowInvalid("cast it")
        values, outside = cast_in_range(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise JobRefused(f"initial_state of operator {operator!r}: {problem}: {error}") from error
    if outside is not None:
        first = shown_values(column[int(np.argmax(outside)) :][:1])[0]
        raise JobRefused(f"initial_state of operator {operator!r}: {problem}, which cannot hold {first!r}")
    return values


def _is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """True if values keep their meaning, as far as they fit: text is no number, and no time gets or loses a zone."""
    types = pa.types
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    numbers = (types.is_integer, types.is_floating, types.is_decimal)
    if any(test(found) for test in numbers):
        is_exact = not types.is_floating(found)
        return types.is_floating(wanted) or (is_exact and any(test(wanted) for test in numbers))
    return types.is_null(found) or any(test(found) and test(wanted) for test in _ALIKE) or found == wanted


_ALIKE: Sequence[Callable[[pa.DataType], bool]] = (
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind),
)
"""Tests of kinds whose values are alike."""


def _shown(field: pa.Field) -> str:
    """Return the name of a column as a user gives it."""
    return str(field.name).removeprefix("__")


def _refuse_doubles(operator: str, keys: pa.RecordBatch) -> None:
    counted = pa.Table.from_batches([keys]).group_by(keys.schema.names).aggregate([([], "count_all")])
    if len(counted) < keys.num_rows:
        doubles = shown_rows(counted.filter(pa.compute.greater(counted.column("count_all"), 1)).slice(0, 1))[0]
        del doubles["count_all"]
        raise JobRefused(f"initial_state of operator {operator!r}: the key {doubles} comes more than once")
