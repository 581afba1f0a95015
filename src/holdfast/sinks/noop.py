"""Sink that takes every row and keeps none: for measurements, and for jobs whose work is a side effect."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.sinks.base import PublishContext, Sink, SinkContext, StageContext


@dataclass(repr=False)
class NoopSink(Sink):
    """Discards rows in the task that pulls them."""

    @property
    def kind(self) -> str:
        return "noop"

    def last_number(self, context: SinkContext) -> int:
        return 0  # no output that could be lost or come twice

    def stage(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> list[bytes]:
        deque(batches, maxlen=0)  # the fastest way to exhaust an iterator
        return []

    def publish(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        return None
