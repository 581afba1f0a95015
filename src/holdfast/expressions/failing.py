"""Rows for which an expression fails, set apart from those for which it does not."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

VALUE_ERRORS = (pa.ArrowInvalid, pa.lib.ArrowIndexError, pa.ArrowCapacityError)
"""Errors of PyArrow that depend on the values of a row, not on the types of its columns."""


def in_parts(rows: pa.RecordBatch, fn: Callable[[pa.RecordBatch], Any]) -> tuple[list[Any], dict[int, str]]:
    """Call a function with rows; where it fails, with halves of them, down to single rows.

    Return its results in order, without the rows for which it fails, and these by their numbers, each with the reason.
    """
    found: list[Any] = []
    failed: dict[int, str] = {}
    waiting = [(0, rows.num_rows)] if rows.num_rows else []
    while waiting:
        first, count = waiting.pop()
        try:
            found.append(fn(rows.slice(first, count)))
        except VALUE_ERRORS as error:
            if count == 1:
                failed[first] = str(error).splitlines()[0]
                continue
            half = count // 2
            waiting += [(first + half, count - half), (first, half)]
    return found, failed
