"""Loops that find the best rows of groups, compiled."""

from typing import Any

from holdfast.state.compiled import kernel


@kernel
def keep_best(groups: Any, ranks: Any, counts: Any, best: Any) -> None:
    """Gather the least ranks of each group in ascending order, as many as a row of `best` holds. `counts` has the
    number of ranks that each group has so far.
    """
    n = best.shape[1]
    for i in range(groups.shape[0]):
        g, rank = groups[i], ranks[i]
        place = counts[g]
        if place == n:
            if rank >= best[g, n - 1]:
                continue
            place = n - 1
        else:
            counts[g] = place + 1
        while place > 0 and best[g, place - 1] > rank:
            best[g, place] = best[g, place - 1]
            place -= 1
        best[g, place] = rank


@kernel
def mark_best(groups: Any, ranks: Any, counts: Any, best: Any, chosen: Any) -> None:
    """Mark the rows whose rank is not above the last of their group's best."""
    for i in range(groups.shape[0]):
        g = groups[i]
        chosen[i] = ranks[i] <= best[g, counts[g] - 1]
