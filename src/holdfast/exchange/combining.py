"""Sending of rows through an operator's combiner, if it has one: fewer rows are sent, with the same meaning.
`functions.operator.Combiner` defines how rows are combined.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.equality import normalised_keys
from holdfast.exchange import partition
from holdfast.exchange.unit_writer import UnitWriter
from holdfast.functions.operator import Combiner
from holdfast.graph.program import OperatorTarget
from holdfast.protocol.streams import Sent


class CombiningWriter:
    """Writes the rows of a unit to an operator, through its combiner."""

    def __init__(self, writer: UnitWriter, target: OperatorTarget, combiner: Combiner | None) -> None:
        self._writer = writer
        self._target = target
        self._combiner = combiner

    def send(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Send rows; return the numbers of the rows that were not sent because a key is null. Keys are normalised."""
        rows = normalised_keys(rows, self._target.key_columns)
        nulls = partition.null_keys(rows, self._target.not_null)
        if len(nulls):
            rows = partition.without(rows, nulls)
        if rows.num_rows and self._combiner is not None:
            self._pass_on(self._combiner.take(rows))
        elif rows.num_rows:
            self._writer.send(self._target, rows)
        return nulls

    def end(self) -> None:
        """Send pending rows, as `UnitWriter.end`."""
        if self._combiner is not None:
            self._pass_on(self._combiner.finish())
        self._writer.end()

    def wait(self) -> Sent:
        """Wait, as `UnitWriter.wait`."""
        return self._writer.wait()

    def finish(self) -> Sent:
        """Send pending rows and wait: `end` and `wait`."""
        self.end()
        return self.wait()

    def _pass_on(self, parts: list[tuple[int, pa.RecordBatch]]) -> None:
        for number, rows in parts:
            self._writer.send(replace(self._target, input=number), rows)
