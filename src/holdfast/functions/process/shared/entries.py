"""Lists and maps per key as rows of their own: a table for a list, two for a map. All by arrays.

    list    (key, position)  →  element                 positions start … start + size - 1
    map     (key, map key)   →  value, position
            (key, position)  →  map key                 the list of the map's keys, for iteration

The number of entries (`sizes`), and the begin of a list (`starts`; 0 unless elements expired), are columns of the
operator's own table, kept by the caller. When a map entry is removed, a new entry takes its position, or else the last
entry, so that positions have no holes.

Keys are given as distinct rows of key columns, `groups` says for each entry the index of its key among them.
Key groups are those of the key columns alone: entries are in their key's subtask.

Invariants: outside a call, each map entry's position is the position of its map key in the list. The tables do undo,
log, restore and eviction; this module adds nothing to that. `undo_log`, where it is not None, gets the old rows of
every write.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.functions.operator import NewTable, TableSchema
from holdfast.functions.rows.columns import AnyArray, BoolArray, IntArray
from holdfast.functions.rows.grouping import distinct_slots, ranks, spans
from holdfast.functions.timing.expiry import BatchClock, Expiry, expired_rows, renewed
from holdfast.functions.undo_log import UndoLog
from holdfast.state import kernels
from holdfast.state.keys import grouped_by
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable

POSITION, MAP_KEY, VALUE, TIME = "__position", "__map_key", "__value", "__time"


@dataclass(frozen=True)
class SavedRows:
    """Rows of some slots of a table, as they were in this batch before something was written."""

    table: StateTable
    slots: Slots
    present: BoolArray
    columns: list[tuple[AnyArray, BoolArray]]

    def put_back(self) -> None:
        self.table.present[self.slots] = self.present
        for name, (values, valid) in zip(self.table.value_schema.names, self.columns, strict=True):
            self.table.column(name).scatter(self.slots, values, valid)


def save_rows(table: StateTable, slots: Slots, undo_log: UndoLog) -> None:
    """Save the rows of these slots, so that all later changes to them can be undone."""
    columns = [table.column(name).gather(slots) for name in table.value_schema.names]
    undo_log.note(SavedRows(table, slots, table.present[slots], columns).put_back)


def list_schema(key_schema: pa.Schema, element: pa.Field, expires: bool = False) -> TableSchema:
    """Return the schema of a list's table. The field `element` has the name `VALUE`."""
    return _composite(key_schema, pa.field(POSITION, pa.int64()), [element], expires)


def map_schema(key_schema: pa.Schema, map_key: pa.DataType, value: pa.Field, expires: bool = False) -> TableSchema:
    return _composite(key_schema, pa.field(MAP_KEY, map_key), [value, pa.field(POSITION, pa.int64())], expires)


def _composite(key_schema: pa.Schema, last: pa.Field, values: list[pa.Field], expires: bool) -> TableSchema:
    if expires:
        values = [*values, pa.field(TIME, pa.int64())]
    return TableSchema(grouped_by(pa.schema([*key_schema, last]), len(key_schema)), pa.schema(values))


class EntryTable:
    """A table with a composite key; with `expiry`, each row has a time."""

    def __init__(self, schema: TableSchema, making: "Making", expiry: Expiry | None = None) -> None:
        self.table = making.new_table(schema.keys, schema.values, making.max_parallelism)
        self.undo_log: UndoLog | None = None
        """The undo log of the running call; None: a call is never undone by itself."""
        self.expiry = expiry
        self._clock = making.clock

    def slots(self, keys: pa.RecordBatch, groups: IntArray, last: Any) -> Slots:
        arrays = [column.take(pa.array(groups)) for column in keys.columns]
        return self.table.lookup(pa.RecordBatch.from_arrays([*arrays, last], schema=self.table.key_schema))

    def alive(self, slots: Slots) -> BoolArray:
        """Return a mask of the rows that exist and have not expired."""
        present: BoolArray = self.table.present[slots]
        if self.expiry is None:
            return present
        return present & ~expired_rows(*self.table.column(TIME).gather(slots), self.expiry, self._clock.now_us)

    def write(self, slots: Slots, values: dict[str, Any]) -> None:
        """Write Arrow arrays by column; the rows exist from now on. Slots may repeat: the last value stays."""
        self._note(slots)
        if self.expiry is not None and VALUE in values:
            self._renew(slots, self.expiry)
        for name, array in values.items():
            column = self.table.column(name)
            column.scatter(slots, *column.from_arrow(array))
        self.table.present[slots] = True

    def delete(self, slots: Slots) -> None:
        self._note(slots)
        self.table.present[slots] = False

    def read(self, name: str, slots: Slots) -> Any:
        """A column as Arrow, null where the row does not exist, expired or not."""
        column = self.table.column(name)
        values, valid = column.gather(slots)
        return column.to_arrow(values, valid & self.table.present[slots])

    def touch(self, slots: Slots) -> None:
        """Note that these rows, all alive, were read."""
        if self.expiry is not None and self.expiry.on == "read":
            self._note(slots)
            self._renew(slots, self.expiry)

    def begin_time(self, slots: Slots) -> None:
        """Give the present time to rows without a time."""
        slots = slots[self.table.present[slots] & ~self.table.column(TIME).valid[slots]]
        self.table.column(TIME).scatter(slots, np.full(len(slots), self._clock.now_us), np.ones(len(slots), np.bool_))

    def _renew(self, slots: Slots, expiry: Expiry) -> None:
        times, known = self.table.column(TIME).gather(slots)
        times = renewed(times, known & self.alive(slots), expiry, self._clock.now_us)
        self.table.column(TIME).scatter(slots, times, np.ones(len(slots), np.bool_))

    def _note(self, slots: Slots) -> None:
        if self.undo_log is not None and len(slots):
            save_rows(self.table, slots, self.undo_log)


@dataclass(frozen=True)
class Making:
    """Settings with which the tables of an operator's subtask are made."""

    max_parallelism: int
    new_table: NewTable
    clock: BatchClock


class ListEntries:
    def __init__(self, schema: TableSchema, making: Making, expiry: Expiry | None = None) -> None:
        if expiry is not None and expiry.on == "create":
            # A value put at a position is a new element, whatever was there before.
            expiry = replace(expiry, on="write")
        self.rows = EntryTable(schema, making, expiry)

    def read(self, keys: pa.RecordBatch, sizes: IntArray, starts: IntArray | None = None) -> tuple[IntArray, Any]:
        """Group and element of all elements that are alive, in order."""
        groups, positions = spans(sizes, starts)
        slots = self.rows.slots(keys, groups, pa.array(positions))
        alive = self.rows.alive(slots)
        self.rows.touch(slots[alive])
        return groups[alive], self.rows.read(VALUE, slots[alive])

    def at(self, keys: pa.RecordBatch, groups: IntArray, positions: IntArray) -> Any:
        return self.rows.read(VALUE, self.rows.slots(keys, groups, pa.array(positions)))

    def put(self, keys: pa.RecordBatch, groups: IntArray, positions: IntArray, elements: Any) -> None:
        if len(groups):
            self.rows.write(self.rows.slots(keys, groups, pa.array(positions)), {VALUE: elements})

    def write(
        self,
        keys: pa.RecordBatch,
        sizes: IntArray,
        starts: IntArray,
        replaced: BoolArray,
        groups: IntArray,
        elements: Any,
    ) -> tuple[IntArray, IntArray]:
        """Append elements; a list that is marked in `replaced` is emptied first. Returns the new sizes and starts."""
        added, stops = np.bincount(groups, minlength=len(sizes)), starts + sizes
        self.cut(keys, np.where(replaced, np.maximum(added, starts), stops), stops)
        sizes, starts = np.where(replaced, 0, sizes), np.where(replaced, 0, starts)
        self.put(keys, groups, (starts + sizes)[groups] + ranks(groups, len(sizes)), elements)
        return sizes + added, starts

    def cut(self, keys: pa.RecordBatch, starts: IntArray, stops: IntArray) -> None:
        """Delete the elements at positions from `starts` to before `stops`."""
        groups, positions = spans(np.maximum(stops - starts, 0), starts)
        if len(groups):
            self.rows.delete(self.rows.slots(keys, groups, pa.array(positions)))


class MapEntries:
    def __init__(self, entries: TableSchema, order: TableSchema, making: Making, expiry: Expiry | None = None) -> None:
        self.rows = EntryTable(entries, making, expiry)
        self.order = ListEntries(order, making)

    def get(self, keys: pa.RecordBatch, groups: IntArray, map_keys: Any) -> tuple[Any, BoolArray]:
        """Return the values, and a mask of the entries that exist and have not expired."""
        slots = self.rows.slots(keys, groups, map_keys)
        alive = self.rows.alive(slots)
        self.rows.touch(slots[alive])
        return self.rows.read(VALUE, slots), alive

    def items(self, keys: pa.RecordBatch, sizes: IntArray) -> tuple[IntArray, Any, Any, BoolArray]:
        """Group, map key and value of all entries, in no particular order within a group; and which are alive."""
        groups, map_keys = self.order.read(keys, sizes)
        return groups, map_keys, *self.get(keys, groups, map_keys)

    def put(
        self, keys: pa.RecordBatch, sizes: IntArray, groups: IntArray, map_keys: Any, values: Any, keep: BoolArray
    ) -> IntArray:
        """Write entries, or remove them if `keep` is False; the last write of an entry counts. Return the new sizes."""
        slots = self.rows.slots(keys, groups, map_keys)
        distinct, of_entries = distinct_slots(slots, len(self.rows.table.present))
        if len(distinct) < len(slots):
            last = np.sort(kernels.last_rows(of_entries, len(distinct)))
            slots, groups, keep = slots[last], groups[last], keep[last]
            map_keys, values = map_keys.take(pa.array(last)), values.take(pa.array(last))
        before = self.rows.table.present[slots]
        self.rows.write(slots[keep], {VALUE: values if keep.all() else values.filter(pa.array(keep))})
        gone, new = before & ~keep, keep & ~before
        if gone.any():
            return self._replace(keys, sizes, slots, groups, map_keys, gone, new)
        if new.any():
            positions = sizes[groups[new]] + ranks(groups[new], len(sizes))
            self._place(keys, groups[new], slots[new], positions, map_keys.filter(pa.array(new)))
        return sizes + np.bincount(groups[new], minlength=len(sizes))

    def clear(self, keys: pa.RecordBatch, sizes: IntArray) -> None:
        """Remove all entries."""
        groups, map_keys = self.order.read(keys, sizes)
        self.rows.delete(self.rows.slots(keys, groups, map_keys))
        self.order.cut(keys, np.zeros(len(sizes), np.int64), sizes)

    def _place(self, keys: pa.RecordBatch, groups: IntArray, slots: Slots, positions: IntArray, map_keys: Any) -> None:
        self.rows.write(slots, {POSITION: pa.array(positions)})
        self.order.put(keys, groups, positions, map_keys)

    def _replace(
        self,
        keys: pa.RecordBatch,
        sizes: IntArray,
        slots: Slots,
        groups: IntArray,
        map_keys: Any,
        gone: BoolArray,
        new: BoolArray,
    ) -> IntArray:
        """Remove entries and add new ones. The new entries, then the last entries, take the positions that become
        free."""
        holes = self.rows.read(POSITION, slots[gone]).to_numpy()
        self.rows.delete(slots[gone])
        after = sizes + np.bincount(groups[new], minlength=len(sizes)) - np.bincount(groups[gone], minlength=len(sizes))
        free, movers = _free_places(sizes, after, groups[gone], holes, groups[new])
        moved = self.order.at(keys, movers[0], movers[1])
        self._place(keys, groups[new], slots[new], free[: int(new.sum())], map_keys.filter(pa.array(new)))
        self._place(keys, movers[0], self.rows.slots(keys, movers[0], moved), free[int(new.sum()) :], moved)
        self.order.cut(keys, after, sizes)
        return after


def _free_places(
    sizes: IntArray, after: IntArray, hole_groups: IntArray, holes: IntArray, new_groups: IntArray
) -> tuple[IntArray, tuple[IntArray, IntArray]]:
    """Return the positions for the new entries, the positions for the entries that must move, and the group and old
    position of each entry that must move."""
    free: dict[int, list[int]] = {}
    for group, hole in zip(hole_groups.tolist(), holes.tolist(), strict=True):
        free.setdefault(group, []).append(hole)
    movers: list[tuple[int, int]] = []
    for group, places in free.items():
        stays, taken = int(after[group]), set(places)
        movers += [(group, position) for position in range(stays, int(sizes[group])) if position not in taken]
        free[group] = sorted((place for place in places if place < stays), reverse=True)
    grown = sizes.tolist()
    targets: list[int] = []
    for group in [*new_groups.tolist(), *(group for group, _ in movers)]:
        places = free.get(group, [])
        if not places:
            places = [grown[group]]
            grown[group] += 1
        targets.append(places.pop())
    moving = np.array(movers, np.int64).reshape(-1, 2)
    return np.array(targets, np.int64), (moving[:, 0], moving[:, 1])
