"""Rows for lost TaskManagers, in a job that continues without them (`on_loss="drop"`).

The caller counts all of them; some are kept, to be put into the dead-letter folder.
"""

import pyarrow as pa

from holdfast.graph.plan import Unit
from holdfast.python_values import payload_of, shown_rows
from holdfast.sources.base import BadRow

KEPT_MAX = 1000
"""Number of dropped rows that a unit keeps; the rest is only counted. A higher value takes more memory and files."""


class DroppedRows:
    """The rows that an attempt at a unit could not send."""

    def __init__(self) -> None:
        self.gone: dict[int, str] = {}
        """TaskManagers that could not be reached, with the reasons."""
        self._kept: list[tuple[str, int, pa.RecordBatch]] = []
        self._room = KEPT_MAX

    def add(self, operator: str, task_manager: int, rows: pa.RecordBatch) -> None:
        if self._room > 0:
            some = rows.slice(0, self._room)
            self._kept.append((operator, task_manager, some))
            self._room -= some.num_rows

    def as_bad_rows(self, source: str, unit: Unit) -> list[BadRow]:
        """The rows that were kept, for the dead-letter folder."""
        splits = ", ".join(dict.fromkeys(read.split for read in unit.reads))
        positions = ", ".join(f"{read.start} to {read.stop}" for read in unit.reads if read.start is not None)
        return [
            BadRow(
                source,
                splits,
                positions,
                f"TaskManager {task_manager} is missing, and the job goes on without it (on_loss='drop')",
                payload_of(row),
                operator,
            )
            for operator, task_manager, rows in self._kept
            for row in shown_rows(rows)
        ]
