"""The retry policy of uploads: a value that users set."""

from dataclasses import dataclass

from holdfast.errors import SettingsError
from holdfast.units import Duration, duration_s


@dataclass(frozen=True, repr=False)
class RetryPolicy:
    """How often an upload is tried; made by `RetryPolicy.none()` or `RetryPolicy.fixed()`. Only I/O errors are retried.

    Parameters
    ----------
    max_attempts
        Requests to the store in all; 1: no retries.
    next_attempt_delay
        From a failed attempt to the next one.
    timeout
        An attempt that takes longer than this plus its size over the measured rate is left alone, and the next one
        starts at once beside it; the first to succeed wins. None: never.
    """

    max_attempts: int = 3
    next_attempt_delay: Duration = "500ms"
    timeout: Duration | None = "1s"

    @classmethod
    def none(cls) -> "RetryPolicy":
        """One attempt."""
        return cls(1, 0, None)

    @classmethod
    def fixed(
        cls, max_attempts: int = 3, timeout: Duration | None = "1s", next_attempt_delay: Duration = "500ms"
    ) -> "RetryPolicy":
        """At most so many attempts."""
        return cls(max_attempts, next_attempt_delay, timeout)

    def __post_init__(self) -> None:
        count = self.max_attempts
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise SettingsError(f"max_attempts={count!r}: allowed is a whole number of at least 1")
        duration_s(self.next_attempt_delay, "next_attempt_delay")
        if self.timeout is not None and not duration_s(self.timeout, "timeout") > 0:
            raise SettingsError(f"timeout={self.timeout!r}: allowed is anything above zero, or None for no time-out")

    def __repr__(self) -> str:
        if self == RetryPolicy.none():
            return "RetryPolicy.none()"
        return (
            f"RetryPolicy.fixed(max_attempts={self.max_attempts!r}, timeout={self.timeout!r}, "
            f"next_attempt_delay={self.next_attempt_delay!r})"
        )

    @property
    def next_attempt_delay_s(self) -> float:
        return duration_s(self.next_attempt_delay, "next_attempt_delay")

    @property
    def timeout_s(self) -> float | None:
        return None if self.timeout is None else duration_s(self.timeout, "timeout")
