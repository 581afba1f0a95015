"""Streams whose sources have a watermark, or the time of each batch. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from holdfast.errors import JobRefused
from holdfast.graph.nodes import Node, ReadNode, over_reads
from holdfast.graph.program import SourceOrigin
from holdfast.sources.base import Source
from holdfast.sources.dataframe import DataFrameSource
from holdfast.watermarks import WatermarkSpec


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
