"""The steps of a leg, applied to rows batch by batch, on the way to all of the leg's targets.

    rows of the origin ──► step ──► step ──► (output, rows)
                              └───► step ──► rows of several nodes, gathered ──► step ──► (output, rows)

Each batch passes each step once. Rows continue as soon as a step yields them, so a step that makes many rows of few
never holds all of them at once. Rows wait only if several nodes join before a further step: they wait for the rest of
the same batch, up to a bound, so that the step gets one batch instead of many small ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa

from holdfast.calls.declared import AsyncCalls, CallPlace
from holdfast.exchange.step import made, refuse_all
from holdfast.graph.program import Leg, MapBatches, Program

ROWS_GATHERED_MAX = 64 * 1024
"""Number of rows that wait where several nodes join. A higher value makes fewer and larger batches for the next step,
and takes more memory."""


def close_calls(program: Program) -> None:
    """Close what asynchronous steps have opened in this process."""
    for leg in program.legs:
        for step in leg.steps:
            if isinstance(step, MapBatches) and isinstance(step.fn, AsyncCalls):
                step.fn.close()


RefuseAt = Callable[[int, pa.RecordBatch, Mapping[int, str]], None]
"""Function that takes rows of a node out of a batch, by number, each with the reason."""


def _refuse_at(node: int, rows: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
    refuse_all(rows, reasons, False)


class LegSteps:
    """The steps of a leg. `where` describes the place of the current rows, for messages; `refuse` sets rows apart;
    `calls_at` describes the unit in which the leg's asynchronous calls are made."""

    def __init__(
        self, leg: Leg, where: Callable[[], str], refuse: RefuseAt = _refuse_at, calls_at: CallPlace | None = None
    ) -> None:
        self._refuse = refuse
        self._calls_at = calls_at
        self._nodes = leg.nodes
        self._where = where
        self._behind: list[list[int]] = [[] for _ in leg.nodes]
        self._outputs: list[list[int]] = [[] for _ in leg.nodes]
        for number, node in enumerate(leg.nodes):
            for before in node.inputs:
                self._behind[before].append(number)
        for place, output in enumerate(leg.outputs):
            self._outputs[output.node].append(place)
        self._held: dict[int, list[pa.RecordBatch]] = {
            number: [] for number, node in enumerate(leg.nodes) if len(node.inputs) > 1 and self._behind[number]
        }
        self._held_rows = dict.fromkeys(self._held, 0)

    def apply(self, rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield rows for the leg's outputs, each with the place of its output."""
        for batch in rows:
            yield from self._flow(0, iter((batch,)))
            for number in self._held:
                yield from self._flow(number, self._gathered(number))

    def _flow(self, first: int, rows: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Take the rows of a node through all later nodes."""
        under_way = [(first, rows)]
        while under_way:
            number, parts = under_way[-1]
            part = next(parts, None)
            if part is None:
                under_way.pop()
            elif part.num_rows:
                for place in self._outputs[number]:
                    yield place, part
                under_way.extend((behind, self._into(behind, part)) for behind in reversed(self._behind[number]))

    def _into(self, number: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a node's result for rows; nothing yet, if the node gathers rows."""
        step = self._nodes[number].step
        if step is not None:
            assert isinstance(step, MapBatches), "Spark steps run in Spark"
            before = self._nodes[number].inputs[0]
            return made(
                step,
                rows,
                self._where,
                lambda found, reasons, is_result: self._refuse(number if is_result else before, found, reasons),
                self._calls_at,
            )
        held = self._held.get(number)
        if held is None:
            return iter((rows,))
        held.append(rows)
        self._held_rows[number] += rows.num_rows
        return self._gathered(number) if self._held_rows[number] >= ROWS_GATHERED_MAX else iter(())

    def _gathered(self, number: int) -> Iterator[pa.RecordBatch]:
        rows, self._held[number], self._held_rows[number] = self._held[number], [], 0
        if len(rows) > 1 and all(each.schema.equals(rows[0].schema) for each in rows):
            rows = [pa.concat_batches(rows)]
        return iter(rows)
