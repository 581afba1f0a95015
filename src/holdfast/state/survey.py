"""A round over a table, some rows at a time, that finds rows which no batch looks up, for example expired rows.

    place ──► slots in memory ──► records of the base store, in order of their keys ──► START: the round is over

A found row is only a candidate, named by its key: a row may be found twice, and a record of the base store may be older
than the row in memory, so the caller looks the key up. A round finds every row that does not move during it. A row that
moves (by compaction or eviction) may be found only in the next round. A survey touches no row, and reads none into
memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.state import kernels
from holdfast.state.arena import Arena
from holdfast.state.columns import Values
from holdfast.state.index import columns_of_stored
from holdfast.state.physical import Bools
from holdfast.state.residency import Residency
from holdfast.state.rows import COMPACT_FROM, COMPACT_SHARE, Rows

BASE_ROWS_MAX = 16_384
"""Records of a base store that are read at once: they cost about a microsecond each."""

RowFilter = Callable[[Mapping[str, tuple[Values, Bools]]], Bools]
"""Decides which rows are wanted, from their values and validity by value column."""


@dataclass(frozen=True)
class SurveyPlace:
    """The position of a round: a slot in memory, or, if `key` is set, a key in the base store."""

    slot: int = 0
    key: bytes | None = None


START = SurveyPlace()


@dataclass(frozen=True)
class Survey:
    """`keys` of the rows that were wanted, how many were looked at, and where to go on (`START`: the round is over)."""

    keys: pa.RecordBatch
    seen: int
    place: SurveyPlace


def survey(
    rows: Rows, residency: Residency | None, place: SurveyPlace, rows_max: int, wanted: RowFilter | None
) -> Survey:
    """Look at the next rows of the round, at most `rows_max`; without `wanted`, every row is wanted."""
    if place.key is None and (residency is None or residency.entries_max):
        used = rows.index.slots_used
        if place.slot < used:
            return _in_memory(rows, place.slot, rows_max, wanted, residency is not None)
    if residency is None:
        return Survey(_keys(rows, []), 0, START)
    return _in_base(rows, residency, place.key or b"", min(rows_max, BASE_ROWS_MAX), wanted)


def _in_memory(rows: Rows, start: int, rows_max: int, wanted: RowFilter | None, has_base: bool) -> Survey:
    used = rows.index.slots_used
    stop = min(used, start + max(COMPACT_FROM, 4 * COMPACT_SHARE * rows_max))
    slots = start + kernels.where(rows.present[start:stop])[:rows_max]
    if len(slots) == rows_max:
        stop = int(slots[-1]) + 1
    found = slots
    if wanted is not None:
        found = slots[wanted({column.field.name: column.gather(slots) for column in rows.columns})]
    over = SurveyPlace(0, b"") if has_base else START
    return Survey(_keys(rows, rows.index.columns(found)), len(slots), over if stop == used else SurveyPlace(stop))


def _in_base(rows: Rows, residency: Residency, start: bytes, rows_max: int, wanted: RowFilter | None) -> Survey:
    keys, records = next(residency.base.scan(start, rows_max + 1), ([], []))
    place = SurveyPlace(0, keys.pop()) if len(keys) > rows_max else START
    found = keys
    if wanted is not None:
        arena = Arena()
        columns = residency.codec.decode(records[: len(keys)], arena)
        named = dict(zip((column.field.name for column in rows.columns), columns, strict=True))
        found = [keys[i] for i in np.flatnonzero(wanted(named)).tolist()]
    return Survey(_keys(rows, columns_of_stored(found, rows.index.key_schema)[1]), len(keys), place)


def _keys(rows: Rows, columns: list[object]) -> pa.RecordBatch:
    schema = rows.index.key_schema
    return pa.RecordBatch.from_arrays(columns or [pa.nulls(0, field.type) for field in schema], schema=schema)
