"""Rows of change data that a broadcast state cannot take. The sender finds them, so that each is reported once and not
once for each subtask."""

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph.program import OperatorTarget
from holdfast.schema import CHANGE_TYPE, PUTTING_CHANGES, REMOVING_CHANGES

KNOWN_CHANGES = (*PUTTING_CHANGES, *REMOVING_CHANGES)


def unknown_changes(target: OperatorTarget, rows: pa.RecordBatch) -> dict[int, str]:
    """Give the numbers of rows of a broadcast stream whose change type is unknown, with the reason."""
    if not target.broadcast or CHANGE_TYPE not in rows.schema.names:
        return {}
    changes = rows.column(CHANGE_TYPE)
    unknown = pc.invert(pc.is_in(changes, value_set=pa.array([*KNOWN_CHANGES, None])))
    where = f"in the broadcast stream {target.broadcast!r} of operator {target.operator!r}"
    expected = f"expected one of {', '.join(KNOWN_CHANGES)}"
    return {
        number: f"{CHANGE_TYPE} is {changes[number].as_py()!r} {where}; {expected}"
        for number in pc.indices_nonzero(unknown).to_pylist()
    }
