"""Whole lines out of a byte range, so that a large text file is read in pieces by several tasks.

A read of `[start, stop)` takes the lines that *start* in it:

    bytes    0        10        20        30
             line 0······\\nline 1···\\nline 2\\n
    [0,15)   ^^^^^^^^^^^^^^             line 0 and, since it starts before 15, line 1
    [15,30)                  ^^^^^^^    line 2

so any division of a file into ranges reads each line exactly once.
"""

from collections.abc import Callable, Iterator

import numpy as np

ReadRange = Callable[[int, int], bytes]
"""(offset, length) → bytes"""

BLOCK_BYTES = 8 * 1024 * 1024
STEP_BYTES = 64 * 1024
NEWLINE = 10


def line_start(read_range: ReadRange, size: int, position: int) -> int:
    """Where the first line starts that does not start before `position`; `size` where there is none."""
    if position == 0:
        return 0
    offset = position - 1
    while offset < size:
        data = read_range(offset, min(STEP_BYTES, size - offset))
        found = data.find(b"\n")
        if found >= 0:
            return offset + found + 1
        offset += len(data)
    return size


def blocks(
    read_range: ReadRange, size: int, start: int, stop: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, bytes]]:
    """The lines that start in `[start, stop)`, as (offset, bytes) blocks of whole lines."""
    offset = line_start(read_range, size, start)
    end = line_start(read_range, size, stop)
    while offset < end:
        data = read_range(offset, min(block_bytes, end - offset))
        if offset + len(data) < end:
            whole = data.rfind(b"\n") + 1
            if not whole:
                whole = line_start(read_range, size, offset + len(data)) - offset
                data = read_range(offset, whole)
            data = data[:whole]
        yield offset, data
        offset += len(data)


def record_ranges(data: bytes, quote: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends (the line break included) of the records of a block that are not blank.

    With `quote`, a line break between quotes ends no record.
    """
    array = np.frombuffer(data, dtype=np.uint8)
    breaks = np.flatnonzero(array == NEWLINE)
    if quote is not None:
        quotes_before = np.searchsorted(np.flatnonzero(array == ord(quote)), breaks)
        breaks = breaks[quotes_before % 2 == 0]
    ends = breaks + 1
    if len(array) and (not len(ends) or ends[-1] != len(array)):
        ends = np.append(ends, len(array))
    starts = np.concatenate([np.zeros(min(1, len(ends)), dtype=ends.dtype), ends[:-1]])
    lengths = ends - starts
    last_two = array[ends - 2] if len(array) > 1 else np.zeros(len(ends), dtype=np.uint8)
    ended = array[ends - 1] == NEWLINE if len(array) else np.zeros(0, dtype=bool)
    blank = ended & ((lengths == 1) | ((lengths == 2) & (last_two == 13)))
    return starts[~blank], ends[~blank]
