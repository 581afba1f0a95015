"""How much of what was freed this process keeps for itself (glibc's `malloc`; elsewhere nothing is done).

A batch of large values allocates and frees tens of megabytes. By default they go back to the system each time, and
come again as pages that the kernel has to clear: a tenth of the work of a job with values of a kilobyte. Arrow's own
allocator gives them back within milliseconds, for which encoding a log's changes took twice as long, so Arrow has
`malloc`, too.
"""

import ctypes

import pyarrow as pa

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""

KEPT_BYTES_MAX = 256 * 1024 * 1024
MAPPED_FROM_BYTES = 32 * 1024 * 1024
"""Larger blocks are always the system's; glibc accepts no more."""


def keep_freed_memory() -> None:
    """From now on, and for the whole process. To be called before many threads are started."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Arenas but the first consist of pieces of 64 MB, each given back as soon as it is empty.
        mallopt(ARENA_MAX, 1)
        mallopt(MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        mallopt(TRIM_THRESHOLD, KEPT_BYTES_MAX)
        pa.set_memory_pool(pa.system_memory_pool())
