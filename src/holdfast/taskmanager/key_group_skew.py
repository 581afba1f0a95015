"""How unevenly the rows of a table are spread over its key groups, by a sample.

A job cannot be scaled beyond its fullest key group, because a key group is never divided. The sample is taken anew once
the number of rows has changed by a share, so that its cost does not grow with the batches.
"""

import numpy as np

from holdfast.state.keys import encode_keys, key_groups
from holdfast.state.survey import START
from holdfast.state.table import StateTable

SAMPLE_MAX = 16_384
"""Rows of a sample. A higher value is more exact and costs more, some 0.2 µs a row."""
ROWS_PER_GROUP_MIN = 16
"""Least rows of a sample for each key group: fewer say more of chance than of skew."""
CHANGE_SHARE = 0.1


class KeyGroupSkew:
    """Skew of a table with `groups` key groups out of `max_parallelism`. Used by the thread that owns the table."""

    def __init__(self, table: StateTable, groups: int, max_parallelism: int) -> None:
        self._table = table
        self._groups = groups
        self._max_parallelism = max_parallelism
        self._rows = 0
        self.value: float | None = None
        """Rows of the fullest key group by the mean of all; None while there are too few rows to say."""

    def look(self) -> None:
        """Take a sample, if the number of rows has changed enough since the last."""
        rows = len(self._table)
        if abs(rows - self._rows) <= CHANGE_SHARE * self._rows:
            return
        self._rows = rows
        self.value = None
        if rows < ROWS_PER_GROUP_MIN * self._groups:
            return
        found = self._table.survey(START, SAMPLE_MAX, None)
        if found.place.key or found.keys.num_rows < ROWS_PER_GROUP_MIN * self._groups:
            return  # a base store tells its rows by key group, so its first rows are no sample
        groups = key_groups(encode_keys(found.keys, found.keys.schema.names), self._max_parallelism)
        self.value = float(np.bincount(groups).max() * self._groups / len(groups))
