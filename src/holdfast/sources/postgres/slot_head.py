"""The head of a segment that holds changes of a slot, and the names of the entries in a slot's offsets."""

from typing import Any

from holdfast.sources.spooled.segments import Segment, SegmentHead

SPLIT = "changes"
"""The only split: all tables of a slot share a position, so that a transaction over several tables stays whole."""
SYSTEM, SLOT, LSN_READ = "system", "slot", "lsn"
"""Names of the entries in the offsets, besides the place in the spool."""


class SlotHead(SegmentHead, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of a segment of a slot, which names the segment before by its `uuid`.

    `open_xid` and `open_changes` describe the transaction in which it ends (0: none), and `chunks` the state of a
    chunked snapshot after it.
    """

    previous: str
    system: str
    slot: str
    end_lsn: int
    open_xid: int
    open_changes: int
    chunks: dict[str, int | str | None] = {}

    def follows(self, before: "Segment[Any] | None") -> bool:
        return before is not None and self.previous == before.uuid

    @property
    def inside(self) -> str:
        xid = f" {self.open_xid}" if self.open_xid else ""
        return f"inside transaction{xid} of slot {self.slot!r}"


SlotSegment = Segment[SlotHead]
