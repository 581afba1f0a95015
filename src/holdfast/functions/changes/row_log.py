"""The rows of keys that come and go, as a log of each key: a change adds an entry, and searches nothing.

    log       key → a block of the newest entries: rows with weights, 1 came, -1 went   ┐
    chunks    key → the number of full blocks                                           │ columns of the table
    entries   key → the number of entries in all blocks                                 │ of the keys
    folded    key → the number of distinct rows when the log was read last              ┘
    blocks    (key, number) → a full block; blocks are numbered from 0 on

The rows that are there are the sums of equal entries. A log is read when its rows are asked for, and when it has
`FOLD_FROM` entries more than twice the distinct rows that it had then; if the sums are so much fewer, they replace the
entries. So a change is read about twice after it was written, and a log has at most some two entries for each row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.functions.changes.log_kernels import (
    counts_of,
    mark_counted,
    measure_blocks,
    set_counts,
    sum_entries,
    write_blocks,
)
from holdfast.functions.operator import TableSchema
from holdfast.functions.rows.columns import IntArray
from holdfast.functions.rows.grouping import order_of, spans
from holdfast.state.arena_kernels import Handles
from holdfast.state.index_kernels import gather_bytes
from holdfast.state.keys import decode_rows, encode_rows, group_columns, grouped_by
from holdfast.state.physical import Bools, Bytes, Integers, Slots, variable_array, variable_bytes_of
from holdfast.state.table import StateTable

NUMBER, BLOCK = "__number", "__block"
BLOCK_BYTES = 1024
"""Bytes of entries from which on a block is a row of its own. A higher value makes fewer such rows, and each change of
a key writes more bytes."""
FOLD_FROM = 32
"""Entries that a log may have beyond twice its distinct rows. A higher value reads short logs less often, and keeps
more entries of them."""


def log_table(keys: pa.Schema, rows: Sequence[pa.Field]) -> TableSchema:
    """Return the table of the full blocks. Its columns of the rows are null, and only declare the content of blocks."""
    number = pa.field(NUMBER, pa.int64(), nullable=False)
    types = [field.with_nullable(True) for field in rows]
    return TableSchema(
        grouped_by(keys.append(number), group_columns(keys)), pa.schema([(BLOCK, pa.large_binary()), *types])
    )


def check_complete(operator: str, stored: Mapping[str, pa.Schema], declared: Mapping[str, TableSchema]) -> None:
    """Refuse, by `JobRefused`, stored tables that lack a declared column: a log without its counts would be misread."""
    for table, schema in declared.items():
        lacking = [name for name in schema.values.names if table in stored and name not in stored[table].names]
        if lacking:
            raise JobRefused(
                f"operator {operator!r}: its stored state has no {', '.join(map(repr, lacking))} in table {table!r}: "
                "its input was no stream of changes, its rows had other columns or another order, or an earlier "
                "Holdfast wrote it. Give the operator another name, or give up its state with "
                f"job.start(drop_state=[{operator!r}])"
            )


def log_counters(name: str) -> list[pa.Field]:
    """Return the columns with the numbers of logs of that name in the table of the keys."""
    return [pa.field(f"{name}.{each}", pa.int64()) for each in ("chunks", "entries", "folded")]


def log_column(name: str) -> pa.Field:
    """The column of the newest entries in the table of the keys."""
    return pa.field(f"{name}.log", pa.large_binary())


@dataclass(frozen=True)
class RowsOfLogs:
    """Distinct rows of keys: the index of the key of each, ascending; its columns; how often it is there, below 0 for a
    row that went before it came."""

    groups: Integers
    columns: list[pa.Array]
    counts: Integers

    def there(self) -> "RowsOfLogs":
        """Leave out the rows that went before they came."""
        if (mask := self.counts > 0).all():
            return self
        columns = [column.filter(pa.array(mask)) for column in self.columns]
        return RowsOfLogs(self.groups[mask], columns, self.counts[mask])


class RowLog:
    """`heads` is the table of the keys, `blocks` that of the full blocks."""

    def __init__(self, name: str, heads: StateTable, blocks: StateTable) -> None:
        self._heads, self._blocks = heads, blocks
        self._log = log_column(name).name
        self._chunks, self._entries, self._folded = (field.name for field in log_counters(name))
        self._types = [field.type for field in blocks.value_schema if field.name != BLOCK]

    def append(self, heads: Slots, groups: Integers, values: Sequence[pa.Array], weights: IntArray) -> None:
        """Add entries for rows; `groups`: the index of the key of each among the distinct keys in `heads`."""
        old, _ = self._heads.column(self._log).gather(heads)
        order, starts = order_of(groups, len(heads))
        self._write(heads, old, (order, starts), encode_rows(values), weights)
        self._set(self._entries, heads, counts_at(self._heads, self._entries, heads) + np.diff(starts))

    def drop(self, heads: Slots) -> None:
        """Remove the full blocks of keys."""
        full = self._full_blocks(heads, *spans(counts_at(self._heads, self._chunks, heads)))
        self._blocks.present[full] = False

    def fold(self, heads: Slots) -> None:
        """Read the logs, of these keys, that grew long."""
        due = too_long(counts_at(self._heads, self._entries, heads), counts_at(self._heads, self._folded, heads))
        if due.any():
            self.rows_of(heads[due])

    def rows_of(self, heads: Slots) -> RowsOfLogs:
        """The distinct rows of distinct keys; logs that are much longer are replaced by them."""
        sizes = counts_at(self._heads, self._entries, heads)
        chunks = counts_at(self._heads, self._chunks, heads)
        full = self._full_blocks(heads, *spans(chunks))
        parts = [
            (table.column(name), slots)
            for table, name, slots in ((self._blocks, BLOCK, full), (self._heads, self._log, heads))
        ]
        blocks = pa.concat_arrays([column.to_arrow(*column.gather(slots)) for column, slots in parts])
        owners = np.concatenate([np.repeat(np.arange(len(heads)), chunks), np.arange(len(heads))])
        offsets, data = variable_bytes_of(blocks)
        groups, places, lengths, counts = sum_entries(offsets, data, order_of(owners, len(heads))[0], owners, sizes)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        rows = gather_bytes(data, places, ends)
        left = np.bincount(groups, minlength=len(heads))
        self._set(self._folded, heads, left)
        replaced = too_long(sizes, left) | (left == 0)
        if replaced.any():
            self._replace(heads, replaced, (groups, counts), (ends, rows), full[replaced[owners[: len(full)]]])
        return RowsOfLogs(groups, decode_rows(ends, rows, self._types), counts)

    def _replace(
        self,
        heads: Slots,
        replaced: Bools,
        found: tuple[Integers, Integers],
        rows: tuple[Integers, Bytes],
        full: Slots,
    ) -> None:
        """Write the sums, as found with their keys, over the entries of some keys, whose full blocks go."""
        self._blocks.present[full] = False
        groups, counts = found
        chosen = np.flatnonzero(replaced[groups])
        keys = heads[replaced]
        order, starts = order_of((np.cumsum(replaced) - 1)[groups[chosen]], len(keys))
        self._set(self._chunks, keys, np.zeros(len(keys), np.int64))
        self._write(keys, np.zeros(len(keys), np.uint64), (chosen[order], starts), rows, counts)
        self._set(self._entries, keys, np.diff(starts))

    def _write(
        self,
        heads: Slots,
        old: Handles,
        of_keys: tuple[IntArray, IntArray],
        rows: tuple[Integers, Bytes],
        weights: IntArray,
    ) -> None:
        """Write old blocks of keys with further rows; `of_keys`: the rows in order of their keys, and where each key
        begins among them. Blocks that are full become rows of their own."""
        order, starts = of_keys
        offsets = np.empty(len(heads) + 1, np.int64)
        measure_blocks(old, starts, order, rows[0], weights, offsets)
        data = np.empty(offsets[-1], np.uint8)
        write_blocks(old, starts, order, *rows, weights, offsets, data)
        blocks = variable_array(offsets, data, None, pa.large_binary())
        column, full = self._heads.column(self._log), np.diff(offsets) > BLOCK_BYTES
        if not full.any():
            column.scatter(heads, *column.from_arrow(blocks))
            return
        column.scatter(heads[~full], *column.from_arrow(blocks.filter(pa.array(~full))))
        column.clear(heads[full])
        chunks = counts_at(self._heads, self._chunks, heads[full])
        slots = self._full_blocks(heads[full], np.arange(len(chunks)), chunks)
        column = self._blocks.column(BLOCK)
        column.scatter(slots, *column.from_arrow(blocks.filter(pa.array(full))))
        self._blocks.present[slots] = True
        self._set(self._chunks, heads[full], chunks + 1)

    def _full_blocks(self, heads: Slots, groups: Integers, numbers: Integers) -> Slots:
        """Return the slots of full blocks; `groups` has the index of the key of each block."""
        keys = self._heads.keys_of(heads[groups]).columns
        return self._blocks.lookup(
            pa.RecordBatch.from_arrays([*keys, pa.array(numbers, pa.int64())], schema=self._blocks.key_schema)
        )

    def _set(self, name: str, heads: Slots, numbers: Integers) -> None:
        put_counts(self._heads, name, heads, numbers)


def counts_at(table: StateTable, name: str, slots: Slots) -> Integers:
    """The numbers in a column of a table, 0 where there is none yet."""
    column = table.column(name)
    counts: Integers = counts_of(column.values, column.valid, slots)
    return counts


def put_counts(table: StateTable, name: str, slots: Slots, counts: Integers) -> None:
    """Write the numbers of a column of a table."""
    column = table.column(name)
    set_counts(column.values, column.valid, slots, counts)


def counted(table: StateTable, names: Iterable[str], slots: Slots) -> Bools:
    """Mark the slots with a number other than 0 in one of these columns."""
    found = np.zeros(len(slots), np.bool_)
    for name in names:
        column = table.column(name)
        mark_counted(column.values, column.valid, slots, found)
    return found


def too_long(entries: Integers, rows: Integers) -> Bools:
    """Mark logs that have too many entries for so many distinct rows."""
    found: Bools = entries > 2 * rows + FOLD_FROM
    return found
