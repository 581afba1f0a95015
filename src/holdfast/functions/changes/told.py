"""Output that describes the changes of a batch: the results of each key before the batch, and those after it.

    key's rows    before   after        changes                               upserts
                  none     some         insert                                insert
                  some     others       update_preimage, update_postimage     update_postimage
                  some     the same     -                                     -
                  some     none         delete                                delete

Both rows of an update follow each other.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.functions.changes.kept_values import same_values
from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.functions.rows.grouping import ranks
from holdfast.schema import CHANGE_TYPE
from holdfast.state.columns import taken

CHANGE_FIELD = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
KINDS = ("insert", "update_preimage", "update_postimage", "delete")
INSERT, BEFORE, AFTER, DELETE = range(4)
KEYS_AT_ONCE_MAX = 1 << 15
"""Keys whose changes are put out together. A higher value makes larger batches of output, which take more memory."""


class ResultsBefore:
    """The results of keys as they were when a batch first touched them, in that order."""

    def __init__(self) -> None:
        self._there: list[BoolArray] = []
        self._columns: list[list[pa.Array]] = []

    def note(self, there: BoolArray, columns: list[pa.Array]) -> None:
        """Note the results of further keys; `there`: which of the keys have rows."""
        self._there.append(there)
        self._columns.append(columns)

    def there(self) -> BoolArray:
        return np.concatenate(self._there) if self._there else np.zeros(0, np.bool_)

    def column(self, place: int, kind: pa.DataType) -> pa.Array:
        return pa.concat_arrays([columns[place] for columns in self._columns] or [pa.array([], kind)])


def told(
    keys: Sequence[pa.Array],
    before: tuple[BoolArray, Sequence[pa.Array]],
    after: tuple[BoolArray, Sequence[pa.Array]],
    schema: pa.Schema,
    pairs: bool,
) -> pa.RecordBatch:
    """Return the changes between two results of the same keys. `before` and `after` have a flag for each key that has
    rows, and the columns of the results."""
    (was, old), (now, new) = before, after
    differs = np.zeros(len(was), np.bool_)
    for one, other in zip(old, new, strict=True):
        differs |= True if pa.types.is_nested(one.type) else ~same_values(one, other)
    gives_old: BoolArray = was & (~now | differs) if pairs else was & ~now
    gives_new: BoolArray = now & (~was | differs)
    kinds = np.stack([np.where(now, BEFORE, DELETE), np.where(was, AFTER, INSERT)], axis=1).ravel()
    chosen = np.stack([gives_old, gives_new], axis=1).ravel()
    count = len(was)
    places = np.stack([np.arange(count), np.arange(count) + count], axis=1).ravel()[chosen].astype(np.int32)
    columns = [taken(key, np.where(places < count, places, places - count)) for key in keys]
    for one, other in zip(old, new, strict=True):
        columns.append(taken(pa.concat_arrays([one, other]), places))
    columns.append(pa.array(KINDS).take(pa.array(kinds[chosen])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def in_pairs(groupings: Sequence[IntArray], weights: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows to give for results that are there more often (`weights` above 0) or less often now.

    A result that is there less often and one that is there more often are an update if they are in the same group, of
    the first grouping if possible. Returns the number of each row's result, and its place in `KINDS`.
    """
    results = np.repeat(np.arange(len(weights)), np.abs(weights))
    goes, paired = weights[results] < 0, np.zeros(len(results), np.bool_)
    place = np.arange(len(results))
    for groups in groupings:
        owners = groups[results]
        count = int(owners.max(initial=-1)) + 1
        sides = [np.flatnonzero(~paired & side) for side in (goes, ~goes)]
        both = np.minimum(*(np.bincount(owners[side], minlength=count) for side in sides))
        sides = [side[ranks(owners[side], count) < both[owners[side]]] for side in sides]
        before, after = (side[np.argsort(owners[side], kind="stable")] for side in sides)
        place[after] = place[before]
        paired[before] = paired[after] = True
    kinds = np.where(goes, np.where(paired, BEFORE, DELETE), np.where(paired, AFTER, INSERT))
    order = np.lexsort((~goes, place))
    return results[order], kinds[order]
