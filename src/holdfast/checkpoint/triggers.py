"""Trigger policies as pure values, and the schedule that decides by a policy when a checkpoint is due.

A policy does not know whether there was progress since the last cut, nor about pending checkpoints: the coordinator
keeps a due trigger due until a cut can be taken.
"""

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast.errors import SettingsError
from holdfast.quantities import Duration, duration_s, duration_us

EARLY_RATIO = 0.15
EARLY_S_MAX = 0.15
"""Bounds on how early a checkpoint may be cut because a batch was just committed: a share of the interval since the
last trigger, and a number of seconds. During the next batch, a cut would cover no more batches and would share
processors with that batch: such checkpoints took 20 to 40 ms instead of 11 ms. The bound in seconds is longer than the
time between two commits if batches begin every 0.1 s; with a lower value, no commit may come in time. A higher value
moves checkpoints further from their schedule."""


@runtime_checkable
class CheckpointTrigger(Protocol):
    """Decides when checkpoints are due; users may write their own. Frozen, without side effects."""

    def next_due(self, now_s: float, last_s: float) -> float | None:
        """Return the time at which the next checkpoint is due, in seconds since the Unix epoch; None: never by itself.
        A checkpoint is due once the answer is at most `now_s`. At the commit of a batch, it may be taken earlier, by at
        most 0.15 of the interval and at most 0.15 s. `last_s` is the last answer that was served, at first the start of
        the job; it can be later than `now_s` only if the clock was set back.
        """
        ...


@dataclass(frozen=True)
class Every:
    """Due at a fixed rate. A single cut makes up for all triggers that were missed while no checkpoint could be
    taken."""

    interval: Duration
    at_first_rows: bool = field(default=False, repr=False, compare=False)
    """True: also due at the first batch of a start that makes progress, so that its output becomes visible at once."""

    def __post_init__(self) -> None:
        if duration_s(self.interval, "every(interval)") <= 0:
            raise SettingsError(f"every(interval)={self.interval!r}: allowed is a duration above zero")

    def next_due(self, now_s: float, last_s: float) -> float | None:
        if last_s > now_s:
            return now_s
        interval_s = duration_s(self.interval, "every(interval)")
        return last_s + max(1, math.floor((now_s - last_s) / interval_s)) * interval_s


@dataclass(frozen=True)
class Manual:
    """Due only on request."""

    def next_due(self, now_s: float, last_s: float) -> float | None:
        return None


@dataclass(frozen=True)
class Cron:
    """Due at the times of a cron expression in a time zone. A single checkpoint makes up for all missed times.

    If clocks are set forward, a skipped time is due right after. If they are set back, a time that comes twice is due
    once.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        try:
            zone = ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            raise SettingsError(
                f"cron(timezone)={self.timezone!r} is not known here ({error}); allowed: a name of the time zone "
                "database, for example 'UTC' or 'Europe/Berlin'"
            ) from error
        try:
            next(CronSim(self.expression, datetime(2000, 1, 1, tzinfo=zone)))
        except (CronSimError, StopIteration, TypeError, AttributeError) as error:
            raise SettingsError(
                f"cron(expression)={self.expression!r} is no cron expression that ever comes due ({error}); "
                "allowed: minute, hour, day of month, month, day of week, for example '0 * * * *'"
            ) from error

    def next_due(self, now_s: float, last_s: float) -> float | None:
        last_s = min(last_s, now_s)
        due: datetime = next(CronSim(self.expression, datetime.fromtimestamp(last_s, tz=ZoneInfo(self.timezone))))
        return max(due.timestamp(), now_s)


@dataclass(frozen=True)
class OnWatermark:
    """Due when the watermark has passed the end of an interval of event time (counted from 1970, UTC). If it passes
    several at once, one checkpoint is taken."""

    interval: Duration

    def __post_init__(self) -> None:
        if duration_us(self.interval, "on_watermark(interval)") <= 0:
            raise SettingsError(f"on_watermark(interval)={self.interval!r}: allowed is a duration above zero")

    @property
    def interval_us(self) -> int:
        return duration_us(self.interval, "on_watermark(interval)")

    def boundary_us(self, watermark_us: int) -> int:
        """Return the end of the last full interval up to a watermark."""
        return watermark_us // self.interval_us * self.interval_us

    def next_due(self, now_s: float, last_s: float) -> float | None:
        return None  # not due by a clock: `boundary_us` decides


def by_default() -> Every:
    """The trigger of a job that names none: at the first batch with rows, then every 10 seconds."""
    return Every("10s", at_first_rows=True)


def every(interval: Duration) -> Every:
    """A checkpoint every `interval`, by a fixed rate."""
    return Every(interval)


def manual() -> Manual:
    """Take checkpoints on request only."""
    return Manual()


def cron(expression: str, timezone: str = "UTC") -> Cron:
    """A checkpoint whenever the cron `expression` (five fields) comes due in `timezone`, such as "Europe/Berlin"."""
    return Cron(expression, timezone)


def on_watermark(interval: Duration) -> OnWatermark:
    """A checkpoint at the first batch boundary at which the watermark is past a full interval of event time.

    With `"1h"` each hour of event time is published as soon as it is complete, with the rows that have come since. The
    job's sources need `with_watermark(…)`; of several, the slowest counts.
    """
    return OnWatermark(interval)


class WatermarkSchedule:
    """The end of an interval of event time that waits for a checkpoint."""

    def __init__(self) -> None:
        self._recorded_us: int | None = None
        """Watermark of the newest record, or the first watermark that was seen."""
        self._passed_us: int | None = None
        """Watermark up to which the ends of intervals were answered."""
        self._failed = False
        """True: the answer was a checkpoint that failed, so the next batch boundary must be cut."""

    def recorded(self, watermark_us: int | None) -> None:
        """Note the watermark of a record."""
        if watermark_us is not None:
            self._recorded_us = watermark_us
            self._passed_us = max(watermark_us, self._passed_us or watermark_us)
            self._failed = False

    def failed(self) -> None:
        """Note that a checkpoint failed: intervals since the newest record are due again."""
        self._failed = self._passed_us != self._recorded_us
        self._passed_us = self._recorded_us

    def due_us(self, trigger: OnWatermark, watermark_us: int | None, *, at_commit: bool) -> int | None:
        """Return the end of an interval that the watermark has passed and no checkpoint has answered; None if there is
        none."""
        if watermark_us is None or (self._failed and not at_commit):
            return None
        if self._passed_us is None:
            self._recorded_us = self._passed_us = watermark_us
        boundary_us = trigger.boundary_us(watermark_us)
        return boundary_us if boundary_us > self._passed_us else None

    def served(self, due_us: int) -> None:
        self._passed_us, self._failed = due_us, False


class TriggerSchedule:
    """The due times of a trigger, and the last that was served."""

    def __init__(self) -> None:
        self._served_s = 0.0

    def due_s(self, trigger: CheckpointTrigger, now_s: float, *, at_commit: bool) -> float | None:
        """Return the due time to serve now; None if there is none. `at_commit`: a batch was committed just now."""
        if 0.0 < self._served_s - now_s <= EARLY_S_MAX:
            return None  # it was served early; the clock was not set back
        due_s = trigger.next_due(now_s, self._served_s)
        if due_s is None:
            return None
        early_s = min(EARLY_RATIO * (due_s - self._served_s), EARLY_S_MAX) if at_commit else 0.0
        return due_s if due_s <= now_s + early_s else None

    def next_due_s(self, trigger: CheckpointTrigger, now_s: float) -> float | None:
        """The time at which the trigger comes due; None if it is due already, or never by itself."""
        due_s = None if self._served_s > now_s else trigger.next_due(now_s, self._served_s)
        return due_s if due_s is not None and due_s > now_s else None

    def served(self, due_s: float) -> None:
        self._served_s = due_s
