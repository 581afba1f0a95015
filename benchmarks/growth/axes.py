"""All axes by name, and how they are measured."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from benchmarks.growth import graph_axes, history_axes, memory_axes, sink_axes, state_axes
from benchmarks.growth.axis import measured
from holdfast.printable import without_warnings

ROOMS = (graph_axes, state_axes, history_axes, sink_axes, memory_axes)
AXES = {axis.name: axis for room in ROOMS for axis in room.AXES}


def measured_facts(names: Sequence[str], processes: int) -> dict[str, dict[str, Any]]:
    """Measure axes, in this process or several at a time, each in a process of its own."""
    with ThreadPoolExecutor(processes) as threads:
        return dict(zip(names, threads.map(lambda name: _apart(name, processes > 1), names), strict=True))


def _apart(name: str, apart: bool) -> dict[str, Any]:
    """Memory is always measured in a process of its own: memory that an earlier axis has freed would hide growth."""
    if not apart and AXES[name].memory_bound_mb is None:
        return _facts(name)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_facts, name).result()


def _facts(name: str) -> dict[str, Any]:
    try:
        with without_warnings():
            return measured(AXES[name]).facts()
    except Exception as error:  # an axis that fails must not hide the others
        return {"within": False, "error": f"{type(error).__name__}: {error}"}
