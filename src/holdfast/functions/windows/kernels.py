"""Loops over panes and windows, compiled.

Times are microseconds; windows begin at `start` and every `slide` before and after it.
"""

from typing import Any

from holdfast.state.compiled import kernel


@kernel
def _first_start(pane: Any, pane_us: Any, size: Any, slide: Any, start: Any, after: Any) -> Any:
    """The start of the first window that holds a pane and ends after a time."""
    least_end = max(pane + pane_us, after + 1)
    return -((start + size - least_end) // slide) * slide + start


@kernel
def count_windows(
    panes: Any, pane_us: Any, size: Any, slide: Any, start: Any, after: Any, until: Any, counts: Any
) -> None:
    """Count for each pane the number of its windows that end after `after` and not after `until`."""
    for i in range(panes.shape[0]):
        first = _first_start(panes[i], pane_us, size, slide, start, after)
        last = min(panes[i], until - size)
        counts[i] = (last - first) // slide + 1 if last >= first else 0


@kernel
def windows_of(
    panes: Any, pane_us: Any, size: Any, slide: Any, start: Any, after: Any, counts: Any, rows: Any, starts: Any
) -> None:
    """The windows that `count_windows` counted: number of the pane's row and start of the window."""
    place = 0
    for i in range(panes.shape[0]):
        window = _first_start(panes[i], pane_us, size, slide, start, after)
        for _ in range(counts[i]):
            rows[place] = i
            starts[place] = window
            window += slide
            place += 1
