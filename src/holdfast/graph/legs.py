"""Legs, made from the outputs of a program: for each origin, the graph of steps on the way to its targets. Pure.

    outputs, each with its resolved rows ──► by origin: what lies between the origin and these targets ──► a leg

A leg reads its origin once for all its targets. A target after a step that Spark runs has its own leg, since Spark's
plan of a graph is as large as the number of ways through it. Targets beyond the bound of a leg have further legs too.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.graph.nodes import ReadNode, inputs_first, ways_into
from holdfast.graph.program import (
    Leg,
    LegNode,
    LegOutput,
    LegStep,
    MapBatches,
    OperatorOrigin,
    OperatorTarget,
    SinkTarget,
    Transform,
)
from holdfast.graph.projecting import Projection, Selection
from holdfast.graph.pushing import wanted_of
from holdfast.graph.resolving import Resolved
from holdfast.graph.uniting import Conforming

OUTPUTS_PER_LEG_MAX = 1_024
"""Bound on the targets of a leg; the rows of further targets are read again. A unit does the work for all targets of
its leg in turn, so with a higher value, less work is shared among senders."""

WAYS_THROUGH_SPARK_MAX = 1_024
"""Bound on the ways from a source or an operator to a target through steps that Spark runs. Each way is a leg, which
reads its rows itself; more ways take long to start."""


@dataclass(frozen=True)
class Output:
    """A target, and the resolved node whose rows it gets."""

    target: OperatorTarget | SinkTarget
    rows: Resolved

    @property
    def name(self) -> str:
        """The name of the operator or sink."""
        return self.target.sink if isinstance(self.target, SinkTarget) else self.target.operator


def lay_legs(outputs: Sequence[Output], levels: Mapping[str, int], by_spark: Collection[object]) -> tuple[Leg, ...]:
    """Make the legs of a program. `levels`: the level of each operator. `by_spark`: the origins that Spark reads.

    Raises
    ------
    JobRefused
        There are more ways through Spark's steps than legs are allowed.
    """
    legs: list[Leg] = []
    graph = _Graph(outputs)
    for read in graph.reads:
        level = levels[read.origin.operator] if isinstance(read.origin, OperatorOrigin) else 0
        for leg in _legs_of(read, graph, read.origin in by_spark):
            legs.append(replace(leg, index=len(legs), level=level))
    return tuple(legs)


class _Graph:
    """The resolved nodes before all outputs, each with the nodes that read it."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.outputs = list(enumerate(outputs))
        known: set[Resolved] = set()
        self.order: dict[Resolved, int] = {}
        self.behind: dict[Resolved, list[Resolved]] = {}
        for each in outputs:
            for node in inputs_first(each.rows, known):
                known.add(node)
                self.order[node] = len(self.order)
                for before in node.inputs:
                    self.behind.setdefault(before, []).append(node)
        self._reads = [node for node in self.order if node.read is not None]

    @property
    def reads(self) -> list[ReadNode]:
        return [node.read for node in self._reads if node.read is not None]

    def reached(self, read: ReadNode) -> set[Resolved]:
        """Return all nodes that rows of a read pass."""
        found: set[Resolved] = set()
        waiting = [node for node in self._reads if node.read is read]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting.extend(self.behind.get(node, ()))
        return found


def _legs_of(read: ReadNode, graph: _Graph, by_spark: bool) -> Iterator[Leg]:
    reached = graph.reached(read)
    through_spark = _through_spark(reached, graph)
    shared: list[tuple[int, Output]] = []
    for number, output in graph.outputs:
        if output.rows not in reached:
            continue
        if by_spark or output.rows in through_spark:
            for way in _ways(output, reached):
                links = [(node, [before]) for before, node in pairwise(way)]
                yield _leg(way[0], links, [(number, output)])
        else:
            shared.append((number, output))
    for start in range(0, len(shared), OUTPUTS_PER_LEG_MAX):
        some = shared[start : start + OUTPUTS_PER_LEG_MAX]
        yield _narrowed(_before(some, reached, graph), some)


def _through_spark(reached: set[Resolved], graph: _Graph) -> set[Resolved]:
    """Return the nodes at or after a step that Spark runs, among the nodes that a read reaches."""
    found: set[Resolved] = set()
    waiting = [node for node in reached if isinstance(node.step, Transform)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(graph.behind.get(node, ()))
    return found


def _ways(output: Output, reached: set[Resolved]) -> list[list[Resolved]]:
    ways = list(islice(ways_into(output.rows, reached.__contains__), WAYS_THROUGH_SPARK_MAX + 1))
    if len(ways) > WAYS_THROUGH_SPARK_MAX:
        raise JobRefused(
            f"{output.name!r}: its rows come along more than {WAYS_THROUGH_SPARK_MAX:,} ways through transform(…) or a "
            "DataFrame, each of which is a Spark job in every batch: unite streams before a transform, or use select, "
            "where and map_batches, which share their input"
        )
    return ways


def _before(outputs: Iterable[tuple[int, Output]], reached: set[Resolved], graph: _Graph) -> list[Resolved]:
    """Return the nodes between a read and some of the outputs, inputs first."""
    found: set[Resolved] = set()
    waiting = [output.rows for _, output in outputs]
    while waiting:
        node = waiting.pop()
        if node in reached and node not in found:
            found.add(node)
            waiting.extend(node.inputs)
    return sorted(found, key=graph.order.__getitem__)


def _narrowed(nodes: list[Resolved], outputs: list[tuple[int, Output]]) -> Leg:
    """Make a leg that reads only the needed columns of its source, and says which rows are wanted."""
    known = set(nodes)
    links = [(node, [each for each in node.inputs if each in known]) for node in nodes[1:]]
    given = {output.rows for _, output in outputs}
    columns, wanted = _columns_read(nodes, given), wanted_of(nodes, given)
    read = nodes[0].read
    if columns is None or read is None or isinstance(read.origin, OperatorOrigin):
        return replace(_leg(nodes[0], links, outputs), wanted=wanted)
    if read.watermark is not None:
        columns.add(read.watermark.column)
    leg = _leg(nodes[0], links, outputs, columns)
    united = [node for node in leg.nodes if len(node.inputs) > 1]
    is_mixed = any(not leg.nodes[each].schema.equals(node.schema) for node in united for each in node.inputs)
    return replace(_leg(nodes[0], links, outputs) if is_mixed else leg, wanted=wanted)


def _columns_read(nodes: list[Resolved], given: Collection[Resolved]) -> set[str] | None:
    """Return the columns of the first node that the other nodes need; None: all columns. `given`: the nodes whose rows
    targets get with all columns."""
    needed: dict[Resolved, set[str] | None] = {node: set() for node in nodes} | dict.fromkeys(given)
    for node in reversed(nodes):
        for before in node.inputs:
            if before in needed:
                needed[before] = _both(needed[before], _needs(node, before, needed[node]))
    return needed[nodes[0]]


def _needs(node: Resolved, before: Resolved, needed: set[str] | None) -> set[str] | None:
    """Return the columns of the input `before` that a node needs to make its own `needed` columns."""
    fn = node.step.fn if isinstance(node.step, MapBatches) else None
    if node.step is None or isinstance(fn, Selection):
        return _both(needed, set(fn.needs(before.schema)) if isinstance(fn, Selection) else set())
    return set(fn.needs(before.schema)) if isinstance(fn, Projection) and not fn.added else None


def _both(first: set[str] | None, second: set[str] | None) -> set[str] | None:
    return None if first is None or second is None else first | second


def _leg(
    first: Resolved,
    links: Iterable[tuple[Resolved, list[Resolved]]],
    outputs: Iterable[tuple[int, Output]],
    columns: set[str] | None = None,
) -> Leg:
    """Make a leg from a read through nodes, each with its inputs. The leg's number and level are not known yet."""
    laid = _Laid(first, columns)
    for node, inputs in links:
        laid.add(node, inputs)
    return laid.leg([(number, laid.places[output.rows], output.target) for number, output in outputs])


class _Laid:
    """The nodes of a leg under construction. `places`: the number of each resolved node in the leg."""

    def __init__(self, first: Resolved, columns: set[str] | None) -> None:
        assert first.read is not None, "a leg begins with a read"
        self._read, schema = first.read, first.schema
        watermark = self._read.watermark
        batch_time = watermark.column if watermark is not None and watermark.of_batches else None
        self._columns: tuple[str, ...] | None = None
        if columns is not None:
            names = [name for name in schema.names if name in columns or name == batch_time]
            schema = pa.schema([schema.field(name) for name in names])
            self._columns = tuple(name for name in names if name != batch_time)
        self._nodes = [LegNode((), None, schema)]
        self.places: dict[Resolved, int] = {first: 0}

    def add(self, node: Resolved, inputs: Sequence[Resolved]) -> None:
        numbers = tuple(self.places[each] for each in inputs)
        if node.step is None and len(numbers) == 1:
            self.places[node] = numbers[0]
            return
        before, step = self._nodes[numbers[0]], node.step
        is_as_before = step is None or (isinstance(step, MapBatches) and isinstance(step.fn, Selection))
        schema = before.schema if is_as_before else node.schema
        if isinstance(step, MapBatches) and isinstance(step.fn, Selection):
            step = replace(step, schema=schema)
        numbers, step = self._in_one(numbers, step)
        self._nodes.append(LegNode(numbers, step, schema))
        self.places[node] = len(self._nodes) - 1

    def _in_one(self, numbers: tuple[int, ...], step: LegStep | None) -> tuple[tuple[int, ...], LegStep | None]:
        """Join two consecutive conversions to united schemas into a single one."""
        before = self._nodes[numbers[0]]
        first = before.step.fn if isinstance(before.step, MapBatches) else None
        if isinstance(step, MapBatches) and isinstance(step.fn, Conforming) and isinstance(first, Conforming):
            return before.inputs, replace(step, fn=step.fn.behind(first))
        return numbers, step

    def leg(self, ends: Sequence[tuple[int, int, OperatorTarget | SinkTarget]]) -> Leg:
        """Return the leg, without nodes that no target needs."""
        used = {0, *(place for _, place, _ in ends)}
        for place in reversed(range(len(self._nodes))):
            if place in used:
                used.update(self._nodes[place].inputs)
        renumbered = {place: number for number, place in enumerate(sorted(used))}
        nodes = [self._nodes[place] for place in sorted(used)]
        nodes = [replace(node, inputs=tuple(renumbered[each] for each in node.inputs)) for node in nodes]
        outputs = [LegOutput(number, renumbered[at], target, self._nodes[at].schema) for number, at, target in ends]
        return Leg(0, 0, self._read.origin, tuple(nodes), tuple(outputs), self._read.watermark, self._columns)
