"""The division of a file into reads, within the limits of a batch. Pure.

Several tasks share the reads of a batch, so a large file is several reads of about the same size.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from holdfast.sources.base import SplitRead
from holdfast.sources.files.file_format import FileShape
from holdfast.sources.files.trees import FileInfo

PIECES = 16
"""Approximate number of reads into which a batch is divided. With a higher value, more tasks share a batch, at a cost
for each read."""
PIECE_ROWS_MIN = 16_384
PIECE_ROWS_MAX = 262_144


class ReadDetail(msgspec.Struct, frozen=True):
    """The file that a task must find when it reads."""

    size: int
    modified_us: int


class Room(NamedTuple):
    """The part of a batch's limits that is not used yet."""

    rows: float
    bytes: float

    @property
    def left(self) -> bool:
        return self.rows > 0 and self.bytes > 0

    def without(self, used: "Room") -> "Room":
        return Room(self.rows - used.rows, self.bytes - used.bytes)


def piece_of(rows_max: int, bytes_max: int) -> Room:
    """Return the size of each read in a batch of this size."""
    return Room(min(max(PIECE_ROWS_MIN, rows_max / PIECES), PIECE_ROWS_MAX), max(1, bytes_max / PIECES))


def pieces(
    file: FileInfo, shape: FileShape, position: int, stop: int, room: Room, piece: Room
) -> Iterator[tuple[SplitRead, Room]]:
    """Yield the reads of a file and the room that each takes, until the room is used up; at least a single read."""
    detail = msgspec.msgpack.encode(ReadDetail(file.size, file.modified_us))
    first = True
    while first or (position < stop and room.left):
        first = False
        allowed = Room(min(room.rows, piece.rows), min(room.bytes, piece.bytes))
        end = stop if shape.whole else min(stop, _cut(shape, position, allowed, room))
        used = Room((end - position) * shape.rows_per_unit, (end - position) * shape.bytes_per_unit)
        yield SplitRead(file.path, position, end, max(1, round(used.rows)), detail), used
        room = room.without(used)
        position = end


def _cut(shape: FileShape, position: int, allowed: Room, room: Room) -> int:
    """Return the end of a read that begins at `position`.

    A read ends after the last stored group that fits the allowed size, or else after the next group if the batch has
    room for that. A group is divided only if the batch has no room for it, since a read from its middle must decode it
    from its beginning.
    """
    end = position + _units(shape, allowed)
    following, within = bisect_right(shape.group_ends, position), bisect_right(shape.group_ends, end)
    if within > following:
        return shape.group_ends[within - 1]
    if following == len(shape.group_ends):
        return end
    return min(shape.group_ends[following], position + _units(shape, room))


def _units(shape: FileShape, room: Room) -> int:
    return max(1, int(min(room.rows / shape.rows_per_unit, room.bytes / max(shape.bytes_per_unit, 1e-9))))
