"""Truncations as deletes: a keyed function that knows the rows of a table, and deletes them when the table is emptied.

The state knows the rows that changes have brought since the first start, which began with or without a snapshot.
Changes pass through as they are. State is a map for each part of the table (`sources.truncations`), from the key to the
whole row.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.functions.operator import OperatorInput
from holdfast.functions.process.declared import BatchFunction, Context
from holdfast.functions.process.shared.states import MapState
from holdfast.schema import CHANGE_TYPE
from holdfast.sources.truncations import KEY, KIND, TRUNCATE, told_schema

DELETE, PREIMAGE = "delete", "update_preimage"
_PLACE = "__holdfast_place"
Groups = npt.NDArray[np.int64]


class KnownRows(BatchFunction):
    """Passes changes on, and deletes for truncations. A subclass declares `known`, since its type is the table's."""

    known: MapState
    row: pa.DataType
    """The table's own columns: without `_change_type` and the columns after it."""

    def process(
        self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Groups, ctx: Context
    ) -> Iterator[pa.RecordBatch]:
        emptied = pc.equal(batch.column(KIND), TRUNCATE).to_numpy(zero_copy_only=False)
        bounds = [0, *(np.flatnonzero(np.diff(emptied.astype(np.int8))) + 1).tolist(), batch.num_rows]
        for first, stop in itertools.pairwise(bounds):
            rows, parts = batch.slice(first, stop - first), groups[first:stop]
            if emptied[first]:
                yield self._deletes(rows, parts)
            else:
                self._note(rows, parts)
                told = told_schema(rows.schema)
                yield pa.record_batch(rows.columns[: len(told)], schema=told)

    def _note(self, rows: pa.RecordBatch, parts: Groups) -> None:
        """Update the known rows to their state after these changes."""
        kinds = rows.column(KIND)
        last = _last_of_each(rows.filter(pc.not_equal(kinds, PREIMAGE)), parts[_mask(pc.not_equal(kinds, PREIMAGE))])
        if last is None:
            return
        changed, found = last
        gone = _mask(pc.equal(changed.column(KIND), DELETE))
        values = pa.StructArray.from_arrays([changed.column(field.name) for field in self.row], fields=list(self.row))
        keys = changed.column(KEY)
        if not gone.all():
            kept = pa.array(~gone)
            self.known.put(keys.filter(kept), values.filter(kept), found[~gone])
        if gone.any():
            self.known.remove(keys.filter(pa.array(gone)), found[gone])

    def _deletes(self, rows: pa.RecordBatch, parts: Groups) -> pa.RecordBatch:
        """Forget all known rows of these parts, and return their deletes, with the other columns of the truncation."""
        entries = self.known.items()
        wanted = np.isin(entries.column("group").to_numpy(), parts)
        entries = entries.filter(pa.array(wanted))
        self.known.remove(entries.column("key"), entries.column("group").to_numpy())
        count = entries.num_rows
        schema = told_schema(rows.schema)
        columns = dict(zip((field.name for field in self.row), entries.column("value").flatten(), strict=True))
        facts = rows.slice(0, 1).take(pa.array(np.zeros(count, np.int64)))
        columns[CHANGE_TYPE] = pa.array([DELETE] * count, pa.string())
        arrays = [columns[name] if name in columns else facts.column(name) for name in schema.names]
        return pa.record_batch(arrays, schema=schema)


def known_rows(found: OperatorInput) -> tuple[KnownRows, pa.Schema]:
    """Return the function for the rows of an input, and the schema of its output."""
    schema = told_schema(found.schema)
    row = pa.struct(list(schema)[: schema.get_field_index(CHANGE_TYPE)])
    made = type("KnownRows", (KnownRows,), {"known": MapState(pa.binary(), row), "row": row})
    return made(), schema


def _mask(found: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _last_of_each(rows: pa.RecordBatch, parts: Groups) -> tuple[pa.RecordBatch, Groups] | None:
    """Return the last change of each key; None without any."""
    if not rows.num_rows:
        return None
    numbered = pa.table({KEY: rows.column(KEY), _PLACE: np.arange(rows.num_rows)})
    last = numbered.group_by(KEY).aggregate([(_PLACE, "max")]).column(f"{_PLACE}_max").to_numpy()
    places = np.sort(last)
    return rows.take(pa.array(places)), parts[places]
