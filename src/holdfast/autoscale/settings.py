"""Settings of the autoscaler."""

from dataclasses import dataclass

from holdfast.errors import SettingsError
from holdfast.quantities import Duration, above_zero, duration_s, whole_number


@dataclass(frozen=True)
class Autoscale:
    """Settings of the autoscaler: how many TaskManagers a job may have, and how busy they should be.

    The advice is on the page, in `query.status["autoscale"]` and in the log. With `apply=True` the job follows it on
    its own, as `query.rescale` would: batches continue meanwhile, and only state that moves is read.

    Parameters
    ----------
    min_task_managers, max_task_managers
        Bounds of the advice, both included.
    target
        Share of the time in which the job should be busy with batches, above 0 and below 1. A higher value uses fewer
        TaskManagers, and takes longer to work off a burst.
    cooldown
        Least time between two different pieces of advice, and the time in which a backlog should be worked off. A
        higher value follows the load later, and changes less often.
    apply
        True: follow the advice, as far as there are slots and subtasks (`Job(parallelism=…)`). False: only advise.

    Raises
    ------
    SettingsError
        A value is not allowed; the error names it.
    """

    min_task_managers: int = 1
    max_task_managers: int = 8
    target: float = 0.7
    cooldown: Duration = "5min"
    apply: bool = False

    def __post_init__(self) -> None:
        whole_number(self.min_task_managers, "min_task_managers", 1)
        whole_number(self.max_task_managers, "max_task_managers", self.min_task_managers)
        is_share = isinstance(self.target, int | float) and not isinstance(self.target, bool) and 0 < self.target < 1
        if not is_share:
            raise SettingsError(f"target={self.target!r} is not allowed: a number above 0 and below 1")
        above_zero(self.cooldown_s, "cooldown", self.cooldown)
        if not isinstance(self.apply, bool):
            raise SettingsError(f"apply={self.apply!r} is not allowed: True or False")

    @property
    def cooldown_s(self) -> float:
        return duration_s(self.cooldown, "cooldown")
