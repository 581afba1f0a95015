"""Declarations in words, for the `repr` of streams. Pure."""

from typing import TYPE_CHECKING

from holdfast.graph.program import SourceOrigin

if TYPE_CHECKING:
    from holdfast.graph.build import Path


def described(paths: "tuple[Path, ...]") -> str:
    """Describe the paths into a stream, each from its source or operator over its steps."""
    return " and ".join(" → ".join([origin, *([steps] if steps else [])]) for origin, steps in ways(paths))


def ways(paths: "tuple[Path, ...]") -> list[tuple[str, str]]:
    """Return the origin of each path into a stream, and its steps."""
    found = []
    for path in paths:
        origin = path.origin.source if isinstance(path.origin, SourceOrigin) else path.origin.operator
        watermark = [] if path.watermark is None else [f"with_watermark({path.watermark.column!r})"]
        steps = [str(step) for step in path.steps]
        found.append((origin, " → ".join([*watermark, *steps])))
    return found
