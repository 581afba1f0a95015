"""The rule by which tables are materialized, over observed sizes and times.

    log ─► too many pieces ─► merged, or due if that frees too few
        └► due by its size beside the table's, or by time ─► at which pace ─► then a pause

Merging the log bounds the number of pieces in a handle (`log_handles_max`). Materializing bounds it where merging does
not, and also the size of the log relative to the table (`log_ratio_max`) and the age of the log (`interval_s`). If a
materialization stores only new files, it costs a few times the log that it replaces, so it may happen often. If it
stores the complete table, it happens rarely. Unless a log grows fast, a materialization yields the store and the
processors to other work, even if the log then exceeds a bound (`Pace`). A log without new changes is never
materialized.
"""

import zlib
from dataclasses import dataclass

from holdfast.changelog.writer import LogSize
from holdfast.changelog_config import DEFAULTS
from holdfast.formats.log_objects import LogId

LOG_RATIO_INCREMENTAL = 0.09
LOG_RATIO_WHOLE = 1.0
"""The defaults of `log_ratio_max`: for tables whose materialization stores only new files, and for other tables."""
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
MERGE_DIVISOR = 4
"""Divisor of `log_handles_max` for the pieces that a merge must free. A higher value merges less at a time, and stores
more objects."""
FOLLOWER_S_MAX = 60.0
"""Bound in seconds on the wait of a due materialization for a follower's. A higher value gives slow followers more
time, and lets the log grow for longer where there is none."""
FOLLOWER_CUTS = 3
"""Cuts for which a due materialization waits for a follower's at the least. A follower stores the table of a completed
cut, and the owner has its base only after the next completion."""


@dataclass(frozen=True)
class MaterializationPolicy:
    """The bounds past which a table is materialized, and the handling of failures.

    Parameters
    ----------
    log_handles_max
        Most pieces of the log that a handle names, before neighbours are merged or the table is materialized. A higher
        value stores changes again less often, and restores more slowly.
    log_ratio_max, log_bytes_min
        Bounds on the size of the stored log, as a multiple of the stored table and in bytes. The larger bound applies,
        since a small table is not worth additional requests. Higher values materialize less often and replay more. None
        as the ratio: it is chosen by the cost of a materialization.
    interval_s
        Seconds between two materializations if there is no other reason for one. A table of which all rows are stored
        then also needs a stored log of `log_ratio_max` times its size: otherwise few changes would store it again and
        again.
    failures_max
        Failures in a row that end the subtask. A success resets the count.
    retry_delay_s
        Seconds from a failure to the next attempt.
    patience_s
        Seconds for which a materialization that is due waits for a base that a follower has made, and for
        `FOLLOWER_CUTS` cuts too; 0: no follower makes any.
    """

    log_handles_max: int = DEFAULTS.log_handles_max
    log_ratio_max: float | None = DEFAULTS.log_ratio_max
    log_bytes_min: int = 8 * 1024 * 1024
    interval_s: float = DEFAULTS.materialization_interval_s
    failures_max: int = 3
    retry_delay_s: float = 1.0
    patience_s: float = 0.0

    def due(
        self,
        log: LogSize,
        table_bytes: int,
        incremental: bool,
        now_s: float,
        next_s: float,
        growth: float,
        settled: bool,
        merges: bool = False,
    ) -> bool:
        """Return whether to materialize at this boundary. The pause must be over.

        `log` is the log since the last boundary. `table_bytes` is the stored size of the last materialization, or about
        that of a materialization now, if it is larger: so a log of rows that are all new is no reason.
        `incremental` is true if a materialization stores only new files, `settled` if the files have just been merged.
        The log is needed until the materialization ends. Until then it grows by about `growth` times its present size.
        `merges` is true if the log is being merged, so that its number of pieces is no reason.
        """
        if not log.pieces and not log.pending_sets:
            return False
        ratio = self.log_ratio_max
        if ratio is None:
            ratio = LOG_RATIO_INCREMENTAL if incremental else LOG_RATIO_WHOLE
        if settled:
            ratio *= SETTLED_RATIO
        return (
            (now_s >= next_s and (incremental or log.stored_bytes >= ratio * table_bytes))
            or (self.is_long(log) and not merges)
            or log.stored_bytes * (1.0 + growth) > max(self.log_bytes_min, ratio * table_bytes)
        )

    def is_long(self, log: LogSize) -> bool:
        """Return whether a handle would name too many pieces of this log."""
        return log.pieces >= self.log_handles_max

    def is_merged_by_owner(self, log: LogSize) -> bool:
        """Return whether a follower leaves the number of pieces of this log to its owner, which merges them."""
        return self.merge_frees_min > 0 and log.pieces < 2 * self.log_handles_max

    @property
    def merge_frees_min(self) -> int:
        """Pieces that a merge of the log must free; 0: too few pieces are allowed for any merge."""
        return self.log_handles_max // MERGE_DIVISOR

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
