"""A writer, its uploader and a store: in manual time (`ManualLog`), or with real threads (`ThreadedLog`)."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from holdfast.changelog.writer import ChangelogWriter, NeededLog
from holdfast.changelog_config import RetryPolicy
from holdfast.errors import CheckpointFailed
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import LogId, read_piece
from holdfast.state.table import merge_changes, stored_schema
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.store import ObjectStore
from holdfast.testing.scheduler import ManualScheduler
from holdfast.testing.stores import Fault, FaultyStore
from holdfast.uploads.uploader import LOGS, Uploader

SCHEMA = stored_schema(pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64())]))
LOG = LogId("op", "state", 0, 4)
RETRIES = RetryPolicy.fixed(3, timeout=None, next_attempt_delay=0)
IN_FLIGHT_BYTES = 40 * 256
"""A bound of bytes in flight past which some 20 rows of a size that is not known yet are collected ahead of a cut."""
NEVER_SLOW = RetryPolicy.fixed(3, timeout=None, next_attempt_delay=0.5)


def change(key: str, value: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"__key_group": 0, "__deleted": False, "k": key, "n": value}], schema=SCHEMA)


class Waiting:
    """A store of deferred changes, a row of each batch; `new`: the rows are new in their table."""

    def __init__(self, *, new: bool = False) -> None:
        self.rows: dict[int, pa.RecordBatch] = {}
        self.new = new
        self.added = (0, 0, 0)

    def committed(self, batch: int, rows: pa.RecordBatch) -> "Waiting":
        self.rows[batch] = rows
        self.added = (rows.num_rows, rows.num_rows, rows.num_rows if self.new else 0)
        return self

    def collect(self, up_to_batch: int) -> list[pa.RecordBatch]:
        taken = [rows for batch, rows in self.rows.items() if batch <= up_to_batch]
        self.rows = {batch: rows for batch, rows in self.rows.items() if batch > up_to_batch}
        return taken or [change("").slice(1)]

    def rewind(self, to_batch: int) -> None:
        self.rows = {batch: rows for batch, rows in self.rows.items() if batch <= to_batch}


def rows_of(store: ObjectStore, piece: LogPiece, log: LogId = LOG) -> list[tuple[str, int]]:
    """(key, value) of the changes that a reader replays."""
    data = memoryview(store.get_range(piece.object, piece.offset, piece.length))
    found = read_piece(data, piece, log.operator, log.table, log.key_group_start, log.key_group_stop)
    return [(row["k"], row["n"]) for rows in found for row in rows.to_pylist()]


def spans(pieces: Sequence[LogPiece]) -> list[tuple[int, int]]:
    return [(piece.sqn_start, piece.sqn_stop) for piece in pieces]


class ManualLog:
    """A log in manual time, in which each attempt's duration and fault are given.

    `took_s` and `faults` are taken by the attempts in turn, as they start or end; then 0.1 s and no fault."""

    def __init__(self, policy: RetryPolicy = NEVER_SLOW, **settings: Any) -> None:
        self.took_s: list[float] = []
        self.faults: list[Fault | None] = []
        self.delete_faults: list[Fault | None] = []
        self.puts: list[str] = []
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.store = FaultyStore(self.inner, self._decide)
        self.scheduler = ManualScheduler(self._duration_s)
        settings = {"persist_delay_s": 0.0, "retries": policy, "scheduler": self.scheduler} | settings
        self.uploader = Uploader(self.store, 1, 1, **settings)
        self.writer = ChangelogWriter(LOG, self.uploader, merge_changes)

    def names(self) -> list[str]:
        return [info.name for info in self.inner.list("")]

    def rows(self, pieces: Sequence[LogPiece]) -> list[list[tuple[str, int]]]:
        return [rows_of(self.inner, piece) for piece in pieces]

    def keys(self, pieces: Sequence[LogPiece]) -> list[list[str]]:
        return [[key for key, _ in rows] for rows in self.rows(pieces)]

    def persisted(self, up_to_batch: int, from_sqn: int | None = None) -> list[LogPiece]:
        return self.scheduler.result(self.writer.persist(up_to_batch, from_sqn))

    def metric(self, name: str) -> float:
        return self.uploader.metrics().get(name, 0.0)

    def _duration_s(self, lane: str) -> float:
        if lane != LOGS:
            return 0.0
        return self.took_s.pop(0) if self.took_s else 0.1

    def _decide(self, operation: str, name: str) -> Fault | None:
        if operation == "delete":
            return self.delete_faults.pop(0) if self.delete_faults else None
        if operation != "put":
            return None
        self.puts.append(name)
        return self.faults.pop(0) if self.faults else None


class Gate:
    """A `FaultyStore`'s decision: counts puts, holds them up while closed, and fails those that it is told to."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()
        self.faults: list[Fault | None] = []
        self.puts: list[str] = []

    def __call__(self, operation: str, name: str) -> Fault | None:
        if operation != "put":
            return None
        self.puts.append(name)
        self.opened.wait(60)
        return self.faults.pop(0) if self.faults else None


class ThreadedLog:
    """A log whose uploads run on threads; its `gate` holds them up and fails them."""

    def __init__(self) -> None:
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.gate = Gate()
        self.store = FaultyStore(self.inner, self.gate)
        self.uploader = Uploader(self.store, 1, 1, retries=RETRIES)
        self.writer = ChangelogWriter(LOG, self.uploader, merge_changes)

    def names(self) -> list[str]:
        return [info.name for info in self.inner.list("")]

    def acknowledge(self, pieces: list[LogPiece]) -> None:
        self.uploader.acknowledge(piece.object for piece in pieces)

    def keys(self, pieces: list[LogPiece]) -> list[list[str]]:
        return [keys_of(self.inner, piece) for piece in pieces]


def keys_of(store: ObjectStore, piece: LogPiece) -> list[str]:
    data = memoryview(store.get_range(piece.object, piece.offset, piece.length))
    return [key for rows in read_piece(data, piece, "op", "state", 0, 4) for key in rows["k"].to_pylist()]


@pytest.fixture(name="threaded")
def make_threaded() -> Iterator[ThreadedLog]:
    threaded = ThreadedLog()
    yield threaded
    threaded.gate.opened.set()
    threaded.uploader.close()


def go_back_into_a_gap() -> list[list[str]]:
    """Return the changes that a checkpoint names after its log went back to a cut between changes that were skipped.

    The record of the cut at batch 2 takes long, and later checkpoints are aborted meanwhile. All changes that they name
    lie below a newer base. Then the record turns out to be written, and the job goes back to it.
    """
    log = ManualLog()
    for batch in range(6):
        log.writer.append(batch, change(str(batch)))
    base_of_record, base_of_later = 3, 6
    log.writer.skip([NeededLog(base_of_record, 2)], base_of_later)
    log.writer.rewind(2)
    log.writer.append(6, change("again"))
    return log.keys(log.persisted(6, base_of_record))


def cut_behind_what_was_stored_ahead() -> list[list[str] | str]:
    """Return the changes that cuts have which lag behind commits by many batches, and by few.

    Changes wait in their table, of which the older ones were just stored ahead, as a whole.
    """
    log, waiting, batch = ManualLog(in_flight_bytes_max=IN_FLIGHT_BYTES), Waiting(), 0
    while not log.writer._opened:
        log.writer.append(batch, waiting.committed(batch, change(str(batch))))
        batch += 1
    found: list[list[str] | str] = []
    for cut in (5, batch - 3):
        try:
            found.append([key for keys in log.keys(log.persisted(cut)) for key in keys])
        except CheckpointFailed:
            found.append("refused")
    return found
