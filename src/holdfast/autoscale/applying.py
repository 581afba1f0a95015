"""Rules that turn advice into rescales: one at a time, and with a cooldown after a failed one."""

from holdfast.autoscale.rules import Advice
from holdfast.autoscale.settings import Autoscale


class AdviceApplied:
    """Decides when a job follows the advice."""

    def __init__(self, settings: Autoscale) -> None:
        self._settings = settings
        self._not_before_s = float("-inf")

    def due(self, advice: Advice | None, now: int, most: int, under_way: bool, now_s: float) -> int | None:
        """Return the number of TaskManagers to ask for now, or None. `now`: the number that hold places. `most`: the
        subtasks of an operator, which bound the TaskManagers."""
        if advice is None or advice.now != now or under_way or now_s < self._not_before_s:
            return None
        wanted = min(advice.task_managers, most)
        if wanted == now:
            return None
        self._not_before_s = now_s + self._settings.cooldown_s
        return wanted
