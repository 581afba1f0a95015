"""The head of a segment that holds an epoch: a batch of Spark's streaming query, under Spark's batch id."""

from typing import Any

from holdfast.sources.spooled.segments import Segment, SegmentHead, SegmentPart

SPLIT = "epochs"
"""The only split, since Spark does not tell to which split of its source a row of an epoch belongs."""
QUERY = "query"
"""Name of the entry in the offsets that holds the id of Spark's query."""


class EpochHead(SegmentHead, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of an epoch, whose batch id is `number`. Its parts are in the order of its rows.

    `query` is the id that Spark's checkpoint gives the query; batch ids of different queries do not fit together.
    """

    query: str

    def follows(self, before: "Segment[Any] | None") -> bool:
        return before is None or self.query == before.head.query

    def divided(self, first: int, stop: int) -> list[tuple[int, int, dict[str, SegmentPart]]]:
        """Give a read for each part, so that several senders share an epoch; numbers count within the part."""
        found, begins = [], 0
        for name, part in self.parts.items():
            low, high = max(first - begins, 0), min(stop - begins, part.rows)
            if low < high:
                found.append((low, high, {name: part}))
            begins += part.rows
        return found


EpochSegment = Segment[EpochHead]
