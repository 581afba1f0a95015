"""Bounds in time: which rows of two streams meet, and how long each row is kept.

    left   ────────────●────────────►  a row is a point in event time
    right  ───────[────●────]───────►  a row meets the points between two times (`meets`)
                             └ leaves

A row *leaves* at the first watermark after which no row on time can meet it. With a time to live, a row leaves at a
time of the batches instead. All times are microseconds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.functions.operator import ALL_TIMES_US, BatchContext
from holdfast.functions.rows.columns import BoolArray
from holdfast.functions.windows.declared import Window, shown_duration, times_of
from holdfast.state.physical import Integers, validity_of

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")
AT, UNTIL, LEAVES = "__at", "__until", "__leaves"
"""Names of a row's times: its event time; the last time that a right row meets; the time when the row leaves. The event
time is in a column of the row; the other two are state columns."""
MINUTE_US = 60_000_000
NEVER_US = ALL_TIMES_US + 1
"""The time of leaving of a row that stays until another row replaces it."""

Times = Mapping[str, Integers]
"""Times of some rows, by name, in microseconds."""


class Bounds(ABC):
    """How rows meet in time. `side` is `LEFT` or `RIGHT`."""

    by_event_time = True
    """True if rows leave by the watermark; otherwise they leave by the time of the batches."""
    rows_leave = True
    """False if every row is kept forever."""

    def time_column(self, side: int) -> str | None:
        """The column of a side's rows that holds their event time `AT`; None: the bounds use no event time."""
        return None

    @abstractmethod
    def columns(self, side: int) -> tuple[str, ...]:
        """The state columns with the other times of a side's rows."""

    @abstractmethod
    def times(self, side: int, rows: pa.RecordBatch, now_us: int) -> Times:
        """Return all times of rows that came in a batch whose time is `now_us`."""

    def meets(self, times: Times) -> tuple[Integers, Integers] | None:
        """Return the first and the last time of the left rows that each right row meets; None: it meets all left
        rows."""
        return None

    def kept_times(self, side: int, times: Times) -> tuple[Integers, Integers, Integers] | None:
        """Return three times for each row of the other side, which came with `times`: it meets the kept rows of this
        side from the first time to the second, both included, whose own end is not before the third. None: a row meets
        all kept rows of its key.
        """
        return None

    @abstractmethod
    def leaves(self, side: int, times: Times) -> Integers | None:
        """Times at which rows leave; None: never."""

    @property
    @abstractmethod
    def bucket_us(self) -> int:
        """The width of a bucket in the index of rows by the time when they leave."""

    def late(self, side: int, rows: pa.RecordBatch, closed_us: int | None) -> BoolArray | None:
        """Mark the late rows: kept rows up to the watermark `closed_us` may have left already. None: no row is late."""
        return None

    def delay_us(self) -> int:
        """Bound on how far the times of the output may be behind the watermark."""
        return 0

    def until_us(self, context: BatchContext) -> int | None:
        """The time up to which rows leave in a batch; None: no row leaves."""
        return context.closes_us if self.by_event_time else context.batch_time_us


@dataclass(frozen=True)
class EventBounds(Bounds):
    """Rows meet by their event times; `columns_of_time` are the two sides' columns."""

    columns_of_time: tuple[str, str]

    def time_column(self, side: int) -> str:
        return self.columns_of_time[side]

    def columns(self, side: int) -> tuple[str, ...]:
        return ()

    def times(self, side: int, rows: pa.RecordBatch, now_us: int) -> Times:
        return {AT: times_of(rows.column(self.columns_of_time[side]))}

    def late(self, side: int, rows: pa.RecordBatch, closed_us: int | None) -> BoolArray | None:
        if closed_us is None or not rows.num_rows:
            return None
        late: BoolArray = times_of(rows.column(self.columns_of_time[side])) < closed_us
        return late if late.any() else None


@dataclass(frozen=True)
class Within(EventBounds):
    """The right row's time is from `earliest_us` to `latest_us` after that of the left row."""

    earliest_us: int
    latest_us: int

    def meets(self, times: Times) -> tuple[Integers, Integers]:
        return times[AT] - self.latest_us, times[AT] - self.earliest_us

    def kept_times(self, side: int, times: Times) -> tuple[Integers, Integers, Integers]:
        at = times[AT]
        if side == LEFT:
            return at - self.latest_us, at - self.earliest_us, at - self.latest_us
        return at + self.earliest_us, at + self.latest_us, at + self.earliest_us

    def leaves(self, side: int, times: Times) -> Integers:
        return times[AT] + (1 + (self.latest_us if side == LEFT else -self.earliest_us))

    @property
    def bucket_us(self) -> int:
        return max(1_000_000, (self.latest_us - self.earliest_us) // 8)

    def delay_us(self) -> int:
        return max(0, self.latest_us, -self.earliest_us)

    def __str__(self) -> str:
        return f"within {shown_duration(self.earliest_us)} to {shown_duration(self.latest_us)}"


@dataclass(frozen=True)
class Between(EventBounds):
    """The left row's time lies between the right row's own time and the time in the right row's column `end`."""

    end: str

    def columns(self, side: int) -> tuple[str, ...]:
        return () if side == LEFT else (UNTIL,)

    def times(self, side: int, rows: pa.RecordBatch, now_us: int) -> Times:
        found = super().times(side, rows, now_us)
        if side == LEFT:
            return found
        ends, valid = times_of(rows.column(self.end)), validity_of(rows.column(self.end))
        before = found[AT] - 1
        ends = ends if valid is None else np.where(valid, ends, before)
        return {**found, UNTIL: np.maximum(ends, before)}

    def meets(self, times: Times) -> tuple[Integers, Integers]:
        return times[AT], times[UNTIL]

    def kept_times(self, side: int, times: Times) -> tuple[Integers, Integers, Integers]:
        at = times[AT]
        if side == LEFT:
            return at, times[UNTIL], at
        return np.full(len(at), -NEVER_US, np.int64), at, at

    def leaves(self, side: int, times: Times) -> Integers:
        return times[AT if side == LEFT else UNTIL] + 1

    @property
    def bucket_us(self) -> int:
        return MINUTE_US

    def __str__(self) -> str:
        return f"between {self.columns_of_time[RIGHT]} and {self.end}"


@dataclass(frozen=True)
class AsOf(EventBounds):
    """The left row meets the newest right row that is not after it, and at most `tolerance_us` before; None: any.

    A left row meets its right row and leaves once the watermark has passed it. A right row's column `LEAVES` holds its
    own time at first, so the operator looks at the row once the watermark has passed it too. Then the newest right row
    of the key that the watermark has passed replaces the older ones; it leaves when it is too old for all rows that may
    still come.
    """

    tolerance_us: int | None = None

    def columns(self, side: int) -> tuple[str, ...]:
        return () if side == LEFT else (LEAVES,)

    def times(self, side: int, rows: pa.RecordBatch, now_us: int) -> Times:
        found = super().times(side, rows, now_us)
        return found if side == LEFT else {**found, LEAVES: found[AT] + 1}

    def leaves(self, side: int, times: Times) -> Integers:
        return times[AT] + 1 if side == LEFT else times[LEAVES]

    def leaves_as_newest(self, at: Integers) -> Integers:
        """Times at which right rows leave if no row replaces them."""
        return np.full(len(at), NEVER_US, np.int64) if self.tolerance_us is None else at + (self.tolerance_us + 1)

    def earliest(self, at: Integers) -> Integers:
        """The first time of right rows that left rows of these times may meet."""
        return np.full(len(at), -NEVER_US, np.int64) if self.tolerance_us is None else at - self.tolerance_us

    @property
    def bucket_us(self) -> int:
        return max(1_000_000, (self.tolerance_us or MINUTE_US) // 8)

    def __str__(self) -> str:
        return "as of" if self.tolerance_us is None else f"as of, within {shown_duration(self.tolerance_us)}"


@dataclass(frozen=True)
class SameWindow(Bounds):
    """Rows meet if their windows are the same; the window is part of the keys. `windows` has the windows of the two
    sides."""

    windows: tuple[Window, Window]

    def columns(self, side: int) -> tuple[str, ...]:
        return (LEAVES,)

    def times(self, side: int, rows: pa.RecordBatch, now_us: int) -> Times:
        raise AssertionError("rows get their windows first, by `leaves_of`")

    def leaves_of(self, side: int, starts: Integers) -> Integers:
        """Times at which the rows of windows with these starts leave."""
        leaves: Integers = starts + (self.windows[side].size_us + self.behind_us)
        return leaves

    @property
    def behind_us(self) -> int:
        """The time for which a window stays open after its end."""
        return max(window.behind_us for window in self.windows)

    def leaves(self, side: int, times: Times) -> Integers:
        return times[LEAVES]

    @property
    def bucket_us(self) -> int:
        return self.windows[LEFT].pane_us

    def late(self, side: int, rows: pa.RecordBatch, closed_us: int | None) -> BoolArray | None:
        if closed_us is None or not rows.num_rows:
            return None
        window = self.windows[side]
        late: BoolArray = self.leaves_of(side, window.last_starts(window.panes_of(rows))) <= closed_us
        return late if late.any() else None

    def delay_us(self) -> int:
        return self.windows[LEFT].size_us + self.behind_us

    def __str__(self) -> str:
        return str(self.windows[LEFT])


@dataclass(frozen=True)
class Kept(Bounds):
    """Rows meet if both are there at the same time; each stays for `ttl_us` after it came, by the times of the
    batches."""

    ttl_us: int
    by_event_time = False

    def columns(self, side: int) -> tuple[str, ...]:
        return (LEAVES,)

    def times(self, side: int, rows: pa.RecordBatch, now_us: int) -> Times:
        return {LEAVES: np.full(rows.num_rows, now_us + self.ttl_us, np.int64)}

    def leaves(self, side: int, times: Times) -> Integers:
        return times[LEAVES]

    @property
    def bucket_us(self) -> int:
        return max(1_000_000, self.ttl_us // 16)

    def __str__(self) -> str:
        return "with a time to live"


@dataclass(frozen=True)
class Forever(Bounds):
    """Rows meet whenever they come, and none ever leaves."""

    rows_leave = False

    def columns(self, side: int) -> tuple[str, ...]:
        return ()

    def times(self, side: int, rows: pa.RecordBatch, now_us: int) -> Times:
        return {}

    def leaves(self, side: int, times: Times) -> None:
        return None

    @property
    def bucket_us(self) -> int:
        return MINUTE_US

    def until_us(self, context: BatchContext) -> None:
        return None

    def __str__(self) -> str:
        return "for ever"
