"""Separation of the rows for which an expression fails from the other rows."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

VALUE_ERRORS = (pa.ArrowInvalid, pa.lib.ArrowIndexError, pa.ArrowCapacityError)
"""The errors of PyArrow that depend on the values of a row, and not on the types of its columns."""


def in_parts(rows: pa.RecordBatch, fn: Callable[[pa.RecordBatch], Any]) -> tuple[list[Any], dict[int, str]]:
    """Call a function with rows. If it fails, call it with halves of the rows, down to single rows.

    Returns the results in order, without the rows for which the function fails, and the numbers of these rows, each
    with the reason.
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
