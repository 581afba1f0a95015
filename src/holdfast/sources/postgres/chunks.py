"""The chunked snapshot: tables are read in ranges of their key, each put into the stream at an exact point.

    choose a range ─► from here on keep its changes ─► read it at a snapshot S of the server ─► write a mark
                                                                                                  │
    rows of the chunk, with the changes of transactions that S did not see ◄── the mark comes in the stream

Changes of keys that no chunk has brought yet are dropped, since their chunk will bring the current rows. A transaction
that S saw comes before the mark in the stream, since its commit is before the mark in the WAL. So each key begins with
an insert, at the mark of its chunk, and from there on the stream contains every change.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import CorruptObject, JobRefused
from holdfast.python_values import exact_values
from holdfast.schema import CHANGE_TYPE
from holdfast.sources.postgres.columns import XID, Ints, PublishedColumn, TableColumns
from holdfast.sources.postgres.pgoutput import EPOCH_US, stored_schema
from holdfast.sources.postgres.server import Server
from holdfast.sources.postgres.snapshot import column_name, copied_batch, copy_table, rows_of
from holdfast.sources.postgres.writer import SegmentContent

RECENT_MAX = 100_000
"""Number of transactions that are remembered, to notice a transaction that the stream has sent but a snapshot does not
see yet."""
ATTEMPTS_MAX = 100
Bound = int | str
"""A key at which a range of a table ends: a whole number, or a UUID as text, whose order is that of its text."""
_INTEGERS = (20, 21, 23)
_INTEGER_MAX = 2**63 - 1
_UUID = 2950


@dataclass(frozen=True)
class Visibility:
    """The transactions that a snapshot of the server saw, as `pg_current_snapshot()` returns them."""

    least: int
    next: int
    running: frozenset[int]

    @staticmethod
    def parse(text: str) -> "Visibility":
        least, following, running = text.split(":")
        return Visibility(int(least), int(following), frozenset(int(each) for each in running.split(",") if each))

    def saw(self, xids: Ints) -> npt.NDArray[np.bool_]:
        """Mark the transactions that were seen; the stream contains only the lower 32 bits of their ids."""
        full = (self.next >> 32 << 32) + xids
        full = np.where(full > self.next + 2**31, full - 2**32, full)
        return (full < self.least) | ((full < self.next) & ~np.isin(full, list(self.running)))


@dataclass
class SnapshotChunk:
    """A range of a table that was read and waits for its mark. `stop` None: it has no upper end."""

    table: TableColumns
    first: Bound | None
    stop: Bound | None
    mark: str
    rows: list[bytes] = field(default_factory=list)
    saw: Visibility | None = None
    changes: list[pa.RecordBatch] = field(default_factory=list)


class Chunks:
    """State of the chunked snapshot of a connection. `frontiers` has the tables that are not completely read, each with
    the key up to which (exclusive) it is read; None: not begun."""

    def __init__(self, server: Server, tables: Mapping[str, TableColumns], rows_max: int) -> None:
        self._server = server
        self._tables = tables
        self._rows_max = rows_max
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)
        self._number = 0
        self._chunk: SnapshotChunk | None = None
        self.frontiers: dict[str, Bound | None] = {}

    def reset(self, frontiers: Mapping[str, Bound | None]) -> None:
        """Begin a connection; a chunk that was under way is read again."""
        self.frontiers = dict(frontiers)
        self._chunk = None
        self._recent.clear()

    @property
    def is_due(self) -> bool:
        """True if a chunk can be begun."""
        return bool(self.frontiers) and self._chunk is None

    def admit(self, table: TableColumns, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose keys a finished chunk has brought; keep rows of the current chunk for later."""
        if not self.frontiers:
            return rows
        self._recent.extend(np.unique(rows.column(XID).to_numpy()).tolist())
        if table.name not in self.frontiers:
            return rows
        chunk = self._chunk
        if chunk is not None and chunk.table.name == table.name:
            chunk.changes.append(rows.filter(_between(table, rows, chunk.first, chunk.stop)))
        frontier = self.frontiers[table.name]
        if frontier is None:
            return rows.slice(0, 0)
        return rows.filter(_between(table, rows, None, frontier))

    def truncated(self, table: str, xid: int) -> None:
        """Forget the rows of the current chunk that a truncation removed."""
        if not self.frontiers:
            return
        self._recent.append(xid)
        chunk = self._chunk
        if chunk is None or chunk.table.name != table:
            return
        assert chunk.saw is not None
        if not chunk.saw.saw(np.array([xid], np.int64))[0]:
            chunk.rows.clear()
            chunk.changes.clear()

    def begin(self, beat: Callable[[], None]) -> None:
        """Read the next chunk, and write its mark; `beat` is called now and then, so that the server hears of us."""
        name = next(iter(self.frontiers))
        table, first = self._tables[name], self.frontiers[name]
        self._number += 1
        stop = self._stop(table, first)
        mark = f"chunk {name} {self._number} {datetime.now(UTC).timestamp()}"
        self._chunk = chunk = SnapshotChunk(table, first, stop, mark)
        for _ in range(ATTEMPTS_MAX):
            self._read(chunk, beat)
            assert chunk.saw is not None
            running = {xid & 0xFFFFFFFF for xid in chunk.saw.running}
            if running.isdisjoint(self._recent):  # else the stream has sent a transaction that S did not see yet
                break
        self._server.mark(mark)

    def finish(self, mark: str, lsn: int) -> SegmentContent | None:
        """Return the rows of the chunk with that mark; None if there is none."""
        chunk = self._chunk
        if chunk is None or chunk.mark != mark:
            return None
        self._chunk = None
        name = chunk.table.name
        if chunk.stop is None:
            del self.frontiers[name]
        else:
            self.frontiers[name] = chunk.stop
        rows = _latest(chunk, lsn)
        tables = {name: [rows]} if rows.num_rows else {}
        return SegmentContent(1, [1], tables, chunks=dict(self.frontiers))

    def _stop(self, table: TableColumns, first: Bound | None) -> Bound | None:
        """Return the key before which the next chunk ends; None if it takes all remaining rows."""
        key = _leading(table)
        if not _is_divisible(key):
            return None
        name = f"t.{column_name(key.name)}"  # without `t.`, ORDER BY would mean the text that is selected
        condition = "" if first is None else f"WHERE {name} >= {_literal(first)}"
        found = self._server.query(
            f"SELECT {name}::text FROM {rows_of(table)} AS t {condition} ORDER BY {name} "
            f"LIMIT 1 OFFSET {self._rows_max - 1}"
        )
        return _behind(key, found[0][0]) if found else None

    def _read(self, chunk: SnapshotChunk, beat: Callable[[], None]) -> None:
        name = column_name(_leading(chunk.table).name)
        bounds = [(">=", chunk.first), ("<", chunk.stop)]
        where = " AND ".join(f"{name} {sign} {_literal(bound)}" for sign, bound in bounds if bound is not None)
        chunk.rows.clear()

        def take(rows: list[bytes]) -> None:
            chunk.rows.extend(rows)
            beat()

        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute("SELECT pg_current_snapshot()::text")
            chunk.saw = Visibility.parse(cursor.fetchone()[0])
            copy_table(cursor, chunk.table, where, take)


def _leading(table: TableColumns) -> PublishedColumn:
    return next(each for each in table.columns if each.key)


def _literal(bound: Bound) -> str:
    """Write a bound in SQL. The conversion makes sure that only a UUID or a whole number is written, whatever was
    stored."""
    return f"'{UUID(bound)}'::uuid" if isinstance(bound, str) else str(int(bound))


def check_frontiers(segment: str, frontiers: Mapping[str, object], tables: Mapping[str, TableColumns]) -> None:
    """Check the state of a chunked snapshot that a stored segment holds.

    Raises `JobRefused` if the source has not all of its tables, `CorruptObject` if a bound is no key of its table.
    """
    for name, bound in frontiers.items():
        if name not in tables:
            raise JobRefused(
                f"the chunked snapshot has not read table {name!r} to its end, and the source has only "
                f"{', '.join(tables)}: name it in tables=, or start on a new storage with another slot"
            )
        key = _leading(tables[name])
        is_kept = bound is None or _is_uuid(bound) if key.type_oid == _UUID else bound is None or _is_integer(bound)
        if not is_kept or (bound is not None and not _is_divisible(key)):
            raise CorruptObject(
                f"{segment}: the chunked snapshot of table {name} stands at {bound!r}, expected a value of its key "
                f"{key.name!r} ({'uuid' if key.type_oid == _UUID else 'a whole number'}): restore the object from a "
                "copy, or start on a new storage, with a snapshot and another slot"
            )


def _is_divisible(key: PublishedColumn) -> bool:
    """Return whether a table can be read in ranges of a column."""
    return key.type_oid == _UUID or (key.type_oid in _INTEGERS and not key.as_text)


def _is_integer(bound: object) -> bool:
    return isinstance(bound, int) and not isinstance(bound, bool) and -_INTEGER_MAX <= bound <= _INTEGER_MAX


def _is_uuid(bound: object) -> bool:
    try:
        return isinstance(bound, str) and str(UUID(bound)) == bound
    except ValueError:
        return False


def _behind(key: PublishedColumn, last: str) -> Bound | None:
    """Return the next key after `last`; None if there is none."""
    if key.type_oid == _UUID:
        number = UUID(last).int + 1
        return str(UUID(int=number)) if number < 2**128 else None
    return int(last) + 1 if int(last) < _INTEGER_MAX else None


def _between(table: TableColumns, rows: pa.RecordBatch, first: Bound | None, stop: Bound | None) -> pa.BooleanArray:
    """Return which rows have their key in a range."""
    keys = rows.column(_leading(table).name)
    found = pa.array(np.ones(rows.num_rows, np.bool_))
    if first is not None:
        found = pc.greater_equal(keys, first)
    return found if stop is None else pc.and_(found, pc.less(keys, stop))


def _latest(chunk: SnapshotChunk, lsn: int) -> pa.RecordBatch:
    """Return the chunk's rows as they are at its mark, as inserts."""
    assert chunk.saw is not None
    at_us = int(datetime.now(UTC).timestamp() * 1_000_000) - EPOCH_US
    read = copied_batch(chunk.table, chunk.rows, lsn, at_us, np.zeros(len(chunk.rows), np.int64))
    unseen = [each.filter(pa.array(~chunk.saw.saw(each.column(XID).to_numpy()))) for each in chunk.changes]
    rows = pa.Table.from_batches([read, *unseen], schema=stored_schema(chunk.table)).combine_chunks()
    keys = [exact_values(rows.column(name).combine_chunks()) for name in chunk.table.keys]
    present: dict[tuple[object, ...], int] = {}
    for place, (kind, *key) in enumerate(zip(rows.column(CHANGE_TYPE).to_pylist(), *keys, strict=True)):
        if kind == "delete":
            present.pop(tuple(key), None)
        elif kind != "update_preimage":
            present[tuple(key)] = place
    found = rows.take(pa.array(list(present.values()), pa.int64()))
    count = found.num_rows
    facts = [
        np.full(count, lsn),
        np.zeros(count, np.int64),
        np.full(count, at_us + EPOCH_US),
        np.zeros(count, np.int64),
    ]
    made = [found.column(each.name) for each in chunk.table.columns]
    made.append(pa.array(["insert"] * count, pa.string()))
    made += [pc.cast(pa.array(values), kept.type) for values, kept in zip(facts, list(found.schema)[-4:], strict=True)]
    return pa.table(made, schema=found.schema).combine_chunks().to_batches()[0] if count else read.slice(0, 0)
