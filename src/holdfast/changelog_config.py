"""Settings of the state's log, of materializations and of uploads, stated once with their defaults.

    ChangelogConfig (as the user wrote it) ──settings()──► ChangelogSettings (numbers; travel to the TaskManagers)

A leaf: every room may import it. A wrong value raises a `SettingsError` that names the field, the value and the allowed
values.
"""

from dataclasses import dataclass, field

import msgspec

from holdfast.errors import SettingsError
from holdfast.quantities import Duration, Size, above_zero, duration_s, size_bytes, whole_number

EXTRA_REQUESTS_MAX = 2.0
"""Bound on `extra_requests`: two attempts beside every first attempt."""


@dataclass(frozen=True, repr=False)
class RetryPolicy:
    """Attempts at an upload. Made by `RetryPolicy.none()` or `RetryPolicy.fixed()`; only I/O errors are retried.

    Parameters
    ----------
    max_attempts
        Requests to the store in all; 1: no retries.
    timeout
        An attempt that takes longer than this plus its size over the measured rate goes on, and the next starts at once
        beside it; the first to succeed wins. None: no second attempt starts beside another.
    next_attempt_delay
        Time from a failed attempt to the next.
    extra_requests
        Attempts that may start beside slow attempts, as a share of the uploads. A higher value spares checkpoints more
        of the slowest answers, and costs so many more requests. 0: only failed attempts are followed by another.
    """

    max_attempts: int = 3
    timeout: Duration | None = "1s"
    next_attempt_delay: Duration = "500ms"
    extra_requests: float = 0.05

    @classmethod
    def none(cls) -> "RetryPolicy":
        """The policy of a single attempt."""
        return cls(max_attempts=1, timeout=None, next_attempt_delay=0)

    @classmethod
    def fixed(
        cls,
        max_attempts: int = 3,
        timeout: Duration | None = "1s",
        next_attempt_delay: Duration = "500ms",
        extra_requests: float = 0.05,
    ) -> "RetryPolicy":
        """The policy of at most `max_attempts` attempts, with `next_attempt_delay` from a failed attempt to the next.

        An attempt that takes longer than `timeout` is followed early, by at most `extra_requests` of all uploads.
        """
        return cls(max_attempts, timeout, next_attempt_delay, extra_requests)

    def __post_init__(self) -> None:
        whole_number(self.max_attempts, "max_attempts", 1)
        duration_s(self.next_attempt_delay, "next_attempt_delay")
        share = self.extra_requests
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= EXTRA_REQUESTS_MAX:
            raise SettingsError(f"extra_requests={share!r}: allowed is a number from 0 to {EXTRA_REQUESTS_MAX:g}")
        if self.timeout is not None and not duration_s(self.timeout, "timeout") > 0:
            raise SettingsError(f"timeout={self.timeout!r}: allowed is anything above zero, or None for no time-out")

    def __repr__(self) -> str:
        if self == RetryPolicy.none():
            return "RetryPolicy.none()"
        return (
            f"RetryPolicy.fixed(max_attempts={self.max_attempts!r}, timeout={self.timeout!r}, "
            f"next_attempt_delay={self.next_attempt_delay!r}, extra_requests={self.extra_requests!r})"
        )

    @property
    def timeout_s(self) -> float | None:
        return None if self.timeout is None else duration_s(self.timeout, "timeout")

    @property
    def next_attempt_delay_s(self) -> float:
        return duration_s(self.next_attempt_delay, "next_attempt_delay")


class ChangelogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a `ChangelogConfig`, which explains them."""

    enabled: bool
    log_handles_max: int
    log_ratio_max: float | None
    materialization_interval_s: float
    persist_delay_s: float
    persist_bytes_max: int
    preempt_bytes_max: int
    object_bytes_max: int
    in_flight_bytes_max: int
    gathered_bytes_max: int
    upload_attempts_max: int
    attempt_timeout_s: float | None
    next_attempt_delay_s: float
    extra_requests: float

    @property
    def retry_policy(self) -> RetryPolicy:
        """How uploads are retried."""
        return RetryPolicy(
            self.upload_attempts_max, self.attempt_timeout_s, self.next_attempt_delay_s, self.extra_requests
        )


@dataclass(frozen=True, kw_only=True)
class ChangelogConfig:
    """How changes of state are logged, materialized and uploaded. It is read at each start of a job.

    Parameters
    ----------
    enabled
        Whether changes of state are logged, so that a checkpoint stores the changes only. False: a checkpoint stores
        the tables themselves (of RocksDB, the files that are new), and a batch waits with its commit until they are
        captured. The settings of uploads hold in both cases.
    log_handles_max, log_ratio_max, materialization_interval
        A table is materialized when its log has that many pieces, or will be larger than so many times the stored
        table once that is done (None: 0.09 in RocksDB, of which only new files are stored, 1 in memory), or when the
        interval is over; but, unless the log grows fast, not before a fifth of the time has passed that the last
        materialization took.
    persist_delay, persist_size_threshold
        Longest time and largest size for which a request to persist waits for others, to share an object with them.
        Higher values: fewer objects, later acknowledgements.
    preemptive_persist_threshold
        The size of a table's pending log from which it is uploaded without waiting for a checkpoint; a quarter of it
        shortly before the next checkpoint is expected.
    object_size_max
        A changelog object is split at this size.
    in_flight_max
        Bytes a TaskManager may have in upload; past it, batches wait.
    gathered_size_max
        Bytes of a TaskManager's new logs and manifest up to which they travel to the driver, which stores them in one
        object for all TaskManagers. A higher value: fewer requests, and more bytes through the driver. 0: each
        TaskManager stores its own.
    retries
        How uploads are retried: `RetryPolicy.none()` or `RetryPolicy.fixed(max_attempts, …)`.
    """

    enabled: bool = True
    log_handles_max: int = 64
    log_ratio_max: float | None = None
    materialization_interval: Duration = "10min"
    persist_delay: Duration = "10ms"
    persist_size_threshold: Size = "10MB"
    preemptive_persist_threshold: Size = "5MB"
    object_size_max: Size = "8MB"
    in_flight_max: Size = "100MB"
    gathered_size_max: Size = "64KB"
    retries: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise SettingsError(f"enabled={self.enabled!r}: allowed is True or False")
        whole_number(self.log_handles_max, "log_handles_max", 1)
        ratio = self.log_ratio_max
        if ratio is not None and (not isinstance(ratio, (int, float)) or not ratio > 0):
            raise SettingsError(f"log_ratio_max={ratio!r}: allowed is a number above zero, or None")
        if not isinstance(self.retries, RetryPolicy):
            raise SettingsError(
                f"retries={self.retries!r} is not allowed: use RetryPolicy.none() or RetryPolicy.fixed(max_attempts=3)"
            )
        numbers = self.settings()
        above_zero(numbers.materialization_interval_s, "materialization_interval", self.materialization_interval)
        above_zero(numbers.preempt_bytes_max, "preemptive_persist_threshold", self.preemptive_persist_threshold)
        above_zero(numbers.object_bytes_max, "object_size_max", self.object_size_max)
        above_zero(numbers.in_flight_bytes_max, "in_flight_max", self.in_flight_max)
        if numbers.persist_bytes_max > numbers.in_flight_bytes_max:
            raise SettingsError(
                f"persist_size_threshold={self.persist_size_threshold!r} is above in_flight_max="
                f"{self.in_flight_max!r}: it would never be reached; allowed is at most in_flight_max"
            )

    def settings(self) -> ChangelogSettings:
        """The numbers that these settings stand for."""
        return ChangelogSettings(
            enabled=self.enabled,
            log_handles_max=self.log_handles_max,
            log_ratio_max=self.log_ratio_max,
            materialization_interval_s=duration_s(self.materialization_interval, "materialization_interval"),
            persist_delay_s=duration_s(self.persist_delay, "persist_delay"),
            persist_bytes_max=size_bytes(self.persist_size_threshold, "persist_size_threshold"),
            preempt_bytes_max=size_bytes(self.preemptive_persist_threshold, "preemptive_persist_threshold"),
            object_bytes_max=size_bytes(self.object_size_max, "object_size_max"),
            in_flight_bytes_max=size_bytes(self.in_flight_max, "in_flight_max"),
            gathered_bytes_max=size_bytes(self.gathered_size_max, "gathered_size_max"),
            upload_attempts_max=self.retries.max_attempts,
            attempt_timeout_s=self.retries.timeout_s,
            next_attempt_delay_s=self.retries.next_attempt_delay_s,
            extra_requests=self.retries.extra_requests,
        )


DEFAULTS = ChangelogConfig().settings()
"""The default numbers."""
