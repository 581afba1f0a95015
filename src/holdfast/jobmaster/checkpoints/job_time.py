"""The time of a job: the wall clock, as long as it agrees with the time that has passed.

    time passed by the elapsed clock ──► expected ──┐
    wall clock ─────────────────────────────────────┴──► within some seconds: followed
                                                         a jump: time continues as expected, with a warning

The time of a batch is recorded and never goes back, and by it state expires, timers fire and windows close. A wall
clock that is wrong for a moment would therefore do lasting harm. Within a process, and from a checkpoint to a later
start on the same machine, an elapsed clock tells how much time has passed: it counts the time for which a machine was
suspended, so that a real pause is no jump. A start elsewhere takes a wall clock that is at most `AHEAD_S_MAX` past
the checkpoint. `Job(clock="wall")` takes the wall clock as it is at the start. Any thread may ask.
"""

import threading
import uuid
from datetime import UTC, datetime, timedelta
from weakref import WeakKeyDictionary

from holdfast.clock import Clock
from holdfast.ids import ClockReading
from holdfast.journal.records import CheckpointRecord
from holdfast.printable import logger

log = logger(__name__)

STEP_S_MAX = 10.0
"""Bound in seconds up to which a difference between the wall clock and the time that has passed is followed, since
clocks are set by a few seconds now and then. With a higher value, a wrong clock can expire more state."""
ROOM_RATIO = 0.1
"""Seconds by which the wall clock may run further ahead for each second that passes. With a higher value, a clock may
be set forward more often."""
SLOW_RATIO = 0.5
"""Pace of the time while the wall clock is a few seconds behind. A higher value lets it catch up later."""
AHEAD_S_MAX = 7 * 86_400.0
"""Bound in seconds on how far the wall clock may be past the checkpoint at a start that does not know how much time has
passed. A higher value accepts longer pauses, and worse clocks."""


class JobTime:
    """The time of a job; a `Clock`, whose `now` never goes back.

    `base`: the checkpoint from which the start goes on. `takes_wall`: the start takes the wall clock as it is.
    """

    def __init__(self, job: str, clock: Clock, base: CheckpointRecord | None, takes_wall: bool = False) -> None:
        self._job = job
        self._clock = clock
        self._elapsed = getattr(clock, "elapsed", clock.monotonic)
        self._name = _identity(clock)
        self._lock = threading.Lock()
        self._elapsed_s, wall_s = self._elapsed(), clock.now()
        self._time_s = wall_s
        """The time, before the lower bound `_floor_s` is applied."""
        self._floor_s = 0.0 if base is None else base.batch_time_us / 1e6
        """Time of the checkpoint, a lower bound of the time."""
        self._offset_s = 0.0
        """Seconds by which the time is ahead of the wall clock since the wall clock jumped; 0.0: the time follows the
        wall clock."""
        self._room_s = STEP_S_MAX
        """Seconds by which the wall clock may run ahead now."""
        if base is not None and not takes_wall:
            self._go_on(base, wall_s)
        if self._floor_s - self._time_s > STEP_S_MAX:
            log.warning("%s: %s", job, self._standing())

    def _go_on(self, base: CheckpointRecord, wall_s: float) -> None:
        """Continue from the time of a checkpoint."""
        if base.clock is not None and self._name and base.clock.clock == self._name:
            expected_s = self._floor_s + max(0.0, self._elapsed_s - base.clock.elapsed_us / 1e6)
            is_likely = abs(wall_s - expected_s) <= STEP_S_MAX
        else:
            expected_s = self._floor_s
            is_likely = -STEP_S_MAX <= wall_s - expected_s <= AHEAD_S_MAX
        self._time_s = max(wall_s, self._floor_s) if is_likely else expected_s
        if not is_likely:
            self._set_apart(wall_s)

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        with self._lock:
            self._advance(self._elapsed(), self._clock.now())
            return max(self._time_s, self._floor_s)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def reading(self, time_us: int) -> ClockReading | None:
        """Return the reading of the elapsed clock at a time of the job; None if later starts could not compare it."""
        now_s = self.now()
        with self._lock:
            elapsed_s = self._elapsed_s
        return ClockReading(self._name, int((elapsed_s - now_s) * 1e6) + time_us) if self._name else None

    @property
    def message(self) -> str:
        """Explain how the time differs from the wall clock; empty if the time follows the wall clock."""
        self.now()
        with self._lock:
            if self._floor_s - self._time_s > STEP_S_MAX:
                return self._standing()
            return self._apart() if self._offset_s else ""

    def _advance(self, elapsed_s: float, wall_s: float) -> None:
        passed_s = max(0.0, elapsed_s - self._elapsed_s)
        self._elapsed_s = max(elapsed_s, self._elapsed_s)
        self._room_s = min(STEP_S_MAX, self._room_s + ROOM_RATIO * passed_s)
        expected_s = self._time_s + passed_s
        if self._offset_s and -STEP_S_MAX <= wall_s - expected_s <= self._room_s:
            self._offset_s = 0.0
            log.warning("%s: the wall clock agrees with the job's time again, which follows it from here on", self._job)
        ahead_s = wall_s + self._offset_s - expected_s
        if not -STEP_S_MAX <= ahead_s <= self._room_s:
            self._time_s = expected_s
            self._set_apart(wall_s)
        elif ahead_s >= 0:
            self._room_s -= ahead_s
            self._time_s = expected_s + ahead_s
        else:
            self._time_s += max(passed_s * SLOW_RATIO, passed_s + ahead_s)

    def _set_apart(self, wall_s: float) -> None:
        self._offset_s = self._time_s - wall_s
        log.warning("%s: %s", self._job, self._apart())

    def _apart(self) -> str:
        where = "behind" if self._offset_s < 0 else "ahead of"
        apart = timedelta(seconds=round(abs(self._offset_s)))
        true = (
            "everything that is due by then expires, fires and closes"
            if self._offset_s < 0
            else f"its time stands until the wall clock has reached it, for {apart}"
        )
        return (
            f"the wall clock jumped, or is far from the last checkpoint; the job's time is {_date(self._time_s)} and "
            f"goes on as time passes, {apart} {where} the wall clock. Set the wall clock right; if it is right, start "
            f'again with Job(clock="wall"): {true}'
        )

    def _standing(self) -> str:
        return (
            f"the job's time stands at {_date(self._floor_s)}, the time of its checkpoint, since the wall clock is "
            f"before it; timers, expiry and windows go on at {_date(self._floor_s)}. To have them go on now, start "
            'again without clock="wall"'
        )


def _date(time_s: float) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=round(time_s))).strftime("%Y-%m-%d %H:%M:%S UTC")


_NAMES: "WeakKeyDictionary[Clock, str]" = WeakKeyDictionary()


def _identity(clock: Clock) -> str:
    """Name an elapsed clock; equal names promise that readings are comparable. Empty: it cannot be named."""
    named = getattr(clock, "identity", None)
    if isinstance(named, str):
        return named
    try:
        return _NAMES.setdefault(clock, uuid.uuid4().hex)
    except TypeError:
        return ""
