"""Watermarks: how far event time has come, from rows of earlier batches. Pure.

    rows of a batch ──► newest event time per split ──► batch committed ──► reached = least of the splits' newest
                                                                            watermark = reached - delay

A split counts from its first row until its source no longer has it; an idle one does not hold the others back.
`reached` never goes back, so a watermark does not either. Times are microseconds since 1970, UTC.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class WatermarkSpec:
    """`Stream.with_watermark` as declared, on a column of a source. `idle_us` None: splits are never idle."""

    source: str
    column: str
    delay_us: int
    idle_us: int | None = None

    @property
    def key(self) -> str:
        """Its name in plans and records."""
        return f"{self.source}/{self.column}"


class SplitTime(msgspec.Struct, frozen=True, array_like=True):
    """The newest event time of a split, and the time of the last batch that had rows of it."""

    newest_us: int
    seen_us: int


class SourceTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the event time of one source column has come; part of the checkpoint's record."""

    reached_us: int | None = None
    splits: dict[str, SplitTime] = {}

    def after(
        self, newest: Mapping[str, int], batch_time_us: int, idle_us: int | None, current: Collection[str]
    ) -> "SourceTime":
        """After a batch with these newest times; `current` are the names that the source still has."""
        splits = dict(self.splits)
        for split, time_us in newest.items():
            before = splits.get(split)
            splits[split] = SplitTime(time_us if before is None else max(before.newest_us, time_us), batch_time_us)
        kept = {split: each for split, each in splits.items() if split in newest or split in current}
        active = [each.newest_us for each in kept.values() if idle_us is None or each.seen_us + idle_us > batch_time_us]
        return SourceTime(_greatest([self.reached_us, min(active, default=None)]), kept)


Times = Mapping[str, SourceTime]
"""By `WatermarkSpec.key`."""


class Watermarks:
    """Those of a job. `operators`: for each operator the keys of the watermarks that its rows come under."""

    def __init__(self, specs: Mapping[str, WatermarkSpec], operators: Mapping[str, Collection[str]]) -> None:
        self._specs = specs
        self._operators = operators
        self.times: Times = {}

    def restore(self, times: Times) -> None:
        self.times = {key: times.get(key, SourceTime()) for key in self._specs}

    def committed(
        self, newest: Mapping[str, Mapping[str, int]], batch_time_us: int, offsets: Mapping[str, Collection[str]]
    ) -> None:
        """A batch is done; the next one has the watermarks that follow from its rows."""
        self.times = {
            key: self.times[key].after(newest.get(key, {}), batch_time_us, spec.idle_us, offsets[spec.source])
            for key, spec in self._specs.items()
        }

    def of_operators(self) -> dict[str, int]:
        """The watermark of each operator that has one: the least over its inputs, once all have one."""
        found: dict[str, int] = {}
        for operator, keys in self._operators.items():
            reached = [(self.times[key].reached_us, self._specs[key].delay_us) for key in keys]
            known = [time_us - delay_us for time_us, delay_us in reached if time_us is not None]
            if known and len(known) == len(reached):
                found[operator] = min(known)
        return found


def _greatest(times: Iterable[int | None]) -> int | None:
    return max((each for each in times if each is not None), default=None)
