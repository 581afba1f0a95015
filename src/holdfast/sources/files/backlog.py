"""The files that a source has discovered, by number, and the unread part of them. Pure.

Files get numbers in the order of their discovery. Offsets are `{"next": n}` (all files below n are read) plus an
entry `{"<number>": position}` for a file below n that is read in part. At most one file is open, since files are
read in order.

    numbers   0 1 2 3 4 5 | 6 7 8
    read      ─────────► ▲          offsets {"next": 6, "5": 1200}: 0 to 4 as a whole, 5 up to row 1200

The cost of every method is independent of the length of the backlog.
"""

from array import array
from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec

from holdfast.sources.base import Offsets
from holdfast.sources.files.trees import FileInfo

NEXT = "next"


class FileBacklog:
    """Discovered files; offsets show how far they are read."""

    def __init__(self) -> None:
        self.files: list[FileInfo] = []
        self._numbers: dict[str, int] = {}
        self._bytes_before = array("q", [0])
        """Sums of file sizes: entry n is the size of all files below n together."""

    def extend(self, files: list[FileInfo]) -> None:
        for file in files:
            self._numbers[file.path] = len(self.files)
            self.files.append(file)
            self._bytes_before.append(self._bytes_before[-1] + file.size)

    def known(self, path: str) -> FileInfo | None:
        """Return the file of this path as it was discovered."""
        number = self._numbers.get(path)
        return None if number is None else self.files[number]

    def unread(self, offsets: Offsets, end: int) -> Iterator[int]:
        """Yield the numbers below `end` of files that are open or not begun, in order."""
        opened = (number for number in open_files(offsets) if number < end)
        return chain(opened, range(next_file(offsets), end))

    def waiting(self, offsets: Offsets) -> Mapping[str, int]:
        """Return the number and the bytes of the files that are open or not begun."""
        first = min(next_file(offsets), len(self.files))
        opened = [self.files[number] for number in open_files(offsets)]
        return {
            "files": len(self.files) - first + len(opened),
            "bytes": self._bytes_before[-1] - self._bytes_before[first] + sum(file.size for file in opened),
        }


def next_file(offsets: Offsets) -> int:
    return msgspec.convert(offsets[NEXT], int)


def open_files(offsets: Offsets) -> list[int]:
    return sorted(int(name) for name in offsets if name != NEXT)


def position_in(offsets: Offsets, number: int) -> int:
    return msgspec.convert(offsets.get(str(number), 0), int)


def progress(offsets: Offsets) -> tuple[int, int]:
    """Return a value that grows with every read: the first file that is not read as a whole, and the position in it."""
    first = min(open_files(offsets), default=next_file(offsets))
    return first, position_in(offsets, first)
