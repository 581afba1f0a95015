"""`ListState` and `MapState` of a running `ProcessFunction`: the changes of a batch to each key's list or map so far.

    table ◄── all entries of small maps and lists, for all keys of a slice at once, before its rows
          ◄── a look-up for each other entry read for the first time         get, contains
          ◄── all entries of the key, by arrays                        keys, values, items, ListState.get
              and of keys after it, the more the more were read so     (of large maps and lists)
          ◄── all changed entries of all keys at once, after the last row

Reads and writes of the batch are kept as Python values by slot and entry; nothing is written to a table before `store`.
The values that each write replaced go to the undo log, so that a call that failed can be undone.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.functions.process.by_row.cells import CELL_BYTES, NUMBER_BYTES
from holdfast.functions.process.by_row.entries_of_keys import ABSENT, ListOfKey, MapOfKey
from holdfast.functions.process.shared.entries import ListEntries, Making, MapEntries
from holdfast.functions.process.shared.states import ListState, MapState, size_column, start_column
from holdfast.functions.process.shared.values import Codec
from holdfast.functions.rows.calls import Cursor
from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.functions.undo_log import UndoLog
from holdfast.python_values import exact_values
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable
from holdfast.value_fits import Misfit, fit_for, plain_class

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


OfKey = TypeVar("OfKey", MapOfKey, ListOfKey)


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
        self.undo_log = undo_log
        self.of_keys: dict[int, OfKey] = {}
        """The batch's reads and changes by slot; always the same dict."""
        self._kind: type[OfKey] = kind
        self._sizes: dict[int, int] = {}
        self._loaded: list[int] = []
        self._places: dict[int, int] = {}
        self._whole = 0
        """Number of keys whose entries were all read in this batch."""

    def current(self) -> OfKey:
        """Return the batch's changes of the current key's list or map."""
        found = self.of_keys.get(self.cursor.slot)
        return self._of_key(self.cursor.slot) if found is None else found

    def _of_key(self, slot: int) -> OfKey:
        found = self.of_keys.get(slot)
        if found is None:
            found = self.of_keys[slot] = self._kind(self._sizes[slot])
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

    def held_bytes(self, slots: list[int]) -> IntArray:
        """Return the approximate memory of the entries of these slots as Python objects."""
        found = map(self.of_keys.get, slots)
        return np.array([CELL_BYTES if each is None else CELL_BYTES + each.held_bytes() for each in found], np.int64)

    def reset(self) -> None:
        self._sizes.clear()
        self.of_keys.clear()
        self._loaded.clear()
        self._places.clear()
        self._whole = 0

    def _misfit(self, misfit: Misfit, what: str) -> UserFunctionError:
        return UserFunctionError(f"operator {self.operator!r}: state {self.name!r}, {what}: {misfit}")

    def _keys(self, slots: Collection[int]) -> pa.RecordBatch:
        assert self._table is not None, "loaded"
        return self._table.keys_of(np.array(list(slots), np.int32))

    def _sizes_of(self, slots: Collection[int]) -> IntArray:
        return np.array([self._sizes[slot] for slot in slots], np.int64)

    def _store_sizes(self, table: StateTable, changed: Collection[int], sizes: IntArray, slots: Slots) -> BoolArray:
        column = table.column(size_column(self.name))
        column.scatter(np.array(list(changed), np.int32), sizes, sizes > 0)
        return column.gather(slots)[1]


class MapCells(_EntryCells[MapOfKey]):
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
        super().__init__(operator, name, state, cursor, undo_log, MapOfKey)
        self._key_type = state.key_type
        self.usual_key = plain_class(state.key_type)
        """The class whose values are found by themselves among the entries that were read; None: there is none."""
        self._any_expired = False
        """True if any of the entries that were read last had expired."""
        self._entry_bytes = 0
        """The average memory of the entries that were read last."""
        self._fit_key = fit_for(state.key_type, nullable=False)
        schemas = state.tables(name, key_schema)
        entries, order = f"{name}.entries", f"{name}.order"
        self.entries = MapEntries(schemas[entries], schemas[order], making, state.expiry)
        self.tables = {entries: self.entries.rows.table, order: self.entries.order.rows.table}

    def load(self, table: StateTable, slots: Slots) -> None:
        super().load(table, slots)
        small = self._small(slots)
        for slot, entries in zip(small, self._entries_of(small), strict=True):
            of_key = self.of_keys[slot] = MapOfKey(self._sizes[slot])
            of_key.load(entries, self._entry_bytes)
            of_key.complete = not self._any_expired or ABSENT not in entries.values()

    def _entries_of(self, slots: list[int]) -> list[dict[Any, Any]]:
        """Read all entries of each of these keys; an entry that has expired has the value `ABSENT`."""
        if not slots:
            return []
        groups, map_keys, values, alive = self.entries.items(self._keys(slots), self._sizes_of(slots))
        names, kept = exact_values(map_keys), exact_values(values)
        self._any_expired = not alive.all()
        for place in np.flatnonzero(~alive).tolist() if self._any_expired else ():
            kept[place] = ABSENT
        self._entry_bytes = CELL_BYTES + average_bytes(map_keys) + average_bytes(values)
        entries = zip(names, kept, strict=True)
        return [dict(islice(entries, count)) for count in np.bincount(groups, minlength=len(slots)).tolist()]

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
        if self.undo_log.is_kept:
            before, known, written = current.found.get(map_key), map_key in current.found, map_key in current.written

            def undo() -> None:
                if known:
                    current.found[map_key] = before
                else:
                    del current.found[map_key]
                    current.complete = current.size == 0
                if not written:
                    del current.written[map_key]

            self.undo_log.note(undo)
        current.found[map_key] = kept
        current.written[map_key] = None

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
        """Read all entries of these keys that the batch has not read or written. Expired entries are removed."""
        for slot, entries in zip(slots, self._entries_of(slots), strict=True):
            of_key = self._of_key(slot)
            of_key.load(entries, self._entry_bytes)
            for map_key in entries if self._any_expired else ():
                if entries[map_key] is ABSENT and of_key.found[map_key] is ABSENT:
                    of_key.written[map_key] = None

    def clear(self) -> None:
        for map_key, _ in self.all():
            self._write(map_key, ABSENT)

    def store(self, table: StateTable, slots: Slots) -> BoolArray:
        changed = {slot: each for slot, each in self.of_keys.items() if each.written}
        sizes = self._sizes_of(changed)
        if changed:
            map_keys = [map_key for each in changed.values() for map_key in each.written]
            kept = [each.found[map_key] for each in changed.values() for map_key in each.written]
            keep = np.array([value is not ABSENT for value in kept], np.bool_)
            if not keep.all():
                kept = [None if value is ABSENT else value for value in kept]
            groups = np.repeat(np.arange(len(changed)), [len(each.written) for each in changed.values()])
            arrays = pa.array(map_keys, self._key_type), pa.array(kept, self.codec.column_type)
            sizes = self.entries.put(self._keys(changed), sizes, groups, *arrays, keep)
        return self._store_sizes(table, changed, sizes, slots)


class ListCells(_EntryCells[ListOfKey]):
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
        super().__init__(operator, name, state, cursor, undo_log, ListOfKey)
        elements = f"{name}.elements"
        self.entries = ListEntries(state.tables(name, key_schema)[elements], making, state.expiry)
        self.tables = {elements: self.entries.rows.table}

    def _starts_of(self, slots: Collection[int]) -> IntArray:
        assert self._table is not None, "loaded"
        values, valid = self._table.column(start_column(self.name)).gather(np.array(list(slots), np.int32))
        return np.where(valid, values, 0)

    def load(self, table: StateTable, slots: Slots) -> None:
        super().load(table, slots)
        if small := self._small(slots):
            self._read_whole(small)

    def _read_whole(self, slots: list[int]) -> None:
        """Read all elements of these keys."""
        groups, elements = self.entries.read(self._keys(slots), self._sizes_of(slots), self._starts_of(slots))
        found, element_bytes = iter(exact_values(elements)), CELL_BYTES + average_bytes(elements)
        for slot, count in zip(slots, np.bincount(groups, minlength=len(slots)).tolist(), strict=True):
            self._of_key(slot).load(list(islice(found, count)), element_bytes)

    def add(self, value: Any) -> None:
        added = self.current().added
        added.append(self._fitted(value))

        def undo() -> None:
            added.pop()

        self.undo_log.note(undo)

    def replace(self, values: Iterable[Any]) -> None:
        current = self.current()
        before = current.replaced, current.added

        def undo() -> None:
            current.replaced, current.added = before

        self.undo_log.note(undo)
        current.replace([self._fitted(value) for value in values])

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
        changed = {slot: each for slot, each in self.of_keys.items() if each.added or each.replaced is not None}
        sizes = self._sizes_of(changed)
        if changed:
            lists = changed.values()
            replaced = np.array([each.replaced is not None for each in lists])
            groups = np.repeat(np.arange(len(changed)), [len(each.replaced or ()) + len(each.added) for each in lists])
            new = list(chain.from_iterable(chain(each.replaced or (), each.added) for each in lists))
            elements, starts = pa.array(new, self.codec.column_type), self._starts_of(changed)
            sizes, starts = self.entries.write(self._keys(changed), sizes, starts, replaced, groups, elements)
            table.column(start_column(self.name)).scatter(np.array(list(changed), np.int32), starts, starts > 0)
        return self._store_sizes(table, changed, sizes, slots)


def average_bytes(values: Any) -> int:
    """Return the approximate memory of each value of an Arrow array as a Python object."""
    return NUMBER_BYTES + int(values.nbytes) // max(1, len(values))
