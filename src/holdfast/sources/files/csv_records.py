"""Records of CSV files with line breaks in quoted values: they are found by a scan from the beginning of the file.

A record is divided as PyArrow divides it: a quote opens a value only at its beginning, two quotes in a quoted value are
one, and a line break outside of quotes ends the record. The bytes are looked at once, and memory holds two blocks, or a
single record within the bound.

A quote that is never closed counts as a part of its value, so its record ends with its line, and the following lines
are records. If this shows only at the end of the file, the file is read again from that line on. That happens at most
once: all quotes after such a quote come in pairs, so none of them is left open.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from holdfast.sources.files.line_streams import ForwardStream, rest_of_line
from holdfast.sources.files.lines import BLOCK_BYTES, BYTE_ORDER_MARK, CR, LF, LongRecord, RecordBlock, long_record
from holdfast.state.compiled import kernel

BEGIN, PLAIN, QUOTED, QUOTE, RETURN = 0, 1, 2, 3, 4
"""The place in a record: before a value, in a plain value, in a quoted value, after a quote in it, after a CR."""


@kernel
def _scan(data: Any, quote: Any, delimiter: Any, place: Any) -> Any:
    """Return the ends of the first and the last record that end in the data, the last quote that opens a value, and
    the place after the data; -1 where there is none."""
    first = last = opening = -1
    for index in range(len(data)):
        byte = data[index]
        if place == RETURN:
            last = index + 1 if byte == LF else index
            first = last if first < 0 else first
            place = BEGIN
            if byte == LF:
                continue
        if place == QUOTED:
            if byte == quote:
                place = QUOTE
        elif place == QUOTE and byte == quote:
            place = QUOTED
        elif byte == LF:
            last = index + 1
            first = last if first < 0 else first
            place = BEGIN
        elif byte == CR:
            place = RETURN
        elif byte == delimiter:
            place = BEGIN
        elif byte == quote and place == BEGIN:
            place = QUOTED
            opening = index
        else:
            place = PLAIN
    return first, last, opening, place


class Scanner:
    """The place in a file up to which its bytes were looked at."""

    def __init__(self, quote: str, delimiter: str) -> None:
        self._quote, self._delimiter = ord(quote), ord(delimiter)
        self.place = BEGIN
        self.position = 0
        self.opening = 0
        """Offset of the last quote that opened a value."""

    def scan(self, data: bytes) -> tuple[int, int]:
        """Return the ends of the first and the last record that end in the data; -1 if none ends."""
        array = np.frombuffer(data, dtype=np.uint8)
        first, last, opening, self.place = _scan(array, self._quote, self._delimiter, self.place)
        self.opening = self.position + int(opening) if opening >= 0 else self.opening
        self.position += len(data)
        return int(first), int(last)


def whole_records(data: bytes, quote: str, delimiter: str) -> int:
    """Return the number of leading bytes that are complete records, whatever follows the data."""
    return max(0, Scanner(quote, delimiter).scan(data)[1])


class RecordBlocks:
    """The whole records of a stream, in blocks."""

    def __init__(self, reopen: Callable[[], Any], quote: str, delimiter: str, record_bytes_max: int) -> None:
        self._reopen = reopen
        self._scanner = Scanner(quote, delimiter)
        self._max = record_bytes_max
        self._again = ForwardStream(reopen)
        self._opened = ForwardStream(reopen)
        self._pushed = b""

    def read(self) -> Iterator[RecordBlock | LongRecord]:
        """Yield the records. Called once."""
        try:
            yield from self._read()
        finally:
            self._opened.close()
            self._again.close()

    def _read(self) -> Iterator[RecordBlock | LongRecord]:
        offset, carried = 0, b""
        if (head := self._opened.read(BLOCK_BYTES)).startswith(BYTE_ORDER_MARK):
            offset = self._scanner.position = len(BYTE_ORDER_MARK)
        self._pushed = head[offset:]
        while chunk := self._next():
            _, last = self._scanner.scan(chunk)
            if last >= 0:
                data, chunk = carried + chunk[:last], chunk[last:]
                if data:
                    yield RecordBlock(offset, data)
                offset, carried = offset + len(data), chunk
            elif len(carried) + len(chunk) <= BLOCK_BYTES:
                carried += chunk
            else:
                size = self._pass_over(offset, len(carried) + len(chunk))
                yield long_record(self._again.read_range, offset, size, self._max)
                offset, carried = offset + size, b""
        if carried:
            yield RecordBlock(offset, carried)

    def _next(self) -> bytes:
        chunk, self._pushed = self._pushed or self._opened.read(BLOCK_BYTES), b""
        return chunk

    def _pass_over(self, offset: int, size: int) -> int:
        """Read to the end of a record, `size` bytes of which were read already, and return its size."""
        while chunk := self._opened.read(BLOCK_BYTES):
            end, _ = self._scanner.scan(chunk)
            if end >= 0:
                self._go_to(offset + size + end)
                self._pushed = chunk[end:]
                return size + end
            size += len(chunk)
        if self._scanner.place != QUOTED:
            return size
        self._opened.close()
        self._opened = ForwardStream(self._reopen)
        self._opened.skip_to(self._scanner.opening)
        further, self._pushed = rest_of_line(self._opened, False)
        size = self._scanner.opening + further - offset
        self._go_to(offset + size)
        return size

    def _go_to(self, offset: int) -> None:
        """Continue at the beginning of a record."""
        self._scanner.place, self._scanner.position = BEGIN, offset
