"""`ListState` and `MapState` of a running `ProcessFunction`: the changes of a batch to each key's list or map so far.

    table ◄── all entries of small maps and lists, for all keys of a slice at once, before its rows
          ◄── a look-up for each other entry read for the first time         get, contains
          ◄── all entries of the key, by arrays                        keys, values, items, ListState.get
              and of keys after it, the more the more were read so     (of large maps and lists)
          ◄── all changed entries of all keys at once, after the last row

Reads and writes of the batch are kept as Python values by slot and entry; nothing is written to a table before `store`.
The values that each write replaced go to the undo log, so that a call that failed can be undone.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.functions.process.by_row.cells import CELL_BYTES
from holdfast.functions.process.shared.entries import ListEntries, Making, MapEntries
from holdfast.functions.process.shared.states import ListState, MapState, size_column, start_column
from holdfast.functions.process.shared.values import Codec, Misfit, fit_for
from holdfast.functions.rows.calls import Cursor
from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.functions.undo_log import UndoLog
from holdfast.python_values import exact_values
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable

ABSENT: Any = object()
"""Marks an entry that does not exist, since None is a possible value."""
ONE = np.zeros(1, np.int64)
SMALL_MAX = 32
"""Greatest number of entries of a map or list that is read as soon as its key comes. With a higher value, more is read
in vain if functions touch few entries. Each entry of a larger map or list is looked up singly, which takes as long as
to read some hundred entries."""
AHEAD_MAX = 64
"""Number of keys whose maps or lists are read in full at a time. With a higher value, more is read in vain if a
function does not read all keys in full."""
AHEAD_ENTRIES_MAX = 1 << 13
"""Number of entries after which no further key is read ahead, since entries stay Python values until the batch ends."""


class _Held:
    """The memory of objects in a collection that grows; each is measured once."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count = self.bytes = 0

    def grown(self, count: int, new: Iterable[Any]) -> int:
        """Return the memory for `count` objects or pairs; `new` are the objects since the last call."""
        self.bytes += sum(map(sys.getsizeof, new)) + CELL_BYTES * (count - self.count)
        self.count = count
        return self.bytes


class _Map:
    """A key's map in this batch: the entries that were read or written, the set of those written, and a flag that is
    True if these are all entries of the map."""

    __slots__ = ("_held", "complete", "found", "size", "written")

    def __init__(self, size: int) -> None:
        self.size = size
        self.found: dict[Any, Any] = {}
        self.written: set[Any] = set()
        self.complete = size == 0
        self._held = _Held()

    def held_bytes(self) -> int:
        """The memory of the entries, about."""
        new = islice(reversed(self.found.items()), max(0, len(self.found) - self._held.count))
        return self._held.grown(len(self.found), chain.from_iterable(new))


class _List:
    """A key's list in this batch: the list that replaces the stored list, if any, and the added elements."""

    __slots__ = ("_held", "added", "replaced", "stored")

    def __init__(self, size: int) -> None:
        self.stored: list[Any] | None = None if size else []
        self.replaced: list[Any] | None = None
        self.added: list[Any] = []
        self._held = _Held()

    def held_bytes(self) -> int:
        """Estimate the memory of the elements: an element that was not added counts like an added one."""
        bytes_of_added = self._held.grown(len(self.added), islice(self.added, self._held.count, None))
        others = len(self.stored or ()) + len(self.replaced or ())
        return bytes_of_added + others * (CELL_BYTES + bytes_of_added // max(1, len(self.added)))

    @property
    def complete(self) -> bool:
        return self.stored is not None


OfKey = TypeVar("OfKey", _Map, _List)


class _EntryCells(ABC, Generic[OfKey]):
    """The base of both kinds: sizes and the batch's changes (`OfKey`) by slot, and the undo of each change."""

    tables: dict[str, StateTable]
    """The tables of this state alone, by name."""

    def __init__(
        self,
        operator: str,
        name: str,
        state: ListState | MapState,
        cursor: Cursor,
        undo_log: UndoLog,
        kind: type[OfKey],
    ) -> None:
        self.operator = operator
        self.name = name
        self.state = state
        self.cursor = cursor
        self.codec: Codec = state.codec()
        self._table: StateTable | None = None
        self._undo_log = undo_log
        self._kind: type[OfKey] = kind
        self._sizes: dict[int, int] = {}
        self._of_keys: dict[int, OfKey] = {}
        self._loaded: list[int] = []
        self._places: dict[int, int] = {}
        self._whole = 0
        """Number of keys that were read as a whole in this batch."""

    def current(self) -> OfKey:
        """Return the batch's changes of the current key's list or map."""
        found = self._of_keys.get(self.cursor.slot)
        return self._of_key(self.cursor.slot) if found is None else found

    def _of_key(self, slot: int) -> OfKey:
        found = self._of_keys.get(slot)
        if found is None:
            found = self._of_keys[slot] = self._kind(self._sizes[slot])
        return found

    @abstractmethod
    def store(self, table: StateTable, slots: Slots) -> BoolArray:
        """Write all changes; returns which of all touched `slots` have entries."""

    def load(self, table: StateTable, slots: Slots) -> None:
        self._table = table
        values, valid = table.column(size_column(self.name)).gather(slots)
        self._sizes.update(zip(slots.tolist(), np.where(valid, values, 0).tolist(), strict=True))
        self._places.update(zip(slots.tolist(), range(len(self._loaded), len(self._loaded) + len(slots)), strict=True))
        self._loaded += slots.tolist()

    def _ahead(self) -> list[int]:
        """Return the current slot, and slots loaded after it that were not read yet. A function that reads a key in
        full mostly reads the next keys in full too. So the first call returns no further slots, and later calls return
        as many as were read in full so far.
        """
        slot, count = self.cursor.slot, min(self._whole, AHEAD_MAX)
        slots, entries, place = [slot], self._sizes[slot], self._places[slot] + 1
        if self._reading_prolongs:
            return slots
        for following in self._loaded[place : place + count]:
            if not self._of_key(following).complete:
                entries += self._sizes[following]
                if entries > AHEAD_ENTRIES_MAX:
                    break
                slots.append(following)
        self._whole += len(slots)
        return slots

    @property
    def _reading_prolongs(self) -> bool:
        """True if a read prolongs the life of an entry, so that no entry may be read ahead."""
        return self.state.expiry is not None and self.state.expiry.on == "read"

    def _small(self, slots: Slots) -> list[int]:
        """Return the new slots whose entries are read at once."""
        if self._reading_prolongs:
            return []
        return [slot for slot in slots.tolist() if 0 < self._sizes[slot] <= SMALL_MAX]

    def save(self, slots: list[int], undo_log: UndoLog) -> None:
        """Do nothing: each change is noted when it is made, since a call changes few of a key's entries."""

    def held_bytes(self, slots: list[int]) -> list[int]:
        """Return the approximate memory of the entries of these slots as Python objects."""
        found = map(self._of_keys.get, slots)
        return [CELL_BYTES if each is None else CELL_BYTES + each.held_bytes() for each in found]

    def reset(self) -> None:
        self._sizes.clear()
        self._of_keys.clear()
        self._loaded.clear()
        self._places.clear()
        self._whole = 0

    def _misfit(self, misfit: Misfit, what: str) -> UserFunctionError:
        return UserFunctionError(f"operator {self.operator!r}: state {self.name!r}, {what}: {misfit}")

    def _keys(self, slots: Sequence[int]) -> pa.RecordBatch:
        assert self._table is not None, "loaded"
        return self._table.keys_of(np.array(slots, np.int32))

    def _sizes_of(self, slots: Sequence[int]) -> IntArray:
        return np.array([self._sizes[slot] for slot in slots], np.int64)

    def _store_sizes(self, table: StateTable, changed: list[int], sizes: IntArray, slots: Slots) -> BoolArray:
        column = table.column(size_column(self.name))
        column.scatter(np.array(changed, np.int32), sizes, sizes > 0)
        return column.gather(slots)[1]


class MapCells(_EntryCells[_Map]):
    def __init__(
        self,
        operator: str,
        name: str,
        state: MapState,
        cursor: Cursor,
        undo_log: UndoLog,
        key_schema: pa.Schema,
        making: Making,
    ) -> None:
        super().__init__(operator, name, state, cursor, undo_log, _Map)
        self._key_type = state.key_type
        self._fit_key = fit_for(state.key_type, nullable=False)
        schemas = state.tables(name, key_schema)
        entries, order = f"{name}.entries", f"{name}.order"
        self.entries = MapEntries(schemas[entries], schemas[order], making, state.expiry)
        self.tables = {entries: self.entries.rows.table, order: self.entries.order.rows.table}

    def load(self, table: StateTable, slots: Slots) -> None:
        super().load(table, slots)
        small = self._small(slots)
        if not small:
            return
        groups, map_keys, values, alive = self.entries.items(self._keys(small), self._sizes_of(small))
        maps = [self._kind(self._sizes[slot]) for slot in small]
        for each in maps:
            each.complete = True
        rows = zip(groups.tolist(), exact_values(map_keys), exact_values(values), alive.tolist(), strict=True)
        for group, map_key, kept, lives in rows:
            maps[group].found[map_key] = kept if lives else ABSENT
            maps[group].complete &= lives
        self._of_keys.update(zip(small, maps, strict=True))

    def key(self, map_key: Any) -> Any:
        try:
            return self._fit_key(map_key)
        except Misfit as misfit:
            raise self._misfit(misfit, "a map key") from misfit

    def read(self, map_key: Any) -> Any:
        """Return the kept value, or `ABSENT`."""
        current = self.current()
        kept = current.found.get(map_key, current)
        if kept is not current:
            return kept
        kept = ABSENT
        if not current.complete:
            keys = self._keys([self.cursor.slot])
            values, alive = self.entries.get(keys, ONE, pa.array([map_key], self._key_type))
            kept = exact_values(values[:1])[0] if alive[0] else ABSENT
        current.found[map_key] = kept
        return kept

    def put(self, map_key: Any, value: Any) -> None:
        try:
            kept = self.codec.put(value)
        except Misfit as misfit:
            raise self._misfit(misfit, f"map key {map_key!r}") from misfit
        self._write(map_key, kept)

    def _write(self, map_key: Any, kept: Any) -> None:
        current = self.current()
        if self._undo_log.is_kept:
            before, known, written = current.found.get(map_key), map_key in current.found, map_key in current.written

            def undo() -> None:
                if known:
                    current.found[map_key] = before
                else:
                    del current.found[map_key]
                    current.complete = current.size == 0
                if not written:
                    current.written.discard(map_key)

            self._undo_log.note(undo)
        current.found[map_key] = kept
        current.written.add(map_key)

    def remove(self, map_key: Any) -> None:
        current = self.current()
        if not (current.complete and map_key not in current.found):
            self._write(map_key, ABSENT)

    def all(self) -> list[tuple[Any, Any]]:
        """All entries as kept, in ascending order of map keys. Expired ones are removed."""
        current = self.current()
        if not current.complete:
            self._read_whole(self._ahead())
        return sorted((item for item in current.found.items() if item[1] is not ABSENT), key=lambda item: item[0])

    def _read_whole(self, slots: list[int]) -> None:
        """Read all entries of these keys that the batch has not read or written."""
        groups, map_keys, values, alive = self.entries.items(self._keys(slots), self._sizes_of(slots))
        maps = [self._of_key(slot) for slot in slots]
        rows = zip(groups.tolist(), exact_values(map_keys), exact_values(values), alive.tolist(), strict=True)
        for group, map_key, kept, lives in rows:
            of_key = maps[group]
            if not lives and of_key.found.get(map_key, ABSENT) is ABSENT:
                of_key.written.add(map_key)
            of_key.found.setdefault(map_key, kept if lives else ABSENT)
        for of_key in maps:
            of_key.complete = True

    def clear(self) -> None:
        for map_key, _ in self.all():
            self._write(map_key, ABSENT)

    def store(self, table: StateTable, slots: Slots) -> BoolArray:
        changed = [slot for slot, each in self._of_keys.items() if each.written]
        writes = [
            (group, map_key, self._of_keys[slot].found[map_key])
            for group, slot in enumerate(changed)
            for map_key in sorted(self._of_keys[slot].written)
        ]
        sizes = self._sizes_of(changed)
        if writes:
            groups, map_keys, kept = zip(*writes, strict=True)
            keep = np.fromiter((value is not ABSENT for value in kept), np.bool_, len(kept))
            values = pa.array([None if value is ABSENT else value for value in kept], self.codec.column_type)
            sizes = self.entries.put(
                self._keys(changed), sizes, np.array(groups, np.int64), pa.array(map_keys, self._key_type), values, keep
            )
        return self._store_sizes(table, changed, sizes, slots)


class ListCells(_EntryCells[_List]):
    def __init__(
        self,
        operator: str,
        name: str,
        state: ListState,
        cursor: Cursor,
        undo_log: UndoLog,
        key_schema: pa.Schema,
        making: Making,
    ) -> None:
        super().__init__(operator, name, state, cursor, undo_log, _List)
        elements = f"{name}.elements"
        self.entries = ListEntries(state.tables(name, key_schema)[elements], making, state.expiry)
        self.tables = {elements: self.entries.rows.table}

    def _starts_of(self, slots: Sequence[int]) -> IntArray:
        assert self._table is not None, "loaded"
        values, valid = self._table.column(start_column(self.name)).gather(np.array(slots, np.int32))
        return np.where(valid, values, 0)

    def load(self, table: StateTable, slots: Slots) -> None:
        super().load(table, slots)
        if small := self._small(slots):
            self._read_whole(small)

    def _read_whole(self, slots: list[int]) -> None:
        """Read all elements of these keys."""
        groups, elements = self.entries.read(self._keys(slots), self._sizes_of(slots), self._starts_of(slots))
        found: list[list[Any]] = [[] for _ in slots]
        for group, element in zip(groups.tolist(), exact_values(elements), strict=True):
            found[group].append(element)
        for slot, stored in zip(slots, found, strict=True):
            self._of_key(slot).stored = stored

    def add(self, value: Any) -> None:
        added = self.current().added
        added.append(self._fitted(value))

        def undo() -> None:
            added.pop()

        self._undo_log.note(undo)

    def replace(self, values: Iterable[Any]) -> None:
        current = self.current()
        before = current.replaced, current.added

        def undo() -> None:
            current.replaced, current.added = before

        self._undo_log.note(undo)
        fitted = [self._fitted(value) for value in values]
        current.replaced, current.added = fitted, []

    def _fitted(self, element: Any) -> Any:
        try:
            return self.codec.put(element)
        except Misfit as misfit:
            raise self._misfit(misfit, "an element") from misfit

    def all(self) -> list[Any]:
        """All elements, in the form in which they are stored."""
        current = self.current()
        kept = current.replaced
        if kept is None:
            if current.stored is None:
                self._read_whole(self._ahead())
            kept = current.stored or []
        return [*kept, *current.added]

    def store(self, table: StateTable, slots: Slots) -> BoolArray:
        changed = [slot for slot, each in self._of_keys.items() if each.added or each.replaced is not None]
        sizes = self._sizes_of(changed)
        if changed:
            lists = [self._of_keys[slot] for slot in changed]
            replaced = np.array([each.replaced is not None for each in lists])
            new = [[*(each.replaced or ()), *each.added] for each in lists]
            groups = np.repeat(np.arange(len(changed)), [len(each) for each in new])
            elements = pa.array([element for each in new for element in each], self.codec.column_type)
            starts = self._starts_of(changed)
            sizes, starts = self.entries.write(self._keys(changed), sizes, starts, replaced, groups, elements)
            table.column(start_column(self.name)).scatter(np.array(changed, np.int32), starts, starts > 0)
        return self._store_sizes(table, changed, sizes, slots)


class KeyedMapState(MapState):
    def __init__(self, declared: MapState, cells: MapCells) -> None:
        super().__init__(declared.key_type, declared.type, declared.default)
        self._cells = cells
        self._default = cells.codec.put(declared.default)

    def _given(self, kept: Any) -> Any:
        get = self._cells.codec.get
        return kept if get is None else get(kept)

    def get(self, map_key: Any, groups: Any = None) -> Any:
        kept = self._cells.read(self._cells.key(map_key))
        return self._given(self._default if kept is ABSENT else kept)

    def contains(self, map_key: Any, groups: Any = None) -> bool:
        return self._cells.read(self._cells.key(map_key)) is not ABSENT

    def put(self, map_key: Any, value: Any, groups: Any = None) -> None:
        self._cells.put(self._cells.key(map_key), value)

    def remove(self, map_key: Any, groups: Any = None) -> None:
        self._cells.remove(self._cells.key(map_key))

    def update(self, entries: Mapping[Any, Any]) -> None:
        for map_key, value in entries.items():
            self.put(map_key, value)

    def keys(self) -> list[Any]:
        return [map_key for map_key, _ in self._cells.all()]

    def values(self) -> list[Any]:
        return [self._given(kept) for _, kept in self._cells.all()]

    def items(self) -> list[tuple[Any, Any]]:
        return [(map_key, self._given(kept)) for map_key, kept in self._cells.all()]

    def is_empty(self) -> bool:
        return not self._cells.all()

    def clear(self) -> None:
        self._cells.clear()


class KeyedListState(ListState):
    def __init__(self, declared: ListState, cells: ListCells) -> None:
        super().__init__(declared.type)
        self._cells = cells

    def add(self, value: Any) -> None:
        self._cells.add(value)

    def append(self, values: Any, groups: Any = None) -> None:
        raise UserFunctionError("ListState.append() is for a BatchFunction; a ProcessFunction takes add(value)")

    def get(self) -> list[Any]:
        get, kept = self._cells.codec.get, self._cells.all()
        return kept if get is None else [get(each) for each in kept]

    def update(self, values: Any) -> None:
        self._cells.replace(values)

    def clear(self) -> None:
        self._cells.replace([])
