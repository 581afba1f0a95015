"""The JobMaster's side of a file source: which files there are, in which order, and what is read next.

Files get numbers in discovery order. Offsets are `{"next": n}` (all files below n are read) plus one entry
`{"<number>": position}` for a file below n that is read in part; there is at most one, since files are read in
order. Which files have which numbers is in discovery chunks (`discovery_chunks`), stored before `latest` returns.

    numbers   0 1 2 3 4 5 | 6 7 8          chunks [0…4] [5…6] [7…8]
    read      ─────────► ▲                 offsets {"next": 6, "5": 1200}: 0 to 4 whole, 5 up to row 1200

Invariants: a number never changes its file while any stored offsets know it (numbers that no record names are
given anew); `objects` is O(log discoveries); a chunk that `objects` has named is deleted only once a checkpoint further
on was recorded, one whose position was taken after the chunk had been replaced.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from holdfast.errors import BadRecord, CorruptObject, JobRefused, StorageError
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, SourcePlan, SplitRead
from holdfast.sources.files.discovery_chunks import ChunkContent, DiscoveryChunk, decode, encode, join, replaced_by_next
from holdfast.sources.files.formats import FileShape, Format
from holdfast.sources.files.trees import FileInfo, FileTree, changed
from holdfast.storage import names

NEXT = "next"
PIECES = 16
"""Into about how many reads a batch is divided."""
PIECE_ROWS_MIN = 16_384
PIECE_ROWS_MAX = 262_144
READS_MAX = 256
AHEAD = 16
"""How many remote files are looked into at once."""
SHAPES_MAX = 4_096


class ReadDetail(msgspec.Struct, frozen=True):
    """What a task needs to know of the file it reads."""

    size: int
    modified_us: int


class Room(NamedTuple):
    """What is left of a batch's limits."""

    rows: float
    bytes: float

    @property
    def left(self) -> bool:
        return self.rows > 0 and self.bytes > 0


@dataclass
class Replaced:
    """Chunks that others have replaced; `since`: the first position whose record does not name them."""

    chunks: list[str]
    since: tuple[int, int] | None = None


class FileEnumerator(Enumerator):
    """See the module; `starting` as in `FileSource`."""

    def __init__(self, tree: FileTree, form: Format, starting: datetime | str, context: EnumeratorContext) -> None:
        self._tree = tree
        self._format = form
        self._starting = starting
        self._context = context
        self._files: list[FileInfo] = []
        self._numbers: dict[str, int] = {}
        self._chunks: list[DiscoveryChunk] = []
        self._named: set[str] = set()
        self._replaced: list[Replaced] = []
        self._unneeded: list[str] = []
        self._shapes: dict[int, FileShape] = {}

    def initial(self) -> Offsets:
        if self._starting != "earliest" and not self._files:
            self._discover()
        if self._starting == "latest":
            return {NEXT: len(self._files)}
        if isinstance(self._starting, datetime):
            since_us = int(self._starting.timestamp() * 1_000_000)
            return {NEXT: sum(file.modified_us < since_us for file in self._files)}
        return {NEXT: 0}

    def latest(self) -> Offsets:
        self._discover()
        return {NEXT: len(self._files)}

    def objects(self, offsets: Offsets) -> list[str]:
        found = [chunk.name for chunk in self._chunks]
        self._named = set(found)
        for replaced in self._replaced:
            replaced.since = replaced.since or self._progress(offsets)
        return found

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        stored = [(name, decode(name, self._context.store.get(name))) for name in objects]
        self._chunks, self._files = join(self._context.source, stored)
        self._numbers = {file.path: number for number, file in enumerate(self._files)}
        self._named = set(objects)
        read = self._next(offsets)
        if read > len(self._files):
            raise CorruptObject(
                f"source {self._context.source!r}: the checkpoint has read {read} files, but its discovery chunks "
                f"{objects} name {len(self._files)}"
            )

    def completed(self, offsets: Offsets) -> None:
        done = self._next(offsets)
        for number in [number for number in self._shapes if number < done and str(number) not in offsets]:
            del self._shapes[number]
        progress = self._progress(offsets)
        for replaced in [one for one in self._replaced if one.since is not None and one.since < progress]:
            self._unneeded += replaced.chunks
            self._replaced.remove(replaced)
        self._delete_unneeded()

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        waiting = [self._files[number] for number in self._unread(offsets, len(self._files))]
        return {"files": len(waiting), "bytes": sum(file.size for file in waiting)}

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        reads: list[SplitRead] = []
        room = Room(rows_max, bytes_max)
        piece = Room(min(max(PIECE_ROWS_MIN, rows_max / PIECES), PIECE_ROWS_MAX), max(1, bytes_max / PIECES))
        end = min(self._next(until), len(self._files))
        to: Offsets = dict(start)
        for number in self._unread(start, end):
            if not room.left or len(reads) >= READS_MAX:
                break
            shape = self._shape(number)
            position, stop = self._position(start, number), self._stop(until, number, shape)
            if 0 < stop <= position:
                continue
            for read, used in self._pieces(number, shape, position, stop, room, piece):
                reads.append(read)
                room = Room(room.rows - used.rows, room.bytes - used.bytes)
                position = msgspec.convert(read.stop, int)
            to = {NEXT: max(self._next(to), number + 1), str(number): position}
            if position >= shape.length:
                del to[str(number)]
        return SourcePlan(to, reads) if reads else SourcePlan(start, [])

    def _pieces(
        self, number: int, shape: FileShape, position: int, stop: int, room: Room, piece: Room
    ) -> Iterator[tuple[SplitRead, Room]]:
        """The reads of one file, each about a piece, until the room is used up; at least one."""
        file = self._files[number]
        detail = msgspec.msgpack.encode(ReadDetail(file.size, file.modified_us))
        first = True
        while first or (position < stop and room.left):
            first = False
            allowed = Room(min(room.rows, piece.rows), min(room.bytes, piece.bytes))
            end = stop if shape.whole else min(stop, _cut(shape, position, allowed, room))
            used = Room((end - position) * shape.rows_per_unit, (end - position) * shape.bytes_per_unit)
            yield SplitRead(file.path, position, end, max(1, round(used.rows)), detail), used
            room = Room(room.rows - used.rows, room.bytes - used.bytes)
            position = end

    def _unread(self, start: Offsets, end: int) -> list[int]:
        """The numbers below `end` that are open or not begun, in order."""
        first = self._next(start)
        opened = sorted(int(name) for name in start if name != NEXT)
        return [number for number in opened if number < end] + list(range(first, end))

    def _next(self, offsets: Offsets) -> int:
        if not isinstance(offsets.get(NEXT), int):
            raise JobRefused(
                f"source {self._context.source!r}: the checkpoint's position {offsets!r} is not one of a FileSource: "
                "give the source a new name"
            )
        return msgspec.convert(offsets[NEXT], int)

    def _progress(self, offsets: Offsets) -> tuple[int, int]:
        """Grows with every read."""
        first_open = min((int(name) for name in offsets if name != NEXT), default=self._next(offsets))
        return first_open, self._position(offsets, first_open)

    def _position(self, offsets: Offsets, number: int) -> int:
        return msgspec.convert(offsets.get(str(number), 0), int)

    def _stop(self, until: Offsets, number: int, shape: FileShape) -> int:
        return msgspec.convert(until.get(str(number), shape.length), int)

    def _shape(self, number: int) -> FileShape:
        """Kept in memory for the files that come next; a remote store is asked for several at once."""
        if number not in self._shapes:
            while len(self._shapes) >= SHAPES_MAX:
                self._shapes.pop(next(iter(self._shapes)))
            ahead = range(number + 1, min(number + AHEAD, len(self._files))) if self._tree.remote else range(0)
            with ThreadPoolExecutor(AHEAD) as pool:
                futures = {other: pool.submit(self._format.shape, self._tree, self._files[other]) for other in ahead}
                self._shapes[number] = self._format.shape(self._tree, self._files[number])
            # A file further on that cannot be read is reported when its turn has come.
            self._shapes.update({other: one.result() for other, one in futures.items() if one.exception() is None})
        return self._shapes[number]

    def _discover(self) -> None:
        """Number the new files and store the chunk that says so; nothing changes where that fails."""
        new = []
        for file in self._tree.list():
            number = self._numbers.get(file.path)
            if number is None:
                new.append(file)
            elif self._files[number] != file:
                raise BadRecord(f"source {self._context.source!r}: {changed(self._files[number], file)}")
        if new:
            self._append(sorted(new, key=lambda file: (file.modified_us, file.path)))
        self._delete_unneeded()

    def _append(self, new: list[FileInfo]) -> None:
        kept, level = replaced_by_next([chunk.level for chunk in self._chunks])
        first = self._chunks[kept].first if kept < len(self._chunks) else len(self._files)
        files = [*self._files[first:], *new]
        name = names.source_chunk(self._context.epoch)
        content = ChunkContent(
            self._context.source, level, first, [(file.path, file.size, file.modified_us) for file in files]
        )
        self._context.store.put(name, encode(content))
        replaced = [chunk.name for chunk in self._chunks[kept:]]
        self._unneeded += [chunk for chunk in replaced if chunk not in self._named]
        if named := [chunk for chunk in replaced if chunk in self._named]:
            self._replaced.append(Replaced(named))
        self._chunks = [*self._chunks[:kept], DiscoveryChunk(name, level, first, len(files))]
        self._numbers.update({file.path: len(self._files) + index for index, file in enumerate(new)})
        self._files += new

    def _delete_unneeded(self) -> None:
        """What cannot be deleted now stays queued."""
        try:
            self._context.store.delete(self._unneeded)
            self._unneeded = []
        except StorageError:
            return


def _cut(shape: FileShape, position: int, allowed: Room, room: Room) -> int:
    """Where a piece from `position` ends: after the stored groups that are allowed, or one that there is room for.

    Reading from the middle of a group decodes it from its beginning, so one is cut only where it must be.
    """
    end = position + _units(shape, allowed)
    groups = [group for group in shape.group_ends if group > position]
    within = [group for group in groups if group <= end]
    if within:
        return within[-1]
    last = position + _units(shape, room)
    return groups[0] if groups and groups[0] <= last else (last if groups else end)


def _units(shape: FileShape, room: Room) -> int:
    return max(1, int(min(room.rows / shape.rows_per_unit, room.bytes / max(shape.bytes_per_unit, 1e-9))))


def utc(moment: datetime) -> datetime:
    """A datetime without a zone is in UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
