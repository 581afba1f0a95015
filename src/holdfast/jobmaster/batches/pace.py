"""Times of the next batch, and of the next look at sources."""

from holdfast.back_off import doubled_s

IDLE_S_MIN = 0.01
IDLE_S_MAX = 0.25
IDLE_RATIO = 0.02
"""Share of the time since the last batch after which sources without new data are looked at again, between the two
bounds. A source with data several times a second waits at most 10 ms; a resting source is looked at less often: after
12 seconds without data, four times a second."""
NAP_S_MAX = 0.25
"""Bound in seconds on the wait for a batch that comes due later. Who begins to wait for something and a checkpoint that
ends, wake the work thread before. A lower value costs more wake-ups."""
NAP_S_MIN = 0.001
"""Least wait in seconds for a due batch: a shorter remainder could be lost when it is added to the time."""
GIVE_WAY_RATIO = 0.2
GIVE_WAY_S_MAX = 0.05
"""Share of the interval of batches, and bound in seconds, for which a due batch waits for a checkpoint in progress.
Side by side they compete for processors: the slowest hundredth of checkpoints took 41 instead of 27 ms."""


ASK_AGAIN_S_MIN = 0.1
ASK_AGAIN_S_MAX = 5.0
"""Bounds in seconds on the pause before a batch without rows, by which a job without new rows asks again those who
refused a checkpoint. The pause doubles each time."""


class AskingAgain:
    """Back-off of batches without rows; it begins anew once nobody refuses."""

    def __init__(self) -> None:
        self._times = 1

    def is_due(self, since_s: float, is_refused: bool) -> bool:
        """True if a batch is to ask now, that long after the last batch began; each True doubles the next pause."""
        if not is_refused:
            self._times = 1
        if not is_refused or since_s < doubled_s(ASK_AGAIN_S_MIN, self._times, ASK_AGAIN_S_MAX):
            return False
        self._times += 1
        return True


def batch_due_in_s(since_s: float, interval_s: float, checkpoint_under_way: bool) -> float:
    """Time until the next batch of `processing_time(interval)`, `since_s` after the last began: starts are at least the
    interval apart."""
    give_way_s = min(GIVE_WAY_RATIO * interval_s, GIVE_WAY_S_MAX) if checkpoint_under_way else 0.0
    return interval_s + give_way_s - since_s


def idle_wait_s(since_s: float) -> float:
    """Time to wait before sources are looked at again, `since_s` after the last batch began."""
    return min(IDLE_S_MAX, max(IDLE_S_MIN, IDLE_RATIO * since_s))
