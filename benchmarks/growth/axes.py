"""All axes by name, and how each is measured: those of memory in a process of their own."""

import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from benchmarks.growth import graph_axes, history_axes, memory_axes, sink_axes, state_axes
from benchmarks.growth.axis import measured

ROOMS = (graph_axes, state_axes, history_axes, sink_axes, memory_axes)
AXES = {axis.name: axis for room in ROOMS for axis in room.AXES}


def measured_facts(name: str) -> dict[str, object]:
    """Measure an axis; its memory in a process of its own, since memory that an earlier axis has freed hides growth."""
    if AXES[name].memory_bound_mb is None:
        return _facts(name)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        return apart.submit(_facts, name).result()


def _facts(name: str) -> dict[str, object]:
    logging.disable(logging.WARNING)
    return measured(AXES[name]).facts()
