"""Decode the messages of a slot into pieces of segments: relations, transactions, truncations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.sources.postgres import pgoutput
from holdfast.sources.postgres.catalog import IDENTITIES, made_anew
from holdfast.sources.postgres.chunks import Chunks
from holdfast.sources.postgres.columns import TableColumns
from holdfast.sources.postgres.pgoutput import CHANGES, Decoded, PartialTransaction, Relation, Scan
from holdfast.sources.postgres.read_back import read_back
from holdfast.sources.postgres.server import MARK, Server
from holdfast.sources.postgres.writer import SegmentContent


@dataclass(frozen=True)
class Settings:
    """Settings of a reader, as `PostgresCdcSource` documents them."""

    slot: str
    publication: str
    tables: Mapping[str, TableColumns]
    snapshot: str
    full_rows: bool
    truncate: str
    on_new_column: str
    chunk_rows: int
    spool_bytes_max: int
    slot_warning_bytes: int
    outage_timeout_s: float


@dataclass
class Resumption:
    """The transaction in which the chain of segments ends: its next `left` changes are stored already."""

    xid: int = 0
    left: int = 0


@dataclass
class Decoder:
    """Decodes a connection's messages, in their order."""

    server: Server
    settings: Settings
    chunks: Chunks
    _relations: dict[int, Relation] = field(default_factory=dict)
    _open: PartialTransaction | None = None
    _known: Resumption = field(default_factory=Resumption)
    _waiting: SegmentContent | None = None

    def reset(self, open_xid: int, open_changes: int, frontiers: Mapping[str, int | str | None]) -> None:
        """Begin a connection, perhaps in a transaction whose first `open_changes` changes are stored already."""
        self.chunks.reset(frontiers)
        self._relations = {}
        self._open = None
        self._known = Resumption(open_xid, open_changes)

    def apart(self, payload: bytes) -> str | None:
        """Take a message that is handled by itself; return the content of a mark."""
        kind = payload[:1]
        if kind == b"R":
            self._relate(pgoutput.relation(payload))
        elif kind == b"T":
            found = [self._relations[oid] for oid in pgoutput.truncated(payload) if oid in self._relations]
            self._waiting = self._truncate([each.name for each in found if each.name in self.settings.tables])
        elif kind == b"M":
            prefix, content = pgoutput.logical_message(payload)
            if prefix != MARK:
                return None
            self._waiting = self.chunks.finish(content.decode(), int.from_bytes(payload[2:10], "big"))
            return content.decode()
        return None

    def waiting(self) -> SegmentContent | None:
        """Return the piece that the last call of `apart` made, if any."""
        piece, self._waiting = self._waiting, None
        return piece

    def piece(self, payloads: Sequence[bytes]) -> SegmentContent | None:
        """Decode messages that have no relation, mark or truncation among them."""
        payloads = self._without_known(payloads)
        if not payloads:
            return None
        scan = Scan(payloads, self._open)
        tables = {}
        for relation in self._relations.values():
            if relation.name in self.settings.tables and len(scan.changes(relation.oid)):
                table = self.settings.tables[relation.name]
                if scan.has_rows_before(relation.oid):
                    self._check_identity(table, relation)
                tables[table.name] = [self._complete(table, pgoutput.decode(scan, relation, table))]
        self._open = scan.open
        ends = (scan.commits + 1).tolist()
        if scan.open is None and (not ends or ends[-1] != len(payloads)):
            ends.append(len(payloads))
        opened = scan.open or PartialTransaction(0, 0, 0)
        return SegmentContent(len(payloads), ends, tables, scan.end_lsn or None, opened.xid, opened.changes)

    def _check_identity(self, table: TableColumns, relation: Relation) -> None:
        """Refuse updates and deletes that contain fewer columns of the row before than they did at the start."""
        told = IDENTITIES.get(relation.identity, relation.identity)
        key = [column.name for column in relation.columns if column.key]
        if relation.identity != "f" and self.settings.full_rows:
            expected = "FULL"
        elif relation.identity not in "fd" or (relation.identity == "d" and sorted(key) != sorted(table.keys)):
            expected = f"FULL, or DEFAULT with the primary key {', '.join(table.keys)}"
        else:
            return
        raise JobRefused(
            f"table {table.name} has updates or deletes that were made under REPLICA IDENTITY {told} (of "
            f"{', '.join(key) or 'no column'}), which do not tell the row before, expected {expected}: ALTER TABLE "
            f"{table.name} REPLICA IDENTITY FULL, and start on a new storage, with a snapshot and another slot"
        )

    def _complete(self, table: TableColumns, decoded: Decoded) -> pa.RecordBatch:
        for name in table.keys:
            if decoded.rows.column(name).null_count:
                raise JobRefused(
                    f"table {table.name}: a change does not tell {name!r}, a column of the primary key at the start: "
                    "start on a new storage, with a snapshot and another slot"
                )
        rows = read_back(self.server, table, decoded) if decoded.unknown else decoded.rows
        return self.chunks.admit(table, rows)

    def _without_known(self, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """Drop the changes that are stored already, and remember the transaction that they belong to."""
        if not self._known.xid:
            return payloads
        place = 0
        if payloads[0][0] == ord("B") and self._open is None:
            begin = payloads[0]
            lsn, time_us, xid = (int.from_bytes(begin[a:b], "big") for a, b in ((1, 9), (9, 17), (17, 21)))
            if xid != self._known.xid:
                raise JobRefused(
                    f"slot {self.settings.slot!r}: transaction {self._known.xid}, of which {self._known.left} changes "
                    f"are stored, does not come again; {xid} came instead. Start on a new storage, with a snapshot"
                )
            self._open = PartialTransaction(xid, lsn, time_us, self._known.left)
            place = 1
        while place < len(payloads) and self._known.left and payloads[place][0] in bytes(CHANGES):
            self._known.left -= 1
            place += 1
        if not self._known.left:
            self._known = Resumption()
        return payloads[place:]

    def _relate(self, found: Relation) -> None:
        self._relations[found.oid] = found
        renamed = [each.name for each in self.settings.tables.values() if each.oid == found.oid != 0]
        if renamed and found.name not in renamed:
            raise JobRefused(
                f"table {renamed[0]} has the name {found.name} now: give it its name back, or start on a new storage, "
                "with a snapshot and another slot"
            )
        table = self.settings.tables.get(found.name)
        if table is None:
            return
        if table.oid not in (0, found.oid):
            raise JobRefused(made_anew(table.name))
        columns = {column.name: column for column in found.columns}
        for column in table.columns:
            now = columns.pop(column.name, None)
            if now is None:
                self._changed(table, f"column {column.name!r} was dropped or renamed", found)
            elif not column.as_text and now.arrow != column.arrow:
                self._changed(table, f"column {column.name!r} was {column.arrow} and is {now.arrow} now", found)
        if columns and self.settings.on_new_column == "fail":
            ignoring = "; on_new_column='ignore' passes new columns over"
            self._changed(table, f"there are new columns: {', '.join(sorted(columns))}", found, ignoring)

    def _changed(self, table: TableColumns, problem: str, found: Relation, remedy: str = "") -> None:
        raise JobRefused(
            f"table {table.name}: {problem} (it has {', '.join(each.name for each in found.columns)}; the job was "
            f"started with {', '.join(each.name for each in table.columns)}). Start the job again, on a new storage if "
            f"its state depends on the column{remedy}"
        )

    def _truncate(self, names: Sequence[str]) -> SegmentContent | None:
        """Return the piece for a truncation. A truncation counts as a change of its transaction, even if it makes no
        piece."""
        if self._known.left:
            self._forget_known()
            return None
        if names and self.settings.truncate == "fail":
            raise JobRefused(
                f"{', '.join(names)} was truncated, and the server does not say which rows were there: delete rows "
                "by DELETE; or give truncate='delete' for deletes of all rows that the job knows, or 'ignore' to keep "
                "these rows in the job's output"
            )
        assert self._open is not None, "a truncation comes in a transaction"
        self._open.changes += 1
        if not names or self.settings.truncate == "ignore":
            return None
        for name in names:
            self.chunks.truncated(name, self._open.xid)
        tables = {name: [pgoutput.truncation(self.settings.tables[name], self._open)] for name in names}
        return SegmentContent(1, [], tables, open_xid=self._open.xid, open_changes=self._open.changes)

    def _forget_known(self) -> None:
        """Note that a change which is stored already was sent again."""
        self._known.left -= 1
        if not self._known.left:
            self._known = Resumption()
