"""A subtask that keeps the rows of sessions until they close, and then makes output of each session's rows.

    state: key, start → end, link, number of rows        rows: key, start, position → row

Rows follow their session when it begins earlier, or joins another one: then they get new keys. Rows that come in order
of time never do. A session's rows are in order of the sessions that it was joined of, then of arrival.
"""

import numpy as np
import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.functions.aggregates.declared import count
from holdfast.functions.operator import BatchContext, NewTable, OperatorResult, TableSchema
from holdfast.functions.rows.grouping import distinct_slots, ranks
from holdfast.functions.windows.rows_operator import POSITION, ROWS, WindowFinish, put_rows, slots_of_rows
from holdfast.functions.windows.session import SessionSpec
from holdfast.functions.windows.session_chains import SESSION, OpenSessions
from holdfast.functions.windows.session_operator import SessionOperator
from holdfast.functions.windows.windowed import WindowedSpec
from holdfast.state.keys import grouped_by
from holdfast.state.physical import Integers, Slots, values_of


def sizes_of_sessions(spec: WindowedSpec) -> SessionSpec:
    """The sessions of an operator that keeps rows, with the number of their rows as the only aggregate."""
    name = "rows"
    while name in spec.input.key_columns:
        name += "_"
    return SessionSpec(spec.name, spec.input, {name: count()}, spec.windowing)


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
        moved = np.flatnonzero(was.starts != starts)
        moved = moved[np.argsort(was.starts[moved], kind="stable")]
        rows = self._taken_out(was.slots[moved])
        new_starts = np.repeat(starts[moved], self._sizes(was.slots[moved]))
        super()._move(was, starts, context, result)
        if rows.num_rows:
            place = rows.schema.get_field_index(SESSION)
            self._store(rows.set_column(place, rows.schema.field(place), pa.array(new_starts)))

    def _apply(self, rows: pa.RecordBatch, context: BatchContext, result: OperatorResult) -> None:
        super()._apply(rows, context, result)
        self._store(rows)

    def _store(self, rows: pa.RecordBatch) -> None:
        """Write rows behind those that their sessions had before these were counted."""
        distinct, groups = distinct_slots(self._state.lookup(rows), len(self._state.present))
        before = self._sizes(distinct) - np.bincount(groups, minlength=len(distinct))
        put_rows(self._rows, rows, before[groups] + ranks(groups, len(distinct)))

    def _taken_out(self, slots: Slots) -> pa.RecordBatch:
        """Remove the rows of sessions; return them in order of session and position, without the column of the
        position."""
        row_slots = slots_of_rows(self._rows, self._state.keys_of(slots), self._sizes(slots))
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
        self._of_windows.finish(rows, shown, groups, context, result)
