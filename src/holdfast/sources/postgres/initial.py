"""The initial snapshot: all tables as of the same moment, after which the slot sends the changes.

Checkpoints are refused while it runs, so after a crash the snapshot begins anew: rows of a lost snapshot would not be
consistent with rows of another.
"""

import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime

import numpy as np

from holdfast.errors import JobRefused
from holdfast.printable import logger
from holdfast.sources.postgres.decoding import Settings
from holdfast.sources.postgres.pgoutput import EPOCH_US
from holdfast.sources.postgres.server import Server, lsn
from holdfast.sources.postgres.slot_head import SlotHead
from holdfast.sources.postgres.snapshot import copied_batch, copy_table
from holdfast.sources.postgres.writer import SegmentContent, SegmentWriter
from holdfast.sources.spooled.spool import Spool

log = logger(__name__)

NOT_BEGUN = "the initial snapshot has not begun"


class Stopped(Exception):
    """Ends a snapshot in the middle, because the reader shall end."""


class InitialSnapshot:
    """The snapshot of a slot; it is due until its last segment is in the spool."""

    def __init__(
        self,
        server: Server,
        settings: Settings,
        spool: Spool[SlotHead],
        writer: SegmentWriter,
        stopping: Callable[[], bool],
    ) -> None:
        self._server = server
        self._settings = settings
        self._spool = spool
        self._writer = writer
        self._stopping = stopping

    @property
    def is_due(self) -> bool:
        last = self._spool.last
        return last is not None and bool(last.head.snapshot)

    def run(self) -> bool:
        """Read all tables; return False if the reader shall end before that."""
        if self._spool.end.segment > 1:
            raise JobRefused(
                f"slot {self._settings.slot!r}: the server went away during the initial snapshot, whose moment is lost "
                "with the connection: start the job again, and the snapshot begins anew"
            )
        if self._server.slot(self._settings.slot) is not None:
            self._server.drop_slot(self._settings.slot)
        with closing(self._server.connect(replication=True)) as replication, replication.cursor() as creating:
            creating.execute(f'CREATE_REPLICATION_SLOT "{self._settings.slot}" LOGICAL pgoutput EXPORT_SNAPSHOT')
            _, point, exported, _ = creating.fetchone()
            try:
                self._copy_all(lsn(point), exported)
            except Stopped:
                return False
        return True

    def _copy_all(self, point: int, exported: str) -> None:
        began_s = time.monotonic()
        at_us = int(datetime.now(UTC).timestamp() * 1_000_000) - EPOCH_US
        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute("SET TRANSACTION SNAPSHOT %s", (exported,))
            for name, table in self._settings.tables.items():
                reason = f"the initial snapshot of table {name} is being read"

                def take(rows: list[bytes], table: object = table, name: str = name, reason: str = reason) -> None:
                    numbers = np.arange(len(rows), dtype=np.int64)
                    batch = copied_batch(self._settings.tables[name], rows, point, at_us, numbers)
                    self._write(SegmentContent(len(rows), [], {name: [batch]}, point, snapshot=reason))

                copy_table(cursor, table, "", take)
        self._write(SegmentContent(0, [0], end_lsn=point))
        log.info("slot %r: the initial snapshot took %.1f s", self._settings.slot, time.monotonic() - began_s)

    def _write(self, piece: SegmentContent) -> None:
        if self._stopping() or not self._writer.write(piece):
            raise Stopped
