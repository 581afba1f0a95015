"""Windows of event time as keys: `hf.window("at", "10s", slide="2s")`, and which rows belong to which.

    time ─┬────pane────┬────pane────┬────pane────┬─►     a pane: the greatest common divisor of size and slide
          └──────── window ─────────┘
                       └──────── window ─────────┘

A row belongs to a single pane, and a window is made of panes: sliding windows keep a state for each key and pane.
Times are microseconds since 1970, UTC.
"""

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import SettingsError
from holdfast.quantities import Duration, duration_s, signed_duration_us
from holdfast.state.physical import Integers, values_of

WINDOW_START, WINDOW_END = "window_start", "window_end"
PANE = "__window"
"""The column with a row's pane, which senders add: the pane's start in microseconds. Rows of sessions without another
key have 0 there."""
ALL = "__all"
"""The column, always 0, by which senders divide rows of windows that overlap and are the only key: the panes of a
window must be in a single subtask."""
_PER_UNIT = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


@dataclass(frozen=True)
class Window:
    """Windows of a fixed size; made by `window`. All durations are in microseconds."""

    column: str
    size_us: int
    slide_us: int
    start_us: int = 0
    behind_us: int = 0
    """Microseconds by which rows may be behind the watermark: their times are starts of windows that had to close
    first."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The output columns with its bounds."""
        return WINDOW_START, WINDOW_END

    @property
    def pane_us(self) -> int:
        """The width of a pane."""
        return math.gcd(self.size_us, self.slide_us)

    @property
    def tumbles(self) -> bool:
        """True if windows do not overlap, so that each pane is a window."""
        return self.size_us == self.slide_us

    def panes_of(self, rows: pa.RecordBatch) -> Integers:
        """The pane of each row; no time is null."""
        panes: Integers = (times_of(rows.column(self.column)) - self.start_us) // self.pane_us
        return panes * self.pane_us + self.start_us

    def last_starts(self, panes: Integers) -> Integers:
        """The start of the last window that each pane is in."""
        starts: Integers = (panes - self.start_us) // self.slide_us
        return starts * self.slide_us + self.start_us

    def closed_before(self, until_us: int) -> int:
        """Return a time such that all windows of a pane that starts before it are closed, if windows that end by
        `until_us` are closed."""
        last_start_us = (until_us - self.size_us - self.start_us) // self.slide_us * self.slide_us + self.start_us
        return last_start_us + self.slide_us

    def ends_between(self, after_us: int | None, until_us: int) -> bool:
        """True if some window ends after the first time, and not after the second."""
        last_end_us = (until_us - self.size_us - self.start_us) // self.slide_us * self.slide_us
        return after_us is None or last_end_us + self.start_us + self.size_us > after_us

    def next_end(self, pane: int, after_us: int | None) -> int:
        """Return the first end of a window that contains this pane and ends after `after_us`."""
        least_us = pane + self.pane_us if after_us is None else max(pane + self.pane_us, after_us + 1)
        return (
            -((self.start_us + self.size_us - least_us) // self.slide_us) * self.slide_us + self.start_us + self.size_us
        )

    def __str__(self) -> str:
        slide = "" if self.tumbles else f", slide={shown_duration(self.slide_us)}"
        offset = f", start={shown_duration(self.start_us)}" if self.start_us else ""
        return f"window({self.column}, {shown_duration(self.size_us)}{slide}{offset})"


@dataclass(frozen=True)
class GivenWindow(Window):
    """The windows of the operator before: each row names its window by `window_start`, and windows may overlap."""

    names: tuple[str, ...] = (WINDOW_START,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.names

    @property
    def tumbles(self) -> bool:
        return True

    def panes_of(self, rows: pa.RecordBatch) -> Integers:
        return times_of(rows.column(self.column))

    def last_starts(self, panes: Integers) -> Integers:
        return panes

    def closed_before(self, until_us: int) -> int:
        return until_us - self.size_us + 1

    def ends_between(self, after_us: int | None, until_us: int) -> bool:
        return True

    def next_end(self, pane: int, after_us: int | None) -> int:
        return pane + self.size_us

    def __str__(self) -> str:
        return f"{', '.join(self.names)} of windows of {shown_duration(self.size_us)}"


@dataclass(frozen=True)
class SessionWindow:
    """Windows that end when a key had no row for `gap_us`; made by `session_window`."""

    column: str
    gap_us: int
    behind_us: int = 0

    @property
    def outputs(self) -> tuple[str, ...]:
        """The output columns with its bounds."""
        return WINDOW_START, WINDOW_END

    def __str__(self) -> str:
        return f"session_window({self.column}, {shown_duration(self.gap_us)})"


AnyWindow = Window | SessionWindow


def session_window(column: str, gap: Duration) -> SessionWindow:
    """Sessions of event time, as a key: `key_by("user", hf.session_window("at", gap="30min"))`.

    `column`: the column of the event time. A session begins with a row, and ends `gap` after its last row; a row up
    to `gap` after another is in the same
    session. Rows that come out of order may join two sessions.
    """
    if not isinstance(column, str) or not column:
        raise SettingsError(f"session_window({column!r}): expected the name of a timestamp column")
    return SessionWindow(column, _micros(gap, "session_window(gap)"))


def window(column: str, size: Duration, slide: Duration | None = None, *, start: Duration = 0) -> Window:
    """Windows of event time, as a key: `key_by("user", hf.window("at", "10min"))`.

    Parameters
    ----------
    column
        A timestamp column.
    size
        The length of each window: from `window_start` to before `window_end`.
    slide
        Time from the start of a window to the start of the next; windows overlap if it is less than `size`. None: they
        follow one another.
    start
        Shifts all windows, also by a negative time (`"-1h"`); without it they begin at multiples of `slide` since 1970,
        UTC.
    """
    size_us = _micros(size, "window(size)")
    slide_us = size_us if slide is None else _micros(slide, "window(slide)")
    start_us = signed_duration_us(start, "window(start)")
    if not isinstance(column, str) or not column:
        raise SettingsError(f"window({column!r}): expected the name of a timestamp column")
    if slide_us > size_us:
        raise SettingsError(f"window(size={size!r}, slide={slide!r}): rows would fall between windows; lower slide")
    return Window(column, size_us, slide_us, start_us % slide_us)


def times_of(times: pa.Array) -> Integers:
    """A timestamp column without nulls, in microseconds."""
    return in_microseconds(values_of(times), times.type)


def in_microseconds(values: Integers, kind: pa.DataType) -> Integers:
    """Values of a timestamp type, in microseconds."""
    factor, divisor = _PER_UNIT[kind.unit]
    return values * factor if factor > 1 else values // divisor if divisor > 1 else values


def times_array(values: Integers, kind: pa.DataType) -> pa.Array:
    """Microseconds as an array of a timestamp type in microseconds."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def bounds_type(kind: pa.DataType) -> pa.DataType:
    """The type of `window_start` and `window_end` for a time column of type `kind`."""
    return pa.timestamp("us", tz=kind.tz)


def _micros(value: Duration, field: str) -> int:
    micros = round(duration_s(value, field) * 1_000_000)
    if micros <= 0:
        raise SettingsError(f"{field}={value!r}: a window is longer than nothing")
    return micros


def shown_duration(micros: int) -> str:
    """Microseconds in the largest unit of which they are a whole number."""
    if micros <= 0:
        return f"-{shown_duration(-micros)}" if micros else "0"
    for unit, size in (
        ("d", 86_400_000_000),
        ("h", 3_600_000_000),
        ("min", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1_000),
    ):
        if micros % size == 0:
            return f"{micros // size}{unit}"
    return f"{micros}us"
