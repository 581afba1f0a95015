"""Hot keys, which very many of an operator's rows have: they are found from a few rows of each unit that sends many.

A unit looks at some rows of the first large batch that it sends to an operator: a tenth of a millisecond for each unit.
The JobMaster adds up what the units find (`jobmaster.batches.hot_keys`).
"""

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.python_values import shown_rows

SAMPLED = 256
"""Number of rows that a unit samples. With a higher value, smaller shares are found, at a higher cost."""
ROWS_MIN = 4_096
"""Least number of rows in a batch that is sampled. Smaller batches cost little, however their keys are spread."""
SEEN_MIN = 8
"""Least number of a sample's rows that a reported key has: a share of 3 %."""
KEY_TEXT_MAX = 200
"""Bound in characters on a key's text."""


class KeySample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The frequent keys among some rows for an operator: each key as text, with its number of rows."""

    operator: str
    rows: int
    keys: tuple[tuple[str, int], ...] = ()


def sample(operator: str, rows: pa.RecordBatch, key_columns: tuple[str, ...]) -> KeySample | None:
    """Look at some rows for an operator; None if its keys are not compared by Arrow, or are not columns of the rows."""
    columns = [name for name in key_columns if not name.startswith("__")]
    if not columns:
        return None
    places = np.linspace(0, rows.num_rows - 1, min(SAMPLED, rows.num_rows)).astype(np.int64)
    try:
        some = pa.Table.from_batches([rows.select(columns).take(pa.array(places))])
        counted = some.group_by(columns, use_threads=False).aggregate([([], "count_all")])
    except (pa.ArrowNotImplementedError, pa.ArrowKeyError):
        return None
    found = counted.filter(pa.compute.greater_equal(counted["count_all"], SEEN_MIN))
    keys = zip(map(_text, shown_rows(found.select(columns))), found["count_all"].to_pylist(), strict=True)
    return KeySample(operator, len(places), tuple(keys))


def _text(key: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in key.items())[:KEY_TEXT_MAX]
