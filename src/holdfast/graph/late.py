"""Streams of the rows that came too late for an operator: of its first input, and of a join's second."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.errors import JobRefused
from holdfast.graph.build import OperatorDeclaration, Path, StepDeclaration
from holdfast.graph.program import LATE, OperatorOrigin
from holdfast.graph.projecting import Omission

GIVEN_BY = ("aggregate(), top() or process() of a windowed key, a drop_duplicates() or a join()", "join()")
"""The operators that an input of this number may be late for."""


def late_paths(paths: Sequence[Path], operators: Mapping[str, OperatorDeclaration], number: int) -> tuple[Path, ...]:
    """The paths of late rows of the operators where `paths` begin. Raises `JobRefused`: there is no such input."""
    return tuple(_late_path(path, operators, number) for path in paths)


def _late_path(path: Path, operators: Mapping[str, OperatorDeclaration], number: int) -> Path:
    origin = path.origin
    declared = operators[origin.operator] if isinstance(origin, OperatorOrigin) and not origin.output else None
    if declared is None or path.steps or number >= len(declared.inputs):
        raise JobRefused(f".{'late_right' if number else 'late'} belongs right behind the {GIVEN_BY[number]}")
    computed = tuple(declared.inputs[number].computed)
    dropped: tuple[StepDeclaration, ...] = (Omission(computed),) if computed else ()
    return replace(path, origin=OperatorOrigin(declared.name, LATE[number]), steps=dropped)
