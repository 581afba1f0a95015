"""Loops of the exchange, compiled: where each row goes, and the counting sort that brings it there.

A *place* numbers the destinations: rows come out ordered by it, and as they came within one.
"""

from typing import Any

import numpy as np

from holdfast.state.compiled import kernel


@kernel
def destinations(groups: Any, place_of_group: Any, places: Any, counts: Any) -> None:
    """For each row its place, from its key group; adds up the rows of each place."""
    for row in range(groups.shape[0]):
        place = place_of_group[groups[row]]
        places[row] = place
        counts[place] += 1


@kernel
def scatter(values: Any, places: Any, cursors: Any, out: Any) -> None:
    """Copy each value to the next free position of its place; `cursors` starts at the first of each, and is used up."""
    for row in range(values.shape[0]):
        place = places[row]
        position = cursors[place]
        out[position] = values[row]
        cursors[place] = position + 1


@kernel
def order(places: Any, cursors: Any, out: Any) -> None:
    """The row numbers in their new order, for columns that are taken instead of scattered."""
    for row in range(places.shape[0]):
        place = places[row]
        position = cursors[place]
        out[position] = np.int32(row)
        cursors[place] = position + 1
