"""Nodes of a declared graph with their schemas: each node is resolved once, however many ways lead to it. Pure.

A plain union may join streams of different schemas if later steps make them equal. So a declared node becomes one
resolved node for each schema of its rows: almost always a single node.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.graph.changing import FromEnvelopes, common_kind, kind_behind
from holdfast.graph.nodes import (
    Node,
    ReadNode,
    StepDeclaration,
    StepNode,
    TransformDeclaration,
    UnionNode,
    inputs_first,
)
from holdfast.graph.program import LegStep, MapBatches, Transform
from holdfast.graph.projecting import Projection, Selection
from holdfast.graph.uniting import Conforming, united_schema
from holdfast.schema import StreamKind

AnalyseTransform = Callable[[Callable[[Any], Any], pa.Schema], pa.Schema]


@dataclass(frozen=True, eq=False)
class Resolved:
    """Rows of a single schema: of a read, after a step, or (without a step) of several inputs one after the other."""

    schema: pa.Schema
    inputs: "tuple[Resolved, ...]" = ()
    step: LegStep | None = None
    read: ReadNode | None = None
    kind: StreamKind = "append"

    def then(self, declared: StepDeclaration, analyse: AnalyseTransform) -> "Resolved":
        """Resolve a step on these rows. Raises `JobRefused`."""
        if isinstance(declared, MapBatches):
            return self._behind(declared, declared.schema, declared)
        if isinstance(declared, TransformDeclaration):
            schema = analyse(declared.fn, self.schema)
            return self._behind(declared, schema, Transform(declared.fn, schema))
        if isinstance(declared, Projection):
            declared = declared.bound(self.schema)
            declared = declared if self.kind == "append" else declared.keeping(self.schema)
        elif isinstance(declared, Selection):
            declared = replace(declared.bound(self.schema), kind=self.kind)
        schema = declared.schema_of(self.schema)
        keeps_rows = not isinstance(declared, Selection | FromEnvelopes)
        return self._behind(declared, schema, MapBatches(declared, schema, str(declared), keeps_rows, by_row=True))

    def _behind(self, declared: StepDeclaration, schema: pa.Schema, step: LegStep) -> "Resolved":
        return Resolved(schema, (self,), step, kind=kind_behind(declared, self.kind, self.schema, schema))


class Resolver:
    """Resolves the nodes of a program, and remembers each."""

    def __init__(
        self, analyse: AnalyseTransform, read: Callable[[ReadNode], pa.Schema], kind: Callable[[ReadNode], StreamKind]
    ) -> None:
        self._analyse = analyse
        self._schema_of = read
        self._kind_of = kind
        self._known: dict[Node, tuple[Resolved, ...]] = {}
        self._reads: dict[object, Resolved] = {}

    def resolve(self, last: Node) -> tuple[Resolved, ...]:
        """Return the rows of a node, by schema. Raises `JobRefused`."""
        for node in inputs_first(last, self._known):
            self._known[node] = tuple(self._resolved(node))
        return self._known[last]

    def _resolved(self, node: Node) -> Iterable[Resolved]:
        if isinstance(node, ReadNode):
            place = (node.origin, node.watermark)
            if place not in self._reads:
                self._reads[place] = Resolved(self._schema_of(node), read=node, kind=self._kind_of(node))
            return (self._reads[place],)
        if isinstance(node, StepNode):
            return [each.then(node.step, self._analyse) for each in self._known[node.before]]
        return together(self._conforming(node) if node.by_name else self._all(node))

    def _all(self, node: UnionNode) -> list[Resolved]:
        return [each for before in node.inputs for each in self._known[before]]

    def _conforming(self, node: UnionNode) -> list[Resolved]:
        schema = united_schema([each.schema for each in self._all(node)], node.tag)
        found = []
        for before, value in zip(node.inputs, _tags(node), strict=True):
            step = MapBatches(
                Conforming(schema, {} if node.tag is None else {node.tag: value}), schema, "union_by_name"
            )
            found += [Resolved(schema, (each,), step, kind=each.kind) for each in self._known[before]]
        return found


def together(rows: Iterable[Resolved]) -> list[Resolved]:
    """Unite rows of the same schema."""
    groups: list[list[Resolved]] = []
    for each in rows:
        group = next((group for group in groups if group[0].schema.equals(each.schema)), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return [group[0] if len(group) == 1 else _united(group) for group in groups]


def _united(group: list[Resolved]) -> Resolved:
    return Resolved(group[0].schema, tuple(group), kind=common_kind(each.kind for each in group))


def _tags(node: UnionNode) -> tuple[str, ...]:
    return ("left", "right") if node.tag is not None else ("",) * len(node.inputs)
