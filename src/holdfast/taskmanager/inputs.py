"""Rows that senders sent to a TaskManager, kept apart by attempt until the JobMaster says which attempts count.

Spark may run a task twice, retry it, or leave a task of a cancelled run running: each such attempt has its own name.
`take` returns exactly the named attempts, in the given order, after comparing their totals with the rows that arrived.
All attempts of a batch are dropped together, named or not. The TaskManager, not this module, judges the order of runs
and incarnations.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import HoldfastError, StaleCall
from holdfast.ids import BatchNumber, RunNumber
from holdfast.protocol.streams import SentStream
from holdfast.protocol.taskmanager import ExchangeTag, ProcessRequest
from holdfast.taskmanager.buffers import RowBuffer, SpillArea
from holdfast.taskmanager.digest import Section, fold, of_sections

TakenRows = dict[tuple[str, int], list[tuple[int, pa.RecordBatch]]]
"""The (input number, rows) of each operator and subtask, in order."""


SECTIONS_SHOWN_MAX = 8
"""Bound on the operators, inputs and subtasks that the error names, since a connection carries only short errors."""


class _AttemptKey(NamedTuple):
    """The level is no part of the key: units of several levels may feed the same operator.

    Attempt names are unique within a run.
    """

    run: RunNumber
    batch: BatchNumber
    unit: int
    attempt: str


@dataclass
class _Received:
    rows: RowBuffer
    digest: int = 0


@dataclass
class Attempt:
    """Rows that an attempt at a unit has sent here so far. Its streams may arrive side by side."""

    tag: ExchangeTag
    area: SpillArea
    sections: dict[Section, _Received] = field(default_factory=dict)
    dropped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, section: Section, rows: pa.RecordBatch) -> None:
        """Keep `rows`, in order of arrival. Raises `StaleCall` once the attempt was dropped."""
        with self.lock:
            if self.dropped:
                raise StaleCall(f"batch {self.tag.batch}: rows of attempt {self.tag.attempt} came after it was let go")
            received = self.sections.get(section)
            if received is None:
                received = self.sections[section] = _Received(RowBuffer(self.area))
            received.rows.append(rows)
            received.digest = fold(received.digest, rows)

    def drop(self) -> None:
        with self.lock:
            self.dropped = True
            for received in self.sections.values():
                received.rows.drop()
            self.sections.clear()


class Inputs:
    """All attempts that a TaskManager holds. Safe for use from several threads."""

    def __init__(self, area: SpillArea) -> None:
        self._area = area
        self._attempts: dict[_AttemptKey, Attempt] = {}
        self._lock = threading.Lock()

    def attempt(self, tag: ExchangeTag) -> Attempt:
        """Return the attempt to which a stream with this tag belongs; all streams of an attempt share it."""
        key = _AttemptKey(tag.run, tag.batch, tag.unit, tag.attempt)
        with self._lock:
            found = self._attempts.get(key)
            if found is None:
                found = self._attempts[key] = Attempt(tag, self._area)
            return found

    def take(self, request: ProcessRequest) -> TakenRows:
        """The rows of the attempts that count, in the order of `request.streams`; within an attempt by input number.

        Raises
        ------
        HoldfastError
            If the rows that arrived differ from the rows that an attempt claims to have sent; names both.
        """
        taken: TakenRows = {}
        for stream in request.streams:
            key = _AttemptKey(request.run, request.batch, stream.unit, stream.attempt)
            with self._lock:
                attempt = self._attempts.get(key)
            sections = {} if attempt is None else attempt.sections
            _compare(request, stream, sections)
            for (operator, number, subtask), received in sorted(sections.items()):
                batches = taken.setdefault((operator, subtask), [])
                batches.extend((number, rows) for rows in received.rows.batches())
        return taken

    def release(self, batch: BatchNumber) -> None:
        """Drop all rows of batches up to and including `batch`."""
        self._drop(lambda key: key.batch <= batch)

    def release_runs_before(self, run: RunNumber) -> None:
        """Drop all rows of older runs."""
        self._drop(lambda key: key.run < run)

    def release_all(self) -> None:
        self._drop(lambda key: True)

    def _drop(self, chosen: Callable[[_AttemptKey], bool]) -> None:
        with self._lock:
            keys = [key for key in self._attempts if chosen(key)]
            attempts = [self._attempts.pop(key) for key in keys]
        for attempt in attempts:
            attempt.drop()

    def __len__(self) -> int:
        return len(self._attempts)


def _compare(request: ProcessRequest, stream: SentStream, sections: dict[Section, _Received]) -> None:
    arrived = {section: (received.rows.rows, received.digest) for section, received in sections.items()}
    rows, digest = of_sections(arrived)
    if (rows, digest) == (stream.rows, stream.digest):
        return
    by_section = ", ".join(
        f"{count} for operator {operator!r}, input {number}, subtask {subtask}"
        for (operator, number, subtask), (count, _) in sorted(arrived.items())[:SECTIONS_SHOWN_MAX]
    )
    raise HoldfastError(
        f"batch {request.batch}: attempt {stream.attempt} of unit {stream.unit} claims {stream.rows} rows (digest "
        f"{stream.digest:08x}), but {rows} (digest {digest:08x}) arrived ({by_section or 'none'}); nothing of it was "
        "processed; the batch has to be run again"
    )
