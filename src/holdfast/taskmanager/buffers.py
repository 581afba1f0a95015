"""Rows that a TaskManager keeps for a while: in memory up to a bound, then in local Arrow files.

Invariants: rows are given back in the order in which they came. Memory counted is memory held, so the count returns to
zero when everything was dropped. Files are read through a memory map and vanish with `drop`; their owner alone may read
them.
All input and output of a TaskManager share the bound. Rows kept here are never durable.
"""

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import StorageError


class SpillArea:
    """The bound on memory, and the folder for rows beyond it. A TaskManager has a single area. Thread-safe."""

    def __init__(self, memory_bytes_max: int, local_dir: str | None = None) -> None:
        self.memory_bytes_max = memory_bytes_max
        self.spilled_bytes = 0
        self._local_dir = local_dir
        self._folder: Path | None = None
        self._files = 0
        self._used = 0
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        """Bytes kept in memory now."""
        return self._used

    def reserve(self, size: int) -> bool:
        """Count `size` bytes of memory; return False, and count nothing, if that would exceed the bound."""
        with self._lock:
            if self._used + size > self.memory_bytes_max:
                return False
            self._used += size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self._used -= size

    def new_file(self) -> Path:
        """Return a path that was never used before, in a folder of this process's own."""
        with self._lock:
            if self._folder is None:
                if self._local_dir is not None:
                    Path(self._local_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=self._local_dir))
            self._files += 1
            return self._folder / f"{self._files}.arrows"

    def spilled(self, size: int) -> None:
        with self._lock:
            self.spilled_bytes += size

    def close(self) -> None:
        """Delete the folder with all that is left in it."""
        with self._lock:
            folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


class RowBuffer:
    """Record batches of the same schema, in order. One thread at a time appends to it; then it can be read any number
    of times.

    Operators put their output into a buffer (`functions.operator.OutputRows`), so that output beyond the bound is never
    completely in memory.
    """

    def __init__(self, area: SpillArea) -> None:
        self.rows = 0
        self._area = area
        self._batches: list[pa.RecordBatch] = []
        self._memory = 0
        self._path: Path | None = None
        self._writer: Any = None

    @property
    def bytes_in_memory(self) -> int | None:
        """Bytes of its rows; None if some of them are on disk."""
        return self._memory if self._path is None else None

    def append(self, rows: pa.RecordBatch) -> None:
        """Add `rows` after the rows that are already kept; an empty batch is ignored.

        Raises
        ------
        StorageError
            The local disk cannot take the rows.
        """
        if not rows.num_rows:
            return
        size = rows.nbytes
        if self._path is None and self._area.reserve(size):
            self._memory += size
            self._batches.append(rows)
        else:
            self._spill(rows, size)
        self.rows += rows.num_rows

    def _spill(self, rows: pa.RecordBatch, size: int) -> None:
        try:
            if self._path is None:
                self._path = self._area.new_file()
                self._path.touch(mode=0o600)
                self._writer = pa.ipc.new_stream(str(self._path), rows.schema)
            self._writer.write_batch(rows)
        except (OSError, pa.ArrowException) as error:
            raise StorageError(
                f"local file {self._path}: cannot spill {size} bytes of exchanged rows ({error}); "
                "give TaskManagerConfig(local_dir=…) more room, or the TaskManager more memory"
            ) from error
        self._area.spilled(size)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def clear(self) -> None:
        """Drop all rows; other rows may then be appended."""
        self.drop()
        self.rows = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the kept batches, in order. After the first call, no rows may be appended until `clear`."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        return self._read(list(self._batches), self._path)

    @staticmethod
    def _read(batches: list[pa.RecordBatch], path: Path | None) -> Iterator[pa.RecordBatch]:
        spilled = None if path is None else pa.ipc.open_stream(pa.memory_map(str(path)))
        yield from batches
        if spilled is not None:
            yield from spilled

    def drop(self) -> None:
        """Free memory and files; rows that a reader already holds stay valid."""
        self._area.give_back(self._memory)
        self._memory = 0
        self._batches = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None
