"""The reader of a slot: a thread of the driver that turns the server's messages into segments.

    connect ─► find own segments, check the slot ─► snapshot, if one is due ─► stream ─► pieces ─► segment stored
       ▲                                                                                             │
       └── the server is away: again after a pause                     LSN confirmed to the server ◄─┘

Invariants
- An LSN is confirmed only when everything before it is in stored segments, if need be in an empty one. So the slot is
  never ahead of the chain; a slot that is ahead is another slot of the same name.
- The confirmed LSN is 1 byte below the last received message, and the server still skips a commit that ends there.
  Otherwise psycopg2 would confirm the LSN of the next keepalive by itself, although no segment holds it. For the same
  reason a mark is written before the reader begins: a message comes before the first keepalive. In quiet times, the
  place up to which there were no changes is the place of a mark, not of a keepalive.
- The holder of the slot looks for segments once more before it reads, since an older driver may have stored some before
  its connection was ended (`claim`).
- If only the beginning of a transaction is stored, the server sends the transaction again after a reconnection, and its
  stored changes are dropped by their number.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

from holdfast.errors import Fenced, HoldfastError, JobRefused
from holdfast.printable import logger
from holdfast.sources.base import EnumeratorContext
from holdfast.sources.postgres.catalog import Catalog
from holdfast.sources.postgres.chunks import Chunks, check_frontiers
from holdfast.sources.postgres.claim import SlotClaim
from holdfast.sources.postgres.decoding import Decoder, Settings
from holdfast.sources.postgres.initial import InitialSnapshot
from holdfast.sources.postgres.server import ReaderName, Server, ServerAway, lsn_text, told_by_server, wait_readable
from holdfast.sources.postgres.slot_head import SlotHead
from holdfast.sources.postgres.snapshot import column_name
from holdfast.sources.postgres.writer import SegmentContent, SegmentWriter
from holdfast.sources.spooled.chain import follow, stored_segments
from holdfast.sources.spooled.spool import Spool, SpoolPosition
from holdfast.storage import names

log = logger(__name__)

PIECE_MESSAGES_MAX = 100_000
PIECE_BYTES_MAX = 16 << 20
"""Bounds of a piece in messages and bytes. Higher values make fewer and larger segments, and take more memory."""
FLUSH_S = 0.05
"""Least seconds between two segments while few changes come. A lower value makes less delay and more objects."""
FEEDBACK_S = 5.0
"""Seconds between two answers to the server in quiet times; it gives up after `wal_sender_timeout`."""
MARK_S = 10.0
"""Seconds without changes after which a mark is written. Its place is stored, so that the server need not keep WAL for
the slot."""
MARK_BYTES = 1 << 20
"""Bytes of unrelated WAL after which a place is stored. A higher value makes fewer objects, and keeps more WAL at the
server."""
RECONNECT_S_MIN, RECONNECT_S_MAX = 0.2, 5.0
"""Bounds in seconds on the pause before the server is tried again. Within them, the pause is the time for which the
server has been unreachable. Higher values make fewer attempts, and a later return."""
LOOK_S = 15.0
"""Seconds between two checks of the slot's size."""


class Reader:
    """Reads a slot. `start` begins the thread; `problem` has the error with which the query must end."""

    def __init__(
        self,
        server: Server,
        catalog: Catalog,
        settings: Settings,
        spool: Spool[SlotHead],
        context: EnumeratorContext,
        system: str,
        reader_name: ReaderName,
    ) -> None:
        self._server = server
        self._catalog = catalog
        self._settings = settings
        self._spool = spool
        self._store = context.store
        self._source = context.source
        self._epoch = context.epoch
        self._available_now = context.available_now
        self._stopping = threading.Event()
        self.claim = SlotClaim(server, settings.slot, reader_name, self._stopping.wait)
        self.writer = SegmentWriter(
            context.store, context.epoch, context.source, spool, self._stopping.wait, self._note
        )
        self.writer.system, self.writer.slot = system, settings.slot
        self._chunks = Chunks(server, settings.tables, settings.chunk_rows)
        self._decoder = Decoder(server, settings, self._chunks)
        self._initial = InitialSnapshot(server, settings, spool, self.writer, self._stopping.is_set)
        self._thread = threading.Thread(target=self._run, name=f"holdfast-cdc-{context.source}", daemon=True)
        self._away_since_s: float | None = None
        self._warned_bytes = settings.slot_warning_bytes
        self._lock = threading.Lock()
        self._looks: dict[str, threading.Event] = {}
        """Marks of `begin_look` that have not come back in the stream yet."""
        self._problem: HoldfastError | None = None
        self.passed = SpoolPosition(0, 0)
        """The place of the last completed checkpoint."""
        self.caught_up = threading.Event()
        """Set once everything that the server had at the start of this reader is stored."""
        self.message = ""
        """The reason why nothing is read at the moment; empty if there is no problem."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for it."""
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(30)

    @property
    def problem(self) -> HoldfastError | None:
        """An outage, or the error that ended the reader."""
        with self._lock:
            return self._problem

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def begin_look(self) -> Callable[[], bool]:
        """Write a mark into the WAL, after everything committed by now; the returned function tells if everything
        before the mark is stored, including a snapshot under way.
        """
        mark, passed = f"look {self._source} {uuid4().hex}", threading.Event()
        self._looks[mark] = passed
        try:
            self._server.mark(mark)
        except HoldfastError:
            del self._looks[mark]
            raise

        def is_stored() -> bool:
            last = self._spool.last
            return passed.is_set() and last is not None and not last.head.chunks

        return is_stored

    def _note(self, problem: HoldfastError | None) -> None:
        with self._lock:
            self._problem = problem

    # --- connections --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read()
            except ServerAway as away:
                self._stopping.wait(self._note_away(away))
            except HoldfastError as error:
                self._note(error)
                return
            except Exception as error:
                log.exception("source %r: its reader failed", self._source)
                self._note(JobRefused(f"source {self._source!r}: its reader failed: {type(error).__name__}: {error}"))
                return

    def _note_away(self, away: ServerAway) -> float:
        """Note that the server is unreachable, and return the seconds before it is tried again."""
        now_s = time.monotonic()
        self._away_since_s = self._away_since_s or now_s
        away_s = now_s - self._away_since_s
        self.message = f"{away}; away for {away_s:.0f} s, and tried again"
        log.warning("%s", self.message)
        if away_s > self._settings.outage_timeout_s:
            self._note(away)
        return min(RECONNECT_S_MAX, max(RECONNECT_S_MIN, away_s))

    def _read(self) -> None:
        """Connect and read until the reader shall end. Raises `ServerAway`."""
        import psycopg2

        try:
            self._check_identity()
            self.claim.end_older()
            self._adopt()
            if self._initial.is_due and not self._initial.run():
                return
            with closing(self._server.connect(replication=True)) as connection, connection.cursor() as cursor:
                if self._begin(cursor):
                    self._stream(connection, cursor)
        except psycopg2.Error as error:
            told = told_by_server(f"source {self._source!r}", error)
            if isinstance(told, JobRefused):
                self._catalog.check_running(self._settings.tables)  # it raises a clearer error if tables have changed
            raise told from error

    def _check_identity(self) -> None:
        found = self._server.identity()
        if found != self.writer.system:
            raise JobRefused(
                f"source {self._source!r}: this is another server: its system identifier is {found}, and this "
                f"job's positions are of {self.writer.system}. Give the server's own DSN, or start on a new storage"
            )

    def _adopt(self) -> None:
        """Adopt segments that an earlier driver stored, and compare the slot with them.

        The slot is read first: changes that it has confirmed by then are stored, so the listing shows them.
        """
        slot = self._server.slot(self._settings.slot)
        self._take_in()
        if self._initial.is_due:
            return
        last = self._spool.last
        if slot is not None:
            self._catalog.check_slot(self._settings.slot, slot)
        else:
            raise JobRefused(
                f"source {self._source!r}: slot {self._settings.slot!r} is gone, and the server may have removed "
                f"changes since {lsn_text(last.head.end_lsn if last else 0)}: start on a new storage, with a snapshot"
            )
        if last is not None and slot.confirmed_lsn > last.head.end_lsn:
            raise JobRefused(
                f"source {self._source!r}: slot {self._settings.slot!r} stands at {lsn_text(slot.confirmed_lsn)}, "
                f"but this job's changes end at {lsn_text(last.head.end_lsn)}: the slot was re-created, or another "
                "reader moved it on. Drop it and start on a new storage, with a snapshot"
            )

    def _take_in(self) -> bool:
        """Adopt the segments after the spool's end; return whether there were any.

        Raises `Fenced` if a newer driver stored them.
        """
        last = self._spool.last
        if last is None:
            return False
        listed = stored_segments(self._store, self._source)
        found = follow(self._store, self._source, listed, self._spool.end.segment, last, SlotHead)
        for segment in found:
            check_frontiers(segment.name, segment.head.chunks, self._settings.tables)
            epoch = names.epoch_of(segment.name) or 0
            if epoch > self._epoch:
                raise Fenced(
                    f"{segment.name} is of epoch {epoch}, and this is epoch {self._epoch}: another JobMaster took over"
                )
            self._spool.append(segment)
        return bool(found)

    def _begin(self, cursor: Any) -> bool:
        """Take the slot, and begin where the spool ends; return False if the reader must connect again, or end."""
        last = self._spool.last
        assert last is not None
        publication = column_name(self._settings.publication)  # pgoutput reads it as a list of identifiers
        options = {"proto_version": "1", "publication_names": publication, "messages": "true"}
        self._mark = f"{self._source} {time.time_ns()}"
        for mark in [self._mark, *self._looks]:  # a slot that was created since does not send earlier marks
            self._server.mark(mark)
        if not self.claim.start(cursor, last.head.end_lsn, options):
            return False
        if self._take_in():  # an older driver stored them before its connection was ended: the place has changed
            return False
        self._decoder.reset(last.head.open_xid, last.head.open_changes, last.head.chunks)
        self.message, self._away_since_s = "", None
        self._note(None)
        return True

    # --- the stream ---------------------------------------------------------------------------------------------------

    def _stream(self, connection: Any, cursor: Any) -> None:
        payloads: list[bytes] = []
        size = 0
        read, append = cursor.read_message, payloads.append
        now_s = time.monotonic()
        flushed_s = fed_s = moved_s = looked_s = now_s
        while not self._stopping.is_set():
            if self._chunks.is_due:
                self._chunks.begin(lambda: self._confirm(cursor))
            message = read()
            if message is not None:
                payload = message.payload
                size += len(payload)
                if payload[0] in _APART:
                    if payloads:
                        self._store_piece(cursor, payloads)
                        payloads.clear()
                        size = 0
                    self._apart(cursor, payload, message.data_start)
                    flushed_s = moved_s = time.monotonic()
                    continue
                append(payload)
                if len(payloads) < PIECE_MESSAGES_MAX and size < PIECE_BYTES_MAX:
                    continue
            now_s = time.monotonic()
            if payloads and (message is not None or now_s - flushed_s >= FLUSH_S):
                self._store_piece(cursor, payloads)
                payloads.clear()
                size = 0
                flushed_s = fed_s = moved_s = now_s
                self._pause_when_full(cursor)
            elif message is None:
                if now_s - moved_s >= MARK_S and not payloads:
                    if self._is_place(cursor.wal_end):
                        self._server.mark(self._mark)
                    moved_s = now_s
                if now_s - fed_s >= FEEDBACK_S:
                    self._confirm(cursor)
                    fed_s = now_s
                wait_readable(connection, FLUSH_S if payloads else 0.5)
            if now_s - looked_s >= LOOK_S:
                self._look_at_slot()
                looked_s = now_s

    def _store_piece(self, cursor: Any, payloads: list[bytes]) -> None:
        piece = self._decoder.piece(payloads)
        if piece is not None and self.writer.write(piece):
            self._confirm(cursor)

    def _apart(self, cursor: Any, payload: bytes, lsn: int) -> None:
        """Take a message that is handled by itself: a relation, a logical message, a truncation. `lsn`: its place."""
        mark = self._decoder.apart(payload)
        piece = self._decoder.waiting()
        if mark == self._mark and piece is None and self._is_place(lsn):
            piece = SegmentContent(0, [0], end_lsn=lsn)
        if piece is not None and self.writer.write(piece):
            self._confirm(cursor)
            if piece.chunks == {}:  # the chunked snapshot has ended
                self._server.mark(self._mark)
        if mark == self._mark and not self._chunks.frontiers:
            self.caught_up.set()
        look = self._looks.pop(mark or "", None)
        if look is not None:
            look.set()

    def _confirm(self, cursor: Any) -> None:
        last = self._spool.last
        assert last is not None
        cursor.send_feedback(flush_lsn=max(0, last.head.end_lsn - 1), force=True)

    def _is_place(self, lsn: int) -> bool:
        """Return whether a segment should be stored just to note that no changes came up to this LSN."""
        last = self._spool.last
        return last is not None and not last.head.open_xid and lsn >= last.head.end_lsn + MARK_BYTES

    def _pause_when_full(self, cursor: Any) -> None:
        """Read nothing while the spool is full and a checkpoint could empty it."""
        warned = False
        while self._is_full():
            if not warned:
                self.message = (
                    f"the spool is full with {self._spool.size >> 20} MB (spool_bytes_max): nothing is read from slot "
                    f"{self._settings.slot!r} until a checkpoint completes, and the server keeps its WAL"
                )
                log.warning("source %r: %s", self._source, self.message)
                warned = True
            self._confirm(cursor)
            if self._stopping.wait(0.2):
                return
        if warned:
            self.message = ""

    def _is_full(self) -> bool:
        if (
            self._available_now and not self.caught_up.is_set()
        ):  # the first batch, so the first checkpoint, waits for it
            return False
        return self._spool.size > self._settings.spool_bytes_max and self._spool.has_cut_after(self.passed)

    def _look_at_slot(self) -> None:
        """Warn about a slot that keeps much WAL, and refuse tables whose changes the stream does not contain any
        more."""
        state = self._server.slot(self._settings.slot)
        if state is not None and state.kept_bytes > self._warned_bytes:
            log.warning(
                "source %r: the server keeps %d MB of WAL for slot %r",
                self._source,
                state.kept_bytes >> 20,
                self._settings.slot,
            )
            self._warned_bytes = 2 * state.kept_bytes
        self._catalog.check_running(self._settings.tables)


_APART = frozenset(b"RMT")
"""Kinds of messages that are handled one at a time, apart from pieces of rows: relations, messages, truncations."""
