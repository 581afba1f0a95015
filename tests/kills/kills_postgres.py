"""Drivers that copy PostgreSQL tables and are killed, with their senders; and a watch on all their checkpoints."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kills_processes import in_session, serves

from holdfast.errors import ObjectNotFound
from holdfast.journal.fence import journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.sources.postgres.pgoutput import SEQUENCE
from holdfast.sources.postgres.slot_head import SlotHead, SlotSegment
from holdfast.sources.spooled.segments import read_head, read_part
from holdfast.storage.store import ObjectStore, open_store

KILLS = Path(__file__).resolve().parent
SOURCES = KILLS.parent / "sources"
LOOK_S = 0.1


class CopyDriver:
    """A driver as a process of its own: of Spark with senders that stay (`master`), or of a single process ("")."""

    def __init__(self, database: Any, folder: Path, snapshot: str, truncate: str, master: str) -> None:
        self._arguments = [database.server.dsn, database.slot, database.publication, str(folder), snapshot]
        self._arguments += [truncate, master, *database.tables]
        self._folder = folder
        self._log = folder / "log"
        self.start()

    def start(self) -> None:
        paths = [SOURCES, KILLS, KILLS.parent, Path.cwd()]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        environment["SPARK_LOCAL_DIRS"] = str(self._folder)
        command = [sys.executable, str(SOURCES / "sources_postgres_driver.py"), *self._arguments]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_worker(self, draw: random.Random) -> bool:
        """SIGKILL to a sender (or a TaskManager, in a job that has some); False where none serves."""
        found = sorted(pid for pid in in_session(self.process.pid) if pid != self.process.pid and serves(pid))
        if not found:
            return False
        os.kill(draw.choice(found), signal.SIGKILL)
        return True

    def clear(self) -> None:
        """End whatever of this driver still runs."""
        for pid in {self.process.pid, *in_session(self.process.pid)}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text()[-6000:]


class BoundaryWatch(threading.Thread):
    """Reads each checkpoint's record while it is there: no transaction has rows on both sides of its position.

    The rows are those in the segments themselves; a snapshot of a single moment is a transaction like any other, and
    each chunk of a chunked snapshot.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._store = open_store(f"file://{folder}/job")
        self._ended = threading.Event()
        self.checked: set[int] = set()
        self.wrong: list[str] = []
        self.start()

    def run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.look()

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.look()

    def look(self) -> None:
        for number in sorted(set(journal_numbers(self._store)) - self.checked):
            try:
                record = read_record(self._store, number)
                if isinstance(record, CheckpointRecord):
                    self.wrong += divided(self._store, record)
            except ObjectNotFound:
                continue
            self.checked.add(number)


def divided(store: ObjectStore, record: CheckpointRecord) -> Iterator[str]:
    """Describe transactions that a checkpoint divides, of those in the segments around its position."""
    for source, offsets in record.offsets.items():
        segment, sequence = int(offsets["segment"]), int(offsets["sequence"])
        before: set[tuple[int, int]] = set()
        after: set[tuple[int, int]] = set()
        for found in _segments(store, record.source_objects[source]):
            number = found.head.number
            if abs(number - segment) > 2:
                continue
            for table, part in found.head.parts.items():
                rows = read_part(store, found.name, table, part)
                place = (number, sequence) if number == segment else (number, 0)
                for row in zip(*(rows.column(name).to_pylist() for name in ("_xid", "_lsn", SEQUENCE)), strict=True):
                    is_after = number > segment or (number == segment and row[2] >= place[1])
                    (after if is_after else before).add(row[:2])
        if before & after:
            yield f"record {record.checkpoint_id} at {offsets} divides {sorted(before & after)}"


def _segments(store: ObjectStore, named: list[str]) -> Iterator[SlotSegment]:
    sizes = {info.name: info.size for info in store.list("segments/")}
    for name in named:
        if name not in sizes:
            raise ObjectNotFound(name)
        yield read_head(store, name, sizes[name], SlotHead)
