"""Schemas of streams while a job is being declared, so that a wrong expression fails in the user's line. Pure.

The schema of a stream is known if the user gave the schemas of its sources, and no step before it needs Spark. Sources
that read their schema from data or a server do so at `start()`, and expressions on their rows are checked then.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from holdfast.arrays import plain_schema
from holdfast.graph.build import Builder
from holdfast.graph.declarations import Declarations
from holdfast.graph.nodes import Node, StepDeclaration, StepNode, reads_of
from holdfast.graph.program import OperatorOrigin, SourceOrigin
from holdfast.graph.projecting import Projection, Selection


class _Unknown(Exception):
    """The schema is not known before `start()`."""


def _by_spark(_: Callable[[Any], Any], __: pa.Schema) -> pa.Schema:
    raise _Unknown


class KnownSchemas:
    """The schemas of a job's streams, as far as they are known. Each node and operator is resolved once."""

    def __init__(self, declared: Declarations) -> None:
        self._declared = declared
        self._builder = Builder(declared, _by_spark)

    def then(self, before: Node, step: StepDeclaration) -> StepNode:
        """Return the node of a step. Raises `JobRefused` if it has an expression that does not fit the rows."""
        node = StepNode(before, step)
        if isinstance(step, Projection | Selection):
            self.schema(node)
        return node

    def schema(self, node: Node) -> pa.Schema | None:
        """Return the schema of a stream; None if it is not known yet. Raises `JobRefused` if a part before is wrong."""
        try:
            for origin in self._origins_before(node):
                self._add(origin)
            found = self._builder.resolver.resolve(node)
        except _Unknown:
            return None
        return found[0].schema if len(found) == 1 else None

    def _origins_before(self, last: Node) -> list[SourceOrigin | OperatorOrigin]:
        """Return the origins that a node needs and that are not resolved yet, each after the origins that it needs
        itself."""
        waiting, found = [last], dict[SourceOrigin | OperatorOrigin, None]()
        while waiting:
            for read in reads_of(waiting.pop()):
                origin = read.origin
                if origin in self._builder.schemas or origin in found:
                    continue
                found[origin] = None
                if isinstance(origin, OperatorOrigin):
                    waiting += [each.node for each in self._declared.operators[origin.operator].inputs]
        places = {name: place for place, name in enumerate(self._declared.operators)}
        return sorted(found, key=lambda each: -1 if isinstance(each, SourceOrigin) else places[each.operator])

    def _add(self, origin: SourceOrigin | OperatorOrigin) -> None:
        if origin in self._builder.schemas:
            return
        if isinstance(origin, OperatorOrigin):
            self._builder.add_operator(self._declared.operators[origin.operator])
            return
        schema = self._declared.sources[origin.source].declared_schema()
        if schema is None or origin.output:
            raise _Unknown
        self._builder.schemas[origin] = plain_schema(schema)
        self._builder.kinds[origin] = self._declared.sources[origin.source].stream_kind(schema)
