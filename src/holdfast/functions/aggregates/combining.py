"""Combining in the sender: the rows of each key become a single row, so that only distinct keys travel.

    rows ──► accumulators over a table of the sender's own ──► its rows: keys and state ──► merged by the operator

A sender sends the state columns of `AggregateOperator`, filled by the same accumulators. The operator adds them to its
own state (`Accumulator.combined`) in the order of the senders, just as it would add the rows. So `first` and `last`
keep their meaning. All results are the same, except that means and sums of floats are added in another order.

A sum must overflow at the same row as without combining. So a sum travels with the extremes of its running values. If a
sender or the operator finds an extreme that does not fit, it raises `RowsNeeded`: the batch runs again without
combining.

Combining costs time if keys hardly repeat. So a sample of the first rows decides whether to combine, and the sender
decides again each time that its table is full.
"""

from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.functions.aggregates import kernels
from holdfast.functions.aggregates.accumulators import Chunk
from holdfast.functions.aggregates.checked_sums import try_all
from holdfast.functions.aggregates.table import Accumulators, rows_needed
from holdfast.functions.operator import COMBINED_INPUT, Combiner
from holdfast.ids import FIRST_BATCH
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.aggregates.spec import AggregateSpec

SAMPLE_ROWS = 1 << 12
"""Rows of a batch by which a sender decides whether to combine; smaller batches are not worth combining."""
REPEATS_MIN = 1 / 64
"""Share of the sample's rows whose key came before; from this share on, the sender combines. Random keys reach it if
there are at most some 130,000 of them; with so many, combining costs about as much as it saves. A higher value combines
less often."""
ROWS_AT_ONCE_MAX = 1 << 16
"""Rows that go through all loops together, so that they stay in the processor's cache; fewer rows wait for more."""
BYTES_AT_ONCE_MAX = 8 * 1024 * 1024
"""Bound on the bytes of rows that wait, since they are concatenated later. A higher value takes more memory."""
KEYS_MAX = 1 << 18
TABLE_BYTES_MAX = 64 * 1024 * 1024
OBJECTS_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of rows whose values the table may keep as objects, which take several times as much when they are sent."""
ROWS_PER_KEY_MIN = 4
"""Rows per key that a full table must have taken for combining to go on; a higher value gives up combining sooner."""


class AggregateCombiner(Combiner):
    """The combiner for `emit="changes"`: it holds at most `KEYS_MAX` keys and a few rows that are not worth a step.

    Its table is made with the first rows to combine: for a batch of a few rows that would cost more than all the rest.
    """

    _table: StateTable
    _of_rows: Accumulators
    _of_running: Accumulators

    def __init__(self, spec: "AggregateSpec") -> None:
        self._spec = spec
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._sampled = False
        self._passing = False
        self._rows = 0
        """Rows that were added to the table; 0 while it has only the keys of the sample."""
        self._objects_bytes = 0
        """Bytes of the rows that the table has taken, if it keeps some of their values as objects."""

    def take(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        if self._passing:
            return [(0, rows)]
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        enough = ROWS_AT_ONCE_MAX if self._sampled else SAMPLE_ROWS
        is_enough = self._waiting_rows >= enough or self._waiting_bytes >= BYTES_AT_ONCE_MAX
        return self._combine(self._waited()) if is_enough else []

    def finish(self) -> list[tuple[int, pa.RecordBatch]]:
        out: list[tuple[int, pa.RecordBatch]] = []
        if self._waiting_rows:
            rows = self._waited()
            out = self._combine(rows) if self._sampled else [(0, rows)]
        if self._rows:
            out.append((COMBINED_INPUT, self._combined()))
        return out

    def _waited(self) -> pa.RecordBatch:
        waiting, self._waiting, self._waiting_rows, self._waiting_bytes = self._waiting, [], 0, 0
        return waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)

    def _open_table(self) -> None:
        spec = self._spec
        extremes = [each for bound in spec.bound for each in bound.running_extremes]
        self._table = StateTable(spec.key_schema, spec.combined_schema, 1)
        self._of_rows = Accumulators(spec.bound, self._table, sending=True)
        self._of_running = Accumulators(extremes, self._table)
        self._table.begin(FIRST_BATCH)

    def _combine(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        out: list[tuple[int, pa.RecordBatch]] = []
        if not self._sampled:
            self._open_table()
        self._passing = not self._sampled and self._few_repeats(rows.slice(0, SAMPLE_ROWS))
        self._sampled = True
        start = 0
        while start < rows.num_rows and not self._passing:
            part = rows.slice(start, ROWS_AT_ONCE_MAX)
            self._add(part)
            start += part.num_rows
            if self._full:
                self._passing = self._rows < ROWS_PER_KEY_MIN * self._table.rows_in_memory
                out.append((COMBINED_INPUT, self._combined()))
                self._begin_anew()
        if start < rows.num_rows:
            out.append((0, rows.slice(start)))
        return out

    def _few_repeats(self, sample: pa.RecordBatch) -> bool:
        self._table.lookup(sample)
        return bool(self._table.rows_in_memory > (1 - REPEATS_MIN) * sample.num_rows)

    @property
    def _full(self) -> bool:
        held_bytes = self._table.memory_bytes + self._of_rows.memory_bytes
        is_large = held_bytes >= TABLE_BYTES_MAX or self._objects_bytes >= OBJECTS_BYTES_MAX
        return is_large or self._table.rows_in_memory >= KEYS_MAX

    def _add(self, rows: pa.RecordBatch) -> None:
        slots, sums = self._table.lookup(rows), self._of_rows.sums
        chunk, running = Chunk(rows, slots, False), Chunk(rows, slots, True)
        if not try_all(sums, running):
            raise rows_needed(self._spec.name)
        if sums:
            columns = [one.add(running) for one in sums]
            of_sums = pa.RecordBatch.from_arrays(columns, names=[one.name for one in sums])
            self._of_running.add(Chunk(of_sums, slots, False))
        self._of_rows.add(chunk, but_sums=True)
        self._rows += rows.num_rows
        if any(self._table.column(field.name).has_objects for field in self._table.value_schema):
            self._objects_bytes += rows.nbytes

    def _combined(self) -> pa.RecordBatch:
        """The rows of all keys, in order of their first rows."""
        slots = self._table.touched()
        kernels.raise_flags(slots, self._table.present.array)
        for name in self._of_rows.counters:
            kernels.raise_flags(slots, self._table.column(name).valid)
        return self._of_rows.with_held(self._table.rows_of(slots), slots)

    def _begin_anew(self) -> None:
        self._of_rows.forget()
        self._table.undo()
        self._table.begin(FIRST_BATCH)
        self._rows = self._objects_bytes = 0
