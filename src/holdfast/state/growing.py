"""Arrays that grow where they lie.

A large array is its own mapping of memory: the allocator moves pages, not bytes, and only what is added is written.
So a table of many rows grows as fast as one of few. NumPy does it only where no one else holds the array or a view of
it, which it knows from reference counts; otherwise the array is replaced by a longer copy, and the others keep theirs.
"""

from typing import Any

import numpy as np


def enlarge(owner: Any, name: str, length: int) -> None:
    """Make the array `owner.name` longer along its first axis; what is added reads 0, or None among objects."""
    before, shape = len(getattr(owner, name)), (length, *getattr(owner, name).shape[1:])
    try:
        getattr(owner, name).resize(shape)
    except ValueError:
        held = getattr(owner, name)
        longer = np.zeros(shape, held.dtype)
        longer[:before] = held
        setattr(owner, name, longer)
    if getattr(owner, name).dtype.hasobject:
        getattr(owner, name)[before:] = None
