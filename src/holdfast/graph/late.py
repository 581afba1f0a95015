"""Streams of the rows that came too late for an operator: of its first input, and of a join's second."""

from collections.abc import Mapping

from holdfast.errors import JobRefused
from holdfast.graph.declarations import OperatorDeclaration
from holdfast.graph.nodes import Node, ReadNode, StepNode, over_reads
from holdfast.graph.program import LATE, OperatorOrigin
from holdfast.graph.projecting import Omission

GIVEN_BY = ("aggregate(), top() or process() of a windowed key, a drop_duplicates() or a join()", "join()")
"""The operators for whose first and second input rows may be late."""


def late_rows(node: Node, operators: Mapping[str, OperatorDeclaration], number: int) -> Node:
    """Return the late rows of the operators whose output is `node`. Raises `JobRefused` if they have no such input."""

    def late(read: ReadNode) -> Node:
        origin = read.origin
        declared = operators[origin.operator] if isinstance(origin, OperatorOrigin) and not origin.output else None
        if declared is None or number >= len(declared.inputs):
            raise _refused(number)
        rows = ReadNode(OperatorOrigin(declared.name, LATE[number]))
        computed = tuple(declared.inputs[number].computed)
        return StepNode(rows, Omission(computed)) if computed else rows

    found = over_reads(node, late)
    if found is None:
        raise _refused(number)
    return found


def _refused(number: int) -> JobRefused:
    return JobRefused(f".{'late_right' if number else 'late'} belongs right behind the {GIVEN_BY[number]}")
