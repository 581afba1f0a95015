"""Rows in groups: which rows have the same key, and the place of each row within its group."""

import threading

import numpy as np
import pyarrow as pa

from holdfast.functions.rows.columns import IntArray
from holdfast.functions.rows.kernels import count_before, number_keys, sort_by_group
from holdfast.state.index import new_index
from holdfast.state.keys import declared_columns, encode_columns
from holdfast.state.physical import Integers, Slots

_scratch = threading.local()


def distinct_slots(slots: Slots, capacity: int) -> tuple[Slots, Integers]:
    """Return the distinct slots in order of first appearance, and the index of each row's slot among them. All slots
    are below `capacity`.

    The kernel leaves its scratch space as it was, so each thread keeps its own: a new one would cost each batch time in
    proportion to the table.
    """
    numbers: Slots | None = getattr(_scratch, "numbers", None)
    if numbers is None or len(numbers) < capacity:
        numbers = _scratch.numbers = np.full(capacity, -1, np.int32)
    groups, distinct = np.empty(len(slots), np.int64), np.empty(len(slots), np.int32)
    count = number_keys(slots, numbers, groups, distinct)
    return distinct[:count], groups


def distinct_keys(rows: pa.RecordBatch, keys: pa.Schema) -> tuple[int, Integers]:
    """The number of distinct keys, and for each row the index of its key in order of first appearance."""
    index = new_index(keys)
    slots, *_ = index.lookup(encode_columns(declared_columns(rows, keys), keys.names), 1)
    return len(index), slots.astype(np.int64)  # an index without removed keys gives slots in order


def ranks(groups: IntArray, count: int) -> IntArray:
    """Count for each entry how many entries before it are of the same group; all groups are below `count`."""
    out: IntArray = count_before(groups, count)
    return out


def order_of(groups: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Return the stable order of entries by group, and the offset of each group in it, with the end."""
    starts, order = np.zeros(count + 1, np.int64), np.empty(len(groups), np.int64)
    sort_by_group(groups, starts, order)
    return order, starts


def spans(sizes: IntArray, starts: IntArray | None = None) -> tuple[IntArray, IntArray]:
    """Return the group and the position of all entries: each group has `sizes` entries, from position 0 or `starts`
    on."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    positions = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return groups, positions if starts is None else positions + starts[groups]
