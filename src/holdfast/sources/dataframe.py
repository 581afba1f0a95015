"""A source that Spark reads: a user's function makes the batch DataFrame of the rows between two offsets.

This module holds settings, offsets and plans. The DataFrame itself is made and read in `spark/`, through
`DataFrameSource.dataframe`. PySpark is not imported: the session is passed in.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.availability import SnapshotAvailability, answered
from holdfast.errors import HoldfastError, JobRefused
from holdfast.schema import to_arrow_schema
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, Source, SourceBatch, SourcePlan, SplitRead
from holdfast.sources.offsets import flat_offsets

SPLIT = "dataframe"


class OffsetRange(msgspec.Struct, frozen=True):
    """The content of `SplitRead.detail` for this source."""

    start: Offsets
    stop: Offsets


class DataFrameSource(Source):
    """Rows from any of Spark's own batch readers, between two offsets.

    A batch is everything between the last offsets and the latest offsets, whatever `max_rows_per_batch` says.
    Progress counts the rows after the transforms that follow the source, because Spark runs these with the read.

    Parameters
    ----------
    read
        `read(spark, start, end) -> DataFrame` returns the rows after `start` up to `end`, and always the same rows for
        the same two offsets. Both are flat dicts. The DataFrame must have the columns of `schema`.
    latest_offset
        `latest_offset(spark) -> dict` returns offsets that include all rows that exist now.
    schema
        A `pyarrow.Schema`, a Spark `StructType` or a DDL string.
    initial_offset
        The offsets before the first row.
    name
        Identifies the source's positions when the job is started again.
    starting
        The offsets to start from if there is no checkpoint, instead of `initial_offset`.
    is_snapshot_available
        `is_snapshot_available(end) -> SnapshotAvailability` says whether a checkpoint may be cut at these offsets, at
        which a batch ends. It is called on the driver, with each plan. By default a checkpoint may be cut anywhere.
    """

    kind = "dataframe"

    def __init__(
        self,
        read: Callable[[Any, Offsets, Offsets], Any],
        latest_offset: Callable[[Any], Mapping[str, Any]],
        schema: Any,
        *,
        initial_offset: Mapping[str, Any] | None = None,
        name: str | None = None,
        starting: Mapping[str, Any] | None = None,
        is_snapshot_available: Callable[[dict[str, Any]], SnapshotAvailability] | None = None,
    ) -> None:
        self.name = name
        self._read = read
        self._latest_offset = latest_offset
        self._is_available = is_snapshot_available
        self._schema = to_arrow_schema(schema)
        self._first = flat_offsets(f"{self!r}", (initial_offset or {}) if starting is None else starting)
        self._spark: Any = None

    def bind(self, spark: Any) -> None:
        """Give the source `spark`, the session that asks for offsets. Called on the driver before `enumerator`."""
        self._spark = spark

    @property
    def divisible(self) -> bool:
        """False: a batch reads everything up to the latest offset."""
        return False

    @property
    def stable_text(self) -> str:
        return f"{self!r} by {getattr(self._read, '__name__', type(self._read).__name__)}"

    def schema(self) -> pa.Schema:
        return self._schema

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        if self._spark is None:
            raise JobRefused(
                f"{self!r} is read by Spark, and this job has no session; "
                "in holdfast.testing put a TestSource in its place"
            )
        spark = self._spark
        return DataFrameEnumerator(context.source, self._first, lambda: self._latest_offset(spark), self._is_available)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        raise HoldfastError(f"{self!r} is read by Spark, on the driver's plan: use dataframe(spark, start, stop)")

    def dataframe(self, spark: Any, start: Offsets, stop: Offsets) -> Any:
        """Return the DataFrame, made by `spark`, of the rows after `start` up to `stop`.

        Errors of the user's function pass through.
        """
        return self._read(spark, dict(start), dict(stop))

    def dataframe_of(self, spark: Any, read: SplitRead) -> Any:
        """Return the DataFrame of a planned `read`, in the session `spark`."""
        offsets = msgspec.msgpack.decode(read.detail, type=OffsetRange)
        return self.dataframe(spark, offsets.start, offsets.stop)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_spark": None, "_read": None, "_latest_offset": None, "_is_available": None}

    def __repr__(self) -> str:
        return f"DataFrameSource(name={self.name!r})"


class DataFrameEnumerator(Enumerator):
    """Plans a single read up to the latest known offsets, which are the user's own."""

    def __init__(
        self,
        source: str,
        first: Offsets,
        latest_offset: Callable[[], Mapping[str, Any]],
        is_available: Callable[[dict[str, Any]], SnapshotAvailability] | None = None,
    ) -> None:
        self._is_available = is_available
        self._source = source
        self._first = first
        self._latest_offset = latest_offset

    def initial(self) -> Offsets:
        return dict(self._first)

    def latest(self) -> Offsets:
        return flat_offsets(f"source {self._source!r}: latest_offset", self._latest_offset())

    def open_splits(self, offsets: Offsets) -> Collection[str]:
        """Return nothing: each batch reads its split to the end."""
        return []

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        if start == until:
            return SourcePlan(start, [], self._availability(start))
        detail = msgspec.msgpack.encode(OffsetRange(start, until))
        return SourcePlan(dict(until), [SplitRead(SPLIT, None, None, detail=detail)], self._availability(until))

    def _availability(self, end: Offsets) -> SnapshotAvailability:
        """Ask the user's function whether a checkpoint may be cut at these offsets."""
        ask = self._is_available
        return SnapshotAvailability.AVAILABLE if ask is None else answered(lambda: ask(dict(end)))
