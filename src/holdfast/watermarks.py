"""Watermarks: how far event time has advanced, computed from rows of earlier batches. Pure.

    rows of a batch ──► newest event time per split ──► batch committed ──► reached = least of the open splits' newest
                                                                            watermark = reached - delay

A split is *open* from its assignment until it has been read to its end. An open split holds the watermark back, even
before its first row, unless it is idle. If no split holds it back, the watermark is computed from the newest event time
of all rows, so after all input it does not depend on how the rows were divided into batches. A watermark never goes
back. Times are microseconds since 1970, UTC.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

FIRST_US = -62_135_596_800_000_000
"""The least watermark: the first microsecond that a datetime can hold. Rows may have earlier times."""
END_US = 253_402_300_799_999_999
"""The watermark when the input is complete: the last microsecond that a datetime can hold. Before that, watermarks are
lower, whatever the times of rows are."""


@dataclass(frozen=True)
class SplitsBehind:
    """The splits of a source that are behind because they failed. With `hold`, the watermark waits for them, idle or
    not; otherwise it advances without them."""

    splits: Collection[str] = ()
    hold: bool = False


NONE_BEHIND = SplitsBehind()


@dataclass(frozen=True)
class WatermarkSpec:
    """The declaration of `Stream.with_watermark` on a column of a source. `idle_us` None: splits are never idle.

    `of_batches`: the column is the one that `Stream.with_batch_time` adds, with the time of each row's batch, and the
    watermark is the time of the batch itself. `output` names the source's stream if it has several.
    """

    source: str
    column: str
    delay_us: int
    idle_us: int | None = None
    of_batches: bool = False
    output: str = ""

    @property
    def key(self) -> str:
        """The name of the watermark in plans and records."""
        return "/".join(each for each in (self.source, self.output, self.column) if each)


class SplitTime(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest event time of an open split (None before its first row), and the time of the batch that assigned it
    or, after that, of the last batch that had rows of it."""

    newest_us: int | None
    seen_us: int


class SourceTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the event time of one source column has advanced; part of the checkpoint's record.

    `newest_us` is the newest event time of any row. `seen_us` is the time of the last batch with rows, or of the first
    batch if none had rows. `watermark_us` is the watermark of the last batch: windows up to it are closed. `complete`
    means that the input was drained, so no more rows come.
    """

    reached_us: int | None = None
    newest_us: int | None = None
    seen_us: int | None = None
    watermark_us: int | None = None
    complete: bool = False
    splits: dict[str, SplitTime] = {}

    def reached_at(self, now_us: int, idle_us: int | None, behind: SplitsBehind = NONE_BEHIND) -> int | None:
        """Return how far event time has advanced at the time `now_us`, since splits may have become idle meanwhile."""
        if idle_us is None and not behind.splits:
            held = {each.newest_us for each in self.splits.values()}
        else:
            held = {
                each.newest_us
                for split, each in self.splits.items()
                if (behind.hold if split in behind.splits else idle_us is None or each.seen_us + idle_us > now_us)
            }
        if not held:
            return _greatest([self.reached_us, self.newest_us])
        known = [time_us for time_us in held if time_us is not None]
        return _greatest([self.reached_us, min(known)]) if len(known) == len(held) else self.reached_us

    def is_idle_at(self, now_us: int, idle_us: int | None) -> bool:
        """True if no split of the source had rows for the idle time."""
        return idle_us is not None and self.seen_us is not None and self.seen_us + idle_us <= now_us

    def watermark_at(self, now_us: int, spec: WatermarkSpec, behind: SplitsBehind = NONE_BEHIND) -> int | None:
        """Return the watermark of a batch that is planned at the time `now_us`, as if this were the only source."""
        if self.complete:
            return END_US
        if spec.of_batches:
            return _greatest([self.watermark_us, now_us])
        reached_us = self.reached_at(now_us, spec.idle_us, behind)
        if reached_us is None:
            return self.watermark_us
        return _greatest([self.watermark_us, min(max(reached_us - spec.delay_us, FIRST_US), END_US - 1)])

    def after(
        self,
        newest: Mapping[str, int],
        batch_time_us: int,
        spec: WatermarkSpec,
        open_splits: Collection[str],
        watermark_us: int | None = None,
        behind: SplitsBehind = NONE_BEHIND,
    ) -> "SourceTime":
        """Return the times after a batch: when it was planned, and the newest time of its rows by split.

        `watermark_us`: the watermark that the batch had.
        """
        never = SplitTime(None, batch_time_us)
        splits = dict.fromkeys(open_splits, never)
        if self.splits.keys() <= splits.keys():
            splits.update(self.splits)
        else:
            splits.update((split, each) for split, each in self.splits.items() if split in splits)
        for split, time_us in newest.items():
            before = splits.get(split)
            if before is not None:
                before_us = before.newest_us
                newest_us = time_us if before_us is None or before_us < time_us else before_us
                splits[split] = SplitTime(newest_us, batch_time_us)
        newest_of_all_us = _greatest([self.newest_us, max(newest.values(), default=None)])
        seen_us = batch_time_us if newest or self.seen_us is None else self.seen_us
        found = SourceTime(self.reached_us, newest_of_all_us, seen_us, watermark_us, self.complete, splits)
        return msgspec.structs.replace(found, reached_us=found.reached_at(batch_time_us, spec.idle_us, behind))

    def held_by(self, splits: Collection[str], spec: WatermarkSpec) -> int | None:
        """Return the event time up to which these splits are complete, minus the delay; None if one had no rows yet."""
        times = [self.splits[split].newest_us if split in self.splits else None for split in splits]
        known = [time_us for time_us in times if time_us is not None]
        return min(known) - spec.delay_us if known and len(known) == len(times) else None


SourceTimes = Mapping[str, SourceTime]
"""The watermarks by `WatermarkSpec.key`."""


class Watermarks:
    """The watermarks of a job.

    `operators`: for each operator, the keys of the watermarks that apply to its rows. `delays`: the microseconds by
    which an operator's watermark is lower, since its rows come from windows that stay open for that much longer.
    """

    def __init__(
        self,
        specs: Mapping[str, WatermarkSpec],
        operators: Mapping[str, Collection[str]],
        delays: Mapping[str, int] | None = None,
        waits_for_behind: bool = False,
    ) -> None:
        self._specs = specs
        self._operators = operators
        self._delays = delays or {}
        self._waits_for_behind = waits_for_behind
        self.behind: Mapping[str, Collection[str]] = {}
        """Splits that are behind because they failed, by source."""
        self.times: SourceTimes = {}

    def restore(self, times: SourceTimes) -> None:
        """Begin with the times of a checkpoint."""
        self.times = {key: times.get(key, SourceTime()) for key in self._specs}

    def drain(self) -> None:
        """Declare all input complete: from the next batch on every watermark is `END_US`."""
        self.times = {key: msgspec.structs.replace(time, complete=True) for key, time in self.times.items()}

    @property
    def complete(self) -> bool:
        """True if all input with a watermark was declared complete."""
        return all(time.complete for time in self.times.values())

    def complete_sources(self) -> set[str]:
        """Sources whose input was declared complete."""
        return {self._specs[key].source for key, time in self.times.items() if time.complete}

    def committed(
        self, newest: Mapping[str, Mapping[str, int]], batch_time_us: int, open_splits: Mapping[str, Collection[str]]
    ) -> None:
        """Apply the event times of a committed batch. `open_splits`: the open splits of each source after the batch."""
        before = self._at(batch_time_us)
        self.times = {
            key: self.times[key].after(
                newest.get(key, {}), batch_time_us, spec, open_splits[spec.source], before[key], self._behind(spec)
            )
            for key, spec in self._specs.items()
        }

    def _behind(self, spec: WatermarkSpec) -> SplitsBehind:
        return SplitsBehind(self.behind.get(spec.source, ()), self._waits_for_behind)

    def held_by_splits_behind(self) -> dict[str, int | None]:
        """Return the event time up to which the splits that are behind are complete, by key; None if one had no rows
        yet."""
        found = {}
        for key, spec in self._specs.items():
            splits = self.behind.get(spec.source)
            if splits:
                found[key] = self.times[key].held_by(splits, spec)
        return found

    def of_sources(self, now_us: int) -> dict[str, int]:
        """Return the watermark of each source that has one; the least if it has several."""
        found: dict[str, int] = {}
        for key, watermark_us in self._at(now_us).items():
            if watermark_us is not None:
                source = self._specs[key].source
                found[source] = min(watermark_us, found.get(source, watermark_us))
        return found

    def of_operators(self, now_us: int) -> dict[str, int]:
        """Return the watermark of each operator that has one, for a batch that is planned at the time `now_us`.

        It is the least over the operator's inputs, once all of them have one.
        """
        return self._least(self._at(now_us))

    def closed(self) -> dict[str, int]:
        """Return each operator's watermark of the last batch: windows up to it are closed, and their rows are late."""
        return self._least({key: self.times[key].watermark_us for key in self._specs})

    def least(self, now_us: int) -> int | None:
        """Return the least watermark of all sources for a batch planned at `now_us`; None if a source has none."""
        found = list(self._at(now_us).values())
        known = [each for each in found if each is not None]
        return min(known) if known and len(known) == len(found) else None

    def least_closed(self) -> int | None:
        """Return the least watermark of all sources in the last batch; None if a source had none."""
        found = [each.watermark_us for each in self.times.values()]
        known = [each for each in found if each is not None]
        return min(known) if known and len(known) == len(found) else None

    def event_times(self) -> dict[str, int | None]:
        """Return how far event time has advanced in each source with a watermark; None before its first row."""
        found: dict[str, int | None] = {}
        for key, spec in self._specs.items():
            if spec.of_batches:
                continue
            reached_us = self.times[key].reached_us
            if spec.source in found:
                before_us = found[spec.source]
                reached_us = None if before_us is None or reached_us is None else min(before_us, reached_us)
            found[spec.source] = reached_us
        return found

    def _at(self, now_us: int) -> dict[str, int | None]:
        """Return the watermarks, by key, of a batch that is planned at the time `now_us`.

        An idle source does not hold the watermark back: it follows the others. If all sources are idle, they follow the
        one that has advanced furthest.
        """
        behind = {key: self._behind(spec) for key, spec in self._specs.items()}
        found = {key: self.times[key].watermark_at(now_us, spec, behind[key]) for key, spec in self._specs.items()}
        idle = {
            key
            for key, spec in self._specs.items()
            if self.times[key].is_idle_at(now_us, spec.idle_us) and not (behind[key].hold and behind[key].splits)
        }
        if idle == set(found):
            common_us = _greatest(found.values())
        else:
            others = [time_us for key, time_us in found.items() if key not in idle]
            common_us = None if None in others else min(time_us for time_us in others if time_us is not None)
        return found | {key: _greatest([found[key], common_us]) for key in idle}

    def _least(self, watermarks: Mapping[str, int | None]) -> dict[str, int]:
        found: dict[str, int] = {}
        for operator, keys in self._operators.items():
            known = [time_us for key in keys if (time_us := watermarks[key]) is not None]
            if known and len(known) == len(keys):
                least_us = min(known)
                delay_us = 0 if least_us == END_US else self._delays.get(operator, 0)
                found[operator] = max(least_us - delay_us, FIRST_US)
        return found


def _greatest(times: Iterable[int | None]) -> int | None:
    return max((each for each in times if each is not None), default=None)
