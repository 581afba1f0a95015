"""Timers of a `BatchFunction`: registered, deleted and fired as arrays, an entry for each key.

    process / on_timers ── register, delete ──► the timers' table, at once
    after the rows: due ones by the index ──► rounds: of each key the earliest ──► on_timers, until nothing is due

A timer is a row without values, as those of functions by row (`timers`), in a table of the same form. Timers of a
failed call are undone with its transaction or by the call's undo log; the index may then still propose timers that no
longer exist.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.casts import cast_in_range
from holdfast.errors import UserFunctionError
from holdfast.functions.operator import NewTable, Timers
from holdfast.functions.rows.columns import IntArray, concatenated
from holdfast.functions.timing.timers import (
    EVENT,
    KINDS,
    PROCESSING,
    TIME_KEY,
    TimerService,
    timer_index,
    timers_schema,
)
from holdfast.ids import FIRST_BATCH
from holdfast.state.physical import Slots, values_of
from holdfast.state.table import StateTable
from holdfast.watermarks import END_US


class ArrayTimerService(TimerService):
    """`ctx.timers` of a `BatchFunction`. Timestamps are an array, an Arrow array or a list of datetimes.

    They have an entry for each of the call's distinct keys or, with `groups`, for each index of a key in `groups`. A
    null neither registers nor deletes a timer.
    """

    def __init__(self, change: Callable[[int, Any, Any, bool], None]) -> None:
        self._change = change

    def register_event_time(self, timestamps: Any, groups: Any = None) -> None:
        """Call `on_timers` once the watermark has reached the timestamps."""
        self._change(EVENT, timestamps, groups, True)

    def delete_event_time(self, timestamps: Any, groups: Any = None) -> None:
        """Delete timers; do nothing for keys without such a timer."""
        self._change(EVENT, timestamps, groups, False)

    def register_processing_time(self, timestamps: Any, groups: Any = None) -> None:
        """Call `on_timers` in the first batch whose `ctx.batch_time` has reached the timestamps."""
        self._change(PROCESSING, timestamps, groups, True)

    def delete_processing_time(self, timestamps: Any, groups: Any = None) -> None:
        """Delete timers; do nothing for keys without such a timer."""
        self._change(PROCESSING, timestamps, groups, False)


class ArrayTimers:
    """The timers of a subtask. `note` is called with rows of the table before they change."""

    def __init__(
        self,
        key_schema: pa.Schema,
        max_parallelism: int,
        new_table: NewTable,
        watermarked: bool,
        note: Callable[[StateTable, Slots], None],
    ) -> None:
        schema = timers_schema(key_schema)
        self.table = new_table(schema.keys, schema.values, max_parallelism)
        self.service = ArrayTimerService(self._change)
        self._key_schema = key_schema
        self._watermarked = watermarked
        self._note = note
        self._keys: pa.RecordBatch | None = None
        self._draining = False
        self._fired = 0
        self._indexes = {kind: timer_index(self.table, kind) for kind in KINDS}

    @property
    def index_bytes(self) -> int:
        """Memory of the keys in order of time."""
        return sum(index.memory_bytes for index in self._indexes.values())

    def begin(self) -> None:
        """Begin a batch: bring the index to the state of the table."""
        self._fired, self._keys, self._draining = 0, None, False
        for index in self._indexes.values():
            index.begin()

    def enter(self, keys: pa.RecordBatch) -> None:
        """Begin a call for these distinct keys."""
        self._keys = keys

    def due(self, kind: int, until_us: int | None) -> Iterator[tuple[pa.RecordBatch, IntArray]]:
        """Yield rounds of distinct keys, each key with the time of its earliest due timer, which is removed; until no
        timer is due."""
        if until_us is None:
            return
        index = self._indexes[kind]
        self._draining = kind == EVENT and until_us == END_US
        while True:
            entries = concatenated(index.between(None, until_us + 1), self.table.key_schema)
            slots = np.unique(self.table.lookup(entries))
            slots = slots[self.table.present[slots]]
            if not len(slots):
                break
            names = (TIME_KEY, *self._key_schema.names)
            keys = self.table.keys_of(slots).sort_by([(name, "ascending") for name in names])
            owners = _groups_of(keys.select(self._key_schema.names))
            _, first = np.unique(owners, return_index=True)
            chosen = keys.take(pa.array(np.sort(first)))
            self._remove(chosen)
            self._fired += chosen.num_rows
            yield chosen.select(self._key_schema.names), values_of(chosen.column(TIME_KEY))
        index.drop(until_us + 1)
        self._draining = False

    def left(self) -> Timers:
        """Return the next due times, and the number of timers that fired."""
        return Timers(self._indexes[EVENT].earliest(), self._indexes[PROCESSING].earliest(), self._fired)

    def _remove(self, keys: pa.RecordBatch) -> None:
        self.table.present[self.table.lookup(keys)] = False

    def _change(self, kind: int, timestamps: Any, groups: Any, wanted: bool) -> None:
        if self._keys is None:
            raise UserFunctionError("ctx.timers can be used in process() and on_timers() only: there are no keys here")
        if kind == EVENT and wanted and not self._watermarked:
            raise UserFunctionError(
                "ctx.timers.register_event_time() needs a watermark, without which the timers would never fire: add "
                ".with_watermark(column, delay) right after read(), or use register_processing_time()"
            )
        if self._draining and kind == EVENT and wanted:
            return
        times, owners = self._checked(timestamps, groups)
        keys = self._keys.take(pa.array(owners))
        arrays = [*keys.columns, pa.array(np.full(len(times), kind, np.int8)), pa.array(times)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self.table.key_schema)
        slots = self.table.lookup(rows)
        self._note(self.table, slots)
        new = wanted & ~self.table.present[slots]
        self.table.present[slots] = wanted
        self._indexes[kind].add(rows.filter(pa.array(new)))

    def _checked(self, timestamps: Any, groups: Any) -> tuple[IntArray, IntArray]:
        """Return the times that are not null, in microseconds, and the index of each time's key."""
        assert self._keys is not None
        try:
            array = timestamps if isinstance(timestamps, pa.Array | pa.ChunkedArray) else pa.array(timestamps)
            array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
            times, outside = cast_in_range(array, pa.timestamp("us", tz=getattr(array.type, "tz", None)))
            if outside is not None:
                raise ValueError(f"{array.filter(pa.array(outside))[:1]} is beyond microseconds in 64 bits")
        except (pa.ArrowException, TypeError, ValueError) as error:
            what = f"timestamps {timestamps!r:.200}: expected an array of timestamps"
            raise UserFunctionError(f"ctx.timers: {what}: {error}") from error
        owners = np.arange(self._keys.num_rows) if groups is None else np.asarray(groups, np.int64)
        if len(times) != len(owners):
            expected = (
                f"a time for each of {self._keys.num_rows} distinct keys" if groups is None else "as many as groups"
            )
            raise UserFunctionError(f"ctx.timers: {len(times)} timestamps, expected {expected}")
        if len(owners) and not (owners.min() >= 0 and owners.max() < self._keys.num_rows):
            found = f"groups from {owners.min()} to {owners.max()}"
            expected = f"indexes of the {self._keys.num_rows} distinct keys"
            raise UserFunctionError(f"ctx.timers: {found}, expected {expected}, behind the timestamps")
        known = pc.is_valid(times).to_numpy(zero_copy_only=False)
        kept: IntArray = owners[known]
        return values_of(times.filter(pa.array(known))), kept


def _groups_of(keys: pa.RecordBatch) -> IntArray:
    """Return a number for each row: equal keys have equal numbers, in order of first appearance."""
    distinct = StateTable(keys.schema, pa.schema([]), 1)
    distinct.begin(FIRST_BATCH)
    groups: IntArray = distinct.lookup(keys).astype(np.int64)
    return groups
