"""Decoding of `pgoutput` messages into Arrow, in bulk. Pure: bytes in, rows out.

    payloads ──► Scan: kind, relation, places of tuples ──► for each table: rows in order ──► record batch
                      │
                      └─ Begin, Commit: which change belongs to which transaction; where transactions end

A row's `SEQUENCE` is the number of its message among all: changes of several tables can be divided at the same point.
An update gives its row before (if the table's replica identity sends it) and its row after. An update that changes the
key gives a delete and an insert.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.schema import CHANGE_TYPE
from holdfast.sources.postgres.columns import (
    COMMIT_TIME,
    LSN,
    XID,
    ByteArray,
    Ints,
    PublishedColumn,
    TableColumns,
    text_array,
    typed,
)
from holdfast.sources.postgres.kernels import UNCHANGED, same_values, scan_messages, tuple_values
from holdfast.sources.truncations import TRUNCATE

SEQUENCE = "_sequence"
"""Name of the stored column with the number of a row's message within its segment; streams do not show it."""
INSERT, PREIMAGE, POSTIMAGE, DELETE, TRUNCATED = 0, 1, 2, 3, 4
CHANGE_TYPES = pa.array(["insert", "update_preimage", "update_postimage", "delete", TRUNCATE])
CHANGES = np.frombuffer(b"IUDT", np.uint8)
"""Kinds of messages that are changes: a transaction has the same ones each time it is sent."""
EPOCH_US = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where PostgreSQL's time begins."""


@dataclass(frozen=True)
class Relation:
    """A table as a Relation message describes it, at the time of the changes.

    `identity`: the letter of its replica identity.
    """

    oid: int
    name: str
    columns: tuple[PublishedColumn, ...]
    identity: str = "f"


def relation(payload: bytes) -> Relation:
    """Decode a Relation message. Its columns have `key` set if they belong to the replica identity."""
    oid = int.from_bytes(payload[1:5], "big")
    schema, _, rest = payload[5:].partition(b"\0")
    table, _, rest = rest.partition(b"\0")
    count = int.from_bytes(rest[1:3], "big")
    place, columns = 3, []
    for _ in range(count):
        end = rest.index(b"\0", place + 1)
        type_oid, modifier = struct.unpack_from(">Ii", rest, end + 1)
        columns.append(PublishedColumn(rest[place + 1 : end].decode(), type_oid, modifier, bool(rest[place] & 1)))
        place = end + 9
    name = f"{(schema or b'pg_catalog').decode()}.{table.decode()}"
    return Relation(oid, name, tuple(columns), chr(rest[0]))


def truncated(payload: bytes) -> list[int]:
    """Return the relations of a Truncate message."""
    count = int.from_bytes(payload[1:5], "big")
    return [int.from_bytes(payload[6 + 4 * i : 10 + 4 * i], "big") for i in range(count)]


def logical_message(payload: bytes) -> tuple[str, bytes]:
    """Return prefix and content of a Message."""
    prefix, _, rest = payload[10:].partition(b"\0")
    return prefix.decode(), rest[4:]


@dataclass
class PartialTransaction:
    """A transaction in which a scan begins or ends; `changes` of its messages were seen."""

    xid: int
    lsn: int
    time_us: int
    changes: int = 0


class Scan:
    """The messages of a piece of the stream. `open` is the transaction in which the piece begins, and after the scan,
    the transaction in which it ends."""

    def __init__(self, payloads: Sequence[bytes], open: PartialTransaction | None) -> None:
        count = len(payloads)
        self.payloads = payloads
        self.data: ByteArray = np.frombuffer(b"".join(payloads), np.uint8)
        places = np.zeros(count + 1, np.int64)
        np.cumsum(np.fromiter(map(len, payloads), np.int64, count), out=places[1:])
        self.kinds, self._old_kinds = np.empty(count, np.uint8), np.empty(count, np.uint8)
        self.relations, self._old, self._new, self._lsns, self._times = (np.zeros(count, np.int64) for _ in range(5))
        scan_messages(
            self.data,
            places,
            self.kinds,
            self.relations,
            self._old,
            self._old_kinds,
            self._new,
            self._lsns,
            self._times,
        )
        self._begun_by = open
        begins = self.kinds == ord("B")
        self._number = np.cumsum(begins)
        """Count for each message how many transactions began in this piece up to it."""
        self._xids, self._begin_lsns, self._begin_times = (
            each[begins] for each in (self.relations, self._lsns, self._times)
        )
        self.commits: Ints = np.flatnonzero(self.kinds == ord("C"))
        self.open = self._open_at_end()

    @property
    def end_lsn(self) -> int:
        """Return the LSN after the last commit; 0 if there is none."""
        return int(self._lsns[self.commits[-1]]) if len(self.commits) else 0

    def changes(self, oid: int) -> Ints:
        """Return the numbers of the messages that change a relation."""
        is_change = np.isin(self.kinds, np.frombuffer(b"IUD", np.uint8))
        return np.flatnonzero(is_change & (self.relations == oid))

    def has_rows_before(self, oid: int) -> bool:
        """Return whether a relation has updates or deletes."""
        return bool(np.isin(self.kinds[self.changes(oid)], np.frombuffer(b"UD", np.uint8)).any())

    def others(self) -> Ints:
        """Return the numbers of messages that are no changes of rows, no Begin and no Commit."""
        return np.flatnonzero(~np.isin(self.kinds, np.frombuffer(b"IUDBC", np.uint8)))

    def _open_at_end(self) -> PartialTransaction | None:
        begun = int(self._number[-1]) if len(self._number) else 0
        last_commit = int(self.commits[-1]) if len(self.commits) else -1
        if begun:
            first = int(np.flatnonzero(self.kinds == ord("B"))[-1])
            if last_commit > first:
                return None
            facts = (int(each[-1]) for each in (self._xids, self._begin_lsns, self._begin_times))
            found = PartialTransaction(*facts)
        elif last_commit >= 0 or self._begun_by is None:
            return None
        else:
            first, found = -1, self._begun_by
        counted = int(np.isin(self.kinds[first + 1 :], CHANGES).sum())
        return PartialTransaction(found.xid, found.lsn, found.time_us, found.changes + counted)

    def facts(self, messages: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the LSN, transaction id and commit time (microseconds since 2000) of messages."""
        before = self._begun_by or PartialTransaction(0, 0, 0)
        number = self._number[messages]
        columns = ((before.lsn, self._begin_lsns), (before.xid, self._xids), (before.time_us, self._begin_times))
        lsns, xids, times = (np.concatenate([[first], rest]).astype(np.int64)[number] for first, rest in columns)
        return lsns, xids, times


@dataclass(frozen=True)
class ChangedRows:
    """Rows of a single table, in order.

    `tuples` are places in the scan's bytes, `sequence` numbers of messages. `before` is, for each row, the place of the
    old tuple with the values that an update left unchanged (-1: none).
    """

    kinds: npt.NDArray[np.int8]
    tuples: Ints
    before: Ints
    sequence: Ints


def rows_of(scan: Scan, relation: Relation, keys: Sequence[int]) -> ChangedRows:
    """Divide the changes of a table into rows; `keys` are the places of its key columns."""
    messages = scan.changes(relation.oid)
    kinds, old_kinds = scan.kinds[messages], scan._old_kinds[messages]
    old, new = scan._old[messages], scan._new[messages]
    moved = _moved(scan, relation, old, new, old_kinds, keys)
    inserts, deletes, updates = (kinds == ord(kind) for kind in "IDU")
    first = deletes | (updates & ((old_kinds == ord("O")) | moved))
    is_whole = updates & (old_kinds == ord("O"))  # an old tuple of the key alone has nulls in place of other values
    # Each message gives at most two rows: the row of the old tuple, then the row of the new.
    present = np.stack([first, ~deletes], axis=1).ravel()
    old_kind = np.where(deletes | moved, DELETE, PREIMAGE)
    new_kind = np.where(inserts | moved, INSERT, POSTIMAGE)
    return ChangedRows(
        np.stack([old_kind, new_kind], axis=1).ravel()[present].astype(np.int8),
        np.stack([old, new], axis=1).ravel()[present],
        np.stack([np.full(len(messages), -1), np.where(is_whole, old, -1)], axis=1).ravel()[present],
        np.repeat(messages, 2)[present],
    )


def _moved(
    scan: Scan, relation: Relation, old: Ints, new: Ints, old_kinds: ByteArray, keys: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Return which messages are updates that change the key."""
    both = np.flatnonzero((old >= 0) & (new >= 0))
    moved = np.zeros(len(old), np.bool_)
    if len(both):
        starts, lengths = values(scan.data, np.concatenate([old[both], new[both]]), len(relation.columns))
        same = np.ones(len(both), np.bool_)
        places = np.array(keys, np.int64)
        rows = np.arange(len(both))
        same_values(scan.data, starts[places], lengths[places], rows, rows + len(both), same)
        moved[both] = ~same
    return moved


def values(data: ByteArray, tuples: Ints, columns: int) -> tuple[Ints, Ints]:
    """Return the offsets and lengths of the values of tuples, each as (columns, tuples)."""
    starts, lengths = np.zeros((columns, len(tuples)), np.int64), np.zeros((columns, len(tuples)), np.int64)
    tuple_values(data, tuples, starts, lengths)
    return starts, lengths


@dataclass(frozen=True)
class Decoded:
    """A table's rows as an Arrow batch with the column `SEQUENCE` at its end. `unknown`: by column, the numbers of rows
    whose value is still unknown, because an update left it unchanged and no old tuple has it.
    """

    rows: pa.RecordBatch
    unknown: dict[str, Ints]


def decode(scan: Scan, found: Relation, table: TableColumns, first_sequence: int = 0) -> Decoded:
    """Decode a table's changes. `table` has the columns of the stream; those that the relation lacks are null."""
    places = {column.name: place for place, column in enumerate(found.columns)}
    rows = rows_of(scan, found, [places[each.name] for each in table.columns if each.key])
    starts, lengths = values(scan.data, rows.tuples, len(found.columns))
    if (lengths == UNCHANGED).any():
        old_starts, old_lengths = values(scan.data, rows.before, len(found.columns))
        fill = (lengths == UNCHANGED) & (old_lengths >= -1)
        starts, lengths = np.where(fill, old_starts, starts), np.where(fill, old_lengths, lengths)
    arrays, unknown = [], {}
    for column in table.columns:
        place = places.get(column.name)
        if place is None:
            arrays.append(pa.nulls(len(rows.tuples), column.arrow))
            continue
        left = np.flatnonzero(lengths[place] == UNCHANGED)
        if len(left):
            unknown[column.name] = left
        arrays.append(typed(table.name, column, text_array(scan.data, starts[place], lengths[place])))
    lsns, xids, times = scan.facts(rows.sequence)
    return Decoded(batch_of(table, arrays, rows.kinds, lsns, xids, times, rows.sequence + first_sequence), unknown)


def batch_of(
    table: TableColumns,
    arrays: list[pa.Array],
    kinds: npt.NDArray[np.int8],
    lsns: Ints,
    xids: Ints,
    times: Ints,
    sequence: Ints,
) -> pa.RecordBatch:
    """Make a stored batch from the table's columns and the facts of its rows; `times` are microseconds since 2000."""
    facts = {
        CHANGE_TYPE: CHANGE_TYPES.take(pa.array(kinds)),
        LSN: pa.array(lsns),
        XID: pa.array(xids),
        COMMIT_TIME: pa.array(times + EPOCH_US).cast(pa.timestamp("us", tz="UTC")),
        SEQUENCE: pa.array(sequence),
    }
    return pa.record_batch([*arrays, *facts.values()], schema=stored_schema(table))


def truncation(table: TableColumns, within: PartialTransaction) -> pa.RecordBatch:
    """Make the stored row of a truncation: its own columns are null."""
    nulls = [pa.nulls(1, column.arrow) for column in table.columns]
    facts = [np.array([each], np.int64) for each in (within.lsn, within.xid, within.time_us, 0)]
    return batch_of(table, nulls, np.array([TRUNCATED], np.int8), *facts)


def stored_schema(table: TableColumns) -> pa.Schema:
    """Return the schema of stored rows: the stream's, and `SEQUENCE`."""
    return table.schema().append(pa.field(SEQUENCE, pa.int64()))
