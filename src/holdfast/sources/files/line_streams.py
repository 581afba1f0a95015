"""Lines of compressed files, which can be read from the beginning only.

The file is decompressed once. A line that is longer than a block is skipped until its end is known; if it is within the
bound, a second stream that follows the first reads it. So a file is decompressed at most twice, and memory holds two
blocks, or a single record within the bound.
"""

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.sources.files.lines import BLOCK_BYTES, LongRecord, RecordBlock, break_end, long_record, whole_lines


class ForwardStream:
    """A stream that is opened when it is first read, and reads forward only."""

    def __init__(self, reopen: Callable[[], Any]) -> None:
        self._reopen = reopen
        self._opened: Any = None
        self._position = 0

    def read(self, length: int) -> bytes:
        """Return the next bytes, fewer at the end of the file."""
        if self._opened is None:
            self._opened = self._reopen()
        data: bytes = self._opened.read(length)
        self._position += len(data)
        return data

    def skip_to(self, offset: int) -> None:
        while self._position < offset:
            if not self.read(min(BLOCK_BYTES, offset - self._position)):
                raise EOFError(f"ends after {self._position} bytes, and was longer when it was read before")

    def read_range(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes, which lie behind all that were read before."""
        self.skip_to(offset)
        data = self.read(length)
        if len(data) != length:
            raise EOFError(f"ends after {self._position} bytes, and was longer when it was read before")
        return data

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def stream_blocks(reopen: Callable[[], Any], record_bytes_max: int) -> Iterator[RecordBlock | LongRecord]:
    """Yield the whole lines of a stream, in blocks."""
    opened, again = ForwardStream(reopen), ForwardStream(reopen)
    try:
        yield from _blocks(opened, again, record_bytes_max)
    finally:
        opened.close()
        again.close()


def _blocks(opened: ForwardStream, again: ForwardStream, record_bytes_max: int) -> Iterator[RecordBlock | LongRecord]:
    offset, carried = 0, b""
    while chunk := opened.read(BLOCK_BYTES):
        data = carried + chunk
        whole = whole_lines(data)
        if not whole and len(data) > BLOCK_BYTES:
            further, carried = rest_of_line(opened, data.endswith(b"\r"))
            size = len(data) + further
            yield long_record(again.read_range, offset, size, record_bytes_max)
            offset += size
            continue
        if whole:
            yield RecordBlock(offset, data[:whole])
        offset, carried = offset + whole, data[whole:]
    if carried:
        yield RecordBlock(offset, carried)


def rest_of_line(opened: ForwardStream, after_cr: bool) -> tuple[int, bytes]:
    """Pass over the rest of a line. Return its size, and the bytes behind it that were read already."""
    size = 0
    while chunk := opened.read(BLOCK_BYTES):
        if after_cr:
            end = int(chunk.startswith(b"\n"))
            return size + end, chunk[end:]
        if (end := break_end(chunk)) >= 0:
            return size + end, chunk[end:]
        size += len(chunk)
        after_cr = chunk.endswith(b"\r")
    return size, b""
