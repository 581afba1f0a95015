"""Settings: frozen values that are checked when they are made. They hold no component, clock or store.

A wrong value raises a `SettingsError` that names the field, the value and the allowed values. Fields hold values as the
user wrote them; properties with the unit in their name (`timeout_s`, `memory_bytes`) give numbers.
"""

import math
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from holdfast.changelog_config import ChangelogConfig, ChangelogSettings, RetryPolicy
from holdfast.checkpoint.triggers import (
    CheckpointTrigger,
    Cron,
    Every,
    Manual,
    OnWatermark,
    by_default,
    cron,
    every,
    manual,
    on_watermark,
)
from holdfast.errors import SettingsError
from holdfast.ports import check_port_range
from holdfast.quantities import Duration, Size, above_zero, duration_s, size_bytes, whole_number

__all__ = [
    "AvailableNow",
    "ChangelogConfig",
    "CheckpointConfig",
    "CheckpointTrigger",
    "Cron",
    "Duration",
    "Every",
    "FailoverConfig",
    "HashMapState",
    "Manual",
    "OnLoss",
    "OnWatermark",
    "ProcessingTime",
    "QueryTrigger",
    "RegionConfig",
    "RetryPolicy",
    "Size",
    "StateBackend",
    "TaskManagerConfig",
    "available_now",
    "cron",
    "duration_s",
    "every",
    "manual",
    "on_watermark",
    "processing_time",
    "size_bytes",
]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Settings of checkpoints, of their failures, and of the log of state.

    Parameters
    ----------
    trigger
        `every("10s")`, `cron("0 * * * *")`, `on_watermark("1h")`, `manual()` or your own `CheckpointTrigger`. Default:
        after the first batch of a start that brings rows, then every 10 s.
    timeout
        Time after which a checkpoint that is not acknowledged is aborted and counts as failed.
    min_pause
        Least time from the end of a checkpoint (completed or aborted) to the next that the trigger starts.
    max_concurrent
        Most checkpoints that may be pending at once.
    tolerable_failed_checkpoints
        Checkpoints that may fail in a row; at the next failure the job restarts from the last completed checkpoint.
        Default: 0, as in Flink.
    tolerable_failure_timeout
        Time after which the job also restarts if a checkpoint was triggered but none has completed since, whatever the
        reason. None: no limit.
    outage_timeout
        Time for which a running query waits for its store, a sink's target, or a local disk that fails or is full,
        before it ends. Each step has this time for itself: planning, batches, restores, checkpoints, publication. Time
        in which the step is not tried does not count. None: forever.
    retained, retained_for
        Completed checkpoints that are kept: the newest `retained`, and with `retained_for="2d"` also all of the last
        two days. `job.start(start_from=…)` goes back to any of them. More checkpoints take more space in the storage,
        since their state and their staged output are kept too.
    unpublished_max
        Most recorded groups of output that a sink may not have published yet. At that number the job plans no more
        batches.
    changelog
        Settings for logging, materializing and uploading changes of state. True is `ChangelogConfig()`, False is
        `ChangelogConfig(enabled=False)`: a checkpoint stores the tables themselves.
    """

    trigger: CheckpointTrigger = field(default_factory=by_default)
    timeout: Duration = "10min"
    min_pause: Duration = 0
    max_concurrent: int = 1
    tolerable_failed_checkpoints: int = 0
    tolerable_failure_timeout: Duration | None = None
    outage_timeout: Duration | None = "10min"
    unpublished_max: int = 100
    retained: int = 1
    retained_for: Duration | None = None
    changelog: ChangelogConfig | bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.trigger, CheckpointTrigger):
            raise SettingsError(
                f"trigger={self.trigger!r} is not allowed: use every('10s'), cron('0 * * * *'), "
                "on_watermark('1h'), manual(), or an object with next_due(now_s, last_s)"
            )
        above_zero(self.timeout_s, "timeout", self.timeout)
        duration_s(self.min_pause, "min_pause")
        if self.tolerable_failure_timeout is not None:
            limit_s = duration_s(self.tolerable_failure_timeout, "tolerable_failure_timeout")
            above_zero(limit_s, "tolerable_failure_timeout", self.tolerable_failure_timeout)
        if self.outage_timeout is not None:
            above_zero(self.outage_limit[0], "outage_timeout", self.outage_timeout)
        whole_number(self.max_concurrent, "max_concurrent", 1)
        whole_number(self.tolerable_failed_checkpoints, "tolerable_failed_checkpoints", 0)
        whole_number(self.unpublished_max, "unpublished_max", 1)
        whole_number(self.retained, "retained", 1)
        if self.retained_for is not None:
            above_zero(duration_s(self.retained_for, "retained_for"), "retained_for", self.retained_for)
        if not isinstance(self.changelog, (ChangelogConfig, bool)):
            raise SettingsError(f"changelog={self.changelog!r}: allowed is a ChangelogConfig(…), True or False")

    @property
    def timeout_s(self) -> float:
        return duration_s(self.timeout, "timeout")

    @property
    def min_pause_s(self) -> float:
        return duration_s(self.min_pause, "min_pause")

    @property
    def tolerable_failure_timeout_s(self) -> float | None:
        limit = self.tolerable_failure_timeout
        return None if limit is None else duration_s(limit, "tolerable_failure_timeout")

    def retention(self, job_s: float) -> tuple[int, float]:
        """Return how many of the newest checkpoints are kept, and the time in seconds since which all are kept, at the
        time `job_s`. The time is infinite if only the number counts."""
        limit = self.retained_for
        return self.retained, (math.inf if limit is None else job_s - duration_s(limit, "retained_for"))

    @property
    def retains_older(self) -> bool:
        """True if checkpoints older than the newest are kept."""
        return self.retained > 1 or self.retained_for is not None

    @property
    def outage_limit(self) -> tuple[float, object]:
        """Return the limit in seconds, and as the user wrote it."""
        limit = self.outage_timeout
        return (math.inf if limit is None else duration_s(limit, "outage_timeout")), limit

    @cached_property
    def changelog_settings(self) -> ChangelogSettings:
        """Return the setting `changelog` as numbers."""
        return self.changelog_config.settings()

    @property
    def changelog_config(self) -> ChangelogConfig:
        """Return the value of `changelog`, with a bool replaced by the config that it means."""
        return ChangelogConfig(enabled=self.changelog) if isinstance(self.changelog, bool) else self.changelog


MEMORY_BYTES_MIN = 16 << 20
"""Least memory of a TaskManager in bytes: the empty tables of 64 subtasks with a map each take 2 MB, and tables
double."""


@dataclass(frozen=True, kw_only=True)
class TaskManagerConfig:
    """Resources of a TaskManager.

    Parameters
    ----------
    memory
        Bound on its tables, caches and exchange buffers together, outside the JVM heap; at least 16 MB.
    local_dir
        Folder for spilled exchange data and for the copies of `local_recovery`; None: the executor's temporary folder.
    port_range
        First and last port that it may listen on; `(0, 0)`: those of `Job(port_range=…)`.
    advertised_host
        Address at which others reach it; None: the address that Spark uses.
    local_recovery, local_recovery_max
        True: copies of stored state are kept below `local_dir`, up to `local_recovery_max` bytes, and a replacement on
        the same machine restores from them.
    heartbeat_timeout
        Time without a heartbeat after which the process counts as dead and is ended; at least `"2s"`, in which case it
        sends a heartbeat each second. A lower value notices a hanging machine sooner. A higher value tolerates
        functions that block the interpreter in a long call. The work of a sender that is silent for that time goes to
        another sender.
    """

    memory: Size = "1GB"
    local_dir: str | None = None
    port_range: tuple[int, int] = (0, 0)
    advertised_host: str | None = None
    local_recovery: bool = False
    local_recovery_max: Size = "10GB"
    heartbeat_timeout: Duration = "30s"

    def __post_init__(self) -> None:
        if self.memory_bytes < MEMORY_BYTES_MIN:
            raise SettingsError(
                f"memory={self.memory!r} is not enough for tables, a batch and exchanged rows; allowed is "
                f"'{MEMORY_BYTES_MIN >> 20}MB' or more (a number without a unit is bytes)"
            )
        if self.heartbeat_timeout_s < 2.0:
            raise SettingsError(f"heartbeat_timeout={self.heartbeat_timeout!r} is not allowed: at least '2s'")
        if not isinstance(self.local_recovery, bool):
            raise SettingsError(f"local_recovery={self.local_recovery!r}: allowed is True or False")
        above_zero(
            size_bytes(self.local_recovery_max, "local_recovery_max"), "local_recovery_max", self.local_recovery_max
        )
        check_port_range(self.port_range)
        for name, value in (("local_dir", self.local_dir), ("advertised_host", self.advertised_host)):
            if value is not None and (not isinstance(value, str) or not value):
                raise SettingsError(f"{name}={value!r}: allowed is a non-empty string or None")

    @property
    def memory_bytes(self) -> int:
        return size_bytes(self.memory, "memory")

    @property
    def heartbeat_timeout_s(self) -> float:
        return duration_s(self.heartbeat_timeout, "heartbeat_timeout")

    @property
    def local_copies_bytes_max(self) -> int:
        """Bound on local copies in bytes; 0 if none are kept."""
        return size_bytes(self.local_recovery_max, "local_recovery_max") if self.local_recovery else 0


class OnLoss(Enum):
    """The ways in which TaskManagers react to the loss of another. The value is the name in `Job(on_loss=…)`."""

    REWIND = "rewind"
    DROP = "drop"
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class FailoverConfig:
    """Settings of restarts after a failure: their number, their pauses, and how long a call to a process may take.

    Parameters
    ----------
    batch_attempts
        Attempts at a batch before its error ends the query, if no process was lost.
    restarts_max
        Most restarts without a completed checkpoint in between. One more ends the query with the last cause.
    losses_max, losses_window
        Most losses of the same process within `losses_window`. One more ends the query with the last cause.
    drop_ratio_max, drop_timeout
        With `on_loss="drop"`: the largest share of TaskManagers that may be missing, and for how long. Above either
        limit, all TaskManagers go back to the last checkpoint, as with `on_loss="rewind"`. Higher values drop more rows
        before that.
    backoff_first, backoff_max
        Pause before each further restart without a completed checkpoint in between: it begins with `backoff_first` and
        doubles up to `backoff_max`. After the first loss of a process the job restarts at once.
    start_timeout
        Time after which a TaskManager that has not registered ends the query.
    deploy_timeout, process_timeout, commit_timeout, cut_timeout
        Longest time that a process which still sends heartbeats may take for a call: a deployment (which restores
        state), a batch at one level of operators, a commit, the cut or the completion of a checkpoint. After that the
        log names the process, the process is ended, and the job restarts. `process_timeout` also limits the tasks of a
        level: after it, the log names the senders at work, and the batch is tried again. None: no limit.
    """

    batch_attempts: int = 3
    restarts_max: int = 10
    losses_max: int = 10
    losses_window: Duration = "10min"
    drop_ratio_max: float = 0.5
    drop_timeout: Duration = "1min"
    backoff_first: Duration = "1s"
    backoff_max: Duration = "30s"
    start_timeout: Duration = "2min"
    deploy_timeout: Duration | None = "30min"
    process_timeout: Duration | None = "10min"
    commit_timeout: Duration | None = "5min"
    cut_timeout: Duration | None = "5min"

    def __post_init__(self) -> None:
        whole_number(self.batch_attempts, "batch_attempts", 1)
        whole_number(self.restarts_max, "restarts_max", 0)
        whole_number(self.losses_max, "losses_max", 0)
        ratio = self.drop_ratio_max
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
            raise SettingsError(f"drop_ratio_max={ratio!r} is not allowed: a number above 0, up to 1")
        for name in ("losses_window", "drop_timeout", "backoff_first", "backoff_max", "start_timeout"):
            value = getattr(self, name)
            above_zero(duration_s(value, name), name, value)
        for name in ("deploy_timeout", "process_timeout", "commit_timeout", "cut_timeout"):
            limit_s = self.limit_s(name)
            if limit_s is not None:
                above_zero(limit_s, name, getattr(self, name))
        if self.backoff_first_s > self.backoff_max_s:
            raise SettingsError(
                f"backoff_first={self.backoff_first!r} is above backoff_max={self.backoff_max!r}; allowed is at most "
                "backoff_max"
            )

    @property
    def losses_window_s(self) -> float:
        return duration_s(self.losses_window, "losses_window")

    @property
    def drop_timeout_s(self) -> float:
        return duration_s(self.drop_timeout, "drop_timeout")

    @property
    def backoff_first_s(self) -> float:
        return duration_s(self.backoff_first, "backoff_first")

    @property
    def backoff_max_s(self) -> float:
        return duration_s(self.backoff_max, "backoff_max")

    @property
    def start_timeout_s(self) -> float:
        return duration_s(self.start_timeout, "start_timeout")

    def limit_s(self, name: str) -> float | None:
        """Return the limit of the field `name` in seconds; None if the field sets no limit."""
        limit = getattr(self, name)
        return None if limit is None else duration_s(limit, name)


@dataclass(frozen=True, kw_only=True)
class RegionConfig:
    """Limits within which splits may fail while a job's other splits continue; see the page on regions.

    Parameters
    ----------
    max_failed_ratio
        Largest share of the job's regions that may be failing or stuck at a time, including parked ones. Above it the
        complete batch fails. With a higher value more splits may fail alone, but it takes longer to notice that
        everything fails.
    max_consecutive_failures
        Checkpoints in a row that may complete while a region fails to advance. The next batch in which the region fails
        is over the limit, before it is committed. With `available_now`, which may take only one checkpoint, attempts
        are counted instead.
    on_poison
        `"fail"`: a region over that limit ends the query. `"park"`: the region is not read until `query.retry` or the
        next start.
    unit_timeout
        Longest time that a sender may take for a unit of work; it must be lower than `FailoverConfig.process_timeout`.
        After it the sender is ended, and the split that it was reading has failed; if splits are not regions, another
        sender gets the unit. A lower value finds a hanging read sooner, but must leave enough time for the largest
        batch.
    holds_watermark
        True: the watermark of a source waits for its failed and parked splits. False: it advances without them. In both
        cases, `_SUCCESS` of a partition waits as long as the partition may still get rows of such a split.
    """

    max_failed_ratio: float = 0.5
    max_consecutive_failures: int = 2
    on_poison: str = "fail"
    unit_timeout: Duration = "5min"
    holds_watermark: bool = False

    def __post_init__(self) -> None:
        ratio = self.max_failed_ratio
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
            raise SettingsError(f"max_failed_ratio={ratio!r} is not allowed: a number above 0, up to 1")
        whole_number(self.max_consecutive_failures, "max_consecutive_failures", 0)
        if self.on_poison not in ("fail", "park"):
            raise SettingsError(f"on_poison={self.on_poison!r} is not allowed: 'fail' or 'park'")
        above_zero(self.unit_s_max, "unit_timeout", self.unit_timeout)
        if not isinstance(self.holds_watermark, bool):
            raise SettingsError(f"holds_watermark={self.holds_watermark!r} is not allowed: True or False")

    @property
    def unit_s_max(self) -> float:
        return duration_s(self.unit_timeout, "unit_timeout")


@dataclass(frozen=True)
class HashMapState:
    """Keeps all state in memory, in columns."""


@dataclass(frozen=True)
class RocksDBState:
    """Keeps state in RocksDB, in a local folder of each TaskManager, below `TaskManagerConfig.local_dir`.

    Parameters
    ----------
    cache_max_entries
        Most rows of each state table of a subtask that stay in memory between batches; the most recently used stay. A
        changed row is written to RocksDB when it leaves memory. A higher value takes more memory and reads RocksDB less
        often. Rows that a running batch touches do not count.
    """

    cache_max_entries: int = 0

    def __post_init__(self) -> None:
        whole_number(self.cache_max_entries, "cache_max_entries", 0)


StateBackend = HashMapState | RocksDBState
IN_MEMORY = HashMapState()


@dataclass(frozen=True)
class ProcessingTime:
    """A batch starts `interval` after the start of the previous batch, or at once if that time is over or `interval` is
    0."""

    interval: Duration = "0s"

    def __post_init__(self) -> None:
        duration_s(self.interval, "processing_time(interval)")

    @property
    def interval_s(self) -> float:
        return duration_s(self.interval, "processing_time(interval)")


@dataclass(frozen=True)
class AvailableNow:
    """Process the input available at the start, take a final checkpoint, publish, end.

    `timeout`: longest time for which a final checkpoint that was softly declined is tried again; None: no limit.
    `drain` declares the input complete: after its last row every window closes and every event-time timer fires. The
    completion is recorded, and later rows are refused. Without `drain`, open windows and timers wait for the next
    start.
    """

    timeout: Duration | None = None
    drain: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.drain, bool):
            raise SettingsError(f"available_now(drain={self.drain!r}): allowed is True or False")
        if self.timeout is not None:
            duration_s(self.timeout, "available_now(timeout)")

    @property
    def timeout_s(self) -> float | None:
        return None if self.timeout is None else duration_s(self.timeout, "available_now(timeout)")


QueryTrigger = ProcessingTime | AvailableNow


def processing_time(interval: Duration = "0s") -> ProcessingTime:
    """Run a batch as soon as the last has ended, but leave at least `interval` between their starts."""
    return ProcessingTime(interval)


def available_now(timeout: Duration | None = None, drain: bool = False) -> AvailableNow:
    """Process all available input, then end. `timeout`, `drain`: the same as in `AvailableNow`."""
    return AvailableNow(timeout, drain)


def checked_restore_mode(start_from: int | str | None, mode: str | None) -> str:
    """Return the mode of a start from a savepoint. Raises `SettingsError` naming the setting that is not allowed."""
    if not (start_from is None or isinstance(start_from, str) or (type(start_from) is int and start_from >= 1)):
        raise SettingsError(
            f"start_from={start_from!r} is not allowed: the number of a retained checkpoint, the URL of a "
            "savepoint, or None"
        )
    if mode not in (None, "no_claim", "claim"):
        raise SettingsError(f"restore_mode={mode!r} is not allowed: 'no_claim' or 'claim'")
    if mode is not None and not isinstance(start_from, str):
        raise SettingsError("restore_mode needs start_from=<url of a savepoint>")
    return mode or "no_claim"
