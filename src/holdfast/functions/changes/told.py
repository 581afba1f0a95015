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
from holdfast.schema import CHANGE_TYPE

CHANGE_FIELD = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
KINDS = ("insert", "update_preimage", "update_postimage", "delete")
INSERT, BEFORE, AFTER, DELETE = range(4)


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
    places: IntArray = np.stack([np.arange(count), np.arange(count) + count], axis=1).ravel()[chosen]
    columns = [key.take(pa.array(places % max(count, 1))) for key in keys]
    for one, other in zip(old, new, strict=True):
        columns.append(pa.concat_arrays([one, other]).take(pa.array(places)))
    columns.append(pa.array(KINDS).take(pa.array(kinds[chosen])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
