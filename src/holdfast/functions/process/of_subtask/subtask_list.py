"""The lists of a running function: a subtask's own entries in memory, in order, over the rows of a table.

    table ──open──► entries ◄── get, add, update, clear
          ◄─store── the changes of the batch

Invariants: nothing reaches the table before `store`. A value that is read is a copy. An entry keeps its seat, and so
its key group, for life. The changes of an undone batch are dropped: `begin` sees by the table's count of commits that
the batch was undone. The table is in memory with every state backend, since the entries are in memory too.
"""

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.functions.process.of_subtask.list_states import SubtaskListState, UnionListState
from holdfast.functions.process.shared.entries import POSITION, VALUE
from holdfast.functions.undo_log import UndoLog
from holdfast.python_values import exact_values
from holdfast.state.seats import SEAT, key_group_of, seats_of
from holdfast.state.table import StateTable
from holdfast.value_fits import Misfit

LIST_ENTRY_BYTES = 200
"""An estimate in bytes of the memory of an entry beside its row: two numbers, a value, and its place in a dict."""
COMPARED = (int, str, bytes)
"""Types whose equal values have the same stored form. Floats do not: 0.0 equals -0.0."""

Place = tuple[int, int]
"""Position and seat of an entry. Positions ascend; after a rescale two entries may have the same position."""


class SubtaskList:
    """A list of a subtask; values are as the codec keeps them."""

    def __init__(self, operator: str, name: str, declared: SubtaskListState, max_parallelism: int) -> None:
        keys, values = declared.schema()
        self.table = StateTable(keys, values, max_parallelism)
        self.name = name
        self.codec = declared.codec()
        self._who = f"operator {operator!r}: state {name!r}"
        self._seats = seats_of(max_parallelism)
        self._key_groups = range(0)
        self._stored: dict[Place, Any] = {}
        """Kept values as they were committed last, by place, in order; never changed while `_shared` is set."""
        """Entries as of the last batch that was committed."""
        self._now: dict[Place, Any] = {}
        self._shared = True
        """True if another object uses `_now` too, so that it must be copied before it is changed."""
        self._touched: set[Place] = set()
        self._commits = 0
        self._in_batch = False

    @property
    def memory_bytes(self) -> int:
        return LIST_ENTRY_BYTES * len(self._now)

    @property
    def no_rows(self) -> pa.RecordBatch:
        """No entries, in the stored schema."""
        return pa.RecordBatch.from_pylist([], self.table.stored_schema())

    def open(self, key_groups: range) -> None:
        """Read the table's rows, which are the state of a checkpoint. New entries go to these key groups."""
        self._key_groups = key_groups
        self._now = dict(_in_order(self.table.snapshot()))
        self._stored, self._shared = self._now, True
        self._touched.clear()
        self._commits = self.table.commits or 0

    def begin(self) -> None:
        """Begin a batch, with the entries as they were committed last."""
        commits = self.table.commits or 0
        if commits != self._commits:
            self._stored = self._now
        self.reset()
        self._commits, self._in_batch = commits, True

    def reset(self) -> None:
        """Forget all that the batch did."""
        self._put_back(self._stored)
        self._touched.clear()

    def end(self) -> None:
        """End the rows of this batch; until the next batch begins, nobody changes entries."""
        self._in_batch = False

    def entries(self) -> list[Any]:
        return list(self._now.values())

    def add(self, value: Any) -> None:
        kept = self._fitted([value])
        self._append(self._changing(), kept)

    def replace(self, values: Iterable[Any]) -> None:
        kept = self._fitted(values)
        entries = self._changing()
        for place, value in zip(list(entries), kept, strict=False):
            before = entries[place]
            if not (isinstance(value, COMPARED) and type(value) is type(before) and value == before):
                entries[place] = value
                self._touched.add(place)
        for place in list(islice(entries, len(kept), None)):
            del entries[place]
            self._touched.add(place)
        self._append(entries, kept[len(entries) :])

    def save(self, undo_log: UndoLog) -> None:
        """Note the entries, so that all later changes can be undone: the next change copies them."""
        self._shared = True
        undo_log.note(partial(self._put_back, self._now))

    def _put_back(self, saved: dict[Place, Any]) -> None:
        self._now, self._shared = saved, True

    def store(self) -> None:
        """Write the changes of the batch to the table, which is in that batch."""
        places = sorted(place for place in self._touched if place in self._now or place in self._stored)
        if not places:
            return
        positions, seats = zip(*places, strict=True)
        keys = [pa.array(seats, pa.int64()), pa.array(positions, pa.int64())]
        slots = self.table.lookup(pa.RecordBatch.from_arrays(keys, schema=self.table.key_schema))
        column = self.table.column(VALUE)
        values = [self._now.get(place) for place in places]
        column.scatter(slots, *column.from_arrow(pa.array(values, self.codec.column_type)))
        self.table.present[slots] = np.fromiter((place in self._now for place in places), np.bool_, len(places))

    def _changing(self) -> dict[Place, Any]:
        if not self._in_batch:
            raise UserFunctionError(
                f"{self._who}: it was changed outside of process() and timers; open() can only read it, since changes "
                "belong to a batch. Remember the change in an attribute, and make it in process()"
            )
        if self._shared:
            self._now, self._shared = dict(self._now), False
        return self._now

    def _append(self, entries: dict[Place, Any], values: Iterable[Any]) -> None:
        position = next(reversed(entries))[0] + 1 if entries else 0
        for number, value in enumerate(values, position):
            place = number, self._seats[key_group_of(number, self._key_groups)]
            entries[place] = value
            self._touched.add(place)

    def _fitted(self, values: Iterable[Any]) -> list[Any]:
        try:
            return [self.codec.put(value) for value in values]
        except Misfit as misfit:
            raise UserFunctionError(f"{self._who}, an entry: {misfit}") from misfit


class OpenedList(SubtaskListState):
    """The list as user code sees it, in place of the declared list."""

    def __init__(self, declared: SubtaskListState, own: SubtaskList) -> None:
        super().__init__(declared.type)
        self._own = own

    def get(self) -> list[Any]:
        return _given(self._own, self._own.entries())

    def add(self, value: Any) -> None:
        self._own.add(value)

    def update(self, values: Any) -> None:
        self._own.replace(values)

    def clear(self) -> None:
        self._own.replace([])


class OpenedUnionList(OpenedList):
    """A list that also gives the entries of all subtasks, while `all_rows` is set."""

    all_rows: pa.RecordBatch | None = None

    def union(self) -> list[Any]:
        if self.all_rows is None:
            self._refuse_union()
        return _given(self._own, exact_values(_sorted(self.all_rows).column(VALUE)))

    def _refuse_union(self) -> NoReturn:
        raise UserFunctionError(
            f"state {self._own.name!r}: union() was called outside of open(ctx); read it there, and keep in an "
            "attribute the entries that are needed later. Own entries are read by get() at any time"
        )


def opened_list(declared: SubtaskListState, own: SubtaskList) -> OpenedList:
    return OpenedUnionList(declared, own) if isinstance(declared, UnionListState) else OpenedList(declared, own)


def _given(own: SubtaskList, kept: list[Any]) -> list[Any]:
    get = own.codec.get
    return kept if get is None else [get(each) for each in kept]


def _in_order(rows: pa.RecordBatch) -> list[tuple[Place, Any]]:
    """Places and kept values of rows in the stored schema."""
    rows = _sorted(rows)
    positions, seats, values = (exact_values(rows.column(name)) for name in (POSITION, SEAT, VALUE))
    return list(zip(zip(positions, seats, strict=True), values, strict=True))


def _sorted(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.sort_by([(POSITION, "ascending"), (SEAT, "ascending")])
