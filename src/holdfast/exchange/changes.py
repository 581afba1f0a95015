"""Rows of change data with an unknown change type. The sender finds them, so that each is reported once instead of once
for each subtask."""

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph.program import OperatorTarget
from holdfast.schema import CHANGE_TYPE, CHANGE_TYPES


def unknown_changes(target: OperatorTarget, rows: pa.RecordBatch) -> dict[int, str]:
    """Give the numbers of rows of a stream of changes whose change type is unknown, with the reason."""
    if not target.changes or CHANGE_TYPE not in rows.schema.names:
        return {}
    changes = rows.column(CHANGE_TYPE)
    unknown = pc.invert(pc.is_in(changes, value_set=pa.array([*CHANGE_TYPES, None])))
    stream = f"the broadcast stream {target.broadcast!r}" if target.broadcast else "the input"
    where = f"in {stream} of operator {target.operator!r}"
    expected = f"expected one of {', '.join(CHANGE_TYPES)}"
    return {
        number: f"{CHANGE_TYPE} is {changes[number].as_py()!r} {where}; {expected}"
        for number in pc.indices_nonzero(unknown).to_pylist()
    }
