"""Lines of text files, found so that several tasks can each read a piece of a large file.

A line ends after `\\n`, `\\r\\n` or `\\r`, as it does for PyArrow and Spark. A read of `[start, stop)` takes the
lines that start inside that range:

    bytes    0        10        20        30
             line 0······\\nline 1···\\nline 2\\n
    [0,15)   ^^^^^^^^^^^^^^^^^^^^^^^^^             line 0, and line 1, which starts at byte 14
    [15,30)                           ^^^^^^^^     line 2

Any division of a file into ranges therefore reads each line exactly once.
"""

import re
from collections.abc import Callable, Iterator

import numpy as np

ReadRange = Callable[[int, int], bytes]
"""A function from (offset, length) to exactly these bytes of a file."""

BLOCK_BYTES = 8 * 1024 * 1024
"""Size of the blocks in which a file is read. A higher value needs more memory in each task."""
STEP_BYTES = 64 * 1024
"""Size of a look for a line break. A higher value reads more bytes than needed, a lower value asks more often."""
LINE_BREAK = re.compile(rb"\r\n?|\n")
BLANK = b" \t\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LF, CR = ord("\n"), ord("\r")


def line_start(read_range: ReadRange, size: int, position: int) -> int:
    """Return the start of the first line that starts at or after `position`; `size` if there is none."""
    if position == 0:
        return 0
    offset = position - 1
    while offset < size:
        data = read_range(offset, min(STEP_BYTES, size - offset))
        found = LINE_BREAK.search(data)
        at_end = found is not None and found.end() == len(data) and offset + len(data) < size
        if found and not (found.group() == b"\r" and at_end):
            return offset + found.end()
        offset += found.start() if found else len(data)  # A CR at the end of the data may be half of a CR LF.
    return size


def whole_lines(data: bytes) -> int:
    """Return how many bytes, from the first on, are whole lines whatever follows the data."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(0, len(data) - 1))) + 1


def blocks(
    read_range: ReadRange, size: int, start: int, stop: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that start in `[start, stop)`, as (offset, bytes) blocks of whole lines."""
    offset = line_start(read_range, size, start)
    end = line_start(read_range, size, stop)
    while offset < end:
        data = read_range(offset, min(block_bytes, end - offset))
        if offset + len(data) < end:
            whole = whole_lines(data)
            if not whole:
                whole = line_start(read_range, size, offset + len(data)) - offset
                data = read_range(offset, whole)
            data = data[:whole]
        yield offset, data
        offset += len(data)


def first_line(read_range: ReadRange, size: int) -> tuple[int, int]:
    """Return start and end of the first line that is not blank; `(size, size)` if all lines are blank.

    A byte order mark at the beginning of the file belongs to no line.
    """
    offset = start = 0
    while offset < size:
        data = read_range(offset, min(STEP_BYTES, size - offset))
        if offset == 0 and data.startswith(BYTE_ORDER_MARK):
            offset = start = len(BYTE_ORDER_MARK)
            data = data[offset:]
        visible = len(data) - len(data.lstrip(BLANK))
        line_break = max(data.rfind(b"\n", 0, visible), data.rfind(b"\r", 0, visible))
        if line_break >= 0:
            start = offset + line_break + 1
        if visible < len(data):
            return start, line_start(read_range, size, offset + visible + 1)
        offset += len(data)
    return size, size


def line_ranges(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends (the line break included) of the lines that hold more than a line break."""
    array = np.frombuffer(data, dtype=np.uint8)
    breaks = array == LF
    if b"\r" in data:
        breaks |= (array == CR) & ~np.append(array[1:] == LF, False)
    ends = np.flatnonzero(breaks) + 1
    if len(array) and (not len(ends) or ends[-1] != len(array)):
        ends = np.append(ends, len(array))
    starts = np.concatenate([np.zeros(min(1, len(ends)), dtype=ends.dtype), ends[:-1]])
    lengths = ends - starts
    only_break = (lengths == 1) & breaks[ends - 1] | (lengths == 2) & (array[starts] == CR)
    return starts[~only_break], ends[~only_break]
