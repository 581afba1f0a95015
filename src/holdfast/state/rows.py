"""The rows of a table in memory: index, value columns and presence by slot, growing and shrinking together.

Transactions belong to `table`, the base store to `residency`, and the Arrow schema of changes to `changes`. A slot
stays with its key until the key is removed, or until `compact` moves rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state import arena_kernels, kernels
from holdfast.state.arena import Arena, Space
from holdfast.state.bytes_column import BytesColumn, new_column
from holdfast.state.columns import Values, addresses, blank_values, gathered, placed, placed_array, scatter_some, taken
from holdfast.state.growing import enlarge
from holdfast.state.index import new_index
from holdfast.state.keys import Keys
from holdfast.state.physical import Bools, Integers, Slots

COMPACT_FROM = 4096
"""Number of used slots below which a table is never compacted."""
COMPACT_SHARE = 4
"""Divisor of the used slots: rows are compacted once at most 1/4 of these slots have a key. A higher value compacts
later, and keeps more memory."""


@dataclass(frozen=True)
class RowCopies:
    """Copies of rows: whether each is there, its value columns, and the spaces of the arena that their handles name.

    If none of the rows is there, `columns` may be empty: new rows are most rows of a table that grows.
    """

    present: Bools
    columns: list[tuple[Values, Bools]]
    held: set[Space] = field(default_factory=set, kw_only=True)

    @property
    def memory_bytes(self) -> int:
        return self.present.nbytes + sum(values.nbytes + valid.nbytes for values, valid in self.columns)

    def take(self, places: Slots) -> "RowCopies":
        columns = [(gathered(values, places), gathered(valid, places)) for values, valid in self.columns]
        return RowCopies(gathered(self.present, places), columns, held=self.held)

    def overwrite(self, places: Slots, source: "RowCopies") -> None:
        """Set presence and values at `places` to those of `source`, except at negative places. No column may hold
        objects."""
        self.held.update(source.held)
        scatter_some(self.present, places, source.present)
        if not source.columns:
            return
        if not self.columns:
            self.columns.extend(_blank_like(source.columns, len(self.present)))
        for cells, new_cells in zip(self.columns, source.columns, strict=True):
            for array, new in zip(cells, new_cells, strict=True):
                scatter_some(array, places, new)


@dataclass(frozen=True)
class OldRows(RowCopies):
    """Rows as they were before a change: position i has the old row of `slots[i]`."""

    slots: Slots

    @property
    def memory_bytes(self) -> int:
        return self.slots.nbytes + super().memory_bytes

    @property
    def copies(self) -> RowCopies:
        """Give the same rows without their slots."""
        return RowCopies(self.present, self.columns, held=self.held)

    def only(self, chosen: Bools) -> "OldRows":
        return self if chosen.all() else self.take(kernels.where(chosen))

    def take(self, places: Slots) -> "OldRows":
        copies = super().take(places)
        return OldRows(copies.present, copies.columns, gathered(self.slots, places), held=self.held)


@dataclass(frozen=True)
class KeyedRows:
    """Copies of rows with their key groups and key columns; they outlast changes of the table and its slots."""

    rows: RowCopies
    groups: npt.NDArray[np.int32]
    keys: Sequence[Any]

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def memory_bytes(self) -> int:
        return self.rows.memory_bytes + int(self.groups.nbytes) + sum(int(each.nbytes) for each in self.keys)

    def take(self, places: Slots) -> "KeyedRows":
        keys = [taken(column, places) for column in self.keys]
        return KeyedRows(self.rows.take(places), gathered(self.groups, places), keys)

    def only(self, chosen: Bools) -> "KeyedRows":
        return self if chosen.all() else self.take(kernels.where(chosen))

    def slice(self, start: int, stop: int) -> "KeyedRows":
        """Rows `[start, stop)`, over the same memory."""
        part = slice(start, stop)
        columns = [(values[part], valid[part]) for values, valid in self.rows.columns]
        keys = [column.slice(start, stop - start) for column in self.keys]
        return KeyedRows(RowCopies(self.rows.present[part], columns, held=self.rows.held), self.groups[part], keys)

    def by_group(self, group_count: int) -> "KeyedRows":
        """The rows in stable order of their key groups."""
        targets, groups = kernels.targets_by_group(self.groups, group_count)
        columns = [(placed(values, targets), placed(valid, targets)) for values, valid in self.rows.columns]
        copies = RowCopies(placed(self.rows.present, targets), columns, held=self.rows.held)
        return KeyedRows(copies, groups, [placed_array(column, targets) for column in self.keys])


class Presence:
    """The presence of rows as operators see it: read and set by slot, always in the current array.

    A lookup may replace the array, so it is fetched only once the slots are known: `presence[table.lookup(rows)]`
    means the rows that were looked up.
    """

    def __init__(self, rows: "Rows") -> None:
        self._rows = rows

    @property
    def array(self) -> Bools:
        """The current array, for compiled loops; the next lookup may replace it."""
        return self._rows.present

    def __len__(self) -> int:
        return len(self._rows.present)

    def __getitem__(self, slots: Any) -> Any:
        return self._rows.present[slots]

    def __setitem__(self, slots: Any, present: Any) -> None:
        self._rows.present[slots] = present


class Rows:
    """The rows by slot: `present`, and each of `columns`. Every call that inserts may replace their arrays."""

    def __init__(self, key_schema: pa.Schema, value_schema: pa.Schema, max_parallelism: int) -> None:
        self._max_parallelism = max_parallelism
        self.index = new_index(key_schema)
        self.arena = Arena()
        self.columns = [new_column(field, self.index.slot_capacity, self.arena) for field in value_schema]
        self.present: Bools = np.zeros(self.index.slot_capacity, np.bool_)
        self._all_fixed = all(column.fixed_width for column in self.columns)
        self._objects = [column for column in self.columns if column.has_objects]
        self._sizes: Integers = np.zeros(self.index.slot_capacity if self._objects else 0, np.int64)
        """The bytes of each slot's objects when they were measured last."""
        self._objects_bytes = 0

    def __len__(self) -> int:
        """Keys in the index, whether present or not."""
        return len(self.index)

    @property
    def capacity(self) -> int:
        return len(self.present)

    @property
    def memory_bytes(self) -> int:
        """Objects count as they were measured last; of the arena, the bytes that rows have."""
        arrays = self.index.memory_bytes + self.present.nbytes + sum(column.memory_bytes for column in self.columns)
        return arrays + self._sizes.nbytes + self._objects_bytes + self.arena.live_bytes

    @cached_property
    def slot_bytes(self) -> int:
        """The bytes of a slot beside the index, without objects and the arena."""
        return 1 + sum(column.values.itemsize + 1 for column in self.columns)

    @property
    def stored_slot_bytes(self) -> float:
        """The bytes of a row's key group, key and slot in `KeyedRows`, without those in the arena."""
        return 4 + self.index.key_bytes + self.slot_bytes

    @property
    def object_bytes(self) -> float:
        """The average bytes of a row's objects, and of its values in the arena."""
        return (self._objects_bytes + self.arena.live_bytes) / max(1, len(self.index))

    @property
    def row_bytes(self) -> float:
        """The average bytes of a row's values."""
        return self.slot_bytes - 1 + self.object_bytes

    def lookup(self, keys: Keys, stamp: int, first: int = 0, inserts: bool = True) -> tuple[Slots, Slots, Slots]:
        """`KeyIndex.lookup`; unknown keys get blank rows."""
        found = self.index.lookup(keys, stamp, first, inserts)
        if len(self.present) < self.index.slot_capacity:
            self._grow(self.index.slot_capacity)
        return found

    def copy(self, slots: Slots) -> OldRows:
        """Copies of rows; nobody reads the values of rows that are not present."""
        present = self.present_at(slots)
        if not present.any():
            return OldRows(present, [], slots)
        columns = [column.gather(slots) for column in self.columns]
        return OldRows(present, columns, slots, held=set(self.arena.spaces))

    def with_keys(self, rows: OldRows) -> KeyedRows:
        """Copies whose slots still have their keys, in their order."""
        groups, keys = self.index.grouped_columns(rows.slots, self._max_parallelism)
        return KeyedRows(rows.copies, groups, keys)

    def put(self, slots: Slots, rows: RowCopies) -> None:
        """Write the copies' presence and values at `slots`, which may differ from the slots they were copied from."""
        self.arena.hold(rows.held)
        if not rows.columns:
            self.blank(slots)
        for column, (values, valid) in zip(self.columns, rows.columns, strict=bool(rows.columns)):
            column.scatter(slots, values, valid)
        kernels.scatter(self.present, slots, rows.present)
        self.measure_objects(slots)

    def changed(self, old: OldRows) -> Bools:
        """Mark the rows that differ from the saved `old`; rows that may have been changed in place count as changed."""
        present = self.present_at(old.slots)
        changed: Bools = present != old.present
        if not old.present.any():
            return changed
        for column, (values, valid) in zip(self.columns, old.columns, strict=True):
            if column.comparable:
                column.mark_changed(old.slots, values, valid, changed)
            else:
                changed[:] = True
        changed &= present | old.present
        return changed

    def different(self, now: RowCopies, old: RowCopies) -> Bools:
        """Mark the rows that differ between two copies of the same slots, as `changed` does."""
        different: Bools = now.present != old.present
        if not old.present.any() or not now.present.any():
            return different
        for column, new_cells, old_cells in zip(self.columns, now.columns, old.columns, strict=True):
            column.mark_different(new_cells, old_cells, different)
        different &= now.present | old.present
        return different

    def present_at(self, slots: Slots) -> Bools:
        """Mark the `slots` that are present."""
        present: Bools = kernels.gather(self.present, slots)
        return present

    def absent(self, slots: Slots) -> Slots:
        """The `slots` that are not present."""
        missing: Slots = slots[~self.present_at(slots)]
        return missing

    def live(self) -> Slots:
        """The slots of all present rows."""
        live: Slots = kernels.where(self.present)
        return live

    def remove(self, slots: Slots, are_blank: bool = False) -> None:
        """Take distinct slots out of the index; the columns are blank there again, or already (`are_blank`)."""
        if not len(slots):
            return
        if not are_blank:
            self.blank(slots)
        if len(slots) == len(self.index):
            self.index.clear()
        else:
            self.index.remove(slots)

    def blank(self, slots: Slots) -> None:
        """Clear the rows at distinct slots, which keep their keys."""
        for column in self.columns:
            column.clear(slots)
        if self._objects:
            self._objects_bytes -= int(self._sizes[slots].sum())
            self._sizes[slots] = 0
        kernels.fill(self.present, slots, False)

    def sparse(self, in_use: int) -> bool:
        """Return whether rows should be moved together, if `in_use` slots are needed soon."""
        used = self.index.slots_used
        return used >= COMPACT_FROM and max(in_use, len(self.index)) * COMPACT_SHARE <= used

    def compact(self, live: Slots) -> None:
        """Keep only the rows at `live`, the i-th of them at slot i, and shrink all arrays to fit them."""
        self.index.compact(live)
        for column in self.columns:
            column.compact(live, self.index.slot_capacity)
        if self._objects:
            self._sizes = self._sizes[live]
            self._objects_bytes = int(self._sizes.sum())
            enlarge(self, "_sizes", self.index.slot_capacity)
        self.present = np.arange(self.index.slot_capacity) < len(live)

    def compact_arena(self) -> None:
        """Copy the values in the arena together if most of its bytes belong to no row."""
        self.arena.compact(lambda: [column.values for column in self.columns if isinstance(column, BytesColumn)])

    def arrow(self, rows: OldRows) -> list[Any]:
        """Key columns of the copies' slots, and their values, null where not present."""
        return [*self.index.columns(rows.slots), *self.value_arrays(rows)]

    def value_arrays(self, rows: RowCopies) -> list[Any]:
        """The copies' values, null where not present."""
        cells = rows.columns or [column.blank(len(rows.present)) for column in self.columns]
        pairs = zip(self.columns, cells, strict=True)
        return [column.to_arrow(values, valid & rows.present) for column, (values, valid) in pairs]

    def variable_bytes(self, rows: RowCopies) -> int:
        """Return the bytes that the copies' values have in the arena."""
        pairs = zip(self.columns, rows.columns, strict=True) if rows.columns else ()
        found = (values for column, (values, _) in pairs if isinstance(column, BytesColumn))
        return sum(int(arena_kernels.total_bytes(values)) for values in found)

    def measure_objects(self, slots: Slots) -> None:
        """Measure the objects of distinct `slots` again."""
        if not self._objects:
            return
        sizes = np.zeros(len(slots), np.int64)
        for column in self._objects:
            sizes += column.object_sizes(slots)
        self._objects_bytes += int(sizes.sum() - self._sizes[slots].sum())
        self._sizes[slots] = sizes

    def replaced_bytes(self, old: OldRows) -> int:
        """Return the bytes of the objects that only `old` still holds. If their slots were measured after the
        replacement, the sizes are those of the new objects."""
        if self._all_fixed or not old.present.any():
            return 0
        total, present = 0, self.present_at(old.slots)
        replaced = ~present
        for column, (values, _) in zip(self.columns, old.columns, strict=True):
            if column.has_objects:
                replaced |= addresses(values) != addresses(column.values[old.slots])
            elif isinstance(column, BytesColumn):
                total += column.replaced_bytes(old.slots, present, values)
        return total + int(self._sizes[old.slots][replaced].sum() if self._objects else 0)

    def _grow(self, capacity: int) -> None:
        enlarge(self, "present", capacity)
        for column in self.columns:
            column.grow(capacity)
        if self._objects:
            enlarge(self, "_sizes", capacity)


def concatenated(segments: Sequence[OldRows]) -> OldRows:
    """Join all segments in order; there is at least a single segment."""
    if len(segments) == 1:
        return segments[0]
    filled = next((segment.columns for segment in segments if segment.columns), [])
    cells = (segment.columns or _blank_like(filled, len(segment.slots)) for segment in segments)
    columns = zip(*cells, strict=True)
    return OldRows(
        np.concatenate([segment.present for segment in segments]),
        [
            (np.concatenate([part[0] for part in column]), np.concatenate([part[1] for part in column]))
            for column in columns
        ],
        np.concatenate([segment.slots for segment in segments]),
        held=set().union(*(segment.held for segment in segments)),
    )


def _blank_like(columns: Sequence[tuple[Values, Bools]], count: int) -> list[tuple[Values, Bools]]:
    """Return the cells of that many rows that are not there, in columns like these."""
    return [(blank_values(values.dtype, count), np.zeros(count, np.bool_)) for values, _ in columns]
