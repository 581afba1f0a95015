"""A unit of work in a task: the request, the rows of its reads or subtask outputs, and its result. Spark-free.

Errors are outcomes (`UnitResult`), not exceptions: the JobMaster decides how to react. A task does not choose its
input, and deletes nothing. `delivery` takes the rows to their targets.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
import pyarrow as pa

from holdfast.arrays import plain_rows, plain_schema
from holdfast.calls.declared import CallPlace
from holdfast.clock import Clock, SystemClock
from holdfast.errors import BadRecord
from holdfast.exchange.event_times import newest_us, odd_times, pieces_between, rows_with_odd_times
from holdfast.exchange.hot_keys import KeySample
from holdfast.exchange.unit_writer import UnitAttempt, UnitWriter
from holdfast.failure import Failure, failure_of
from holdfast.graph.plan import Unit
from holdfast.graph.program import (
    BATCH_TIME,
    DEAD_LETTERS,
    Leg,
    OperatorOrigin,
    Program,
    SourceOrigin,
)
from holdfast.ids import BatchNumber, Epoch, RunNumber, SplitPosition, UnitNumber
from holdfast.protocol.streams import Sent
from holdfast.python_values import payload_of, shown_rows
from holdfast.sinks.base import StageContext
from holdfast.sinks.dead_letters import bad_rows_to_batch
from holdfast.sources.bad_reasons import BadReason
from holdfast.sources.base import BadRow, Source, SourceBatch, SplitRead
from holdfast.storage.counted import Requests
from holdfast.storage.store import ObjectStore

SKIPPED = "skipped by query.skip"
"""Reason of a dead letter for a row that a user skipped."""


class Links(Protocol):
    """Connections of a task to TaskManagers: over Flight, or directly in a process."""

    def open_writer(self, unit: UnitAttempt) -> UnitWriter: ...

    def expect(self, run: RunNumber, batch: BatchNumber, outputs: Sequence[tuple[str, int]]) -> None:
        """Note outputs, each by operator and subtask, for which `output` will be called, so that requests can be
        shared."""
        ...

    def output(self, run: RunNumber, batch: BatchNumber, operator: str, subtask: int) -> Iterator[pa.RecordBatch]: ...


class LevelRequest(msgspec.Struct, frozen=True):
    """Facts common to all units of a level of a batch's run."""

    job_id: str
    epoch: Epoch
    run: RunNumber
    batch: BatchNumber
    level: int
    combine: bool = True
    """True if rows may be combined on their way to an operator."""
    closed: dict[str, int] = {}
    """Watermark of each operator in the previous batch, in microseconds."""
    batch_time_us: int = 0
    """The time of the batch, from its plan."""
    side_by_side: int = 1
    """Greatest number of units of the level that run at the same time."""


class OutputResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a unit's result that belongs to an output of its leg."""

    sent: Sent = Sent()
    committables: tuple[bytes, ...] = ()
    staged: int = 0
    """Rows that were staged for a sink."""


def stream_attempt(attempt: str, place: int) -> str:
    """The name under which a unit's attempt sends the rows of the output at that place of its leg."""
    return f"{attempt}.{place}" if place else attempt


class UnitResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    unit: int
    leg: int
    attempt: str
    rows: int = 0
    outputs: tuple[OutputResult, ...] = ()
    """A result for each of the leg's outputs, in their order; none if the unit failed."""
    dead_letters: tuple[bytes, ...] = ()
    bad_rows: int = 0
    failure: Failure | None = None
    event_times: dict[str, int] = {}
    """Newest event time of each split read, in microseconds, if the leg has a watermark."""
    rows_by_subtask: tuple[tuple[str, int, int], ...] = ()
    """Rows for each (operator, subtask), sent or dropped; only in a job that may drop rows."""
    gone: dict[int, str] = {}
    """TaskManagers whose rows were dropped because they could not be reached, with the reasons."""
    bad_reasons: tuple[tuple[BadReason, int], ...] = ()
    """Bad rows by reason."""
    key_samples: tuple[KeySample, ...] = ()
    """The frequent keys of operators to which the unit sent many rows."""
    requests: Requests = {}
    """Requests to stores that the process has made since its last report."""


@dataclass(frozen=True)
class UnitWork:
    """An attempt at a unit, and the objects that the work needs."""

    unit: Unit
    request: LevelRequest
    program: Program
    links: Links
    store: ObjectStore
    check: Callable[[], None] = lambda: None
    """Raises if the unit's result is no longer wanted."""
    reading: Callable[[str], None] = lambda split: None
    """Called with each split before it is read."""
    local_dir: str | None = None
    """The folder for rows that do not fit in memory; None: the process's temporary folder."""
    clock: Clock = field(default_factory=SystemClock)
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def call_place(self) -> CallPlace:
        """The place of the asynchronous calls of the unit."""
        request = self.request
        return CallPlace(request.batch, request.run, request.side_by_side, self.clock, self.check)

    @property
    def leg(self) -> Leg:
        return self.program.legs[self.unit.leg]

    @property
    def keeps_bad_rows(self) -> bool:
        """True if bad rows become dead letters; otherwise they are errors."""
        return self.program.dead_letters is not None

    def failed(self, error: BaseException, where: str = "", split: str = "") -> UnitResult:
        """Make the result of a failed attempt; `where` and `split` as in `failure_of`."""
        return UnitResult(self.unit.unit, self.unit.leg, self.attempt, failure=failure_of(error, where, split))

    def stage_dead_letters(self, bad: list[BadRow]) -> list[bytes]:
        return stage_dead_letters(bad, self.program, self.request, self.unit.unit, self.attempt, self.store)


@dataclass
class UnitRows:
    """Iterates the rows of a unit before any step, tracks their place, and collects malformed rows."""

    work: UnitWork
    count: int = 0
    bad: list[BadRow] = field(default_factory=list)
    split: str = ""
    position: SplitPosition = None
    source: str = ""
    event_times: dict[str, int] = field(default_factory=dict)
    lacks_rows: bool = False
    """True if steps have refused rows of the current batch, so that the numbers of the remaining rows have changed."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        origin = self.work.leg.origin
        rows = self._pulled(origin) if isinstance(origin, OperatorOrigin) else self._read(origin)
        for batch in rows:
            self.work.check()
            self.count += batch.num_rows
            self.lacks_rows = False
            yield batch

    def refuse(self, node: int, rows: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        """Set rows of a node apart, which a step refused."""
        self.bad.extend(bad_rows_of(rows, reasons, self.work, node, self))
        self.lacks_rows = True

    def where(self) -> str:
        """Describe the place of the current rows, for messages."""
        if self.source:
            return f"source {self.source!r}, split {self.split!r}, from position {self.position}"
        return f"output of {self.split!r}"

    def _read(self, origin: SourceOrigin) -> Iterator[pa.RecordBatch]:
        source = self.work.program.sources[origin.source]
        self.source = origin.source
        for read in self.work.unit.reads:
            self.split = read.split
            self.work.reading(read.split)
            if read.is_skipped:
                self._skip(source, origin, read)
                continue
            for batch in self._batches(source, origin, read):
                self.position = batch.position
                self._collect_bad(batch.bad)
                if batch.newest is not None:
                    self._note_event_time(batch.newest)
                if batch.rows.num_rows:
                    rows = plain_rows(batch.rows, plain_schema(batch.rows.schema))
                    yield from self._timed(replace(batch, rows=rows))

    def _batches(self, source: Source, origin: SourceOrigin, read: SplitRead) -> Iterator[SourceBatch]:
        store, leg = self.work.store, self.work.leg
        if leg.wanted is None or origin.output or not source.passes_over:
            return source.read_output(origin.output, read, store, leg.columns)
        return source.read_wanted(read, store, leg.columns, leg.wanted)

    def _skip(self, source: Source, origin: SourceOrigin, read: SplitRead) -> None:
        """Put the rows of a read aside, even if they cannot be parsed. If several legs read them, the first leg keeps
        them."""
        if self.work.leg.index not in self.work.program.first_legs:
            return
        try:
            batches = [each.rows for each in source.read_output(origin.output, read, self.work.store, None)]
            rows = [row for batch in batches for row in shown_rows(batch)]
            payloads = [payload_of(row) for row in rows]
        except Exception as error:
            payloads = [f"not readable: {type(error).__name__}: {error}"]
        self._collect_bad([BadRow("", read.split, str(read.start), SKIPPED, payload) for payload in payloads])

    def _timed(self, batch: SourceBatch) -> Iterator[pa.RecordBatch]:
        """Note the event times of rows, or add the time of the batch as a column."""
        watermark, rows = self.work.leg.watermark, batch.rows
        if watermark is None:
            yield rows
        elif watermark.of_batches:
            time = pa.scalar(self.work.request.batch_time_us, BATCH_TIME)
            yield rows.append_column(pa.field(watermark.column, BATCH_TIME), pa.repeat(time, rows.num_rows))
        else:
            odd = odd_times(rows.column(watermark.column))
            self._collect_bad(rows_with_odd_times(batch, watermark.column, odd, self.split))
            for self.position, piece in pieces_between(batch, odd):
                self._note_event_time(piece.column(watermark.column))
                yield piece

    def _note_event_time(self, times: pa.Array) -> None:
        found_us = newest_us(times)
        if found_us is not None:
            self.event_times[self.split] = max(found_us, self.event_times.get(self.split, found_us))

    def _collect_bad(self, bad: list[BadRow]) -> None:
        if bad and not self.work.keeps_bad_rows:
            first = bad[0]
            raise BadRecord(
                f"source {self.source!r}, split {first.split!r}, position {first.position}: {first.reason}; "
                f"the row is {first.payload!r}. Correct it, or keep such rows apart with Job(bad_records='dead_letter')"
            )
        self.bad.extend(replace(row, source=self.source) for row in bad)

    def _pulled(self, origin: OperatorOrigin) -> Iterator[pa.RecordBatch]:
        request = self.work.request
        for subtask in self.work.unit.subtasks:
            self.split = f"{origin.kept_as}/{subtask}"
            self.position = None
            yield from self.work.links.output(request.run, request.batch, origin.kept_as, subtask)


def stage_dead_letters(
    bad: list[BadRow], program: Program, request: LevelRequest, unit: int, attempt: str, store: ObjectStore
) -> list[bytes]:
    """Stage bad rows in the dead-letter folder, an ordinary sink."""
    if not bad or program.dead_letters is None:
        return []
    context = stage_context(DEAD_LETTERS, request, unit, attempt, store)
    return program.dead_letters.stage(iter([bad_rows_to_batch(bad)]), context)


def stage_context(sink: str, request: LevelRequest, unit: int, attempt: str, store: ObjectStore) -> StageContext:
    # Units are numbered within a level, but a number in file names must not repeat within a batch.
    number = UnitNumber(request.level, unit).in_batch
    return StageContext(request.job_id, sink, request.epoch, request.run, request.batch, number, attempt, store)


def bad_rows_of(
    batch: pa.RecordBatch,
    reasons: Mapping[int, str],
    work: UnitWork,
    node: int,
    origin: UnitRows | None,
    operator: str = "",
) -> list[BadRow]:
    """Convert rows of a node, given by number with a reason, to bad rows; raise `BadRecord` if the job keeps none."""
    bad = []
    for index, row in zip(reasons, shown_rows(batch.take(pa.array(list(reasons), pa.int64()))), strict=True):
        reason = reasons[index]
        source, split, position = _place(work, node, index, origin)
        if not work.keeps_bad_rows:
            raise BadRecord(
                f"source {source!r}, split {split!r}, position {position}: {reason}; the row is {row}. "
                "Filter such rows out, or keep them apart with Job(bad_records='dead_letter')"
            )
        bad.append(BadRow(source, split, position, reason, payload_of(row), operator))
    return bad


def _place(work: UnitWork, node: int, index: int, origin: UnitRows | None) -> tuple[str, str, str]:
    """Return the place of a row (source, split, position) as far as it is known: after steps or Spark, the position is
    unknown."""
    leg, unit = work.leg, work.unit
    if isinstance(leg.origin, OperatorOrigin):
        return "", ", ".join(f"{leg.origin.operator}/{subtask}" for subtask in unit.subtasks), ""
    if origin is not None:
        first = origin.position
        in_place = leg.keeps_rows(node) and not origin.lacks_rows
        position = str(first + index) if isinstance(first, int) and in_place else f"from {first}"
        return origin.source, origin.split, position
    splits = ", ".join(dict.fromkeys(read.split for read in unit.reads))
    positions = ", ".join(f"{read.start} to {read.stop}" for read in unit.reads if read.start is not None)
    return leg.origin.source, splits, positions
