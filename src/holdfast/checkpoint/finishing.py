"""Sinks that finish parts of their output by event time, such as `ParquetSink(finished=…)`, which marks partitions of
time.

    watermark of a batch is past the time that a sink awaits ──► progress, also without rows ──► record with a group of
    the sink, if need be without committables ──► published: the sink says which time it awaits next

The time that a sink awaits is unknown at the start, and while groups of it wait to be published. Pure.
"""

from collections.abc import Collection, Mapping

from holdfast.ids import BatchNumber


class Finishing:
    """The times that sinks await, and the watermarks that records have passed on to them."""

    def __init__(self) -> None:
        self._awaited_us: dict[str, int | None] = {}
        """Watermark at which each sink next has output to finish; None: it has nothing left to finish. Sinks whose time
        is unknown are absent."""
        self._recorded_us: dict[str, int] = {}
        """Watermark of each sink in the newest record."""
        self._last: tuple[BatchNumber, Mapping[str, int]] | None = None

    def committed(self, batch: BatchNumber, watermarks: Mapping[str, int]) -> None:
        """Note the watermarks of sinks at the end of a batch."""
        self._last = (batch, watermarks)

    def dropped(self) -> None:
        """Forget the last batch: the job goes back to its newest record."""
        self._last = None

    def recorded(self, watermarks: Mapping[str, int], sinks: Collection[str]) -> None:
        """Note the watermarks of a record, and the sinks of which it has a new group."""
        self._recorded_us.update(watermarks)
        for sink in sinks:
            self._awaited_us.pop(sink, None)

    def published(self, sink: str, awaited_us: int | None) -> None:
        """Note that all groups of a sink are published, and the time that it awaits now."""
        self._awaited_us[sink] = awaited_us

    def due(self, watermarks: Mapping[str, int]) -> set[str]:
        """Return the sinks that have more to finish at these watermarks, or may have."""
        found = set()
        for sink, watermark_us in watermarks.items():
            recorded_us = self._recorded_us.get(sink)
            if recorded_us is None or recorded_us < watermark_us:
                awaited_us = self._awaited_us.get(sink, watermark_us)
                if awaited_us is not None and awaited_us <= watermark_us:
                    found.add(sink)
        return found

    def progress(self, backlog: Mapping[str, int]) -> BatchNumber | None:
        """Return the last batch if a sink has more to finish after it, and has no groups that wait (`backlog`)."""
        if self._last is None:
            return None
        batch, watermarks = self._last
        return batch if any(not backlog.get(sink) for sink in self.due(watermarks)) else None
