"""Times of the next batch, and of the next look at sources."""

from holdfast.back_off import doubled_s

IDLE_S_MIN = 0.01
"""Least wait in seconds between two looks at sources without new data. Data of a source that gets new data several
times a second waits at most this long."""
IDLE_S_MAX = 0.25
"""Most seconds between two looks at sources without new data: after 12 seconds without data, a source is looked at four
times a second."""
IDLE_RATIO = 0.02
"""The wait between two such looks, as a share of the time since the last batch."""
NAP_S_MAX = 0.25
"""Bound in seconds on the wait for a batch that comes due later. A caller who begins to wait, and a checkpoint that
ends, wake the work thread earlier. A lower value costs more wake-ups."""
NAP_S_MIN = 0.001
"""Least wait in seconds for a due batch: a shorter remainder could be lost when it is added to the time."""
GIVE_WAY_RATIO = 0.2
"""Time for which a due batch waits for a checkpoint in progress, as a share of the interval of batches. Side by side,
the two compete for processors: the slowest hundredth of checkpoints took 41 instead of 27 ms."""
GIVE_WAY_S_MAX = 0.05
"""Bound in seconds on that wait."""
ASK_AGAIN_S_MIN = 0.1
"""First pause in seconds before a batch without rows. By such a batch, a job without new rows asks again whether a
checkpoint is still refused."""
ASK_AGAIN_S_MAX = 5.0
"""Bound in seconds on that pause, which doubles each time."""


class AskingAgain:
    """Back-off of the batches without rows that ask again; it starts again once no checkpoint is refused."""

    def __init__(self) -> None:
        self._times = 1

    def is_due(self, since_s: float, is_refused: bool) -> bool:
        """True if a batch must ask now, `since_s` after the last batch began; each True doubles the next pause."""
        if not is_refused:
            self._times = 1
        if not is_refused or since_s < doubled_s(ASK_AGAIN_S_MIN, self._times, ASK_AGAIN_S_MAX):
            return False
        self._times += 1
        return True


def batch_due_in_s(since_s: float, interval_s: float, checkpoint_under_way: bool) -> float:
    """Return the time until the next batch of `processing_time(interval)`, `since_s` after the last batch began.
    Batches begin at least one interval apart."""
    give_way_s = min(GIVE_WAY_RATIO * interval_s, GIVE_WAY_S_MAX) if checkpoint_under_way else 0.0
    return interval_s + give_way_s - since_s


def idle_wait_s(since_s: float) -> float:
    """Time to wait before sources are looked at again, `since_s` after the last batch began."""
    return min(IDLE_S_MAX, max(IDLE_S_MIN, IDLE_RATIO * since_s))
