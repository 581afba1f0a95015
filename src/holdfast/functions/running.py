"""Helpers of operators: named tuples, the place of a row, how errors and bad rows are worded."""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRecord, in_user_code
from holdfast.functions.columns import IntArray
from holdfast.functions.kernels import number_keys
from holdfast.functions.operator import BatchContext, OperatorResult
from holdfast.python_values import payload_of, shown_rows, unrepresentable
from holdfast.sources.base import BadRow
from holdfast.state.physical import Slots

RESERVED_PREFIX = "__"
"""The begin of names of Holdfast's own columns: no declared column may begin so."""


class Cursor:
    """The key that a function is called for, as its slot; shared by all its states."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = -1


def named_tuples(name: str, fields: Sequence[str]) -> Callable[[Iterable[Any]], Any]:
    """A maker of named tuples; a field name that Python does not allow becomes `_<position>`."""
    made: Any = namedtuple(name, fields, rename=True)  # type: ignore[misc]
    return cast(Callable[[Iterable[Any]], Any], partial(tuple.__new__, made))


def raised(
    operator: str, key: Mapping[str, Any] | None, where: str, error: BaseException, method: str = "process"
) -> str:
    """Describe the failure of a call on a single line."""
    of_key = "" if key is None else f", key {dict(key)!r}"
    return f"operator {operator!r}{of_key}, {where}: {method}() raised {in_user_code(error)}"


def where_of(context: BatchContext, row: int) -> str:
    """A row's place; rows are numbered from 0 within a subtask's part of a batch."""
    return f"row {row} of batch {context.batch}, subtask {context.subtask}"


def bad_row(operator: str, where: str, reason: str, values: Mapping[str, Any]) -> BadRow:
    """Make a row for the dead letters; `where` as in `where_of`. Source and split are no longer known behind an
    exchange."""
    return BadRow("", "", where, reason, payload_of(values), operator=operator)


def set_apart(
    operator: str,
    rows: pa.RecordBatch,
    first_row: int,
    bad_records: str,
    context: BatchContext,
    result: OperatorResult,
) -> list[tuple[int, pa.RecordBatch]]:
    """Return the rows in pieces, each with the number of its first row, without those that Python cannot hold.

    Those are bad records.
    """
    odd = unrepresentable(rows)
    for row, reason in odd.items():
        where = where_of(context, first_row + row)
        reason = f"operator {operator!r}: {reason} ({where})"
        if bad_records == "fail":
            raise BadRecord(
                f'{reason}; leave the column out, cast it to text or a number, or use bad_records="dead_letter"'
            )
        result.bad.append(bad_row(operator, where, reason, shown_rows(rows.slice(row, 1))[0]))
    begins, stops = [0, *(row + 1 for row in odd)], [*odd, rows.num_rows]
    pairs = zip(begins, stops, strict=True)
    return [(first_row + begin, rows.slice(begin, stop - begin)) for begin, stop in pairs if begin < stop]


def numbered(slots: Slots, capacity: int) -> tuple[Slots, IntArray]:
    """The distinct slots in order of first appearance, and each slot's number among them; a table has `capacity`."""
    groups, distinct = np.empty(len(slots), np.int64), np.empty(len(slots), np.int32)
    count = number_keys(slots, np.full(capacity, -1, np.int32), groups, distinct)
    return distinct[:count], groups


def ranks(groups: IntArray, count: int) -> IntArray:
    """Count for each entry how many entries before it are of the same group."""
    order = np.argsort(groups, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=count))[:-1]])
    out = np.empty(len(groups), np.int64)
    out[order] = np.arange(len(groups)) - starts[groups[order]]
    return out


def spans(sizes: IntArray, starts: IntArray | None = None) -> tuple[IntArray, IntArray]:
    """Groups and positions of all entries, from position 0 or `starts` on, `sizes` of each group."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    positions = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return groups, positions if starts is None else positions + starts[groups]
