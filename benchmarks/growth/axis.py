"""An axis of growth: a setting of some sizes, the cost at each size, and the bound on how the cost grows.

Costs are seconds of processor time of this process, the least of a few repetitions, since the machine has other work.
An axis of kind `WORK` does work for each unit of its size: the cost may grow with the size to the power of 1.15. One
of kind `REST` has its size lie somewhere (in state, in history, in a key): the cost of the same batch stays.
"""

import gc
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

WORK, REST = "work", "rest"
BOUNDS = {WORK: 1.15, REST: 0.15}
"""The greatest exponent of each kind of axis."""
REPETITIONS = 3
"""Measurements of each size, of which the least counts. More take longer, and are less disturbed by other work."""
FIXED_S = 0.002
"""Cost that is part of any measurement. Where the sizes of an axis cost less, growth is within what is fixed."""

Measure = Callable[[int], float]
"""Measures the cost at a size, in seconds."""


@dataclass(frozen=True)
class Axis:
    """`memory_bound_mb`: the setting that bounds memory; None: the axis measures time alone."""

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
    peak_mb: float
    seconds: float

    @property
    def exponent(self) -> float:
        """The slope of the cost over the size, both as logarithms."""
        costs = np.log(np.array(self.costs_s) + FIXED_S)
        return float(np.polyfit(np.log(self.axis.sizes), costs, 1)[0])

    @property
    def is_within(self) -> bool:
        """True if the cost grows no faster than the axis allows."""
        return self.exponent <= BOUNDS[self.axis.kind]

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
            "peak_mb": round(self.peak_mb),
            "memory_bound_mb": self.axis.memory_bound_mb,
            "processor_s": round(self.seconds, 1),
        }


def measured(axis: Axis) -> Measured:
    """Measure an axis; once before at its least size, for imports and kernels."""
    begun_s = time.process_time()
    axis.measure(axis.sizes[0])
    costs = []
    for size in axis.sizes:
        gc.collect()
        costs.append(min(axis.measure(size) for _ in range(REPETITIONS)))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(axis, tuple(costs), peak_mb, time.process_time() - begun_s)


def timed(work: Callable[[], object]) -> float:
    """Return the processor time of some work."""
    begun_s = time.process_time()
    work()
    return time.process_time() - begun_s
