"""Loops over sessions, compiled."""

from typing import Any

from holdfast.state.compiled import kernel


@kernel
def join_sessions(order: Any, keys: Any, starts: Any, ends: Any, of: Any, first: Any, last_ends: Any) -> Any:
    """Join intervals of the same key that meet; `order` sorts them by key, then start. Returns the number of sessions.

    `of[i]` becomes the session of interval i, `first[s]` an interval with the session's key and start, `last_ends[s]`
    its end. Sessions are in order of key, then start.
    """
    count = 0
    for place in range(order.shape[0]):
        i = order[place]
        if count > 0 and keys[first[count - 1]] == keys[i] and starts[i] <= last_ends[count - 1]:
            if ends[i] > last_ends[count - 1]:
                last_ends[count - 1] = ends[i]
        else:
            first[count] = i
            last_ends[count] = ends[i]
            count += 1
        of[i] = count - 1
    return count
