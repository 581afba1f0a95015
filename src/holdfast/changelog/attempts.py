"""Upload attempts: the retry policy of the changelog, and the one layer that retries its puts.

Every attempt writes under a name of its own, so that a put that was reported as failed and happened all the
same, or happens later, can never be mistaken for the one that counts. The names of failed attempts are given
to `discard`. Hedging starts the next attempt beside a slow one; it belongs here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import SettingsError, StorageError
from holdfast.storage.store import ObjectStore


@dataclass(frozen=True)
class RetryPolicy:
    """At most `attempts_max` requests; the next one starts `next_attempt_delay_s` after a failure. 1: no retries."""

    attempts_max: int = 3
    next_attempt_delay_s: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.next_attempt_delay_s < 0:
            raise SettingsError(f"retry policy {self}: expected attempts_max >= 1 and next_attempt_delay_s >= 0")


def put_with_attempts(
    store: ObjectStore,
    new_name: Callable[[], str],
    data: bytes,
    policy: RetryPolicy,
    wait: Callable[[float], bool],
    discard: Callable[[str], None],
) -> tuple[str, int]:
    """Store `data` under the name that is returned, with the number of attempts it took.

    Only I/O errors are retried. `wait` sleeps, and returns True when there is no point in going on.

    Raises
    ------
    StorageError
        All attempts failed; that of the last one.
    """
    attempt = 0
    while True:
        attempt += 1
        name = new_name()
        try:
            store.put(name, data)
        except StorageError:
            discard(name)
            if attempt == policy.attempts_max or wait(policy.next_attempt_delay_s):
                raise
        else:
            return name, attempt
