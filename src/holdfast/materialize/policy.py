"""The rule by which tables are materialized, over observed sizes and times.

    log ─► due by its size beside the table's, by its pieces, or by time ─► at which pace ─► then a pause

Materializing bounds the size of the log beside the table (`log_ratio_max`). If a materialization stores only new files,
it costs a few times the log that it replaces, so it may come often. If it stores the whole table, it comes seldom: the
number of pieces in a handle (`log_handles_max`) and the age of the log (`interval_s`) are then bounded by merging
(`merging`), and a materialization is due by them only where merging cannot do it. Unless a log grows fast, a
materialization leaves the store and the processors to others, even if the log then passes a bound (`Pace`). A log
without news is never materialized.
"""

import zlib
from dataclasses import dataclass

from holdfast.changelog.writer import LogSize
from holdfast.changelog_config import DEFAULTS
from holdfast.formats.log_objects import LogId

LOG_RATIO_INCREMENTAL = 0.09
LOG_RATIO_WHOLE = 1.5
"""`log_ratio_max` if the settings have none: for tables of which only new files are stored, and for other tables."""
SETTLED_RATIO = 0.75
"""The share of `log_ratio_max` above which a table is materialized as soon as its base store has merged its files.
Directly before a merge the files contain the most overwritten rows, which would be stored and restored too."""
FAST_GROWTH = 0.5
"""The growth of a log during a materialization, relative to its size, above which materializations begin to hurry."""
SLOW_GROWTH = 0.2
"""The growth below which they stop hurrying. It is far below `FAST_GROWTH`, since hurrying itself halves the growth."""


@dataclass(frozen=True)
class Pace:
    """The speed at which a table is stored.

    Parameters
    ----------
    lanes
        Number of parts that are stored at the same time. A higher value is faster, and takes more of the processors.
    patient
        True if parts wait while checkpoints are being stored.
    pause_ratio
        The pause until the next materialization, as a multiple of the time that the last materialization took.
    """

    lanes: int
    patient: bool
    pause_ratio: float


PATIENT = Pace(lanes=1, patient=True, pause_ratio=0.2)
"""The usual pace: it leaves a processor to concurrent checkpoints."""
HURRIED = Pace(lanes=2, patient=False, pause_ratio=0.0)
"""The pace while the log grows fast: the log to replay is as long as materializations take."""
AWAITED = Pace(lanes=4, patient=False, pause_ratio=0.0)
"""The pace for tables without a log, whose materialization is the checkpoint."""


@dataclass(frozen=True)
class MaterializationPolicy:
    """The bounds past which a table is materialized, and the handling of failures.

    Parameters
    ----------
    log_handles_max
        Small pieces of the log that a handle names at most. A higher value merges less often and restores more slowly.
    log_ratio_max, log_bytes_min
        Size of the stored log at most, as a multiple of the stored table and in bytes; the larger bound holds, since
        a table that is small beside a request to the store is not worth more requests. Higher values materialize less
        often and replay more. A ratio of None is chosen by the cost of a materialization.
    merged_handles_min
        The value of `log_handles_max` from which logs are merged: fewer pieces than that are not worth it.
    interval_s
        Seconds between two materializations, or merges, if nothing else asks for them.
    failures_max
        Failures in a row that end the subtask. A success resets the count.
    retry_delay_s
        Seconds from a failure to the next attempt.
    """

    log_handles_max: int = DEFAULTS.log_handles_max
    log_ratio_max: float | None = DEFAULTS.log_ratio_max
    log_bytes_min: int = 8 * 1024 * 1024
    merged_handles_min: int = 8
    interval_s: float = DEFAULTS.materialization_interval_s
    failures_max: int = 3
    retry_delay_s: float = 1.0

    def due(
        self,
        log: LogSize,
        table_bytes: int,
        incremental: bool,
        now_s: float,
        next_s: float,
        growth: float,
        settled: bool,
        by_time: bool = True,
        merging: bool = False,
    ) -> bool:
        """Return whether to materialize at this boundary. The pause must be over.

        `log` is the log since the last boundary. `table_bytes` is the stored size of the last materialization.
        `incremental` is true if a materialization stores only new files, `settled` if the files have just been merged.
        The log is needed until the materialization ends: until then it grows by about `growth` times its present size.
        `by_time` is true if the time `next_s` alone makes it due. `merging`: pieces of the log are being merged, and
        there is room for as many pieces again meanwhile.
        """
        if not log.pieces and not log.pending_sets:
            return False
        ratio = self.log_ratio_max
        if ratio is None:
            ratio = LOG_RATIO_INCREMENTAL if incremental else LOG_RATIO_WHOLE
        if settled:
            ratio *= SETTLED_RATIO
        return (
            (by_time and now_s >= next_s)
            or log.pieces >= self.log_handles_max * (1 + merging)
            or log.stored_bytes * (1.0 + growth) > max(self.log_bytes_min, ratio * table_bytes)
        )

    @property
    def merges(self) -> bool:
        """True if pieces of logs are merged."""
        return self.log_handles_max >= self.merged_handles_min

    def pace(self, growth: float, last: Pace | None) -> Pace:
        """Return the pace of the next materialization; `growth` as for `due`, `last` the pace of its predecessor.

        The first materialization hurries: after a restart the log is as long as the failure left it.
        """
        if last is None:
            return HURRIED
        return HURRIED if growth > (FAST_GROWTH if last == PATIENT else SLOW_GROWTH) else PATIENT

    def pause_s(self, took_s: float, pace: Pace) -> float:
        """Return the least seconds from the end of a materialization to the beginning of the next one."""
        return min(pace.pause_ratio * took_s, self.interval_s)

    def first_s(self, log: LogId, now_s: float) -> float:
        """Return the time of a log's first materialization. Logs are spread over the interval, the same way at each
        start."""
        return now_s + self.interval_s * (zlib.crc32(str(log).encode()) % 1024 + 1) / 1024
