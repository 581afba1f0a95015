"""The source for a streaming DataFrame: the settings, and the reads of tasks.

Spark's query drives the DataFrame by `foreachBatch`; its epochs are stored as segments in the job's storage, and
batches are planned from these. PySpark is not imported: the DataFrame is passed in.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.quantities import Duration, Size, duration_s, size_bytes
from holdfast.schema import to_arrow_schema
from holdfast.sources.base import Enumerator, EnumeratorContext, Source, SourceBatch, SplitRead
from holdfast.sources.spark_stream.epoch_calls import CallsHere, EpochCalls
from holdfast.sources.spark_stream.epoch_head import SPLIT, EpochHead
from holdfast.sources.spark_stream.epochs import EpochWriter
from holdfast.sources.spark_stream.storing import StoreParts
from holdfast.sources.spark_stream.stream_enumerator import StreamEnumerator
from holdfast.sources.spark_stream.stream_reader import StreamReader
from holdfast.sources.spooled.segments import read_part
from holdfast.sources.spooled.spool import SegmentReadDetail, Spool
from holdfast.storage import names
from holdfast.storage.store import ObjectStore


class StreamingDataFrameSource(Source):
    """The rows of a streaming DataFrame, `spark.readStream…`, with Spark's own readers and steps.

    Spark runs the DataFrame as a query with `foreachBatch`, which stores each of its batches (epochs) in the job's
    storage. An epoch is kept until a completed checkpoint has passed it, and its rows count once, by Spark's batch id.
    `Job.read(df)` is this source with its defaults.

    Parameters
    ----------
    rows
        The streaming DataFrame. Spark's output mode is append.
    checkpoint_location
        The folder of Spark's own checkpoint, as a URL for Spark (`s3a://…`). It must belong only to this source of this
        job. None: `spark/<source>` in the job's storage, if that is a `file://` URL.
    trigger_interval
        Least time between the beginnings of two epochs. A higher value: fewer, larger epochs, and more delay.
    spool_bytes_max
        Bound on the stored rows that no checkpoint is past; above it Spark's next epoch waits. Not with
        `available_now()`, which reads everything first.
    outage_timeout
        Time for which Spark's query may fail, and be started again, before the job's query fails.

    Raises
    ------
    SettingsError
        A parameter has a value that is not allowed; the error names it.
    """

    kind = "stream"
    uses_spark = True

    def __init__(
        self,
        rows: Any,
        *,
        checkpoint_location: str | None = None,
        trigger_interval: Duration = "0s",
        spool_bytes_max: Size = "8GB",
        outage_timeout: Duration = "10min",
        name: str | None = None,
    ) -> None:
        if not getattr(rows, "isStreaming", False):
            raise SettingsError(
                f"StreamingDataFrameSource({type(rows).__name__}): expected a streaming DataFrame, as "
                "spark.readStream…load() returns it"
            )
        self.name = name
        self._rows = rows
        self._schema = to_arrow_schema(rows.schema)
        self._checkpoint_location = checkpoint_location
        self._trigger_interval_s = duration_s(trigger_interval, "trigger_interval")
        self._spool_bytes_max = size_bytes(spool_bytes_max, "spool_bytes_max")
        self._outage_timeout_s = duration_s(outage_timeout, "outage_timeout")
        self._storage: str | None = None
        self._storage_options: Mapping[str, str] = {}
        self._calls: Callable[[], EpochCalls] = CallsHere

    def bind(
        self, storage: str, storage_options: Mapping[str, str], calls: Callable[[], EpochCalls] = CallsHere
    ) -> None:
        """Name the job's `storage` with its `storage_options`, for the tasks that store epochs.

        `calls` makes the way in which Spark's query calls this program. Called on the driver before `enumerator`.
        """
        self._storage, self._storage_options, self._calls = storage, storage_options, calls

    def schema(self) -> pa.Schema:
        return self._schema

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        if self._storage is None:
            raise JobRefused(
                f"{self!r} is read by Spark, and this job has no session; "
                "in holdfast.testing put a TestSource in its place"
            )
        spool = Spool[EpochHead](SPLIT, split_transactions=True)
        bound = None if context.available_now else self._spool_bytes_max
        writer = EpochWriter(context, spool, bound)
        every_s = self._trigger_interval_s
        paced = {"processingTime": f"{every_s * 1000:.0f} milliseconds"}
        trigger = {"availableNow": True} if context.available_now else paced
        checkpoint = self._checkpoint_of(context.source, self._storage)
        reader = StreamReader(
            context.source,
            self._rows,
            writer,
            self._calls(),
            partial(StoreParts, self._storage, dict(self._storage_options), schema=self._schema),
            checkpoint,
            trigger,
            self._outage_timeout_s,
        )
        return StreamEnumerator(context, spool, writer, reader)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        raise JobRefused(f"{self!r}: its rows are read from the job's storage; read it with job.read(df, name=…)")

    def read_output(
        self, output: str, read: SplitRead, store: ObjectStore, columns: Sequence[str] | None
    ) -> Iterator[SourceBatch]:
        detail = msgspec.msgpack.decode(read.detail, type=SegmentReadDetail)
        ((name, part),) = detail.parts.items()
        first, stop = msgspec.convert([read.start, read.stop], list[int])
        rows = read_part(store, detail.name, name, part)
        wanted = rows if columns is None else rows.select(list(columns))
        position = first
        for batch in wanted.slice(first, stop - first).to_batches():
            yield SourceBatch(batch, position)
            position += batch.num_rows

    def _checkpoint_of(self, source: str, storage: str) -> str:
        if self._checkpoint_location is not None:
            return self._checkpoint_location
        if not storage.startswith("file://"):
            raise JobRefused(
                f"source {source!r}: Spark keeps its own checkpoint of this DataFrame, and does not reach {storage} as "
                "Holdfast does: give StreamingDataFrameSource(…, checkpoint_location=) a folder that Spark reaches, "
                "such as s3a://…"
            )
        return f"{unquote(storage).rstrip('/')}/{names.spark_checkpoint(source)}"

    def __repr__(self) -> str:
        return f"StreamingDataFrameSource(name={self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rows": None, "_storage_options": {}, "_calls": CallsHere}
