"""A source that follows a script: rows, an abort, batch boundaries that allow or refuse a checkpoint, and the end."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.errors import SettingsError, TaskManagerLost
from holdfast.python_values import shown_rows
from holdfast.schema import to_arrow_schema
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, Source, SourceBatch, SourcePlan, SplitRead

ScriptRows = Sequence[Mapping[str, Any]]


class Abort:
    """All TaskManagers are lost here, once; the job then goes on from its last checkpoint."""


@dataclass(frozen=True)
class Eof:
    """The end of the script. A script without `Eof` ends too.

    `drain`: the input is complete, as with `available_now(drain=True)`.
    """

    drain: bool = False


@dataclass(frozen=True)
class Boundaries:
    """Sets the source's answer at each batch boundary from this row on. The first answer is `AVAILABLE`."""

    availability: SnapshotAvailability


ScriptStep: TypeAlias = ScriptRows | pa.RecordBatch | Abort | Boundaries | Eof


class Aborted(TaskManagerLost):
    """The error that reading an `Abort` raises."""


class TestSource(Source):
    """Gives each element with rows as a batch: `TestSource([rows, Abort(), rows, Eof()], "k BIGINT")`.

    Rows are lists of dicts or a `pyarrow.RecordBatch`. The source works only in jobs run by `holdfast.testing`, because
    the position in the script is kept in this process.
    """

    __test__ = False
    kind = "test"

    def __init__(self, script: Sequence[ScriptStep], schema: Any, *, name: str | None = None) -> None:
        self.name = name
        self._schema = to_arrow_schema(schema)
        self._steps = [self._step(index, step) for index, step in enumerate(script)]
        self._aborted: set[int] = set()
        self._boundaries = [index for index, step in enumerate(self._steps) if isinstance(step, Boundaries)]
        ends = [index for index, step in enumerate(self._steps) if isinstance(step, Eof)]
        self.length = ends[0] if ends else len(self._steps)
        self.drains = any(isinstance(step, Eof) and step.drain for step in self._steps)

    def availability(self, place: int) -> SnapshotAvailability:
        """Return the answer at a position in the script."""
        before = bisect_left(self._boundaries, place)
        if before == 0:
            return SnapshotAvailability.AVAILABLE
        answer: SnapshotAvailability = self._steps[self._boundaries[before - 1]].availability
        return answer

    def _step(self, index: int, step: ScriptStep) -> Any:
        if isinstance(step, Abort | Boundaries | Eof | pa.RecordBatch):
            return step
        try:
            return pa.RecordBatch.from_pylist([dict(row) for row in step], schema=self._schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SettingsError(f"element {index} of the script does not fit {self._schema}: {error}") from error

    @property
    def stable_text(self) -> str:
        with_rows = [step for step in self._steps if isinstance(step, pa.RecordBatch)]
        return f"a script that begins with {shown_rows(with_rows[0].slice(0, 1)) if with_rows else 'nothing'}"

    def schema(self) -> pa.Schema:
        return self._schema

    def enumerator(self, context: EnumeratorContext) -> "_ScriptEnumerator":
        return _ScriptEnumerator(self)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        assert isinstance(read.start, int)
        step = self._steps[read.start]
        if isinstance(step, Abort):
            if read.start not in self._aborted:
                self._aborted.add(read.start)
                raise Aborted(f"the script aborts at element {read.start}")
            return
        if isinstance(step, pa.RecordBatch):
            yield SourceBatch(step, 0)


class _ScriptEnumerator(Enumerator):
    def __init__(self, source: TestSource) -> None:
        self._source = source

    def initial(self) -> Offsets:
        return {"script": 0}

    def latest(self) -> Offsets:
        return {"script": self._source.length}

    def open_splits(self, offsets: Offsets) -> list[str]:
        return [] if offsets["script"] == self._source.length else ["script"]

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        place, end = start["script"], until["script"]
        assert isinstance(place, int) and isinstance(end, int)
        if place >= end:
            return SourcePlan(dict(start), [], self._source.availability(place))
        reads = [SplitRead("script", place, place + 1)]
        return SourcePlan({"script": place + 1}, reads, self._source.availability(place + 1))
