"""The JobMaster's side of a streaming DataFrame: owns reader and spool, plans reads, and releases epochs."""

from collections.abc import Mapping

from holdfast.errors import JobRefused
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, SourcePlan
from holdfast.sources.spark_stream.epoch_head import QUERY, SPLIT, EpochHead
from holdfast.sources.spark_stream.epochs import EpochWriter
from holdfast.sources.spark_stream.stream_reader import StreamReader
from holdfast.sources.spooled.spool import SEGMENT, SEQUENCE_IN, Spool, SpoolPosition

END_LOOK_S = 0.1
START = SpoolPosition(0, 0)


class StreamEnumerator(Enumerator):
    """Plans the epochs that are stored. The first call of `initial` or `restore` starts Spark's query."""

    def __init__(
        self, context: EnumeratorContext, spool: Spool[EpochHead], writer: EpochWriter, reader: StreamReader
    ) -> None:
        self._context = context
        self._spool = spool
        self._writer = writer
        self._reader = reader
        self._query = ""

    def initial(self) -> Offsets:
        """Begin before epoch 0, with the epochs that an earlier driver stored before its first checkpoint."""
        self._query = self._reader.begin()
        chain = self._writer.take_up(0, [])
        if chain and chain[0].head.query != self._query:
            self._spool.reset(0, [])  # they belong to another checkpoint of Spark, and no record ever named them
        self._let_in()
        return self._offsets(START)

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        place = self._place(offsets)
        self._query = self._reader.begin()
        try:
            self._check(offsets, place, objects)
        except BaseException:
            self._reader.close()
            raise
        self._writer.passed = place
        self._let_in()

    def _check(self, offsets: Offsets, place: SpoolPosition, objects: list[str]) -> None:
        """Adopt the stored epochs from a place on; refuse a place that does not fit them."""
        if offsets.get(QUERY) != self._query:
            raise JobRefused(
                f"source {self._context.source!r}: its position belongs to query {offsets.get(QUERY)} of Spark, and "
                f"the checkpoint_location holds query {self._query}, whose epochs do not fit: give the folder that the "
                "job was started with, or start on a new storage"
            )
        self._writer.take_up(place.segment, objects)
        if place.sequence and self._spool.end.segment == place.segment:
            raise JobRefused(
                f"source {self._context.source!r}: the checkpoint is within epoch {place.segment}, which is not in "
                "this job's storage; restore it from a copy, or start on a new storage"
            )

    def _let_in(self) -> None:
        self._writer.drop_strays()
        self._writer.begin(self._query)
        self._reader.supervise()

    def latest(self) -> Offsets:
        if self._context.available_now:
            while self._reader.problem is None and not self._reader.ended.wait(END_LOOK_S):
                continue
        problem = self._reader.problem
        if problem is not None:
            raise problem
        return self._offsets(self._spool.end)

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        end, reads = self._spool.plan(self._place(start), self._place(until), rows_max, bytes_max)
        return SourcePlan(self._offsets(end), reads)

    def open_splits(self, offsets: Offsets) -> list[str]:
        return [SPLIT]

    def objects(self, offsets: Offsets) -> list[str]:
        return self._spool.names(self._place(offsets))

    def completed(self, offsets: Offsets) -> None:
        self._writer.passed = self._place(offsets)
        gone = self._spool.let_go(self._writer.passed)
        self._context.store.delete([name for segment in gone for name in segment.objects])

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        return {SPLIT: self._spool.waiting(self._place(offsets))}

    @property
    def message(self) -> str:
        return self._reader.message

    def close(self) -> None:
        self._reader.close()

    def _place(self, offsets: Offsets) -> SpoolPosition:
        return SpoolPosition.from_offsets(offsets, self._context.source, "a streaming DataFrame")

    def _offsets(self, place: SpoolPosition) -> Offsets:
        return {SEGMENT: place.segment, SEQUENCE_IN: place.sequence, QUERY: self._query}
