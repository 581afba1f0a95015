"""Rows in groups: which rows have the same key, and the place of each row within its group."""

import numpy as np
import pyarrow as pa

from holdfast.functions.rows.columns import IntArray
from holdfast.functions.rows.kernels import number_keys
from holdfast.ids import FIRST_BATCH
from holdfast.state.physical import Integers, Slots
from holdfast.state.table import StateTable


def distinct_slots(slots: Slots, capacity: int) -> tuple[Slots, Integers]:
    """Return the distinct slots in order of first appearance, and the index of each row's slot among them. All slots
    are below `capacity`."""
    groups, distinct = np.empty(len(slots), np.int64), np.empty(len(slots), np.int32)
    count = number_keys(slots, np.full(capacity, -1, np.int32), groups, distinct)
    return distinct[:count], groups


def distinct_keys(rows: pa.RecordBatch, keys: pa.Schema) -> tuple[int, Integers]:
    """The number of distinct keys, and for each row the index of its key in order of first appearance."""
    table = StateTable(keys, pa.schema([]), 1)
    table.begin(FIRST_BATCH)
    distinct, groups = distinct_slots(table.lookup(rows), len(table.present))
    return len(distinct), groups


def ranks(groups: IntArray, count: int) -> IntArray:
    """Count for each entry how many entries before it are of the same group."""
    order = np.argsort(groups, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=count))[:-1]])
    out = np.empty(len(groups), np.int64)
    out[order] = np.arange(len(groups)) - starts[groups[order]]
    return out


def spans(sizes: IntArray, starts: IntArray | None = None) -> tuple[IntArray, IntArray]:
    """Return the group and the position of all entries: each group has `sizes` entries, from position 0 or `starts`
    on."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    positions = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return groups, positions if starts is None else positions + starts[groups]
