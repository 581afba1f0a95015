"""A subtask of aggregates by session: rows join the open sessions of their key, or begin new ones.

    newest: key → start of its newest session        state: key, start → end, start of the session before, aggregates
                       └────────────────────────────────────► … ──────────┴──► the key's sessions, newest first

    rows ──► open sessions of their keys that they may meet (`session_chains`)
             ──► rows and sessions that meet are joined ──► aggregates
    watermark ──► sessions that end by it, by the index ──► output, removed

Invariants: the sessions of a key do not meet, so they close in order of their starts, and a link to a closed session
ends the chain. The index has an entry for each end that a session ever had, until its time has come. An entry is out of
date if the session now ends later, or has joined another session.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.functions.aggregates.operator import AggregateOperator
from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorResult, Timers
from holdfast.functions.rows.columns import BoolArray, concatenated
from holdfast.functions.rows.grouping import distinct_slots
from holdfast.functions.rows.kernels import mark_first
from holdfast.functions.rows.late import LateRows
from holdfast.functions.rows.pieces import in_pieces
from holdfast.functions.timing.time_index import FollowedIndex, TimeBuckets, keys_with_times
from holdfast.functions.windows.declared import WINDOW_END, WINDOW_START, times_array, times_of
from holdfast.functions.windows.merging import merge_states
from holdfast.functions.windows.session_chains import BEFORE, END, SESSION, OpenSessions, SessionChains
from holdfast.functions.windows.session_kernels import join_sessions
from holdfast.state.physical import Integers, Slots, values_of
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.windows.session import SessionSpec

NEWEST = "newest"
"""The name of the table with the newest session of each key."""


class SessionOperator(Operator):
    def __init__(self, spec: "SessionSpec", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._sessions = AggregateOperator(spec.kept, max_parallelism, new_table)
        self._state = self._sessions.tables["state"]
        schema = spec.table_schemas()[NEWEST]
        self._newest = new_table(schema.keys, schema.values, max_parallelism)
        self.tables = {"state": self._state, NEWEST: self._newest}
        self._late = LateRows(spec.name, spec.windowing.late)
        self._entries = pa.schema([*self._state.key_schema, pa.field(END, pa.int64())])
        self._index = FollowedIndex(
            self._state, lambda: TimeBuckets(self._entries, END, spec.window.gap_us), self._all_entries
        )
        self._chains = SessionChains(self._state, self._newest, self._index, spec.window.gap_us)

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes + self._chains.memory_bytes

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        self._index.begin()
        self._chains.begin()
        on_time = self._late.put_aside(inputs, lambda rows: self._late_rows(rows, context.closed_us), context, result)
        for piece in in_pieces(on_time, self.room):
            rows = concatenated([rows for _, rows in piece if rows.num_rows], self._spec.sent_schema)
            if rows.num_rows:
                self._take(rows, context, result)
        fired = 0
        if context.closes_us is not None:
            fired = self._close(context.closes_us - self._spec.lateness_us, context, result)
        first_us = self._index.earliest()
        next_us = None if first_us is None else first_us + self._spec.lateness_us
        return replace(
            result, timers=Timers(next_us, None, fired), late=self._late.count, late_rows={0: self._late.rows}
        )

    def _late_rows(self, rows: pa.RecordBatch, closed_us: int | None) -> BoolArray | None:
        if closed_us is None or not rows.num_rows:
            return None
        ends = times_of(rows.column(self._spec.window.column)) + self._spec.window.gap_us
        late: BoolArray = ends <= closed_us - self._spec.lateness_us
        return late if late.any() else None

    # Rows.

    def _take(self, rows: pa.RecordBatch, context: BatchContext, result: OperatorResult) -> None:
        """Join rows and the open sessions of their keys to sessions."""
        key_slots, groups = self._distinct_keys(rows)
        keys = self._newest.keys_of(key_slots)
        times = times_of(rows.column(self._spec.window.column))
        was = self._chains.meeting(keys, key_slots, groups, times)
        starts = np.concatenate([was.starts, times])
        ends = np.concatenate([was.ends, times + self._spec.window.gap_us])
        owners = np.concatenate([was.keys, groups])
        of, first, last_ends = np.empty((3, len(starts)), np.int64)
        count = join_sessions(np.lexsort((starts, owners)), owners, starts, ends, of, first, last_ends)
        session_keys, session_starts, session_ends = owners[first[:count]], starts[first[:count]], last_ends[:count]
        of_rows = of[len(was.keys) :]
        now_in = of[: len(was.keys)]
        stays = was.starts == session_starts[now_in]
        leads, is_new = np.zeros(count, np.bool_), np.ones(count, np.bool_)
        leads[now_in[stays & was.leads]] = True
        is_new[now_in[stays]] = False
        self._move(was, session_starts[now_in], context, result)
        self._apply(self._with_session(rows, session_starts[of_rows]), context, result)
        self._link(keys, session_keys, session_starts, session_ends, leads, is_new)
        self._note_newest(key_slots, session_keys, session_starts, was.has_newest)
        gone, come = (was.keys[~stays], was.starts[~stays]), (session_keys[is_new], session_starts[is_new])
        self._chains.replace(keys, gone, come)
        changed = np.unique(of_rows)
        entries = self._chains.keyed(keys, session_keys[changed], session_starts[changed])
        self._index.add(entries.append_column(END, pa.array(session_ends[changed])))

    def _apply(self, rows: pa.RecordBatch, context: BatchContext, result: OperatorResult) -> None:
        """Add rows, which name their sessions, to the aggregates."""
        self._sessions.apply([(0, rows)], context, result)

    def _distinct_keys(self, rows: pa.RecordBatch) -> tuple[Slots, Integers]:
        """The slots of the rows' distinct keys in the table of the newest sessions, and each row's index among them."""
        slots = self._newest.lookup(rows)
        return distinct_slots(slots, len(self._newest.present))

    def _move(self, was: OpenSessions, starts: Integers, context: BatchContext, result: OperatorResult) -> None:
        """Move the states of sessions that now begin at other `starts`, in order of time."""
        moved = np.flatnonzero(was.starts != starts)
        if not len(moved):
            return
        moved = moved[np.argsort(was.starts[moved], kind="stable")]
        slots = was.slots[moved]
        rows = self._state.rows_of(slots)
        place = rows.schema.get_field_index(SESSION)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(starts[moved]))
        self._state.present[slots] = False
        merge_states(
            self._sessions.aggregates, rows, self._spec.name, self._spec.windowing.bad_records, context, result
        )

    def _link(
        self,
        keys: pa.RecordBatch,
        owners: Integers,
        starts: Integers,
        ends: Integers,
        leads: BoolArray,
        is_new: BoolArray,
    ) -> None:
        """Write ends and links of sessions, in order of key, then start.

        A session that leads keeps its link, and so does the first session of a key unless it is new, since older
        sessions may come before it.
        """
        slots = self._state.lookup(self._chains.keyed(keys, owners, starts))
        self._sessions.aggregates.appear(slots[~self._state.present[slots]])  # all of its rows may be bad
        self._state.column(END).scatter(slots, ends, np.ones(len(slots), np.bool_))
        same = np.zeros(len(slots), np.bool_)
        same[1:] = owners[1:] == owners[:-1]
        before = np.zeros(len(slots), np.int64)
        before[1:] = starts[:-1]
        linked = ~leads & (same | is_new)
        self._state.column(BEFORE).scatter(slots[linked], np.where(same, before, 0)[linked], same[linked])

    def _note_newest(self, key_slots: Slots, owners: Integers, starts: Integers, has_newest: BoolArray) -> None:
        """Write the newest sessions of the keys whose newest session is among these, which are in order of key, then
        start."""
        last = np.append(owners[1:] != owners[:-1], True) & has_newest[owners]
        newest = key_slots[owners[last]]
        self._newest.column(SESSION).scatter(newest, starts[last], np.ones(len(newest), np.bool_))
        self._newest.present[newest] = True

    def _with_session(self, rows: pa.RecordBatch, starts: Integers) -> pa.RecordBatch:
        return rows.append_column(self._state.key_schema.field(SESSION), pa.array(starts))

    # Closing.

    def _close(self, until_us: int, context: BatchContext, result: OperatorResult) -> int:
        """Put out and remove the sessions that end by `until_us`; return their number."""
        entries = concatenated(self._index.between(None, until_us + 1), self._entries)
        self._index.drop(until_us + 1)
        slots = self._state.lookup(entries.select(self._state.key_schema.names))
        first = np.empty(len(slots), np.bool_)
        mark_first(slots, np.zeros(len(self._state.present), np.bool_), first)
        ends = self._state.column(END)
        slots = slots[first & self._state.present[slots] & (ends.values[slots] <= until_us)]
        for piece in self._sessions.aggregates.pieces(slots):
            self._end(piece, context, result)
        return len(slots)

    def _end(self, slots: Slots, context: BatchContext, result: OperatorResult) -> None:
        """Put out and remove sessions."""
        keys = self._state.keys_of(slots)
        self._put_out(slots, self._with_bounds(keys, self._state.column(END).values[slots]), context, result)
        self._state.present[slots] = False
        own_keys, starts = keys.select(self._newest.key_schema.names), values_of(keys.column(SESSION))
        newest = self._newest.lookup(own_keys)
        self._newest.present[newest[self._newest.column(SESSION).values[newest] == starts]] = False
        self._chains.close(own_keys, starts)

    def _put_out(self, slots: Slots, keys: list[pa.Array], context: BatchContext, result: OperatorResult) -> None:
        """Put out sessions that close; `keys` are the key columns of the output."""
        columns = [*keys, *self._sessions.aggregates.results(slots)]
        result.output.append(pa.RecordBatch.from_arrays(columns, schema=self._spec.output_schema))

    def _with_bounds(self, keys: pa.RecordBatch, ends: Integers) -> list[pa.Array]:
        """The key columns of the output, from keys of the state and the sessions' ends."""
        kind = self._spec.bounds_type
        arrays = dict(zip(keys.schema.names, keys.columns, strict=True))
        arrays[WINDOW_START] = times_array(values_of(keys.column(SESSION)), kind)
        arrays[WINDOW_END] = times_array(ends, kind)
        return [arrays[name] for name in self._spec.key_columns]

    def _all_entries(self, table: StateTable) -> Iterator[pa.RecordBatch]:
        """The entries of all sessions, between batches."""
        return keys_with_times(table, END, lambda _, cells: cells(END))
