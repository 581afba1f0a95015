"""The weight of each row of a stream of changes: 1 for a row that comes, -1 for a row that goes."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.functions.changes.kernels import set_weights
from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.schema import CHANGE_TYPE, REMOVING_CHANGES
from holdfast.state.physical import variable_bytes_of


def weights_of(rows: pa.RecordBatch) -> IntArray:
    """Return the weights of rows; rows without a change type are inserts."""
    place, weights = rows.schema.get_field_index(CHANGE_TYPE), np.ones(rows.num_rows, np.int64)
    if place < 0:
        return weights
    kinds = rows.column(place)
    if pa.types.is_string(kinds.type) and not kinds.null_count:
        set_weights(*variable_bytes_of(kinds), weights)
        return weights
    goes: BoolArray = pc.is_in(kinds, value_set=pa.array(REMOVING_CHANGES)).to_numpy(zero_copy_only=False)
    weights[goes] = -1
    return weights
