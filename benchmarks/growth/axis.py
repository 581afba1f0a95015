"""An axis of growth: a setting of some sizes, the cost at each size, and the bound on how the cost grows.

Costs are seconds of processor time of this process, the least of a few repetitions, since the machine has other work.
An axis of kind `WORK` does work for each unit of its size: its cost, less the part that is the same at all sizes, may
grow with the size to the power of 1.15. One of kind `REST` has its size lie somewhere (in state, in history, in a key):
the cost of the same batch stays.

Memory is the process's own (RssAnon: mapped files do not count) at its peak, beyond the memory before.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from holdfast.taskmanager.process_memory import keep_freed_memory

WORK, REST = "work", "rest"
BOUNDS = {WORK: 1.15, REST: 0.15}
"""The greatest exponent of each kind of axis."""
REPETITIONS = 3
"""Measurements of each size, of which the least counts. More take longer, and are less disturbed by other work."""
REPEAT_S = 1.0
"""Processor time after which a size is not measured again. A higher value takes longer, and is less disturbed."""
FIXED_S = 0.002
"""Cost that is part of any measurement. Where the sizes of an axis cost less, growth is within what is fixed."""
MEMORY_FACTOR_MAX = 3.0
"""Greatest peak as a multiple of the setting: the rows of a running batch, Python and Arrow come on top."""
WATCH_S = 0.01
"""Pause between two looks at the memory. A higher value misses shorter peaks."""

Measure = Callable[[int], float]
"""Measures the cost at a size, in seconds."""


@dataclass(frozen=True)
class Axis:
    """`sizes` are three, each the same factor above the size before.

    `memory_bound_mb`: the setting that bounds memory (`TaskManagerConfig(memory=…)`), or 0 where the peak is measured
    and no setting bounds it; None: the axis measures time alone.
    """

    name: str
    kind: str
    sizes: Sequence[int]
    measure: Measure
    memory_bound_mb: int | None = None


@dataclass(frozen=True)
class Measured:
    """An axis with the cost of each size. `seconds`: the processor time that measuring took."""

    axis: Axis
    costs_s: tuple[float, ...]
    peaks_mb: tuple[float, ...]
    seconds: float

    @property
    def exponent(self) -> float:
        """The slope of the cost over the size, both as logarithms; for `WORK` the exponent `p` of the curve
        `fixed + each * size ** p` through the three costs, which the two differences between them determine."""
        if self.axis.kind == REST:
            costs = np.log(np.array(self.costs_s) + FIXED_S)
            return float(np.polyfit(np.log(self.axis.sizes), costs, 1)[0])
        first, second = np.log(np.maximum(np.diff(self.costs_s), FIXED_S))
        return float((second - first) / np.log(self.axis.sizes[-1] / self.axis.sizes[-2]))

    @property
    def is_within(self) -> bool:
        """True if the cost grows no faster than the axis allows, and the memory stays near its setting."""
        bound_mb = self.axis.memory_bound_mb or float("inf")
        return self.exponent <= BOUNDS[self.axis.kind] and max(self.peaks_mb, default=0) <= MEMORY_FACTOR_MAX * bound_mb

    def facts(self) -> dict[str, object]:
        """Return what is printed of the axis."""
        per_unit = [
            cost / size if self.axis.kind == WORK else cost
            for cost, size in zip(self.costs_s, self.axis.sizes, strict=True)
        ]
        return {
            "kind": self.axis.kind,
            "sizes": list(self.axis.sizes),
            "cost_s": [round(cost, 5) for cost in self.costs_s],
            "cost_per_unit_us": [round(cost * 1_000_000, 2) for cost in per_unit],
            "exponent": round(self.exponent, 3),
            "bound": BOUNDS[self.axis.kind],
            "within": self.is_within,
            "peak_mb": [round(peak) for peak in self.peaks_mb],
            "memory_bound_mb": self.axis.memory_bound_mb,
            "processor_s": round(self.seconds, 1),
        }


def measured(axis: Axis) -> Measured:
    """Measure an axis; once before at its least size, for imports and kernels."""
    begun_s = time.process_time()
    if axis.memory_bound_mb:
        keep_freed_memory(axis.memory_bound_mb << 20)  # as a TaskManager's process does
    axis.measure(axis.sizes[0])
    costs, peaks, before_mb = [], [], own_mb()
    for size in axis.sizes:
        gc.collect()
        with watched() if axis.memory_bound_mb is not None else nullcontext([]) as seen_mb:
            costs.append(min(_repeated(axis.measure, size)))
        peaks += [max(seen_mb) - before_mb] if seen_mb else []
    return Measured(axis, tuple(costs), tuple(peaks), time.process_time() - begun_s)


def timed(work: Callable[[], object]) -> float:
    """Return the processor time of some work."""
    begun_s = time.process_time()
    work()
    return time.process_time() - begun_s


def own_mb() -> float:
    """The memory of this process's own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


@contextmanager
def watched() -> Iterator[list[float]]:
    """Look at the memory again and again; gives the list of everything seen."""
    seen, done = [own_mb()], threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_S):
            seen.append(own_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def _repeated(measure: Measure, size: int) -> Iterator[float]:
    begun_s = time.process_time()
    for _ in range(REPETITIONS):
        gc.collect()  # jobs of before hold their tables in cycles
        yield measure(size)
        if time.process_time() - begun_s > REPEAT_S:
            return
