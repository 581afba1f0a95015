"""A source that Spark reads: the user's function makes a batch DataFrame between two offsets.

Here are only settings, offsets and plans; the DataFrame itself is made and read in `spark/`, through
`DataFrameSource.dataframe`. PySpark is not imported: the session is passed in.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import HoldfastError, JobRefused
from holdfast.schema import to_arrow_schema
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, Source, SourceBatch, SourcePlan, SplitRead
from holdfast.sources.offsets import flat_offsets

SPLIT = "dataframe"


class OffsetRange(msgspec.Struct, frozen=True):
    """What a `SplitRead.detail` of this source carries."""

    start: Offsets
    stop: Offsets


class DataFrameSource(Source):
    """Rows from any of Spark's own batch readers, between two offsets.

    Parameters
    ----------
    read
        `read(spark, start, end) -> DataFrame`: the rows after `start` up to `end`, the same whenever it is asked
        for the same two. Both are flat dicts. The DataFrame must have `schema`'s columns.
    latest_offset
        `latest_offset(spark) -> dict`: offsets that include all there is now.
    schema
        A `pyarrow.Schema`, a Spark `StructType` or a DDL string.
    initial_offset
        Offsets before the first row.
    name
        Identifies the source's positions when the job is started again.
    starting
        Offsets to start from when there is no checkpoint, instead of `initial_offset`.

    A batch is everything between the last offsets and the latest ones: such a source does not know `rows_max`.
    Progress counts its rows behind the transforms that follow it, which Spark runs together with the read.
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
    ) -> None:
        self.name = name
        self._read = read
        self._latest_offset = latest_offset
        self._schema = to_arrow_schema(schema)
        self._first = flat_offsets(f"{self!r}", (initial_offset or {}) if starting is None else starting)
        self._spark: Any = None

    def bind(self, spark: Any) -> None:
        """Give the source the session to ask for offsets with; called on the driver before `enumerator`."""
        self._spark = spark

    def schema(self) -> pa.Schema:
        return self._schema

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        if self._spark is None:
            raise JobRefused(
                f"{self!r} is read by Spark, and this job has no session; "
                "in holdfast.testing put a TestSource in its place"
            )
        spark = self._spark
        return DataFrameEnumerator(context.source, self._first, lambda: self._latest_offset(spark))

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        raise HoldfastError(f"{self!r} is read by Spark, on the driver's plan: use dataframe(spark, start, stop)")

    def dataframe(self, spark: Any, start: Offsets, stop: Offsets) -> Any:
        """The DataFrame between two offsets. Raises what the user's function raises."""
        return self._read(spark, dict(start), dict(stop))

    def dataframe_of(self, spark: Any, read: SplitRead) -> Any:
        """The DataFrame of a planned read."""
        offsets = msgspec.msgpack.decode(read.detail, type=OffsetRange)
        return self.dataframe(spark, offsets.start, offsets.stop)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_spark": None, "_read": None, "_latest_offset": None}

    def __repr__(self) -> str:
        return f"DataFrameSource(name={self.name!r})"


class DataFrameEnumerator(Enumerator):
    """Offsets are the user's own; each plan goes to the latest known ones, in one read."""

    def __init__(self, source: str, first: Offsets, latest_offset: Callable[[], Mapping[str, Any]]) -> None:
        self._source = source
        self._first = first
        self._latest_offset = latest_offset

    def initial(self) -> Offsets:
        return dict(self._first)

    def latest(self) -> Offsets:
        return flat_offsets(f"source {self._source!r}: latest_offset", self._latest_offset())

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        if start == until:
            return SourcePlan(start, [])
        detail = msgspec.msgpack.encode(OffsetRange(start, until))
        return SourcePlan(dict(until), [SplitRead(SPLIT, None, None, detail=detail)])
