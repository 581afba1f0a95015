"""Decoders of row groups that are read in several pieces, kept open between the reads of a process.

Parquet can be decoded only from the beginning of a row group. A group that is larger than a batch is read piece by
piece, and each piece would decode all pieces before it. So the decoder that has read a piece is kept, and continues
with a later piece. Any decoder gives the same rows, so only the cost depends on which process reads a piece.
"""

import os
import threading
from collections.abc import Generator, Hashable, Iterator

import pyarrow as pa

DECODERS_MAX = 4
"""Number of decoders that a process keeps. A higher value serves more files side by side, and keeps more files open."""

GroupBatches = Generator[pa.RecordBatch, None, None]
"""The rows of a group, from its beginning on; closing it closes the file."""


class GroupDecoder:
    """The rows of a group from a position on."""

    def __init__(self, batches: GroupBatches, position: int) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None
        self.position = position

    def read(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows `[start, stop)`, which begin at or after the position."""
        while self.position < stop:
            batch = self._left if self._left is not None else next(self._batches, None)
            if batch is None:
                return
            begin, count = self.position, min(stop - self.position, batch.num_rows)
            self._left = batch.slice(count) if count < batch.num_rows else None
            self.position += count
            if self.position > start:
                skipped = max(0, start - begin)
                yield begin + skipped, batch.slice(skipped, count - skipped)

    def close(self) -> None:
        self._batches.close()


class KeptDecoders:
    """The decoders of a process, by the group and the columns that they read. A decoder in use is not in here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Hashable, GroupDecoder] = {}

    def take(self, key: Hashable, start: int) -> GroupDecoder | None:
        """Return the decoder that can go on to `start`, if there is one."""
        with self._lock:
            found = self._kept.pop((os.getpid(), key), None)
        if found is not None and found.position > start:
            found.close()
            return None
        return found

    def keep(self, key: Hashable, decoder: GroupDecoder) -> None:
        """Keep a decoder; if there are too many, drop the least recently used one."""
        with self._lock:
            dropped = [self._kept.pop((os.getpid(), key), None)]
            self._kept[os.getpid(), key] = decoder
            if len(self._kept) > DECODERS_MAX:
                dropped.append(self._kept.pop(next(iter(self._kept))))
        for each in dropped:
            if each is not None:
                each.close()


kept_decoders = KeptDecoders()
