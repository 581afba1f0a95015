"""Rows of a stored table: the handles of a checkpoint become Arrow rows, one range of key groups after the other.

Reading is recovery without a job: `recovery.restore` replays materialized parts and log into a table in memory, whose
rows are then shown. A range is a single subtask's share of the state, so it fits into memory where the subtask did. A
`StateScan` can be sent to another process, because it holds names of objects and ranges, but no connection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.formats.handles import TableHandle
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import restore_table, select
from holdfast.recovery.spans import bounds_of, shared_objects
from holdfast.state.changes import key_schema_of, value_schema_of
from holdfast.state.keys import encode_keys, grouped_by, key_groups
from holdfast.state.table import StateTable
from holdfast.storage.reading import read_schema
from holdfast.storage.store import ObjectStore
from holdfast.stored_state.opened import OpenedCheckpoint, open_storage, while_retained
from holdfast.stored_state.states import ReadableState, find_state, shown


@dataclass(frozen=True)
class KeyGroupRange:
    """The key groups from `start` up to `stop`, without `stop`."""

    start: int
    stop: int


@dataclass(frozen=True)
class StateScan:
    """Everything needed to read a state of an operator from a checkpoint, in pieces."""

    storage: str
    storage_options: Mapping[str, str] = field(repr=False)
    number: int
    """Number of the checkpoint's record."""
    operator: str
    key_columns: tuple[str, ...]
    """The names of the key columns; empty if the state belongs to subtasks."""
    state: ReadableState
    max_parallelism: int
    stored: pa.Schema
    handles: tuple[TableHandle, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows that are read."""
        return shown(_no_rows(self.stored), self.state).schema

    def ranges(self) -> list[KeyGroupRange]:
        """Return ranges of key groups that together cover the state: a range for each subtask that wrote it."""
        return [KeyGroupRange(each.key_group_start, each.key_group_stop) for each in self.handles]

    def range_of(self, key: Mapping[str, Any]) -> KeyGroupRange:
        """Return the key group of a key, which is given as a value for each key column.

        Raises `HoldfastError` naming a column.
        """
        if not self.state.has_keys:
            raise HoldfastError(
                f"state {self.state.name!r} of operator {self.operator!r} belongs to subtasks and not to keys; "
                "read it without a key"
            )
        group = key_groups(encode_keys(self.key_row(key), list(self.key_columns)), self.max_parallelism)[0]
        return KeyGroupRange(int(group), int(group) + 1)

    def key_row(self, key: Mapping[str, Any]) -> pa.RecordBatch:
        """Make a row of the key columns, in their stored types."""
        if key.keys() != set(self.key_columns):
            raise HoldfastError(
                f"operator {self.operator!r} has the key columns {', '.join(self.key_columns)}; "
                f"the key names {', '.join(key) or 'none'}"
            )
        try:
            arrays = [pa.array([key[name]]).cast(self.stored.field(name).type) for name in self.key_columns]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise HoldfastError(
                f"operator {self.operator!r}: the key {dict(key)!r} is none of its keys: {error}"
            ) from error
        return pa.RecordBatch.from_arrays(arrays, list(self.key_columns))

    def read(self, groups: KeyGroupRange, store: ObjectStore | None = None) -> pa.RecordBatch:
        """Read the rows of a range, sorted by key group. Raises `HoldfastError` if the checkpoint is gone."""
        opened = store or open_storage(self.storage, self.storage_options)
        return while_retained(opened, self.number, lambda: self._read(groups, opened))

    def _read(self, groups: KeyGroupRange, store: ObjectStore) -> pa.RecordBatch:
        handles = select(self.handles, self.operator, self.state.table, groups.start, groups.stop)
        keys = grouped_by(key_schema_of(self.stored), len(self.key_columns) or 1)
        table = StateTable(keys, value_schema_of(self.stored), self.max_parallelism)
        shared = shared_objects(handles, bounds_of(self.handles), groups.start, groups.stop)
        with ObjectCache(store, shared=shared) as fetch:
            restore_table(table, handles, fetch, groups.start, groups.stop)
        return shown(table.snapshot(), self.state)


def scan(
    opened: OpenedCheckpoint, operator: str, state: str | None = None, storage_options: Mapping[str, str] | None = None
) -> StateScan:
    """Prepare to read an operator's state. Raises `HoldfastError`, listing the operators or states that exist."""
    identity = opened.record.operators.get(operator)
    if identity is None:
        there = ", ".join(repr(name) for name in opened.record.operators) or "none"
        raise HoldfastError(
            f"{opened.store.url}, checkpoint {opened.number}: there is no operator {operator!r}; there are {there}"
        )
    found = find_state(operator, identity.tables, state)
    stored = read_schema(f"{opened.store.url}, checkpoint {opened.number}", identity.tables[found.table])
    handles = tuple(each for each in opened.handles if (each.operator, each.table) == (operator, found.table))
    return StateScan(
        storage=opened.store.url,
        storage_options=dict(storage_options or {}),
        number=opened.number,
        operator=operator,
        key_columns=_key_columns(found, stored, identity.key_columns),
        state=found,
        max_parallelism=opened.record.max_parallelism,
        stored=stored,
        handles=tuple(sorted(handles, key=lambda each: each.key_group_start)),
    )


def _key_columns(state: ReadableState, stored: pa.Schema, of_operator: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of the key that a state's rows belong to; empty if they belong to subtasks."""
    if state.kind == "broadcast":
        return tuple(key_schema_of(stored).names)
    return of_operator if state.has_keys else ()


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
