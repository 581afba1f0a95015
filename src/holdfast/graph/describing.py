"""Declarations in words, for the `repr` of streams, and for stored descriptions. Pure."""

from hashlib import blake2b
from itertools import islice

from holdfast.graph.nodes import WAYS_SHOWN_MAX, Node, ReadNode, UnionNode, inputs_first, ways_into
from holdfast.graph.program import SourceOrigin


def described(node: Node) -> str:
    """Describe the ways into a stream, each from its source or operator through its steps."""
    return " and ".join(_line(way) for way in ways(node))


def described_in_any_order(node: Node) -> str:
    """Describe a stream such that the order within a union makes no difference, in a text of bounded length."""
    found = list(islice(ways_into(node), WAYS_SHOWN_MAX + 1))
    if len(found) <= WAYS_SHOWN_MAX:
        return " and ".join(sorted(_line(_shown_way(way)) for way in found))
    digests: dict[Node, str] = {}
    for each in inputs_first(node):
        before = sorted(digests[before] for before in each.inputs)
        digests[each] = blake2b("\n".join([_shown(each), *before]).encode(), digest_size=8).hexdigest()
    return f"a graph of {len(digests)} steps, {digests[node]}"


def ways(node: Node) -> list[tuple[str, str]]:
    """Return the origin of each way into a stream, and its steps; if there are very many ways, only the first ones."""
    found = [_shown_way(way) for way in islice(ways_into(node), WAYS_SHOWN_MAX + 1)]
    return found if len(found) <= WAYS_SHOWN_MAX else [*found[:WAYS_SHOWN_MAX], ("further ways", "")]


def _line(way: tuple[str, str]) -> str:
    origin, steps = way
    return " → ".join([origin, *([steps] if steps else [])])


def _shown_way(way: list[Node]) -> tuple[str, str]:
    first = way[0]
    assert isinstance(first, ReadNode)
    steps = [_watermark(first), *(_shown(node) for node in way[1:])]
    return _origin(first), " → ".join(filter(None, steps))


def _origin(read: ReadNode) -> str:
    return read.origin.source if isinstance(read.origin, SourceOrigin) else read.origin.operator


def _watermark(read: ReadNode) -> str:
    return "" if read.watermark is None else f"with_watermark({read.watermark.column!r})"


def _shown(node: Node) -> str:
    if isinstance(node, UnionNode):
        return "union_by_name" if node.by_name else ""
    return f"{_origin(node)} {_watermark(node)}" if isinstance(node, ReadNode) else str(node.step)
