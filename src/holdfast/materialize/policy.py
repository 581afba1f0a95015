"""The rule by which tables are materialized, over observed sizes and times.

    log ─► due by its pieces, by its size beside the table's, or by time ─► at what pace ─► then a pause

Materializing bounds what a handle names (`log_handles_max`), what the log takes beside the table
(`log_ratio_max`) and how old the log can get (`interval_s`). Where it stores only what is new, it costs a few times
the log that it replaces, so it may come often; where it stores the whole table, it may not. Unless a log grows fast,
it leaves the store and the processors to others, also where that passes a bound (`Pace`).
Nothing new in the log: never.
"""

import zlib
from dataclasses import dataclass

from holdfast.changelog.writer import LogSize
from holdfast.changelog_config import DEFAULTS
from holdfast.formats.log_objects import LogId

LOG_RATIO_INCREMENTAL = 0.09
LOG_RATIO_WHOLE = 1.0
"""`log_ratio_max` where nothing else was set: for tables of which only new files are stored, and for others."""
SETTLED_RATIO = 0.75
"""The share of `log_ratio_max` from which on a table is materialized as soon as its base store has merged its files.
Right before a merge the files hold the most overwritten rows, which would be stored, and restored, as well."""
FAST_GROWTH = 0.5
"""The growth of a log during a materialization, by its size, beyond which materializations begin to hurry."""
SLOW_GROWTH = 0.2
"""The growth up to which they no longer hurry: far below `FAST_GROWTH`, since hurrying alone halves the growth."""


@dataclass(frozen=True)
class Pace:
    """How a table is stored.

    Parameters
    ----------
    lanes
        Parts that are stored at a time.
    patient
        Whether parts let checkpoints go first.
    pause_ratio
        The pause until the next materialization, as a multiple of the time that this one took.
    """

    lanes: int
    patient: bool
    pause_ratio: float


PATIENT = Pace(lanes=1, patient=True, pause_ratio=0.2)
"""The usual pace: it leaves a processor to the checkpoints beside it."""
HURRIED = Pace(lanes=2, patient=False, pause_ratio=0.0)
"""The pace while the log grows fast: the log to replay is as long as materializations take."""
AWAITED = Pace(lanes=4, patient=False, pause_ratio=0.0)
"""The pace without a log, when the materialization is the checkpoint."""


@dataclass(frozen=True)
class MaterializationPolicy:
    """The bounds.

    Parameters
    ----------
    log_handles_max
        Pieces that a handle names.
    log_ratio_max, log_bytes_min
        The stored log may be so many times as large as the stored table, and that large in any case: tables
        that are small beside a request to the store are not worth more. None: as the cost says.
    interval_s
        Between two materializations where nothing else asks for one.
    failures_max
        So many failures in a row end the subtask; one that succeeds starts the count anew.
    retry_delay_s
        From a failure to the next one.
    """

    log_handles_max: int = DEFAULTS.log_handles_max
    log_ratio_max: float | None = DEFAULTS.log_ratio_max
    log_bytes_min: int = 8 * 1024 * 1024
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
    ) -> bool:
        """Return whether to materialize at this boundary, the pause being over.

        `log` is what came since the last boundary, `table_bytes` what the last materialization takes in the store,
        `incremental` whether only what is new in it is stored, `settled` whether its files have just been merged. The
        log is needed until the materialization ends: by then it will have grown by about `growth` times what it is.
        """
        if not log.pieces and not log.pending_sets:
            return False
        ratio = self.log_ratio_max
        if ratio is None:
            ratio = LOG_RATIO_INCREMENTAL if incremental else LOG_RATIO_WHOLE
        if settled:
            ratio *= SETTLED_RATIO
        return (
            now_s >= next_s
            or log.pieces >= self.log_handles_max
            or log.stored_bytes * (1.0 + growth) > max(self.log_bytes_min, ratio * table_bytes)
        )

    def pace(self, growth: float, last: Pace | None) -> Pace:
        """How the next one is to be stored, `growth` as for `due`, `last` the pace of the one before.

        The first one hurries: after a restart the log is as long as the failure left it.
        """
        if last is None:
            return HURRIED
        return HURRIED if growth > (FAST_GROWTH if last == PATIENT else SLOW_GROWTH) else PATIENT

    def pause_s(self, took_s: float, pace: Pace) -> float:
        """The least time from the end of a materialization to the begin of the next one."""
        return min(pace.pause_ratio * took_s, self.interval_s)

    def first_s(self, log: LogId, now_s: float) -> float:
        """The time at which a log's first materialization is due: spread over the interval, the same at each start."""
        return now_s + self.interval_s * (zlib.crc32(str(log).encode()) % 1024 + 1) / 1024
