"""Advice on cluster manager settings that would end or starve a job, although the job itself survives losses. Pure."""

from collections.abc import Callable

SparkSetting = Callable[[str], str | None]
"""Gives a setting of Spark; None if it is not set."""

FAILURES_COUNTED = ("spark.executor.maxNumFailures", "spark.executor.failuresValidityInterval")


def advice(master: str, setting: SparkSetting, processes: int, senders: int) -> list[str]:
    """Return a line for each setting to reconsider. `processes`: slots for TaskManagers, `senders`: slots for
    senders."""
    return [
        *_executor_failures(master, setting),
        *_driver_attempts(master, setting),
        *_decommission(master, setting),
        *_idle(setting, processes, senders),
    ]


def _executor_failures(master: str, setting: SparkSetting) -> list[str]:
    """Spark ends an application after so many lost executors, by default counted over its complete life."""
    if not master.startswith(("yarn", "k8s")) or any(setting(name) is not None for name in FAILURES_COUNTED):
        return []
    return [
        "Spark ends the application after twice as many lost executors as it has (at least 3), counted over its whole "
        "life, although the job goes on after each loss: set spark.executor.failuresValidityInterval=1h, so that only "
        "the losses of the last hour count, or a high spark.executor.maxNumFailures"
    ]


def _driver_attempts(master: str, setting: SparkSetting) -> list[str]:
    """YARN restarts a lost driver in cluster mode, by default only once in the application's life."""
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
    """Spark reports machines that are about to be removed only if decommissioning is enabled."""
    is_cluster = master.startswith(("yarn", "k8s", "spark://"))
    if not is_cluster or str(setting("spark.decommission.enabled")).lower() == "true":
        return []
    return [
        "Spark does not tell which machines are to go (decommissioned nodes, spot notices), so that their state is "
        "restored elsewhere after they have gone: set spark.decommission.enabled=true, and it moves before that"
    ]


def _idle(setting: SparkSetting, processes: int, senders: int) -> list[str]:
    """Executors start only when tasks wait under dynamic allocation, so a job that has lost some waits for new ones."""
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
