"""The way in which tests wait for other threads and processes: for a condition, and not for ever."""

import time
from collections.abc import Callable

PATIENCE_S = 60.0
LOOK_S = 0.002


def until(
    condition: Callable[[], object], what: str | Callable[[], object] = "a condition", timeout_s: float = PATIENCE_S
) -> None:
    """Wait for a condition; `what` says what it is, or what is there instead, where it does not come to hold."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain for {what() if callable(what) else what}"
        time.sleep(LOOK_S)
