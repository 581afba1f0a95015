"""The graph that a program declares: a node for each stream. A node knows the nodes before it, but not those after it.

    ReadNode ──► StepNode ──► StepNode ──► UnionNode ◄── StepNode ◄── ReadNode

A stream that is used twice is the same node twice.

A stream may be divided and united again at each of many stages, which doubles the number of ways through the graph each
time. So a walk over the graph visits each node once, and does not follow every path.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from holdfast.errors import JobRefused
from holdfast.graph.changing import AsAppend, AsChanges, FromEnvelopes
from holdfast.graph.program import MapBatches, OperatorOrigin, SourceOrigin, name_of_function
from holdfast.graph.projecting import Omission, Projection, Selection
from holdfast.sources.base import Source
from holdfast.sources.dataframe import DataFrameSource
from holdfast.watermarks import WatermarkSpec

WAYS_SHOWN_MAX = 16
"""Bound on the ways into a stream that a description shows, since people do not read longer texts."""


@dataclass(frozen=True)
class TransformDeclaration:
    fn: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"transform({name_of_function(self.fn)})"


StepDeclaration = (
    MapBatches | TransformDeclaration | Projection | Selection | Omission | AsChanges | FromEnvelopes | AsAppend
)


@dataclass(frozen=True, eq=False)
class ReadNode:
    """The rows of an origin, as they come."""

    origin: SourceOrigin | OperatorOrigin
    watermark: WatermarkSpec | None = None

    @property
    def inputs(self) -> "tuple[Node, ...]":
        return ()


@dataclass(frozen=True, eq=False)
class StepNode:
    """The rows of `before` after a step."""

    before: "Node"
    step: StepDeclaration

    @property
    def inputs(self) -> "tuple[Node, ...]":
        return (self.before,)


@dataclass(frozen=True, eq=False)
class UnionNode:
    """The rows of several streams. `by_name`: each row gets the columns of all, by their names.

    `tag`: the column that names the stream of each row, `"left"` for the first and `"right"` for the second of two.
    """

    inputs: "tuple[Node, ...]"
    by_name: bool = False
    tag: str | None = None


Node = ReadNode | StepNode | UnionNode

Linked = TypeVar("Linked")
"""A node that has `inputs` of its own kind."""


def united(left: Node, right: Node, by_name: bool = False, tag: str | None = None) -> UnionNode:
    """Unite two streams. Streams that are united one after the other become a single node."""
    if tag is None and isinstance(left, UnionNode) and left.by_name == by_name and left.tag is None:
        return UnionNode((*left.inputs, right), by_name)
    return UnionNode((left, right), by_name, tag)


def inputs_first(last: Linked, known: Container[Linked] = ()) -> list[Linked]:
    """Return `last` and everything on which it depends, each once and after its inputs. `known` nodes are left out."""
    found: list[Linked] = []
    seen: set[Linked] = set()
    waiting = [(last, False)]
    while waiting:
        node, is_done = waiting.pop()
        if is_done:
            found.append(node)
        elif node not in seen and node not in known:
            seen.add(node)
            waiting.append((node, True))
            waiting.extend((each, False) for each in reversed(node.inputs))  # type: ignore[attr-defined]
    return found


def over_reads(node: Node, change: Callable[[ReadNode], Node]) -> Node | None:
    """Return the node with its reads changed; None if there are steps between the reads and the node."""
    changed: dict[Node, Node] = {}
    for each in inputs_first(node):
        if isinstance(each, StepNode) or (isinstance(each, UnionNode) and each.by_name):
            return None
        inputs = tuple(changed[before] for before in each.inputs)
        changed[each] = change(each) if isinstance(each, ReadNode) else UnionNode(inputs)
    return changed[node]


def reads_of(*nodes: Node) -> tuple[ReadNode, ...]:
    """Return the reads that rows of these nodes come from, from left to right."""
    found = (each for node in nodes for each in inputs_first(node) if isinstance(each, ReadNode))
    return tuple(dict.fromkeys(found))


def ways_into(last: Linked, is_inside: Callable[[Linked], bool] = lambda _: True) -> Iterator[list[Linked]]:
    """Return the ways into a node, from its beginning on. There may be very many: take no more than a bound."""
    waiting = [[last]]
    while waiting:
        way = waiting.pop()
        before = [each for each in way[-1].inputs if is_inside(each)]  # type: ignore[attr-defined]
        if not before:
            yield way[::-1]
        waiting.extend([*way, each] for each in reversed(before))


def timed(node: Node, sources: Mapping[str, Source], shown: str, spec: WatermarkSpec) -> Node:
    """Return the node with a watermark on its reads, each of its own source. Raises `JobRefused` with the call."""
    refused = JobRefused(
        f"{shown}: it belongs right after read(), once, before any other step, since "
        "the watermark follows the splits of a source"
    )

    def with_watermark(read: ReadNode) -> Node:
        origin = read.origin
        if read.watermark is not None or not isinstance(origin, SourceOrigin):
            raise refused
        if isinstance(sources[origin.source], DataFrameSource):
            raise JobRefused(
                f"{shown}: source {origin.source!r} is read by Spark, which does not say "
                "which row is of which split; use a source that Holdfast reads"
            )
        return ReadNode(origin, replace(spec, source=origin.source, output=origin.output))

    made = over_reads(node, with_watermark)
    if made is None:
        raise refused
    return made
