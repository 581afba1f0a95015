"""Helpers that tests of the exchange share."""

from collections.abc import Sequence

import pyarrow as pa

from holdfast.exchange.partition import arrange, places_of_groups


def divided(
    rows: pa.RecordBatch, key_columns: Sequence[str], parallelism: int, max_parallelism: int
) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of each subtask that gets any, in order of subtasks; keys have no nulls."""
    place_of_group = places_of_groups(tuple(range(parallelism)), max_parallelism)
    division = arrange(rows, key_columns, place_of_group, parallelism)
    bounds = division.bounds.tolist()
    return [
        (subtask, division.rows.slice(bounds[subtask], bounds[subtask + 1] - bounds[subtask]))
        for subtask in range(parallelism)
        if bounds[subtask + 1] > bounds[subtask]
    ]
