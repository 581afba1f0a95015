"""Settings: frozen values, checked when made. No component, clock or store lives here.

A wrong value raises `SettingsError` that names field, value and what is allowed. Fields hold what the
user wrote; properties with the unit in their name (`timeout_s`, `memory_bytes`) give the number.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.changelog_config import ChangelogConfig, ChangelogSettings, RetryPolicy
from holdfast.checkpoint.triggers import CheckpointTrigger, Cron, Every, Manual, cron, every, manual
from holdfast.errors import SettingsError
from holdfast.units import Duration, Size, above_zero, duration_s, size_bytes, whole_number

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
    "ProcessingTime",
    "QueryTrigger",
    "RetryPolicy",
    "Size",
    "StateBackend",
    "TaskManagerConfig",
    "available_now",
    "cron",
    "duration_s",
    "every",
    "manual",
    "processing_time",
    "size_bytes",
]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are taken, what of them may fail, and how state is logged.

    Parameters
    ----------
    trigger
        `every("10s")`, `cron("0 * * * *")`, `manual()` or one's own `CheckpointTrigger`.
    timeout
        A checkpoint that is not acknowledged by then is aborted and counts as failed.
    min_pause
        From the end of a checkpoint (completed or aborted) to the next one the policy triggers.
    max_concurrent
        How many checkpoints may be pending at once.
    tolerable_failed_checkpoints
        How many may fail in a row; one more, and the job restarts from the last completed one. 0, as in Flink.
    tolerable_failure_timeout
        The job also restarts when none has completed for so long since one was triggered, whatever the reason.
        None: no limit.
    outage_timeout
        For how long a running query waits for its store, a sink's target or a local disk that fails or is full, before
        it ends; any step alone: planning, batches, restores, checkpoints, publication. None: for ever.
    unpublished_max
        Recorded groups of output that a sink may lag behind; at that number planning of batches stops.
    changelog
        A `ChangelogConfig`: how changes of state are logged, materialized and uploaded. True is `ChangelogConfig()`,
        False is `ChangelogConfig(enabled=False)`: a checkpoint stores the tables themselves.
    """

    trigger: CheckpointTrigger = field(default_factory=lambda: every("10s"))
    timeout: Duration = "10min"
    min_pause: Duration = 0
    max_concurrent: int = 1
    tolerable_failed_checkpoints: int = 0
    tolerable_failure_timeout: Duration | None = None
    outage_timeout: Duration | None = "10min"
    unpublished_max: int = 100
    changelog: ChangelogConfig | bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.trigger, CheckpointTrigger):
            raise SettingsError(
                f"trigger={self.trigger!r} is not allowed: use every('10s'), cron('0 * * * *'), manual(), "
                "or an object with next_due(now_s, last_s)"
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

    @property
    def outage_limit(self) -> tuple[float, object]:
        """In seconds, and as the user wrote it."""
        limit = self.outage_timeout
        return (math.inf if limit is None else duration_s(limit, "outage_timeout")), limit

    @cached_property
    def changelog_settings(self) -> ChangelogSettings:
        """The numbers of `changelog`."""
        return self.changelog_config.settings()

    @property
    def changelog_config(self) -> ChangelogConfig:
        """The value of `changelog`, of which a bool is a short form."""
        return ChangelogConfig(enabled=self.changelog) if isinstance(self.changelog, bool) else self.changelog


MEMORY_BYTES_MIN = 16 << 20
"""The least memory of a TaskManager: the empty tables of 64 subtasks with a map each take 2 MB, and tables double."""


@dataclass(frozen=True, kw_only=True)
class TaskManagerConfig:
    """What one TaskManager may use.

    Parameters
    ----------
    memory
        Bound of its tables, caches and exchange buffers together, outside the JVM heap; at least 16 MB.
    local_dir
        Where exchange data spills to, and copies of `local_recovery` lie; None: the executor's own temporary folder.
    port_range
        First and last port it may listen on; `(0, 0)`: any free one.
    advertised_host
        The address others reach it under; None: the one Spark uses.
    local_recovery, local_recovery_max
        Whether copies of what is stored are kept below `local_dir`, up to so many bytes, so that a replacement on the
        same machine restores from there.
    heartbeat_timeout
        How long it may be silent before it is taken for dead and ended; at least `"2s"`, since a sign of life comes
        every second. Shorter notices a machine that hangs sooner, longer spares a function that holds the interpreter
        in one long call. A sender that is silent for so long is given up, and its work goes to another one.
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
                f"memory={self.memory!r} is not enough for tables, one batch and exchanged rows; allowed is "
                f"'{MEMORY_BYTES_MIN >> 20}MB' or more (a number without a unit is bytes)"
            )
        if self.heartbeat_timeout_s < 2.0:
            raise SettingsError(f"heartbeat_timeout={self.heartbeat_timeout!r} is not allowed: at least '2s'")
        if not isinstance(self.local_recovery, bool):
            raise SettingsError(f"local_recovery={self.local_recovery!r}: allowed is True or False")
        above_zero(
            size_bytes(self.local_recovery_max, "local_recovery_max"), "local_recovery_max", self.local_recovery_max
        )
        allowed = "two whole numbers, first <= last, from 1 to 65535, or (0, 0) for any free port"
        try:
            first, last = self.port_range
            fits = (first, last) == (0, 0) or 1 <= first <= last <= 65535
        except (TypeError, ValueError) as error:
            raise SettingsError(f"port_range={self.port_range!r} is not understood; allowed: {allowed}") from error
        if not fits:
            raise SettingsError(f"port_range={self.port_range!r} is not allowed; allowed: {allowed}")
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
        """0 where no copies are kept."""
        return size_bytes(self.local_recovery_max, "local_recovery_max") if self.local_recovery else 0


@dataclass(frozen=True, kw_only=True)
class FailoverConfig:
    """When the job starts again after a failure, how often, and how long a call to a process may take.

    Parameters
    ----------
    batch_attempts
        So often a batch is tried before its error ends the query, where no process was lost.
    restarts_max
        So many restarts without a completed checkpoint in between; one more ends the query with the last cause.
    losses_max, losses_window
        So many losses of one process within that time; one more ends the query with the last cause.
    backoff_first, backoff_max
        The first loss of a process is answered at once. Before each further start without a completed checkpoint in
        between the job waits: `backoff_first`, doubling up to `backoff_max`.
    start_timeout
        A TaskManager that has not registered by then ends the query.
    deploy_timeout, process_timeout, commit_timeout
        How long a call to a process may take, although its heartbeats go on: a deployment (which restores state), a
        batch at one level of operators, a commit. Past it the process is ended, and the job restarts. The log names
        the process before that. None: no limit.
    """

    batch_attempts: int = 3
    restarts_max: int = 10
    losses_max: int = 10
    losses_window: Duration = "10min"
    backoff_first: Duration = "1s"
    backoff_max: Duration = "30s"
    start_timeout: Duration = "2min"
    deploy_timeout: Duration | None = "30min"
    process_timeout: Duration | None = "10min"
    commit_timeout: Duration | None = "5min"

    def __post_init__(self) -> None:
        whole_number(self.batch_attempts, "batch_attempts", 1)
        whole_number(self.restarts_max, "restarts_max", 0)
        whole_number(self.losses_max, "losses_max", 0)
        for name in ("losses_window", "backoff_first", "backoff_max", "start_timeout"):
            value = getattr(self, name)
            above_zero(duration_s(value, name), name, value)
        for name in ("deploy_timeout", "process_timeout", "commit_timeout"):
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
    def backoff_first_s(self) -> float:
        return duration_s(self.backoff_first, "backoff_first")

    @property
    def backoff_max_s(self) -> float:
        return duration_s(self.backoff_max, "backoff_max")

    @property
    def start_timeout_s(self) -> float:
        return duration_s(self.start_timeout, "start_timeout")

    def limit_s(self, name: str) -> float | None:
        """The limit that a field sets; None where it sets none."""
        limit = getattr(self, name)
        return None if limit is None else duration_s(limit, name)


@dataclass(frozen=True)
class HashMapState:
    """Keeps all state in memory, in columns."""


@dataclass(frozen=True)
class RocksDBState:
    """Keeps state in RocksDB, in a local folder of each TaskManager, below `TaskManagerConfig.local_dir`.

    Parameters
    ----------
    cache_max_entries
        So many rows of each state table of a subtask stay in memory between batches, the most recently used; a
        changed row reaches RocksDB when it leaves memory. 0: none. Rows that a batch touches come on top of it
        while the batch runs.
    """

    cache_max_entries: int = 0

    def __post_init__(self) -> None:
        whole_number(self.cache_max_entries, "cache_max_entries", 0)


StateBackend = HashMapState | RocksDBState
IN_MEMORY = HashMapState()


@dataclass(frozen=True)
class ProcessingTime:
    """A batch starts `interval` after the one before it did; at once where that is over, or is 0."""

    interval: Duration = "0s"

    def __post_init__(self) -> None:
        duration_s(self.interval, "processing_time(interval)")

    @property
    def interval_s(self) -> float:
        return duration_s(self.interval, "processing_time(interval)")


@dataclass(frozen=True)
class AvailableNow:
    """Process what is there at the start, take a final checkpoint, publish, end.

    `timeout`: how long a final checkpoint that is softly declined is tried again; None: without limit.
    `drain`: the input is complete. After its last row every window closes and every event-time timer fires; that is
    recorded, so that rows that come later are refused. Without it open windows and timers wait for the next start.
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
    """Batches one after the other, their starts at least `interval` apart."""
    return ProcessingTime(interval)


def available_now(timeout: Duration | None = None, drain: bool = False) -> AvailableNow:
    """All that is there now, then end; see `AvailableNow`."""
    return AvailableNow(timeout, drain)
