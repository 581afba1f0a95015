"""Seats: integer keys that lie in given key groups, for rows without a user's key: so these rows have an owner. Pure.

    subtask's key groups  [32 ………………………………………… 64)
    entries, in order      1        3        2        4      each entry halves a gap: van der Corput's sequence

An entry's key group is the key group of its seat. Consecutive entries are spread evenly over the key groups of the
subtask that adds them, so the owner of a part of these key groups after a rescale owns about that part of the entries.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state.keys import encode_keys, key_groups

SEAT = "__seat"
BITS = 16
"""Bits of an entry's position that decide its key group: after 2^16 entries the key groups repeat, and there are at
most as many key groups."""
NUMBERS_AT_ONCE = 8
"""Numbers that are tried at once for each key group: 1 number of `max_parallelism` lies in a wanted key group."""


@lru_cache(maxsize=4)
def seats_of(max_parallelism: int) -> tuple[int, ...]:
    """The smallest number that lies in each key group. It never changes: seats are stored."""
    found: npt.NDArray[np.int64] = np.full(max_parallelism, -1, np.int64)
    begin = 0
    while (found < 0).any():
        numbers = np.arange(begin, begin + NUMBERS_AT_ONCE * max_parallelism, dtype=np.int64)
        groups = key_groups(encode_keys(pa.record_batch([pa.array(numbers)], names=[SEAT]), [SEAT]), max_parallelism)
        distinct, first = np.unique(groups, return_index=True)
        new = found[distinct] < 0
        found[distinct[new]] = numbers[first[new]]
        begin += len(numbers)
    return tuple(found.tolist())


def key_group_of(position: int, key_groups_owned: range) -> int:
    """The key group of the entry at a position in a list, among those that its subtask owns."""
    turned = int(f"{position % (1 << BITS):0{BITS}b}"[::-1], 2)
    return key_groups_owned[turned * len(key_groups_owned) >> BITS]
