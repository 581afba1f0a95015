"""Spare files: files of dropped copies that are kept to be written over. Their number and bytes are bounded; the newest
stay.

A file is chosen for new bytes by its length, so that a few large files do not keep small objects from the other files.
It does not know copies, and deletes nothing: its callers do.
"""

import threading
from pathlib import Path

SPARES_MAX = 64
"""Bound on the number of spare files. A checkpoint of a TaskManager drops about as many copies as it makes, a few for
each table. With a higher value, more files are written over, and more unused files are kept."""
SPARE_BYTES_MAX = 128 * 1024 * 1024
"""Bound on the bytes of spare files. To write over a file takes 0.16 microseconds for a kilobyte; to make and delete a
new file takes 0.33, and a log's objects live only for seconds. A higher value takes more of the disk."""
LONGER_MAX = 2
"""Greatest ratio of a spare file's length to the new bytes, since more than half of a longer file would be wasted."""


class SpareFiles:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lengths: dict[Path, int] = {}
        """The files, oldest first."""
        self._bytes = 0

    def offer(self, file: Path, length: int, bytes_max: int) -> list[Path]:
        """Keep a file. Returns the files to delete, so that the others have room in both bounds and `bytes_max`."""
        surplus = []
        with self._lock:
            self._lengths[file] = length
            self._bytes += length
            for oldest in list(self._lengths):
                if len(self._lengths) <= SPARES_MAX and self._bytes <= min(SPARE_BYTES_MAX, bytes_max):
                    break
                self._remove(oldest)
                surplus.append(oldest)
        return surplus

    def take(self, length: int) -> Path | None:
        """Take the longest file over which `length` bytes may be written; None if there is none."""
        with self._lock:
            fitting = [file for file, each in self._lengths.items() if each <= LONGER_MAX * length]
            found = max(fitting, key=self._lengths.__getitem__, default=None)
            if found is not None:
                self._remove(found)
        return found

    def clear(self) -> list[Path]:
        """Drop all spare files; return them, so that the caller deletes them."""
        with self._lock:
            files = list(self._lengths)
            self._lengths.clear()
            self._bytes = 0
        return files

    def _remove(self, file: Path) -> None:
        self._bytes -= self._lengths.pop(file)
