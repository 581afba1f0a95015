"""The schedule of a table's materializations: when the next one is due, how fast it is stored, when the table fails.

    due ──► pace ──► stored ──► a pause, then due by the policy
                └──► failed ──► due after a delay; after `failures_max` in a row the table fails
    too many pieces ──► a merge of the log; after `failures_max` failures in a row a materialization in its place

Pure: the caller passes times in, and no clock is read. `policy` has the bounds.
"""

from holdfast.changelog.writer import LogSize
from holdfast.formats.log_objects import LogId
from holdfast.materialize.base import Base
from holdfast.materialize.policy import FOLLOWER_CUTS, MaterializationPolicy, Pace


class Schedule:
    """The schedule of a single table. In all methods, `now_s` is a monotonic clock's reading in seconds."""

    def __init__(self, policy: MaterializationPolicy, log: LogId, now_s: float) -> None:
        self._policy = policy
        self._next_s = policy.first_s(log, now_s)
        self._pause_ends_s = now_s
        self._began_s = now_s
        """The time when the last stored materialization began, or when the schedule began."""
        self._took_s = 0.0
        self._pace: Pace | None = None
        """The pace of the last materialization that was stored; None before the first."""
        self._failures = 0
        self._due_since_s: float | None = None
        """The time since which a materialization has been due; None if none is."""
        self._cuts = 0
        """Cuts since then."""
        self._merge_failures = 0
        self._merge_from_s = now_s
        """No merge begins earlier, after one has failed."""

    def merge_frees(self, log: LogSize, base: Base) -> int:
        """Return the pieces that a merge of the log has to free now; 0 if none is due."""
        if not self._policy.is_long(base.size(log)) or self._merge_failures >= self._policy.failures_max:
            return 0
        return self._policy.merge_frees_min

    def merge_waits(self, now_s: float) -> bool:
        """Return whether a merge waits after a failure."""
        return now_s < self._merge_from_s

    def merged(self) -> None:
        """Note that a merge has ended well."""
        self._merge_failures = 0

    def merge_failed(self, now_s: float) -> None:
        """Note a failed merge."""
        self._merge_failures += 1
        self._merge_from_s = now_s + self._policy.retry_delay_s

    def due(
        self, log: LogSize, base: Base, settled: bool, now_s: float, merges: bool = False, rows_bytes: int = 0
    ) -> bool:
        """Return whether a materialization should begin at this boundary.

        `log` is the size of the log since `base`, the newest base. `settled` says that the table's files were just
        merged, `merges` that the log is being merged, so that its number of pieces is no reason. `rows_bytes` are the
        bytes of the table's rows now, before they are encoded; 0: unknown.
        """
        if now_s < self._pause_ends_s:
            return False
        growth, size = self._growth(now_s), base.size(log)
        table_bytes = max(base.stored_bytes, int(log.shrinks_to * rows_bytes))
        if not self._policy.due(size, table_bytes, bool(base.files), now_s, self._next_s, growth, settled, merges):
            self._due_since_s = None
            return False
        if self._due_since_s is None:
            self._due_since_s, self._cuts = now_s, 0
        patience_s = self._policy.patience_s
        return not patience_s or (now_s - self._due_since_s >= patience_s and self._cuts >= FOLLOWER_CUTS)

    def cut(self) -> None:
        """Note a cut: followers store the tables of cuts."""
        self._cuts += 1

    def pace(self, now_s: float) -> Pace:
        """Return the pace of a materialization that begins now."""
        return self._policy.pace(self._growth(now_s), self._pace)

    def stored(self, began_s: float, now_s: float, pace: Pace) -> None:
        """Note that a materialization that began at `began_s` has been stored."""
        self._failures = self._merge_failures = 0
        self._next_s = now_s + self._policy.interval_s
        self._began_s, self._took_s, self._pace = began_s, now_s - began_s, pace
        self._pause_ends_s = now_s + self._policy.pause_s(self._took_s, pace)

    def taken(self, now_s: float) -> None:
        """Note a materialization that a follower has made."""
        self._next_s, self._due_since_s = now_s + self._policy.interval_s, None

    def cancelled(self, now_s: float) -> None:
        """Note that a materialization was cancelled, because its checkpoint is no longer needed."""
        self._next_s = now_s + self._policy.retry_delay_s

    def failed(self, now_s: float) -> bool:
        """Note a failed materialization. Returns whether it was the last of as many in a row as the policy
        tolerates."""
        self.cancelled(now_s)
        self._failures += 1
        return self._failures >= self._policy.failures_max

    def _growth(self, now_s: float) -> float:
        """The log's growth during a materialization that begins now, as a share of the log's present size.

        The materialization is expected to take as long as the last one.
        """
        return self._took_s / (now_s - self._began_s) if self._took_s else 0.0
