"""The way in which tests wait for other threads and processes: for a condition, and not for ever."""

import time
from collections.abc import Callable

PATIENCE_S = 100.0
LOOK_S = 0.002
REST_S_MAX = 0.5
REST = 3.0
"""How many times as long as the condition took the pause before the next look is, so that a costly condition does not
take the processor from the processes that it waits for."""


def until(
    condition: Callable[[], object], what: str | Callable[[], object] = "a condition", timeout_s: float = PATIENCE_S
) -> None:
    """Wait for a condition; `what` describes it, or the state found instead, for the error if it never holds."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        looked_s = time.monotonic()
        if condition():
            return
        took_s = time.monotonic() - looked_s
        assert looked_s < deadline_s, f"waited in vain for {what() if callable(what) else what}"
        time.sleep(min(max(LOOK_S, REST * took_s), REST_S_MAX))
