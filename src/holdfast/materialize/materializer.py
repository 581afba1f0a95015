"""Materialization of a table: it is captured at a batch boundary, stored in the background, and becomes a base.

    start ─► capture ─► waits for the one before ─► parts, some at a time ─► base
                                                          └ failed, cancelled ─► the stored parts are released

Invariants: materializations of a table are stored one after the other, so that each can name the files that its
predecessor stored. A part is read or encoded only when it is stored, so that memory is bounded by parts, not by tables.
This module decides neither when to materialize (`policy`), nor how a base is used (`keyed_state`).
"""

import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.errors import CheckpointFailed
from holdfast.formats.base_files import encode_heading, encode_lasting, lasting_files
from holdfast.formats.handles import MaterializedPart
from holdfast.formats.log_objects import LogId
from holdfast.formats.snapshots import encode_part, in_parts
from holdfast.ids import BatchNumber
from holdfast.materialize.base import Base
from holdfast.materialize.policy import Pace
from holdfast.state.table import Captured, StateTable
from holdfast.uploads.uploader import Uploader

Known = Mapping[str, MaterializedPart]
Store = Callable[[], MaterializedPart]
"""Stores a part."""
Encode = Callable[[], tuple[bytes | memoryview, MaterializedPart]]
"""Reads or makes the bytes of a part."""


class Materializer:
    """Captures and stores tables. Call `start` on the thread that may capture the table, and the rest on any thread.

    Parameters
    ----------
    known
        The files of the newest base, each retained for the caller.
    """

    def __init__(
        self,
        log: LogId,
        table: StateTable,
        schema: bytes,
        uploader: Uploader,
        known: Callable[[], Known],
    ) -> None:
        self._log = log
        self._table = table
        self._schema = schema
        self._uploader = uploader
        self._known = known
        self._lock = threading.Lock()
        self._waiting: deque[Materialization] = deque()
        """Materializations that are not stored yet. The first of them is being stored."""

    def start(
        self, sqn: int, batch: BatchNumber, pace: Pace, ended: Callable[["Materialization"], None]
    ) -> "Materialization":
        """Capture the table, whose state is that after `batch`, and store it at the given pace. Returns at once.

        `ended` is called before the next materialization starts.
        """
        captured = self._table.capture()
        made = Materialization(self._log, self._schema, self._uploader, captured, self._known, sqn, batch, pace)
        # The callback must not refer to `made`, whose future keeps it: the captured rows would wait for a garbage
        # collection.
        made.base.add_done_callback(lambda _: self._next(ended))
        self._uploader.count(startedMaterialization=1)
        with self._lock:
            self._waiting.append(made)
            first = len(self._waiting) == 1
        if first:
            made.store()
        return made

    def cancel(self, after_batch: BatchNumber) -> None:
        """Cancel the materializations of later boundaries. Their futures fail when none of their uploads is running any
        more."""
        with self._lock:
            unwanted = [each for each in self._waiting if each.batch > after_batch]
        for each in unwanted:
            each.cancelled.set()

    def _next(self, ended: Callable[["Materialization"], None]) -> None:
        """Report the end of the first materialization, and store the next one."""
        ended(self._waiting[0])
        with self._lock:
            self._waiting.popleft()
            following = self._waiting[0] if self._waiting else None
        if following is not None:
            following.store()


class Materialization:
    """A materialization. `base` fails with the error of a part, or with `CheckpointFailed` after a cancellation."""

    def __init__(
        self,
        log: LogId,
        schema: bytes,
        uploader: Uploader,
        captured: Captured,
        known: Callable[[], Known],
        sqn: int,
        batch: BatchNumber,
        pace: Pace,
    ) -> None:
        self.batch = batch
        self.pace = pace
        self.base: Future[Base] = Future()
        self.cancelled = threading.Event()
        self._log = log
        self._schema = schema
        self._uploader = uploader
        self._captured = captured
        self._newest = known
        self._sqn = sqn
        self._lock = threading.Lock()
        self._known: Known = {}
        self._parts: dict[int, MaterializedPart] = {}
        self._files: dict[str, MaterializedPart] = {}
        self._turns: Iterator[tuple[int, Store]] = iter(())
        self._error: BaseException | None = None
        self._working = pace.lanes

    def store(self) -> None:
        """Store the parts in the background."""
        self._known = self._newest()
        self._turns = enumerate(self._stores())
        for _ in range(self.pace.lanes):
            try:
                self._uploader.in_background(self._work)
            except RuntimeError:  # the uploader is closed
                self.cancelled.set()
                self._ended(None)

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            while (turn := self._take()) is not None:
                index, store = turn
                part = store()
                with self._lock:
                    self._parts[index] = part
        except Exception as found:
            error = found
        self._ended(error)

    def _take(self) -> tuple[int, Store] | None:
        with self._lock:
            if self._error is not None or self.cancelled.is_set():
                return None
            return next(self._turns, None)

    def _stores(self) -> Iterator[Store]:
        """Yield a call for each part, when it is requested: the heading, then files, then the rows that apply on top of
        them."""
        files = self._captured.files
        if files is not None:
            yield partial(self._heading, files)
            for file in lasting_files(files):
                yield partial(self._file, file)
        for rows in in_parts(self._captured.rows()):
            yield partial(self._rows, rows)

    def _heading(self, files: Path) -> MaterializedPart:
        return self._put(0, partial(encode_heading, self._log, self._schema, files, self._captured.count))

    def _rows(self, rows: pa.RecordBatch) -> MaterializedPart:
        return self._put(rows.nbytes, partial(encode_part, self._log, rows, self._sqn, self.batch))

    def _file(self, file: Path) -> MaterializedPart:
        part = self._known.get(file.name)
        if part is None:
            part = self._put(file.stat().st_size, partial(encode_lasting, self._log, file), file)
        with self._lock:
            self._files[file.name] = part
        return part

    def _put(self, size_bytes: int, encode: Encode, file: Path | None = None) -> MaterializedPart:
        if self.pace.patient:
            self._uploader.wait_for_checkpoints(size_bytes)
        data, part = encode()
        return msgspec.structs.replace(part, object=self._uploader.put_shared(data, file))

    def _ended(self, error: BaseException | None) -> None:
        """Note that a worker has finished. The last worker completes `base`."""
        with self._lock:
            self._error = self._error or error
            self._working -= 1
            if self._working:
                return
        self._captured.close()
        if self._captured.files is not None:
            shutil.rmtree(self._captured.files, ignore_errors=True)
        # The last turn refers to this object and holds rows. In a cycle they would wait for a garbage collection.
        self._turns = iter(())
        parts = [self._parts[index] for index in sorted(self._parts)]
        if self._error is None and not self.cancelled.is_set():
            self._uploader.release(part.object for name, part in self._known.items() if name not in self._files)
            self.base.set_result(Base(self._sqn, self.batch, tuple(parts), files=self._files))
            return
        # Each object is released once and in a fixed order, so that the replay of a simulated seed is exact.
        self._uploader.release(dict.fromkeys(part.object for part in (*parts, *self._known.values())))
        cancelled = CheckpointFailed(f"materialization of {self._log} at batch {self.batch}: not wanted any more")
        self.base.set_exception(self._error if not self.cancelled.is_set() and self._error else cancelled)
