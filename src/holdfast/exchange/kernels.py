"""Compiled loops of the exchange: the place of each row, and the counting sort by place.

A *place* is the number of a destination. Rows come out ordered by place; within a place they keep their order.
"""

from typing import Any

import numpy as np

from holdfast.state.compiled import kernel


@kernel
def destinations(groups: Any, place_of_group: Any, places: Any, counts: Any) -> None:
    """Set each row's place, from its key group, and add up the rows of each place."""
    for row in range(groups.shape[0]):
        place = place_of_group[groups[row]]
        places[row] = place
        counts[place] += 1


@kernel
def scatter(values: Any, places: Any, cursors: Any, out: Any) -> None:
    """Copy each value to the next free position of its place; `cursors` starts at each place's first position and is
    used up."""
    for row in range(values.shape[0]):
        place = places[row]
        position = cursors[place]
        out[position] = values[row]
        cursors[place] = position + 1


@kernel
def order(places: Any, cursors: Any, out: Any) -> None:
    """Compute the row numbers in their new order, for columns that are taken instead of scattered."""
    for row in range(places.shape[0]):
        place = places[row]
        position = cursors[place]
        out[position] = np.int32(row)
        cursors[place] = position + 1
