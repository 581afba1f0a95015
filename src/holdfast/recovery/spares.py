"""Files of dropped copies that are kept to be written over: a bounded number of files and of bytes, the newest ones.

A file is chosen for new bytes by its length, so that a few large files do not keep small objects from the other files.
It does not know copies, and deletes nothing: its callers do.
"""

import threading
from pathlib import Path

SPARES_MAX = 64
"""Number of files kept. A checkpoint of a TaskManager drops about as many copies as it makes: a few for each table.
With a higher value more of them are written over, and more files stand around."""
SPARE_BYTES_MAX = 128 * 1024 * 1024
"""Bytes of the files kept. Writing over a file takes 0.16 microseconds for a kilobyte, making and deleting a new file
0.33; and a log's objects live for seconds only. A higher value takes more of the disk."""
LONGER_MAX = 2
"""A file is not written over with less than this part of its length, since most of it would be thrown away."""


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
        """Give the longest file that so many bytes may be written over; None if there is none."""
        with self._lock:
            fitting = [file for file, each in self._lengths.items() if each <= LONGER_MAX * length]
            found = max(fitting, key=self._lengths.__getitem__, default=None)
            if found is not None:
                self._remove(found)
        return found

    def clear(self) -> list[Path]:
        """Keep none. Returns the files, which are to be deleted."""
        with self._lock:
            files = list(self._lengths)
            self._lengths.clear()
            self._bytes = 0
        return files

    def _remove(self, file: Path) -> None:
        self._bytes -= self._lengths.pop(file)
