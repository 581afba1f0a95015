"""A subtask that keeps the rows of sessions until they close, and then makes output of each session's rows.

    state: key, start → end, link, number of rows, place of its rows        rows: key, place, position → row

The place of a session's rows is the first start of the session. It stays the same if the session later begins earlier;
null means the session's own start. When sessions join, the rows of the largest stay, and the rows of the others get
positions before and behind them, so a row moves only a logarithmic number of times. The rows of a joined session are in
the order of the original sessions, then of arrival.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.functions.aggregates.declared import count
from holdfast.functions.operator import BatchContext, NewTable, OperatorResult, TableSchema
from holdfast.functions.rows.grouping import distinct_slots, ranks, spans
from holdfast.functions.windows.rows_operator import POSITION, ROWS, ClosingRows, WindowFinish, put_rows, slots_of_rows
from holdfast.functions.windows.session import SessionAggregates, SessionSpec
from holdfast.functions.windows.session_chains import SESSION, OpenSessions
from holdfast.functions.windows.session_operator import SessionOperator
from holdfast.functions.windows.windowed import WindowedSpec
from holdfast.state.keys import grouped_by
from holdfast.state.physical import Integers, Slots, values_of

PLACE, FIRST = "__rows_place", "__rows_first"
"""State columns: the start under which a session's rows are kept, and the position of its first row. Null, as in states
that were stored before there were these columns: the session's own start, and 0."""


@dataclass(frozen=True)
class SessionPlaces(SessionAggregates):
    """The aggregates of each key and session, with the place of the session's rows."""

    @property
    def value_schema(self) -> pa.Schema:
        return pa.schema([*super().value_schema, pa.field(PLACE, pa.int64()), pa.field(FIRST, pa.int64())])


@dataclass(frozen=True)
class SessionSizes(SessionSpec):
    """Sessions with the number of their rows."""

    @property
    def kept(self) -> SessionAggregates:
        kept = super().kept
        return SessionPlaces(kept.name, kept.input, kept.aggregates, kept.emit, kept.bad_records, kept.combine)


def sizes_of_sessions(spec: WindowedSpec) -> SessionSpec:
    """The sessions of an operator that keeps rows, with the number of their rows as the only aggregate."""
    name = "rows"
    while name in spec.input.key_columns:
        name += "_"
    return SessionSizes(spec.name, spec.input, {name: count()}, spec.windowing)


def session_rows_schemas(spec: WindowedSpec) -> dict[str, TableSchema]:
    """The schemas of the tables of sessions, and of the table of their rows."""
    tables = sizes_of_sessions(spec).table_schemas()
    sessions = tables["state"].keys
    positions = pa.schema([*sessions, pa.field(POSITION, pa.int64())])
    values = pa.schema([field for field in spec.input.schema if field.name not in spec.input.key_columns])
    return {**tables, ROWS: TableSchema(grouped_by(positions, len(sessions) - 1), values)}


class SessionRowsOperator(SessionOperator):
    def __init__(self, spec: WindowedSpec, of_windows: WindowFinish, max_parallelism: int, new_table: NewTable) -> None:
        super().__init__(sizes_of_sessions(spec), max_parallelism, new_table)
        schema = session_rows_schemas(spec)[ROWS]
        self._rows = new_table(schema.keys, schema.values, max_parallelism)
        self.tables = {**self.tables, ROWS: self._rows}
        self._of_windows = of_windows
        self._schema = spec.input.schema
        self._shown = pa.schema(spec.key_fields)

    def is_snapshot_available(self) -> SnapshotAvailability:
        return self._of_windows.is_snapshot_available()

    def close(self) -> None:
        self._of_windows.close()

    def _move(self, was: OpenSessions, starts: Integers, context: BatchContext, result: OperatorResult) -> None:
        order, groups, changes = _joining(was, starts)
        if not len(order):
            super()._move(was, starts, context, result)
            return
        slots = was.slots[order]
        sizes, (places, firsts) = self._sizes(slots), self._places(slots)
        base = _largest_of_each(groups, sizes)
        before = np.cumsum(sizes) - sizes  # rows of members before, in all groups
        place, first = places[base][groups], firsts[base][groups] + before - before[base][groups]
        others = np.ones(len(slots), np.bool_)
        others[base] = False
        rows = self._taken_out(slots[others])
        owners, positions = spans(sizes[others], first[others])
        keys = self._newest_keys(slots)
        super()._move(was, starts, context, result)
        if rows.num_rows:
            put_rows(self._rows, self._at(rows, place[others][owners]), positions)
        now = self._state.lookup(self._chains.keyed(keys, changes, starts[order][changes]))
        for name, values in ((PLACE, place[changes]), (FIRST, first[changes])):
            self._state.column(name).scatter(now, values, np.ones(len(now), np.bool_))

    def _apply(self, rows: pa.RecordBatch, context: BatchContext, result: OperatorResult) -> None:
        super()._apply(rows, context, result)
        self._store(rows)

    def _store(self, rows: pa.RecordBatch) -> None:
        """Write rows behind those that their sessions had before these were counted."""
        distinct, groups = distinct_slots(self._state.lookup(rows), len(self._state.present))
        before = self._sizes(distinct) - np.bincount(groups, minlength=len(distinct))
        for name in (PLACE, FIRST):
            self._state.column(name).valid[distinct[before == 0]] = False
        places, firsts = self._places(distinct)
        positions = (firsts + before)[groups] + ranks(groups, len(distinct))
        put_rows(self._rows, self._at(rows, places[groups]), positions)

    def _places(self, slots: Slots) -> tuple[Integers, Integers]:
        """The place of the rows of sessions, and the position of the first row of each."""
        starts = values_of(self._state.keys_of(slots).column(SESSION))
        place, first = (self._state.column(name).gather(slots) for name in (PLACE, FIRST))
        return np.where(place[1], place[0], starts), np.where(first[1], first[0], 0)

    def _at(self, rows: pa.RecordBatch, places: Integers) -> pa.RecordBatch:
        """Return rows, or keys, with the places in the column of the session's start."""
        number = rows.schema.get_field_index(SESSION)
        return rows.set_column(number, rows.schema.field(number), pa.array(places))

    def _newest_keys(self, slots: Slots) -> pa.RecordBatch:
        """The keys of sessions, without their starts."""
        return self._state.keys_of(slots).select(self._newest.key_schema.names)

    def _taken_out(self, slots: Slots) -> pa.RecordBatch:
        """Remove the rows of sessions; return them in order of session and position, without the column of the
        position."""
        places, firsts = self._places(slots)
        keys = self._at(self._state.keys_of(slots), places)
        row_slots = slots_of_rows(self._rows, keys, self._sizes(slots), firsts)
        rows = self._rows.rows_of(row_slots)
        self._rows.present[row_slots] = False
        return rows.drop_columns([POSITION])

    def _sizes(self, slots: Slots) -> Integers:
        sizes: Integers = values_of(self._sessions.aggregates.results(slots)[0])
        return sizes

    def _put_out(self, slots: Slots, keys: list[pa.Array], context: BatchContext, result: OperatorResult) -> None:
        groups = np.repeat(np.arange(len(slots)), self._sizes(slots))
        found = self._taken_out(slots).select(self._schema.names)
        rows = pa.RecordBatch.from_arrays(found.columns, schema=self._schema)
        shown = pa.RecordBatch.from_arrays(keys, schema=self._shown)
        self._of_windows.finish(ClosingRows(rows, shown, groups), context, result)


def _joining(was: OpenSessions, starts: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the sessions that join others or begin earlier, in order of key, then time; the index of the session that
    each becomes; and the position where each of these begins in that order."""
    order = np.lexsort((was.starts, starts, was.keys))
    begins = np.ones(len(order), np.bool_)
    keys, become = was.keys[order], starts[order]
    begins[1:] = (keys[1:] != keys[:-1]) | (become[1:] != become[:-1])
    groups = np.cumsum(begins) - 1
    moves = np.zeros(int(groups[-1]) + 1 if len(groups) else 0, np.bool_)
    moves[groups[was.starts[order] != become]] = True
    chosen = moves[groups]
    order, begins = order[chosen], begins[chosen]
    return order, np.cumsum(begins) - 1, np.flatnonzero(begins)


def _largest_of_each(groups: Integers, sizes: Integers) -> Integers:
    """The place of each group's largest member; groups are in order."""
    order = np.lexsort((sizes, groups))
    return order[np.flatnonzero(np.diff(groups[order], append=-1))]
