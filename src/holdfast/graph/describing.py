"""Declarations in words, for the `repr` of streams. Pure."""

from holdfast.graph.build import Path, StepDeclaration, TransformDeclaration, UnionDeclaration
from holdfast.graph.program import SourceOrigin


def described(paths: tuple[Path, ...]) -> str:
    """Describe the paths into a stream, each from its source or operator over its steps."""
    return " and ".join(" → ".join([origin, *([steps] if steps else [])]) for origin, steps in ways(paths))


def ways(paths: tuple[Path, ...]) -> list[tuple[str, str]]:
    """Return the origin of each path into a stream, and its steps."""
    found = []
    for path in paths:
        origin = path.origin.source if isinstance(path.origin, SourceOrigin) else path.origin.operator
        watermark = [] if path.watermark is None else [f"with_watermark({path.watermark.column!r})"]
        steps = [_shown_step(step) for step in path.steps]
        found.append((origin, " → ".join([*watermark, *steps])))
    return found


def _shown_step(step: StepDeclaration) -> str:
    if isinstance(step, UnionDeclaration):
        return "union_by_name"
    if isinstance(step, TransformDeclaration):
        return f"transform({getattr(step.fn, '__name__', repr(step.fn))})"
    return str(step)
