"""Lines of text files, found so that several tasks can each read a piece of a large file.

A line ends after `\\n`, `\\r\\n` or `\\r`, as it does for PyArrow and Spark. A read of `[start, stop)` takes the
lines that start inside that range:

    bytes    0        10        20        30
             line 0······\\nline 1···\\nline 2\\n
    [0,15)   ^^^^^^^^^^^^^^^^^^^^^^^^^             line 0, and line 1, which starts at byte 14
    [15,30)                           ^^^^^^^^     line 2

Any division of a file into ranges therefore reads each line exactly once. A read looks at the bytes of its own range,
and beyond them only for the end of its last line, so each byte is read at most a few times, however long the lines are.
A line that is longer than a bound is not held in memory: it is identified by its place, size and beginning.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

ReadRange = Callable[[int, int], bytes]
"""A function from (offset, length) to exactly these bytes of a file."""

BLOCK_BYTES = 8 * 1024 * 1024
"""Size of the blocks in which a file is read. A higher value needs more memory in each task."""
STEP_BYTES = 64 * 1024
"""Bytes that are read at a time in search of a line break. A higher value reads more bytes than needed, a lower value
makes more requests."""
RECORD_BYTES_MAX = 200 * 1024 * 1024
"""Bound on the bytes of a record. A higher value accepts longer records, each of which needs several times its size in
memory."""
BEGINNING_BYTES = 64 * 1024
"""Bytes of a longer record that are kept, for its dead letter."""
BLANK = b" \t\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LF, CR = ord("\n"), ord("\r")


class RecordBlock(NamedTuple):
    """Whole records of a file, and the offset of the first."""

    offset: int
    data: bytes


class LongRecord(NamedTuple):
    """A record that is longer than the bound: its offset, its size in bytes, and its first bytes."""

    offset: int
    size: int
    beginning: bytes


def break_end(data: bytes, begin: int = 0) -> int:
    """Return the end of the first line break at or after `begin`; -1 if there is none.

    A CR at the end of the data does not count yet, because a LF may follow.
    """
    line_feed, carriage = data.find(b"\n", begin), data.find(b"\r", begin)
    if carriage < 0 or 0 <= line_feed < carriage:
        return line_feed + 1 or -1
    if carriage + 1 == len(data):
        return -1
    return carriage + 1 + (data[carriage + 1] == LF)


def line_start(read_range: ReadRange, size: int, position: int, stop: int | None = None) -> int:
    """Return the start of the first line that starts at or after `position`; `size` if there is none.

    With `stop`, the search ends there: the answer is `stop` if no line starts before it.
    """
    if position == 0:
        return 0
    stop = size if stop is None else min(stop, size)
    offset, step = position - 1, STEP_BYTES
    while offset < stop:
        data = read_range(offset, min(step, size - offset))
        at_end = offset + len(data) == size
        found = break_end(data)
        if found >= 0:
            return min(offset + found, stop)
        if at_end:
            return stop
        # A CR at the end of the data may be half of a CR LF, and is looked at again.
        offset += len(data) - data.endswith(b"\r")
        step = min(2 * step, BLOCK_BYTES)
    return stop


def whole_lines(data: bytes) -> int:
    """Return the number of leading bytes that are complete lines, whatever follows the data."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(0, len(data) - 1))) + 1


def blocks(
    read_range: ReadRange,
    size: int,
    start: int,
    stop: int,
    block_bytes: int = BLOCK_BYTES,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> Iterator[RecordBlock | LongRecord]:
    """Yield the lines that start in `[start, stop)`, in blocks of whole lines.

    Lines that are longer than the bound, but not than two blocks, may be within a block.
    """
    offset = line_start(read_range, size, start, stop)
    stop = min(stop, size)
    while offset < stop:
        end = min(offset + block_bytes, stop)
        after = line_start(read_range, size, stop) if end == stop < size else stop
        if end == stop and after - offset <= 2 * block_bytes:
            yield RecordBlock(offset, read_range(offset, after - offset))
            return
        data = read_range(offset, end - offset)
        whole = len(data) if end == size else whole_lines(data)
        if whole < len(data) and (not whole or end == stop):
            line = offset + whole
            after = after if end == stop else line_start(read_range, size, end)
            if whole:
                yield RecordBlock(offset, data[:whole])
            yield long_record(read_range, line, after - line, record_bytes_max)
            offset = after
        else:
            yield RecordBlock(offset, data[:whole])
            offset += whole


def long_record(read_range: ReadRange, offset: int, size: int, record_bytes_max: int) -> RecordBlock | LongRecord:
    """Return a record that is longer than a block: as a block of its own, unless it is longer than the bound."""
    if size <= record_bytes_max:
        return RecordBlock(offset, read_range(offset, size))
    return LongRecord(offset, size, read_range(offset, min(size, BEGINNING_BYTES)))


def bounded(
    block: RecordBlock, starts: np.ndarray, ends: np.ndarray, record_bytes_max: int
) -> Iterator[RecordBlock | LongRecord]:
    """Yield a block without its records that are longer than the bound; those are yielded separately."""
    begin = 0
    for number in np.flatnonzero(ends - starts > record_bytes_max).tolist():
        start, end = int(starts[number]), int(ends[number])
        if start > begin:
            yield RecordBlock(block.offset + begin, block.data[begin:start])
        yield LongRecord(block.offset + start, end - start, block.data[start : min(end, start + BEGINNING_BYTES)])
        begin = end
    if begin < len(block.data):
        yield RecordBlock(block.offset + begin, block.data[begin:])


def first_line(read_range: ReadRange, size: int) -> tuple[int, int]:
    """Return start and end of the first line that is not blank; `(size, size)` if all lines are blank.

    The end of a line that is longer than a block is not looked for: it is then past the block.

    A byte order mark at the beginning of the file belongs to no line.
    """
    offset = start = 0
    step = STEP_BYTES
    while offset < size:
        data = read_range(offset, min(step, size - offset))
        if offset == 0 and data.startswith(BYTE_ORDER_MARK):
            offset = start = len(BYTE_ORDER_MARK)
            data = data[offset:]
        visible = len(data) - len(data.lstrip(BLANK))
        line_break = max(data.rfind(b"\n", 0, visible), data.rfind(b"\r", 0, visible))
        if line_break >= 0:
            start = offset + line_break + 1
        if visible < len(data):
            bound = min(size, start + BLOCK_BYTES + 1)
            return start, line_start(read_range, size, offset + visible + 1, bound)
        offset += len(data)
        step = min(2 * step, BLOCK_BYTES)
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
