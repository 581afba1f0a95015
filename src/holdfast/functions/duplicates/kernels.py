"""Loops over rows of which some are chosen, compiled."""

from typing import Any

from holdfast.state.compiled import kernel


@kernel
def choose_first(slots: Any, times: Any, within: Any, present: Any, kept: Any, chosen: Any) -> None:
    """Choose a row if its key has no kept row, or has it more than `within` earlier; the row is then the kept row.

    `kept` has the time of each slot's kept row. Rows are taken in order.
    """
    for i in range(slots.shape[0]):
        s = slots[i]
        chosen[i] = not present[s] or times[i] - kept[s] > within
        if chosen[i]:
            present[s] = True
            kept[s] = times[i]
