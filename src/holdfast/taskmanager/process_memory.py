"""Freed memory and cyclic garbage in the process of a TaskManager or a sender.

**Freed memory** (glibc's `malloc`; elsewhere nothing is done). A batch of large values allocates and frees tens of
megabytes. By default, freed memory goes back to the system each time, and returns as pages that the kernel must clear
first: that is a tenth of the work of a job with values of a kilobyte. Arrow's own allocator gives memory back within
milliseconds, which doubled the time to encode a log's changes, so Arrow uses `malloc` too. A process with little memory
(`TaskManagerConfig(memory=…)`) keeps only a share of its freed memory: otherwise, a process with 64 MB took twice as
much as its state when windows of 400,000 keys closed at once.

**Garbage** is collected by time, not by allocations. User functions make a few small objects a row, which reference
counts free: searching them for cycles took a third of a `ProcessFunction`'s time. Cycles that remain may hold arrays of
megabytes (a DataFrame is a cycle), however few objects they consist of, so allocations say little about their size.
"""

import ctypes
import gc
import resource
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from holdfast.clock import Clock

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""

KEPT_BYTES_MAX = 256 * 1024 * 1024
"""Bound on the freed memory that a process keeps."""
KEPT_SHARE = 4
"""Divisor of a TaskManager's memory: its process keeps at most 1/4 of it as freed memory. A higher value keeps less,
and takes longer."""
MAPPED_FROM_BYTES_MAX = 32 * 1024 * 1024
"""Greatest block that a process may keep when it is freed; glibc accepts no higher value."""
MAPPED_SHARE = 16
"""Divisor of a TaskManager's memory: blocks larger than 1/16 of it go back to the system when they are freed."""

COLLECT_AFTER = (100_000, 20, 20)
"""Net allocations before the youngest generation is searched; then, for each older generation, the number of searches
of the younger one before it is searched. Higher values search less often."""

PAUSE_S_MIN = 10.0
PAUSE_RATIO = 100.0
"""Least pause between two searches, as a multiple of the time that a search takes: with 100, searches take 1 % of the
time."""

WORK_S_MIN = 0.5
"""Least processor time of the process between two searches. A process without work makes no garbage, and searches were
most of its work. A higher value keeps the garbage of a last batch for longer."""

SETTLE_GROWTH = 10
"""Searches 1, 10, 100 … go through all objects; the objects left then stay out of the searches between. These are
mostly compiled kernels, which are loaded with the first batches and took 25 ms a search. They include objects that a
batch holds in cycles at that moment, so they are not left out for good. A higher value makes full searches more
seldom."""


def kept_and_mapped(memory_bytes: int) -> tuple[int, int]:
    """Return the freed memory that a process of `memory_bytes` keeps, and the size of blocks above which it keeps
    none."""
    return min(KEPT_BYTES_MAX, memory_bytes // KEPT_SHARE), min(MAPPED_FROM_BYTES_MAX, memory_bytes // MAPPED_SHARE)


def keep_freed_memory(memory_bytes: int = KEPT_SHARE * KEPT_BYTES_MAX) -> None:
    """Keep freed memory in the process from now on. To be called before many threads are started."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Arenas but the first consist of pieces of 64 MB, each given back as soon as it is empty.
        mallopt(ARENA_MAX, 1)
        kept_bytes, mapped_from_bytes = kept_and_mapped(memory_bytes)
        mallopt(MMAP_THRESHOLD, mapped_from_bytes)
        mallopt(TRIM_THRESHOLD, kept_bytes)
        pa.set_memory_pool(pa.system_memory_pool())


class GarbageCollection(AbstractContextManager["GarbageCollection"]):
    """Controls the process's garbage collection while it is entered; call `tick` now and then. Only one at a time."""

    def __init__(self, clock: Clock, worked_s: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._worked_s = worked_s
        self._looked_at_work_s = worked_s()
        self._usual = gc.get_threshold()
        self._next_s = 0.0
        self._looks = 0
        self._next_settle = 1

    def __enter__(self) -> "GarbageCollection":
        gc.set_threshold(*COLLECT_AFTER)
        # Modules and compiled kernels live as long as the process, so they need not be searched.
        gc.freeze()
        self._next_s = self._clock.monotonic() + PAUSE_S_MIN
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        gc.unfreeze()
        gc.set_threshold(*self._usual)

    def tick(self) -> None:
        """Look, if it is time."""
        began_s = self._clock.monotonic()
        if began_s < self._next_s or self._worked_s() - self._looked_at_work_s < WORK_S_MIN:
            return
        self._look()
        self._looked_at_work_s = self._worked_s()
        ended_s = self._clock.monotonic()
        self._next_s = ended_s + max(PAUSE_S_MIN, PAUSE_RATIO * (ended_s - began_s))

    def _look(self) -> None:
        self._looks += 1
        settles = self._looks == self._next_settle
        if settles:
            self._next_settle *= SETTLE_GROWTH
            gc.unfreeze()
        gc.collect()
        if settles:
            gc.freeze()


def resident_bytes() -> int:
    """Return the bytes of physical memory that this process takes; 0 where the system does not say (not Linux)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()
