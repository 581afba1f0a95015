"""Undo segments of committed batches, back to the last completed checkpoint, by which `rewind` goes back.

    commit ──► newest … oldest ──release(up to a batch)──► gone
                 │        └─ past the memory bound: gone, and no rewind reaches before it any more
                 └─ rewind: taken, newest first

A segment has a batch's old rows, named by slot as long as the slots keep their keys. Before any slot loses its key, the
keys of all segments are copied (`fix_keys`), so that undo can find its rows by key. Does not own the rows, nor the
batch in flight (`transaction`).
"""

from collections import deque
from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.ids import BatchNumber
from holdfast.state.key_index import KeyIndex
from holdfast.state.keys import Keys
from holdfast.state.physical import Slots
from holdfast.state.rows import OldRows

UNDO_BYTES_MAX = 256 * 1024 * 1024


@dataclass(eq=False)
class UndoSegment:
    """The rows that batch `batch` changed, as they were before it; it made the table `appeared` rows larger.

    `unseen`: a superset of the slots that this batch was the first to touch among batches that are not logged yet
    (`unlogged.Chain`); None: all slots of the segment.
    """

    batch: BatchNumber
    rows: OldRows
    appeared: int
    keys: Keys | None = None
    unseen: Slots | None = None
    object_bytes: int = 0
    """The bytes of objects that the batch replaced: only the segment holds them."""
    captured: bool = False
    """True if the table was captured as of this batch, or of a later batch before the next segment."""

    @property
    def first(self) -> BatchNumber:
        """The same batch, since a segment belongs to a single batch, while `Condensed` spans several."""
        return self.batch

    @property
    def slots(self) -> Slots:
        return self.rows.slots

    @property
    def memory_bytes(self) -> int:
        return self.rows.memory_bytes + self.object_bytes + (0 if self.keys is None else self.keys.memory_bytes)


class UndoHistory:
    """Segments in order of their batches, which take at most `bytes_max` bytes of memory."""

    def __init__(self, bytes_max: int = UNDO_BYTES_MAX) -> None:
        self.memory_bytes = 0
        self._bytes_max = bytes_max
        self._segments: deque[UndoSegment] = deque()
        self.by_slot: list[UndoSegment] = []
        """The newest segments, whose slots still have their keys."""
        self._reaches: int | None = None
        self._released: int | None = None

    @property
    def segments(self) -> tuple[UndoSegment, ...]:
        return tuple(self._segments)

    def add(self, segment: UndoSegment) -> None:
        """Add the segment of a batch that was committed just now, later than all others."""
        self._drop_released()
        self._segments.append(segment)
        self.by_slot.append(segment)
        self.memory_bytes += segment.memory_bytes
        while self.memory_bytes > self._bytes_max:
            self._drop_oldest()

    def shrink(self, bytes_max: int) -> None:
        """Drop the oldest segments until the rest takes at most `bytes_max`."""
        self._drop_released()
        while self._segments and self.memory_bytes > bytes_max:
            self._drop_oldest()

    def fix_keys(self, index: KeyIndex) -> None:
        """Copy the keys of all segments, because slots are about to lose their keys."""
        for segment in self.by_slot:
            segment.keys = index.keys(segment.rows.slots)
            self.memory_bytes += segment.keys.memory_bytes
        self.by_slot = []
        while self.memory_bytes > self._bytes_max:
            self._drop_oldest()

    def take_after(self, batch: BatchNumber) -> list[UndoSegment]:
        """Remove and return the segments of later batches, the newest first.

        Raises
        ------
        HoldfastError
            Some of these segments were released or dropped.
        """
        self._drop_released()
        if self._reaches is not None and batch < self._reaches:
            raise HoldfastError(
                f"a state table cannot go back to batch {batch}: its undo reaches back to batch {self._reaches}; "
                "restore it from the checkpoint"
            )
        taken = []
        while self._segments and self._segments[-1].batch > batch:
            segment = self._segments.pop()
            self.memory_bytes -= segment.memory_bytes
            taken.append(segment)
        self.by_slot = [each for each in self.by_slot if each.batch <= batch]
        return taken

    def release(self, up_to_batch: BatchNumber) -> None:
        """Allow undo up to this batch to be dropped. Any thread may call it; another method frees the memory later."""
        self._released = up_to_batch if self._released is None else max(self._released, up_to_batch)

    def _drop_released(self) -> None:
        while self._released is not None and self._segments and self._segments[0].batch <= self._released:
            self._drop_oldest()
        if self._released is not None:
            self._reaches = self._released if self._reaches is None else max(self._reaches, self._released)

    def _drop_oldest(self) -> None:
        segment = self._segments.popleft()
        self.memory_bytes -= segment.memory_bytes
        self._reaches = segment.batch
        self.by_slot = self.by_slot[1:] if self.by_slot[:1] == [segment] else self.by_slot
