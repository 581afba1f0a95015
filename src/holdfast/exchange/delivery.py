"""Body of a push or pull task: takes the rows of a unit through its leg, to all of the leg's targets. Spark-free.

    read splits ─┐                                     ┌─► writers, by key group ─► TaskManagers
                 ├─► steps in Python, batch by batch ──┼─► sink.stage ─► committables
    pull output ─┘                                     └─► kept ─► sink.stage, for each further sink

A sink takes rows from an iterator, to its end. The first sink of a leg gets its rows as they come. Rows of further
sinks wait until the sinks before them have staged their rows (`WaitingRows`): in memory up to a bound, then on the
local disk. Each row is read once, and passes each step once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from holdfast.arrays import invalid_rows
from holdfast.clock import Clock, SystemClock
from holdfast.errors import USER_ERRORS
from holdfast.exchange.changes import unknown_changes
from holdfast.exchange.combining import CombiningWriter
from holdfast.exchange.dropping import DroppedRows
from holdfast.exchange.hot_keys import ROWS_MIN, KeySample, sample
from holdfast.exchange.partition import without
from holdfast.exchange.stepping import LegSteps
from holdfast.exchange.task import (
    LevelRequest,
    Links,
    OutputResult,
    UnitResult,
    UnitRows,
    UnitWork,
    bad_rows_of,
    stage_context,
    stream_attempt,
)
from holdfast.exchange.unit_writer import UnitAttempt
from holdfast.exchange.waiting_rows import WaitingRows
from holdfast.failpoints import hit
from holdfast.graph.plan import Unit
from holdfast.graph.program import OperatorOrigin, OperatorTarget, Program, SourceOrigin
from holdfast.protocol.streams import Sent
from holdfast.sinks.dead_letters import merged
from holdfast.sources.bad_reasons import counted_reasons
from holdfast.sources.base import BadRow
from holdfast.storage.counted import untold
from holdfast.storage.store import ObjectStore


def expect_outputs(units: Iterable[Unit], request: LevelRequest, program: Program, links: Links) -> None:
    """Tell the links, before units run, which outputs the units will pull."""
    origins = ((program.legs[unit.leg].origin, unit.subtasks) for unit in units)
    outputs = [
        (origin.kept_as, subtask)
        for origin, subtasks in origins
        if isinstance(origin, OperatorOrigin)
        for subtask in subtasks
    ]
    links.expect(request.run, request.batch, outputs)


def run_unit(
    unit: Unit,
    request: LevelRequest,
    program: Program,
    links: Links,
    store: ObjectStore,
    check: Callable[[], None] = lambda: None,
    reading: Callable[[str], None] = lambda split: None,
    local_dir: str | None = None,
    clock: Clock | None = None,
) -> UnitResult:
    """Run a unit in this process; only for legs without a Spark step.

    `check` is called for each batch of rows and raises if the unit's result is no longer wanted. `reading` is called
    with each split before it is read. Rows that do not fit in memory go below `local_dir`. `clock` times asynchronous
    calls.
    """
    work = UnitWork(unit, request, program, links, store, check, reading, local_dir, clock or SystemClock())
    rows = UnitRows(work)
    try:
        result = deliver(LegSteps(work.leg, rows.where, rows.refuse, work.call_place).apply(rows), work, rows)
    except USER_ERRORS as error:
        result = work.failed(error, rows.where(), rows.split if rows.source else "")
    return replace(result, requests=untold(store))


def deliver(rows: Iterator[tuple[int, pa.RecordBatch]], work: UnitWork, origin: UnitRows | None = None) -> UnitResult:
    """Take the rows of a unit, each with the place of its output, to the targets of its leg.

    `origin` is known if the rows did not pass through Spark. Rows for operators are sent before the last rows of a sink
    are staged.
    """
    bad: list[BadRow] = origin.bad if origin else []
    sending = {
        place: Sending(work, place, output.target, origin, bad)
        for place, output in enumerate(work.leg.outputs)
        if isinstance(output.target, OperatorTarget)
    }
    for each in sending.values():
        each.writer.shares_memory_with(len(sending))
    results: list[OutputResult] = [OutputResult()] * len(work.leg.outputs)
    try:
        others = _send_operators(_valid(rows, work, origin, bad), sending)
        results = _stage_sinks(_accepted(others, work, origin, bad), work, results)
    except BaseException:
        for each in sending.values():
            each.writer.abort()
        raise
    for place, each in sending.items():
        results[place] = OutputResult(each.sent)
    dropped = [each.writer.dropped for each in sending.values()]
    bad = merged(bad)
    letters = [*bad, *(letter for each in dropped for letter in _dropped_letters(each, work))]
    return UnitResult(
        unit=work.unit.unit,
        leg=work.unit.leg,
        attempt=work.attempt,
        rows=origin.count if origin else 0,
        outputs=tuple(results),
        dead_letters=tuple(work.stage_dead_letters(letters)),
        bad_rows=len(bad),
        bad_reasons=counted_reasons(bad),
        event_times=origin.event_times if origin else {},
        rows_by_subtask=tuple(entry for each in sending.values() for entry in each.writer.rows_by_subtask()),
        gone={number: reason for each in dropped for number, reason in each.gone.items()},
        key_samples=tuple(each.keys for each in sending.values() if each.keys is not None),
    )


def _valid(
    rows: Iterator[tuple[int, pa.RecordBatch]], work: UnitWork, origin: UnitRows | None, bad: list[BadRow]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows whose values are values of their types; add the others to `bad`. Neither state nor staged output
    could be read again with such a value, which a function of users or a source may give."""
    for place, batch in rows:
        found = invalid_rows(batch)
        if found:
            bad += bad_rows_of(batch, found, work, work.leg.outputs[place].node, origin)
            batch = without(batch, np.array(list(found), np.int64))
        yield place, batch


def _send_operators(
    rows: Iterator[tuple[int, pa.RecordBatch]], sending: Mapping[int, "Sending"]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Send the rows for operators, and yield the others, which are for sinks."""
    for place, batch in rows:
        if place in sending:
            sending[place].send(batch)
        else:
            yield place, batch
    for each in sending.values():
        each.end()
    for each in sending.values():
        each.wait()
        hit("task.sent")


def _accepted(
    rows: Iterator[tuple[int, pa.RecordBatch]], work: UnitWork, origin: UnitRows | None, bad: list[BadRow]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows that their sinks accept; add the others to `bad`."""
    sinks = work.leg.sink_places
    for place, batch in rows:
        sink = sinks[place]
        found = work.program.sinks[sink].refused(batch)
        if not found:
            yield place, batch
            continue
        reasons = {number: f"sink {sink!r}: {reason}" for number, reason in sorted(found.items())}
        bad += bad_rows_of(batch, reasons, work, work.leg.outputs[place].node, origin)
        yield place, without(batch, np.array(list(reasons), np.int64))


def _stage_sinks(
    rows: Iterator[tuple[int, pa.RecordBatch]], work: UnitWork, results: list[OutputResult]
) -> list[OutputResult]:
    """Stage the rows of all sinks, in the order of the leg's outputs; return `results` with those of the sinks."""
    results, outputs, sinks = list(results), work.leg.outputs, work.leg.sink_places
    first = next(iter(sinks), None)
    with WaitingRows({place: outputs[place].node for place in sinks}, work.local_dir) as kept:
        if first is not None:
            results[first] = _stage(kept.aside(rows, first), sinks[first], work)
        for _ in rows:
            raise AssertionError("each row has an output, and a sink takes all of its rows")
        for place, sink in sinks.items():
            if place != first:
                results[place] = _stage(kept.of(place), sink, work)
    return results


def _stage(rows: Iterator[pa.RecordBatch], sink: str, work: UnitWork) -> OutputResult:
    context = stage_context(sink, work.request, work.unit.unit, work.attempt, work.store)
    counted = CountedRows(rows)
    committables = work.program.sinks[sink].stage(iter(counted), context)
    hit("task.staged")
    return OutputResult(committables=tuple(committables), staged=counted.rows)


def _dropped_letters(dropped: DroppedRows, work: UnitWork) -> list[BadRow]:
    if not work.keeps_bad_rows:
        return []
    origin = work.leg.origin
    return dropped.as_bad_rows(origin.source if isinstance(origin, SourceOrigin) else origin.operator, work.unit)


class CountedRows:
    """Passes batches on, and counts their rows."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


class Sending:
    """Sends the rows of a unit to an operator, one of the targets of the unit's leg."""

    def __init__(
        self, work: UnitWork, place: int, target: OperatorTarget, origin: UnitRows | None, bad: list[BadRow]
    ) -> None:
        request = work.request
        spec = work.program.operators[target.operator]
        combiner = spec.combiner(request.combine, request.closed.get(target.operator))
        attempt = stream_attempt(work.attempt, place)
        unit = UnitAttempt(request.run, request.batch, request.level, work.unit.unit, attempt)
        self.writer = work.links.open_writer(unit)
        self.sent = Sent()
        self._combining = CombiningWriter(self.writer, target, combiner)
        self._node = work.leg.outputs[place].node
        self._work, self._target, self._origin, self._bad = work, target, origin, bad
        self.keys: KeySample | None = None

    def send(self, rows: pa.RecordBatch) -> None:
        target = self._target
        if self.keys is None and rows.num_rows >= ROWS_MIN and not target.broadcast:
            self.keys = sample(target.operator, rows, target.key_columns)
        refused = unknown_changes(target, rows)
        nulls = _send_others(self._combining, rows, refused)
        if refused or len(nulls):
            reasons = {**refused, **_null_keys(nulls, target)}
            self._bad += bad_rows_of(rows, reasons, self._work, self._node, self._origin, target.operator)

    def end(self) -> None:
        self._combining.end()

    def wait(self) -> None:
        self.sent = self._combining.wait()


def _send_others(
    combining: CombiningWriter, batch: pa.RecordBatch, refused: Mapping[int, str]
) -> npt.NDArray[np.int64]:
    """Send the rows that are not refused; return the numbers of those whose key is null."""
    if not refused:
        return combining.send(batch)
    numbers = np.array(list(refused), np.int64)
    places = np.delete(np.arange(batch.num_rows), numbers)
    return places[combining.send(without(batch, numbers))]


def _null_keys(nulls: npt.NDArray[np.int64], target: OperatorTarget) -> dict[int, str]:
    """Give the numbers of rows whose key is null with the reason why they are bad."""
    reason = f"null in a key column ({', '.join(target.not_null)}) of operator {target.operator!r}"
    return dict.fromkeys(nulls.tolist(), reason)
