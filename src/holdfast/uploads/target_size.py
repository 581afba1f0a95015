"""The rule for the size at which objects of logs are split: as long on the way as the store takes to answer at all.

    each stored object: size, time ──► line: time = latency + size / rate ──► wanted = latency × rate
                                                                                │ past the dead band
                                                     target ◄── a step of at most a quarter, within the bounds

A log of several times the target goes out in parts side by side, each of which takes twice the store's latency. Smaller
parts would be more requests for little; larger parts make a checkpoint wait for bytes that could travel beside each
other. The rule follows "Adjusting aggregation" in FLIP-158, which warns that adjusting may be unstable. Therefore the
line is of many uploads, with outliers cut off, and the target moves seldom, in small steps, and not for small
differences. Pure: no clock, thread or I/O.
"""

DECAY = 0.99
"""Weight of an upload for each later upload. A higher value follows a change of the store later, and noise less."""
LEARNED_EVERY = 16
"""Uploads between two looks at the target. A higher value moves the target less often."""
STEP_MAX = 1.25
"""Factor by which the target moves at most at once. A higher value is quicker, and less calm."""
DEAD_BAND = 2.0
"""Factor between target and wanted size below which a target at rest stays; a moving target goes on until it is there.
A higher value is calmer and less exact."""
LOOKS_MIN = 4
"""Looks in a row that have to agree before the target moves: noise seldom agrees for so long."""
SPREAD_MIN = 0.15
"""Deviation of sizes, as a share of their mean, from which a line through them says something."""
OUTLIER = 3.0
"""Factor over the expected time at which an upload's time is cut off: slow answers say nothing about the size."""
BELOW_CAP = 4
"""Divisor of the largest size for the smallest: at most so many times more requests."""
TOGETHER = 2
"""Multiple of the target up to which a log stays whole. A whole log shares its request with the manifest; in parts, it
would make the manifest wait for a further answer of the store, in which as many bytes travel as are in the target."""


class TargetSize:
    """Learns from uploads. Not thread-safe.

    Parameters
    ----------
    bytes_max
        The largest size, with which it begins.
    objects_max
        Number of objects that are uploaded at once: more parts would wait for each other.
    """

    def __init__(self, bytes_max: int, objects_max: int) -> None:
        self.bytes_max = bytes_max
        self._objects_max = objects_max
        self._bytes_min = max(1, bytes_max // BELOW_CAP)
        self._target = float(bytes_max)
        self._count = 0
        self._looks = 0
        """Looks in a row that wanted a larger size, or, below 0, a smaller size."""
        self._weight = self._sizes = self._times = self._squares = self._products = 0.0

    @property
    def size_bytes(self) -> int:
        """The size of the next large log's objects."""
        return int(self._target)

    def split_at(self, log_bytes: int) -> int:
        """Return the size at which a log of so many bytes is split, which a checkpoint waits for."""
        if log_bytes <= TOGETHER * self._target:
            return self.bytes_max
        return min(self.bytes_max, max(self.size_bytes, log_bytes // self._objects_max))

    def stored(self, size_bytes: int, took_s: float) -> None:
        """Learn from an object that was stored."""
        if self._count >= LEARNED_EVERY:
            took_s = min(took_s, OUTLIER * self._expected_s(size_bytes))
        # Units of the largest size keep the sums near 1.
        size = size_bytes / self.bytes_max
        self._weight = self._weight * DECAY + 1.0
        self._sizes = self._sizes * DECAY + size
        self._times = self._times * DECAY + took_s
        self._squares = self._squares * DECAY + size * size
        self._products = self._products * DECAY + size * took_s
        self._count += 1
        if self._count % LEARNED_EVERY == 0:
            self._move()

    def _line(self) -> tuple[float, float] | None:
        """Latency, and seconds for an object of the largest size on top; None if sizes are too much alike to tell."""
        size, time = self._sizes / self._weight, self._times / self._weight
        spread = self._squares / self._weight - size * size
        if spread <= (SPREAD_MIN * size) ** 2:
            return None
        slope = max(0.0, (self._products / self._weight - size * time) / spread)
        return max(0.0, time - slope * size), slope

    def _expected_s(self, size_bytes: int) -> float:
        line, mean_s = self._line(), self._times / self._weight
        return mean_s if line is None else max(mean_s, line[0] + line[1] * size_bytes / self.bytes_max)

    def _move(self) -> None:
        line = self._line()
        if line is None:
            return
        latency_s, slope = line
        wanted = self.bytes_max * latency_s / slope if slope else float(self.bytes_max)
        wanted = min(max(wanted, self._bytes_min), self.bytes_max)
        ratio = wanted / self._target
        is_moving = abs(self._looks) >= LOOKS_MIN
        if not is_moving and 1.0 / DEAD_BAND < ratio < DEAD_BAND:
            self._looks = 0
            return
        self._looks = max(0, self._looks) + 1 if ratio > 1.0 else min(0, self._looks) - 1
        if abs(self._looks) < LOOKS_MIN:
            return
        moved = self._target * min(STEP_MAX, max(1.0 / STEP_MAX, ratio))
        self._target = min(max(moved, float(self._bytes_min)), float(self.bytes_max))
