"""The weight of each row of a stream of changes: 1 for a row that comes, -1 for a row that goes."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.schema import CHANGE_TYPE, REMOVING_CHANGES


def weights_of(rows: pa.RecordBatch) -> IntArray:
    """The weights of rows; those without a change type come."""
    place = rows.schema.get_field_index(CHANGE_TYPE)
    if place < 0:
        return np.ones(rows.num_rows, np.int64)
    goes: BoolArray = pc.is_in(rows.column(place), value_set=pa.array(REMOVING_CHANGES)).to_numpy(zero_copy_only=False)
    weights: IntArray = np.where(goes, -1, 1)
    return weights
