"""Free memory that a virtual machine does not give back to its host while something is measured.

Where the kernel reports free pages to the host (`/sys/module/page_reporting`), it does so by blocks of 2 MB, and a page
of one that was given back costs a dozen microseconds when it is used again: a put of 4 MB into a folder in memory takes
10 to 17 instead of 1.5 ms. Of memory of which every other page is held, no free block is as large as that.
"""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GB = 1 << 30
REPORTING_ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
ORDER_MAX = 63
MADV_POPULATE_WRITE = 23
"""Linux 5.14; not among Python's own names."""


@contextmanager
def held_memory(gb: int) -> Iterator[None]:
    """Hold every other page of `gb` GiB; the others are free. It takes some seconds a GiB at first.

    Raises
    ------
    MemoryError
        There is not so much: all of it is held for a moment.
    OSError
        The kernel knows no such request.
    """
    if gb and gb * GB > available_bytes():
        raise MemoryError(f"{gb} GiB are to be held, {available_bytes() / GB:.1f} are available: choose less")
    blocks = [mmap.mmap(-1, GB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(gb)]
    try:
        for block in blocks:
            block.madvise(mmap.MADV_NOHUGEPAGE)
            block.madvise(MADV_POPULATE_WRITE)
        # Only once all is there: pages that are free before would be taken for the next block.
        for block in blocks:
            for start in range(0, GB, 2 * mmap.PAGESIZE):
                block.madvise(mmap.MADV_DONTNEED, start, mmap.PAGESIZE)
        yield
    finally:
        for block in blocks:
            block.close()


def gb_to_hold() -> int:
    """Three fifths of what is available, GiB, if free pages are reported to a host; else none."""
    return int(0.6 * available_bytes() / GB) if free_pages_are_reported() else 0


def free_pages_are_reported() -> bool:
    """Whether a host is told of them: until then the order is -1, or the same without a sign."""
    return REPORTING_ORDER.exists() and 0 <= int(REPORTING_ORDER.read_text()) <= ORDER_MAX


def available_bytes() -> int:
    """What may be taken without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
