"""Settings: frozen values, checked when made. No component, clock or store lives here.

A wrong value raises `SettingsError` that names field, value and what is allowed. Fields hold what the
user wrote; properties with the unit in their name (`timeout_s`, `memory_bytes`) give the number.
"""

import math
from dataclasses import dataclass, field

from holdfast.checkpoint.triggers import CheckpointTrigger, Cron, Every, Manual, cron, every, manual
from holdfast.errors import SettingsError
from holdfast.units import Duration, Size, duration_s, size_bytes
from holdfast.uploads.retries import RetryPolicy

__all__ = [
    "AvailableNow",
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
    """When checkpoints are taken, what of them may fail, and how the changelog is written.

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
        Whether changes of state are logged, so that a checkpoint stores only those. False: a checkpoint stores the
        tables themselves (of RocksDB, files that are new), and a batch waits with its commit until they are captured.
        It can be switched at each start.
    log_handles_max, log_ratio_max, materialization_interval
        With a changelog: a table is materialized when its log has that many pieces, or will be larger than so many
        times the stored table once that is done (None: 0.09 in RocksDB, of which only new files are stored, 1 in
        memory), or when the interval is over; but, unless the log grows fast, not before a fifth of the time has
        passed that the one before took.
    persist_delay, persist_size_threshold
        How long, and up to what size, requests to persist wait for others to share an object with.
    preemptive_persist_threshold
        What a table's log may have pending before it is uploaded without waiting for a checkpoint; a quarter of it
        shortly before the next one is expected.
    object_size_max
        A changelog object is split at this size.
    in_flight_max
        Bytes a TaskManager may have in upload; past it, batches wait.
    retries
        How uploads are retried: `RetryPolicy.none()` or `RetryPolicy.fixed(max_attempts, timeout, next_attempt_delay)`.
    """

    trigger: CheckpointTrigger = field(default_factory=lambda: every("10s"))
    timeout: Duration = "10min"
    min_pause: Duration = 0
    max_concurrent: int = 1
    tolerable_failed_checkpoints: int = 0
    tolerable_failure_timeout: Duration | None = None
    outage_timeout: Duration | None = "10min"
    unpublished_max: int = 100
    changelog: bool = True
    log_handles_max: int = 64
    log_ratio_max: float | None = None
    materialization_interval: Duration = "10min"
    persist_delay: Duration = "10ms"
    persist_size_threshold: Size = "10MB"
    preemptive_persist_threshold: Size = "5MB"
    object_size_max: Size = "8MB"
    in_flight_max: Size = "100MB"
    retries: RetryPolicy = field(default_factory=RetryPolicy.fixed)

    def __post_init__(self) -> None:
        if not isinstance(self.trigger, CheckpointTrigger):
            raise SettingsError(
                f"trigger={self.trigger!r} is not allowed: use every('10s'), cron('0 * * * *'), manual(), "
                "or an object with next_due(now_s, last_s)"
            )
        _above_zero(self.timeout_s, "timeout", self.timeout)
        _above_zero(self.materialization_interval_s, "materialization_interval", self.materialization_interval)
        duration_s(self.min_pause, "min_pause")
        duration_s(self.persist_delay, "persist_delay")
        if self.tolerable_failure_timeout is not None:
            limit_s = duration_s(self.tolerable_failure_timeout, "tolerable_failure_timeout")
            _above_zero(limit_s, "tolerable_failure_timeout", self.tolerable_failure_timeout)
        if self.outage_timeout is not None:
            _above_zero(self.outage_limit[0], "outage_timeout", self.outage_timeout)
        _whole(self.max_concurrent, "max_concurrent", 1)
        _whole(self.tolerable_failed_checkpoints, "tolerable_failed_checkpoints", 0)
        _whole(self.unpublished_max, "unpublished_max", 1)
        if not isinstance(self.changelog, bool):
            raise SettingsError(f"changelog={self.changelog!r}: allowed is True or False")
        _whole(self.log_handles_max, "log_handles_max", 1)
        ratio = self.log_ratio_max
        if ratio is not None and (not isinstance(ratio, (int, float)) or not ratio > 0):
            raise SettingsError(f"log_ratio_max={ratio!r}: allowed is a number above zero, or None")
        _above_zero(self.object_size_max_bytes, "object_size_max", self.object_size_max)
        _above_zero(self.in_flight_max_bytes, "in_flight_max", self.in_flight_max)
        _above_zero(
            self.preemptive_persist_threshold_bytes, "preemptive_persist_threshold", self.preemptive_persist_threshold
        )
        if not isinstance(self.retries, RetryPolicy):
            raise SettingsError(
                f"retries={self.retries!r} is not allowed: use RetryPolicy.none() or RetryPolicy.fixed(max_attempts=3)"
            )
        if self.persist_size_threshold_bytes > self.in_flight_max_bytes:
            raise SettingsError(
                f"persist_size_threshold={self.persist_size_threshold!r} is above in_flight_max="
                f"{self.in_flight_max!r}: it would never be reached; allowed is at most in_flight_max"
            )

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

    @property
    def materialization_interval_s(self) -> float:
        return duration_s(self.materialization_interval, "materialization_interval")

    @property
    def persist_delay_s(self) -> float:
        return duration_s(self.persist_delay, "persist_delay")

    @property
    def persist_size_threshold_bytes(self) -> int:
        return size_bytes(self.persist_size_threshold, "persist_size_threshold")

    @property
    def preemptive_persist_threshold_bytes(self) -> int:
        return size_bytes(self.preemptive_persist_threshold, "preemptive_persist_threshold")

    @property
    def object_size_max_bytes(self) -> int:
        return size_bytes(self.object_size_max, "object_size_max")

    @property
    def in_flight_max_bytes(self) -> int:
        return size_bytes(self.in_flight_max, "in_flight_max")


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
        _above_zero(
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
        _whole(self.batch_attempts, "batch_attempts", 1)
        _whole(self.restarts_max, "restarts_max", 0)
        _whole(self.losses_max, "losses_max", 0)
        for name in ("losses_window", "backoff_first", "backoff_max", "start_timeout"):
            value = getattr(self, name)
            _above_zero(duration_s(value, name), name, value)
        for name in ("deploy_timeout", "process_timeout", "commit_timeout"):
            limit_s = self.limit_s(name)
            if limit_s is not None:
                _above_zero(limit_s, name, getattr(self, name))
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
        _whole(self.cache_max_entries, "cache_max_entries", 0)


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


def _above_zero(number: float, name: str, value: object) -> None:
    if not number > 0:
        raise SettingsError(f"{name}={value!r}: allowed is anything above zero")


def _whole(value: object, name: str, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingsError(f"{name}={value!r}: allowed is a whole number of at least {least}")
