"""When the next batch is due, and when sources are looked at again."""

IDLE_S_MIN = 0.01
IDLE_S_MAX = 0.05
IDLE_RATIO = 0.02
"""Sources without new data are looked at after so much of the time since the last batch, between the two bounds: who
gets data several times a second waits 10 ms for it at most, and a source that rests is looked at less often."""
NAP_S_MIN = 0.001
"""What is left until a batch is due may be too little to be told from nothing when it is added to the time."""
GIVE_WAY_RATIO = 0.2
GIVE_WAY_S_MAX = 0.05
"""A batch that is due lets a checkpoint that is under way end first, for so much of the interval of batches, at most.
Side by side they take each other's processors: the slowest hundredth of checkpoints took 41 instead of 27 ms."""


ASK_AGAIN_S_MIN = 0.1
ASK_AGAIN_S_MAX = 5.0
"""A job without new rows asks those who refused a checkpoint again by a batch without rows: so long after the last
batch, at first, then after twice the time each, up to the bound."""


class AskingAgain:
    """The back-off of batches without rows; it begins anew once nobody refuses."""

    def __init__(self) -> None:
        self._pause_s = ASK_AGAIN_S_MIN

    def is_due(self, since_s: float, is_refused: bool) -> bool:
        """Whether to ask now, so long after the last batch began; the next time the answer comes later."""
        if not is_refused:
            self._pause_s = ASK_AGAIN_S_MIN
        if not is_refused or since_s < self._pause_s:
            return False
        self._pause_s = min(2 * self._pause_s, ASK_AGAIN_S_MAX)
        return True


def batch_due_in_s(since_s: float, interval_s: float, checkpoint_under_way: bool) -> float:
    """`processing_time(interval)`, so long after the last batch began: their starts are at least the interval apart."""
    give_way_s = min(GIVE_WAY_RATIO * interval_s, GIVE_WAY_S_MAX) if checkpoint_under_way else 0.0
    return interval_s + give_way_s - since_s


def idle_wait_s(since_s: float) -> float:
    """How long to wait before sources are looked at again, so long after the last batch began."""
    return min(IDLE_S_MAX, max(IDLE_S_MIN, IDLE_RATIO * since_s))
