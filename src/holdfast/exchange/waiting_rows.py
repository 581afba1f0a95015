"""Rows of a unit that wait for the turn of their sinks: in memory up to a bound, then on the local disk.

    (place, rows) ──aside──► rows of the first place, at once
                       └───► rows of the other places, kept ──of──► those of a place, in order

Places at the same node of a leg mostly get the same record batches. Such a batch is kept once, whatever their number.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import pyarrow as pa

from holdfast.taskmanager.buffers import RowBuffer, SpillArea

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Bound in bytes on the rows of a unit that are kept in memory; further rows go to a local file. A higher value takes
more memory and writes less."""


class _Node:
    """The batches that places at a node get, all of the same schema. `numbers`: those of each place, in order."""

    def __init__(self, area: SpillArea) -> None:
        self.rows = RowBuffer(area)
        self.numbers: dict[int, list[int]] = {}
        self._last: pa.RecordBatch | None = None
        self._count = 0

    def keep(self, place: int, batch: pa.RecordBatch) -> None:
        if batch is not self._last:
            self.rows.append(batch)
            self._last = batch
            self._count += 1
        self.numbers.setdefault(place, []).append(self._count - 1)

    def of(self, place: int) -> Iterator[pa.RecordBatch]:
        wanted = iter(self.numbers.get(place, ()))
        number = next(wanted, None)
        for each, batch in enumerate(self.rows):
            if each == number:
                yield batch
                number = next(wanted, None)


class WaitingRows:
    """Keeps rows by place, as long as it is entered. `nodes`: the node of each place. Used by a single thread."""

    def __init__(self, nodes: Mapping[int, int], local_dir: str | None = None) -> None:
        self._area = SpillArea(KEPT_BYTES_MAX, local_dir)
        self._nodes = {number: _Node(self._area) for number in set(nodes.values())}
        self._node_of = {place: self._nodes[number] for place, number in nodes.items()}

    def aside(self, rows: Iterator[tuple[int, pa.RecordBatch]], first: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the first place; keep all others."""
        for place, batch in rows:
            if place == first:
                yield batch
            elif batch.num_rows:
                self._node_of[place].keep(place, batch)

    def of(self, place: int) -> Iterator[pa.RecordBatch]:
        """Yield the kept rows of a place, and keep them no longer."""
        return self._node_of[place].of(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        for node in self._nodes.values():
            node.rows.drop()
        self._area.close()
