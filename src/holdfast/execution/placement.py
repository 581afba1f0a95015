"""Tells whether enough standbys run on other executors to make up for the loss of an executor. Spark chooses where
processes run."""

from collections import Counter
from collections.abc import Mapping


def weak_point(holders: Mapping[int, str], standbys: Mapping[int, str]) -> str | None:
    """Name an executor that holds more places than standbys run elsewhere; None if there is none. Both arguments map
    TaskManagers to executors. If all run in the same executor, or there is no standby, the result is None.
    """
    if not standbys or len({*holders.values(), *standbys.values()}) < 2:
        return None
    places = Counter(holders.values())
    for executor, count in places.most_common():
        elsewhere = sum(1 for each in standbys.values() if each != executor)
        if elsewhere < count:
            numbers = ", ".join(str(number) for number, where in sorted(holders.items()) if where == executor)
            return (
                f"executor {executor} holds TaskManager {numbers}, and {elsewhere} of {len(standbys)} standbys run "
                "elsewhere: after its loss the job waits for Spark to start others. Spark chose the places; set a "
                "higher standby_task_managers, or fewer cores for each executor"
            )
    return None
