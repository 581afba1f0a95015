"""The budget of restarts: the number of restarts without a completed checkpoint in between, and the pauses before
them."""

from holdfast.execution.processes import back_off_s
from holdfast.settings import FailoverConfig


class Restarts:
    """Counts restarts, and deployments that failed in a row."""

    def __init__(self, config: FailoverConfig) -> None:
        self._config = config
        self._deploy_failures = 0
        self.count = 0
        """Restarts since a checkpoint completed."""
        self.not_before_s = float("-inf")
        """Time before which no deployment may begin."""
        self.next_is_free = False
        """True if the next restart does not count."""

    def another(self) -> bool:
        """Count a restart; return whether it is within the budget."""
        self.count += not self.next_is_free
        self.next_is_free = False
        return self.count <= self._config.restarts_max

    def checkpoint_completed(self) -> None:
        self.count = 0

    def deployed(self) -> None:
        self._deploy_failures = 0

    def pause(self, seconds: float, now_s: float) -> None:
        self.not_before_s = now_s + seconds

    def deploy_failed(self, cause: str, now_s: float) -> str:
        """Pause after a deployment that failed without a lost process; return a line for the log."""
        self._deploy_failures += 1
        wait_s = back_off_s(self._deploy_failures, self._config)
        self.pause(wait_s, now_s)
        return f"deploying failed {self._deploy_failures} times in a row: {cause}; again in {wait_s:g} s"
