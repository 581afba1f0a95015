"""State in: rows that a user gives become the stored state from which a new job starts.

    Arrow table of an operator ──checked──► rows in the stored schemas of its tables ──► parts below shared/ ──► handles

TaskManagers restore the handles as they restore those of a checkpoint, so the first checkpoint holds them, and the
rows never pass through a function. The columns are those that `read_state` gives, without `key_group`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.formats.handles import MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.formats.snapshots import encode_part, in_parts
from holdfast.state.changes import DELETED, KEY_GROUP, stored_schema
from holdfast.state.columns import is_object
from holdfast.state.keys import encode_keys, key_groups
from holdfast.state.widening import is_packed
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.stored_state.states import OWN_TABLE

BY_NOBODY = 0
"""Incarnation in the names of these objects: they were stored before any process was started."""
BEFORE_ALL = 0
"""Number of the change set and of the batch as of which the rows stand."""


@dataclass(frozen=True)
class InitialRows:
    """The rows of an operator's own table, in its stored schema and in order of key groups."""

    operator: str
    rows: pa.RecordBatch


def initial_rows(
    operator: str, given: pa.Table, keys: pa.Schema, values: pa.Schema, max_parallelism: int
) -> InitialRows:
    """Turn rows that a user gave into rows of the operator's own table.

    Raises
    ------
    JobRefused
        A key column is missing or null, a key comes twice, or a column is none of the operator's, or has another type.
    """
    schema = stored_schema(keys, values)
    _check_columns(operator, given, keys, values)
    columns = [_column(operator, given, field) for field in [*keys, *values]]
    typed = pa.RecordBatch.from_arrays(columns, schema=pa.schema([*keys, *values]))
    key_names = list(keys.names)
    nulls = [name for name in key_names if typed.column(name).null_count]
    if nulls:
        raise JobRefused(
            f"initial_state of operator {operator!r}: key column {nulls[0]!r} has nulls; leave these rows out"
        )
    encoded = encode_keys(typed, key_names)
    groups = key_groups(encoded, max_parallelism)
    _refuse_doubles(operator, typed.select(key_names))
    order = np.argsort(groups, kind="stable")
    taken = typed.take(pa.array(order))
    leading = {
        KEY_GROUP: pa.array(groups[order], pa.int32()),
        DELETED: pa.array(np.zeros(len(order), np.bool_)),
    }
    return InitialRows(operator, pa.RecordBatch.from_arrays([*leading.values(), *taken.columns], schema=schema))


def store_initial(store: ObjectStore, epoch: int, found: InitialRows, max_parallelism: int) -> TableHandle:
    """Store the rows as materialized parts; returns the handle of the whole table. Raises `StorageError`."""
    log = LogId(found.operator, OWN_TABLE, 0, max_parallelism)
    parts: list[MaterializedPart] = []
    for rows in in_parts([found.rows] if found.rows.num_rows else []):
        data, part = encode_part(log, rows, BEFORE_ALL, BEFORE_ALL)
        name = names.shared_object(epoch, BY_NOBODY)
        store.put(name, data)
        parts.append(MaterializedPart(name, part.offset, part.length, part.key_group_start, part.key_group_stop))
    stored = found.rows.schema.serialize().to_pybytes()
    return TableHandle(found.operator, OWN_TABLE, 0, max_parallelism, stored, parts, [], found.rows.num_rows)


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
    for field in values:
        if field.name in given.column_names and (is_packed(field) or is_object(field)):
            raise JobRefused(
                f"initial_state of operator {operator!r}: {field.name!r} has no Arrow type, so its values cannot be "
                "given; declare the state with a type"
            )


def _column(operator: str, given: pa.Table, field: pa.Field) -> pa.Array:
    """A column in the stored type; nulls where it is not given."""
    if field.name not in given.column_names:
        return pa.nulls(len(given), field.type)
    try:
        return given.column(field.name).cast(field.type).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise JobRefused(
            f"initial_state of operator {operator!r}: column {field.name!r} is {given.schema.field(field.name).type}, "
            f"expected {field.type}: {error}"
        ) from error


def _refuse_doubles(operator: str, keys: pa.RecordBatch) -> None:
    counted = pa.Table.from_batches([keys]).group_by(keys.schema.names).aggregate([([], "count_all")])
    if len(counted) < keys.num_rows:
        doubles = counted.filter(pa.compute.greater(counted.column("count_all"), 1)).slice(0, 1).to_pylist()[0]
        del doubles["count_all"]
        raise JobRefused(f"initial_state of operator {operator!r}: the key {doubles} comes more than once")


def own_table(tables: Mapping[str, object]) -> bool:
    """True if all state of an operator lies in its own table, so that rows of values are the whole of it."""
    return set(tables) == {OWN_TABLE}
