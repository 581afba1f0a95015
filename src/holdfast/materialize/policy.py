"""When a table is materialized: the rule alone, over observed sizes and times.

Materializing bounds what a handle names (`log_handles_max`), what the log takes beside the table
(`log_ratio_max`) and how old the log can get (`interval_s`). Nothing new in the log: never.
"""

import zlib
from dataclasses import dataclass

from holdfast.changelog.format import LogId
from holdfast.changelog.writer import LogSize


@dataclass(frozen=True)
class MaterializationPolicy:
    """The bounds.

    Parameters
    ----------
    log_handles_max
        Pieces that a handle names.
    log_ratio_max, log_bytes_min
        The stored log may be so many times as large as the stored table, and that large in any case: tables
        that are small beside a request to the store are not worth more.
    interval_s
        Between two materializations where nothing else asks for one.
    failures_max
        So many failures in a row end the subtask; one that succeeds starts the count anew.
    retry_delay_s
        From a failure to the next one.
    """

    log_handles_max: int = 64
    log_ratio_max: float = 2.0
    log_bytes_min: int = 8 * 1024 * 1024
    interval_s: float = 600.0
    failures_max: int = 3
    retry_delay_s: float = 1.0

    def due(self, log: LogSize, table_bytes: int, now_s: float, next_s: float) -> bool:
        """Whether to materialize at this boundary.

        `log` is what came since the last boundary, `table_bytes` what the last materialization takes in the store.
        """
        if not log.pieces and not log.pending_sets:
            return False
        return (
            now_s >= next_s
            or log.pieces >= self.log_handles_max
            or log.stored_bytes > max(self.log_bytes_min, self.log_ratio_max * table_bytes)
        )

    def first_s(self, log: LogId, now_s: float) -> float:
        """When a subtask's first one is due: spread over the interval, the same for the same log each time."""
        return now_s + self.interval_s * (zlib.crc32(str(log).encode()) % 1024 + 1) / 1024
