"""Advises on settings of a cluster manager that would end or starve a job that itself survives losses. Pure."""

from collections.abc import Callable

SparkSetting = Callable[[str], str | None]
"""Gives a setting of Spark; None if it is not set."""

FAILURES_COUNTED = ("spark.executor.maxNumFailures", "spark.executor.failuresValidityInterval")


def advice(master: str, setting: SparkSetting, processes: int, senders: int) -> list[str]:
    """Return a line for each setting to think about; `processes`: slots of TaskManagers, `senders`: of senders."""
    return [
        *_executor_failures(master, setting),
        *_driver_attempts(master, setting),
        *_decommission(master, setting),
        *_idle(setting, processes, senders),
    ]


def _executor_failures(master: str, setting: SparkSetting) -> list[str]:
    """Spark ends an application that has lost so many executors, which is the sum over its whole life by default."""
    if not master.startswith(("yarn", "k8s")) or any(setting(name) is not None for name in FAILURES_COUNTED):
        return []
    return [
        "Spark ends the application after twice as many lost executors as it has (at least 3), counted over its whole "
        "life, although the job goes on after each loss: set spark.executor.failuresValidityInterval=1h, so that only "
        "the losses of the last hour count, or a high spark.executor.maxNumFailures"
    ]


def _driver_attempts(master: str, setting: SparkSetting) -> list[str]:
    """YARN starts a lost driver again in cluster mode, by default once in the application's whole life."""
    if not master.startswith("yarn") or setting("spark.submit.deployMode") != "cluster":
        return []
    if setting("spark.yarn.am.attemptFailuresValidityInterval") is not None:
        return []
    return [
        "YARN starts the driver again spark.yarn.maxAppAttempts times at most (2 by default), counted over the "
        "application's whole life: set spark.yarn.am.attemptFailuresValidityInterval=1h, so that only the last hour "
        "counts"
    ]


def _decommission(master: str, setting: SparkSetting) -> list[str]:
    """Spark tells of machines that are to go only if it is allowed to decommission executors."""
    is_cluster = master.startswith(("yarn", "k8s", "spark://"))
    if not is_cluster or str(setting("spark.decommission.enabled")).lower() == "true":
        return []
    return [
        "Spark does not tell which machines are to go (decommissioned nodes, spot notices), so that their state is "
        "restored elsewhere after they have gone: set spark.decommission.enabled=true, and it moves before that"
    ]


def _idle(setting: SparkSetting, processes: int, senders: int) -> list[str]:
    """Executors come when tasks wait under dynamic allocation: a job that has lost some waits for new ones."""
    if str(setting("spark.dynamicAllocation.enabled")).lower() != "true":
        return []
    least = int(setting("spark.dynamicAllocation.minExecutors") or 0)
    slots = max(1, int(setting("spark.executor.cores") or 1) // int(setting("spark.task.cpus") or 1))
    needed = -(-(processes + senders + 1) // slots)
    if least >= needed:
        return []
    return [
        f"spark.dynamicAllocation.minExecutors={least} is lower than the {needed} executors that the job's "
        f"{processes} TaskManagers, {senders} senders and short Spark jobs fill: after a loss the replacement waits "
        "until the cluster manager gives another executor"
    ]
