"""Answers of the current batch: if the batch is repeated, the same calls are not made again.

A repeated batch reads the same rows, in the same pieces, wherever its units go. A process that gets a piece again
finds the answers by the piece's bytes. Another process does not have them, and calls again.
"""

import threading
from collections import Counter
from hashlib import blake2b
from typing import Any

import pyarrow as pa

NOTHING = object()
"""Marks an answer that has not come yet."""


class KeptAnswers:
    """The answers of one batch, at most `most`. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._batch = -1
        self._run = -1
        self._count = 0
        self._pieces: dict[tuple[bytes, int], list[Any]] = {}
        self._met: Counter[bytes] = Counter()

    def of(self, rows: pa.RecordBatch, calls: int, batch: int, run: int, failed: type) -> list[Any]:
        """Return the list for the answers to a piece: with the answers of an earlier run, or with `NOTHING` for each.

        `calls`: the number of calls for the piece. Calls whose outcome is `failed` are made again.
        """
        if batch < 0 or calls > self._most:
            return [NOTHING] * calls
        digest = blake2b(rows.serialize(), digest_size=16).digest()
        with self._lock:
            self._follow(batch, run)
            piece = (digest, self._met[digest])
            self._met[digest] += 1
            found = self._pieces.get(piece)
            if found is not None:
                found[:] = [NOTHING if isinstance(answer, failed) else answer for answer in found]
                return found
            answers = [NOTHING] * calls
            if self._count + calls <= self._most:
                self._count += calls
                self._pieces[piece] = answers
            return answers

    def _follow(self, batch: int, run: int) -> None:
        """Forget the answers of another batch, and start counting again in another run of the same batch."""
        if batch != self._batch:
            self._pieces.clear()
            self._count = 0
        if (batch, run) != (self._batch, self._run):
            self._met.clear()
        self._batch, self._run = batch, run
