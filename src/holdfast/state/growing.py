"""Arrays that grow in place.

A large array is its own mapping of memory: the allocator moves pages, not bytes, and only the added part is written. So
a table of many rows grows as fast as a table of few. NumPy does it only if nobody else holds the array or a view of it,
which it knows from reference counts; otherwise the array is replaced by a longer copy, and the others keep theirs. A
small array is always copied: NumPy asks for huge pages, in which random access is faster, when it makes a large array.
An array whose content moves elsewhere, from begin to end, gives its emptied pages back to the system in place.
"""

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

COPIED_BYTES = 8 << 20
"""Twice the size from which on NumPy asks for huge pages."""
GIVEN_BACK_BYTES = 2 << 20
"""The unit in which memory is given back: a huge page."""
COLLAPSED_BYTES_MAX = 64 << 20
"""Size up to which an array that grew gets its pages made huge at once, in up to some 10 ms. A higher value makes
longer pauses; of larger arrays, the added part gets huge pages as it is written."""
MADV_COLLAPSE = 25
"""The advice, since Linux 6.1, to make pages huge at once."""
_madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


def enlarge(owner: Any, name: str, length: int) -> None:
    """Make the array `owner.name` longer along its first axis; the added part reads 0, or None among objects."""
    before, shape = len(getattr(owner, name)), (length, *getattr(owner, name).shape[1:])
    if getattr(owner, name).nbytes < COPIED_BYTES or not _resized(owner, name, shape):
        held = getattr(owner, name)
        longer = np.empty(shape, held.dtype)
        longer[:before], longer[before:] = held, 0
        setattr(owner, name, longer)
    else:
        _ask_for_huge_pages(getattr(owner, name))
    if getattr(owner, name).dtype.hasobject:
        getattr(owner, name)[before:] = None


def _resized(owner: Any, name: str, shape: tuple[int, ...]) -> bool:
    try:
        getattr(owner, name).resize(shape)
    except ValueError:
        return False
    return True


def _ask_for_huge_pages(array: npt.NDArray[Any]) -> None:
    """Ask for huge pages, as NumPy does for new arrays: memory that moved may be in small ones. It may be refused."""
    if _madvise is None:
        return
    first, last = whole_pages(array, 0, array.nbytes)
    start, length = ctypes.c_void_p(array.ctypes.data + first), ctypes.c_size_t(last - first)
    _madvise(start, length, mmap.MADV_HUGEPAGE)
    if array.nbytes <= COLLAPSED_BYTES_MAX:
        _madvise(start, length, MADV_COLLAPSE)


def whole_pages(array: npt.NDArray[Any], start: int, stop: int) -> tuple[int, int]:
    """Return begin and end of the huge pages that lie completely within bytes `[start, stop)` of an array; there may be
    none."""
    address = array.ctypes.data
    first = -(-(address + start) // GIVEN_BACK_BYTES) * GIVEN_BACK_BYTES - address
    return first, max(first, (address + stop) // GIVEN_BACK_BYTES * GIVEN_BACK_BYTES - address)


def give_back(array: npt.NDArray[Any], first: int, last: int) -> bool:
    """Give the memory of these whole pages back to the system; they read 0 from now on. Returns False if nothing was
    done."""
    if _madvise is None:
        return False
    address = ctypes.c_void_p(array.ctypes.data + first)
    return bool(_madvise(address, ctypes.c_size_t(last - first), mmap.MADV_DONTNEED) == 0)
