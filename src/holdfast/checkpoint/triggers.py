"""When a checkpoint is due: policies as pure values.

A policy knows neither whether anything happened since the last cut nor what else is pending: the
coordinator keeps a due trigger due until a cut can be taken.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from cronsim import CronSim, CronSimError

from holdfast.errors import SettingsError
from holdfast.units import Duration, duration_s


@runtime_checkable
class CheckpointTrigger(Protocol):
    """Decides when checkpoints are due; a user may bring one. Frozen, without side effects."""

    def next_due(self, now_s: float, last_s: float) -> float | None:
        """When the next checkpoint is due, in seconds since the Unix epoch; None: never by itself.

        It is due when the answer is at most `now_s`; where that comes soon, it is taken as a batch is committed, by up
        to a tenth of the interval and 0.1 s earlier. `last_s` is the answer that was served last, at first the
        start of the job; it can be later than `now_s` only when the clock was set back.
        """
        ...


@dataclass(frozen=True)
class Every:
    """Due at a fixed rate; what was missed while none could be taken is taken once."""

    interval: Duration

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
    """Due only when asked for."""

    def next_due(self, now_s: float, last_s: float) -> float | None:
        return None


@dataclass(frozen=True)
class Cron:
    """Due when a cron expression says so, in UTC; what was missed is taken once."""

    expression: str

    def __post_init__(self) -> None:
        try:
            next(CronSim(self.expression, datetime(2000, 1, 1, tzinfo=UTC)))
        except (CronSimError, StopIteration, TypeError, AttributeError) as error:
            raise SettingsError(
                f"cron(expression)={self.expression!r} is no cron expression that ever comes due ({error}); "
                "allowed: minute, hour, day of month, month, day of week, such as '0 * * * *'"
            ) from error

    def next_due(self, now_s: float, last_s: float) -> float | None:
        last_s = min(last_s, now_s)
        due: datetime = next(CronSim(self.expression, datetime.fromtimestamp(last_s, tz=UTC)))
        return max(due.timestamp(), now_s)


def every(interval: Duration) -> Every:
    """A checkpoint every `interval`, by a fixed rate."""
    return Every(interval)


def manual() -> Manual:
    """No checkpoint but those that are asked for."""
    return Manual()


def cron(expression: str) -> Cron:
    """A checkpoint whenever the cron expression (five fields, UTC) comes due."""
    return Cron(expression)
