"""Settings of the state's log, of materializations and of uploads, in one place with their defaults.

    ChangelogConfig (as the user wrote it) ──settings()──► ChangelogSettings (numbers; travel to the TaskManagers)

This module imports no room, so every room may import it. A wrong value raises a `SettingsError` that names the field,
the value and the allowed values.
"""

from dataclasses import dataclass, field

import msgspec

from holdfast.errors import SettingsError
from holdfast.quantities import Duration, Size, above_zero, duration_s, size_bytes, whole_number

MATERIALIZED_BY = ("owner", "follower")
EXTRA_REQUESTS_MAX = 2.0
"""Bound on `extra_requests`: two additional attempts for every first attempt."""


@dataclass(frozen=True, repr=False)
class RetryPolicy:
    """Attempts at an upload. Only I/O errors are retried. `RetryPolicy.none()` or `RetryPolicy.fixed()` make a policy.

    Parameters
    ----------
    max_attempts
        Requests to the store in all; 1: no retries.
    timeout
        Time that an attempt may take. If an object of its size usually takes more than half of it, the attempt may take
        twice that usual time, and at most `timeout` more than it. When it takes longer, the next attempt starts in
        parallel, and the first one to succeed wins. None: attempts never run in parallel.
    next_attempt_delay
        Time from a failed attempt to the next.
    extra_requests
        Most attempts that may start in parallel with slow ones, as a share of the uploads. A higher value protects
        checkpoints from more of the slowest answers, and costs more requests. 0: only a failed attempt is followed by
        another.
    """

    max_attempts: int = 3
    timeout: Duration | None = "1s"
    next_attempt_delay: Duration = "500ms"
    extra_requests: float = 0.05

    @classmethod
    def none(cls) -> "RetryPolicy":
        """Return the policy with a single attempt."""
        return cls(max_attempts=1, timeout=None, next_attempt_delay=0)

    @classmethod
    def fixed(
        cls,
        max_attempts: int = 3,
        timeout: Duration | None = "1s",
        next_attempt_delay: Duration = "500ms",
        extra_requests: float = 0.05,
    ) -> "RetryPolicy":
        """Return a policy with at most `max_attempts` attempts, each `next_attempt_delay` after a failed one.

        An attempt that takes longer than `timeout` gets a parallel one, in at most the share `extra_requests` of all
        uploads.
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
    by_follower: bool
    log_handles_max: int
    log_ratio_max: float | None
    materialization_interval_s: float
    persist_delay_s: float
    persist_bytes_max: int
    preempt_bytes_max: int
    object_bytes_max: int
    adjust_object_size: bool
    in_flight_bytes_max: int
    gathered_bytes_max: int
    upload_attempts_max: int
    attempt_timeout_s: float | None
    next_attempt_delay_s: float
    extra_requests: float

    @property
    def retry_policy(self) -> RetryPolicy:
        """Return the policy by which uploads are retried."""
        return RetryPolicy(
            self.upload_attempts_max, self.attempt_timeout_s, self.next_attempt_delay_s, self.extra_requests
        )


@dataclass(frozen=True, kw_only=True)
class ChangelogConfig:
    """Settings of how changes of state are logged, materialized and uploaded. Each start of a job reads them.

    Parameters
    ----------
    enabled
        Whether changes of state are logged, so that a checkpoint stores only the changes. False: a checkpoint stores
        the tables themselves (with RocksDB, only the new files), and a batch is not committed before they are captured.
        The settings of uploads apply in both cases.
    log_handles_max, log_ratio_max, materialization_interval
        When a table's log has `log_handles_max` pieces, some of them are merged to one. A table is materialized when
        merging frees too few of them (as with less than 4), when its log will be larger than `log_ratio_max` times the
        table by the end of the materialization (None: 0.09 with RocksDB, which stores only new files, and 1 in memory;
        the size of a table in memory is what it would take if it were stored now), or when `materialization_interval`
        has passed (in memory: and the log is as large as that, which is otherwise at least 8 MiB). Unless the log grows
        fast, the next materialization starts no earlier than a fifth of the last one's duration after it.
    persist_delay, persist_size_threshold
        A request to persist waits for other requests, to share an object with them, until this time is over or this
        size is reached. Higher values give fewer objects and later acknowledgements.
    preemptive_persist_threshold
        A table's pending log of this size is uploaded without waiting for a checkpoint. Shortly before an expected
        checkpoint, a quarter of this size is enough.
    object_size_max
        A changelog object is split at this size, or at a smaller size with `adjust_object_size`.
    adjust_object_size
        Whether the size at which objects are split follows the measured latency and rate of the store, down to a
        quarter of `object_size_max`: where bytes take longer than answers, a large log goes out in parts side by side,
        and a checkpoint waits for less time. Large logs then take at most four times as many requests. False: always
        `object_size_max`.
    in_flight_max
        Most bytes that a TaskManager may be uploading; above it, batches wait.
    gathered_size_max
        A TaskManager whose new logs and manifest have at most so many bytes sends them to the driver, which stores them
        in one object for all TaskManagers. A higher value means fewer requests, and more bytes through the driver. 0:
        each TaskManager stores its own.
    materialized_by
        `"owner"`: the TaskManager that has a table stores it. `"follower"`: a standby that follows the table's log
        stores it from its own copy, so that the owner uploads logs only; this needs `Job(standby_state=True)`. A table
        that no standby has stored a minute after it is due is stored by its owner.
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
    adjust_object_size: bool = True
    in_flight_max: Size = "100MB"
    gathered_size_max: Size = "64KB"
    materialized_by: str = "owner"
    retries: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise SettingsError(f"enabled={self.enabled!r}: allowed is True or False")
        if not isinstance(self.adjust_object_size, bool):
            raise SettingsError(f"adjust_object_size={self.adjust_object_size!r}: allowed is True or False")
        if self.materialized_by not in MATERIALIZED_BY or (self.by_follower and not self.enabled):
            raise SettingsError(
                f"materialized_by={self.materialized_by!r} with enabled={self.enabled}: allowed is 'owner', or "
                "'follower' with a changelog"
            )
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

    @property
    def by_follower(self) -> bool:
        """True if followers materialize tables."""
        return self.materialized_by == "follower"

    def settings(self) -> ChangelogSettings:
        """Return these settings as numbers."""
        return ChangelogSettings(
            enabled=self.enabled,
            by_follower=self.by_follower,
            log_handles_max=self.log_handles_max,
            log_ratio_max=self.log_ratio_max,
            materialization_interval_s=duration_s(self.materialization_interval, "materialization_interval"),
            persist_delay_s=duration_s(self.persist_delay, "persist_delay"),
            persist_bytes_max=size_bytes(self.persist_size_threshold, "persist_size_threshold"),
            preempt_bytes_max=size_bytes(self.preemptive_persist_threshold, "preemptive_persist_threshold"),
            object_bytes_max=size_bytes(self.object_size_max, "object_size_max"),
            adjust_object_size=self.adjust_object_size,
            in_flight_bytes_max=size_bytes(self.in_flight_max, "in_flight_max"),
            gathered_bytes_max=size_bytes(self.gathered_size_max, "gathered_size_max"),
            upload_attempts_max=self.retries.max_attempts,
            attempt_timeout_s=self.retries.timeout_s,
            next_attempt_delay_s=self.retries.next_attempt_delay_s,
            extra_requests=self.retries.extra_requests,
        )


DEFAULTS = ChangelogConfig().settings()
"""The default numbers."""
