"""The rule by which failed checkpoints make the job restart.

A checkpoint counts once. Ids at or below the last success do not count. After a success the count starts at 0 again.
Does not own: the checkpoints themselves, and the restart.
"""

from holdfast.ids import CheckpointId
from holdfast.settings import CheckpointConfig


class FailureManager:
    """Counts failures in a row, and the time since the first trigger after the last completed checkpoint."""

    def __init__(self) -> None:
        self._last_success = CheckpointId(0)
        self._failed: set[CheckpointId] = set()
        self._trying_since_s: float | None = None
        self._last: tuple[CheckpointId, str] | None = None
        """The checkpoint that failed or was refused last, and the reason."""

    def triggered(self, now_s: float) -> None:
        """Note that a checkpoint was begun, or that its trigger was refused."""
        if self._trying_since_s is None:
            self._trying_since_s = now_s

    def completed(self, checkpoint_id: CheckpointId) -> None:
        """Note that a checkpoint was recorded."""
        self._last_success = max(self._last_success, checkpoint_id)
        self.reset()

    def failed(self, checkpoint_id: CheckpointId, reason: str, *, counted: bool) -> None:
        """Note that a checkpoint failed or was refused. A soft refusal does not count, but the time still runs."""
        if checkpoint_id <= self._last_success:
            return
        self._last = (checkpoint_id, reason)
        if counted:
            self._failed.add(checkpoint_id)

    def reset(self) -> None:
        """Count from nothing again: a checkpoint completed, or the job restarts."""
        self._failed.clear()
        self._trying_since_s = None
        self._last = None

    def verdict(self, now_s: float, config: CheckpointConfig) -> str | None:
        """Return the reason why the job must restart; None if it need not."""
        last = "" if self._last is None else f"; the last, checkpoint {self._last[0]}: {self._last[1]}"
        if len(self._failed) > config.tolerable_failed_checkpoints:
            return (
                f"{len(self._failed)} checkpoints failed in a row, "
                f"tolerable_failed_checkpoints={config.tolerable_failed_checkpoints}{last}"
            )
        limit_s = config.tolerable_failure_timeout_s
        if limit_s is not None and self._trying_since_s is not None and now_s - self._trying_since_s >= limit_s:
            return (
                f"no checkpoint completed for {now_s - self._trying_since_s:.3g} s since a checkpoint was "
                f"triggered, tolerable_failure_timeout={config.tolerable_failure_timeout!r}{last}"
            )
        return None
