"""The JobMaster's side of a file source: discovers files, remembers them, and plans the next reads.

The numbers of files (`backlog`) are stored in discovery chunks (`discovery_chunks`) before `latest` returns.

Invariants: a number never changes its file while any stored offsets know it (numbers that no record names are
given anew); `objects` has O(log discoveries) names; a chunk that `objects` has named is deleted only once a checkpoint
further on was recorded, whose position was taken after the chunk had been replaced.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from holdfast.errors import BadRecord, CorruptObject, JobRefused, StorageError
from holdfast.printable import logger
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, SourcePlan, SplitRead
from holdfast.sources.files.backlog import NEXT, FileBacklog, next_file, open_files, position_in, progress
from holdfast.sources.files.discovery_chunks import (
    ChunkContent,
    DiscoveryChunk,
    decode,
    encode,
    join,
    replaced_by_next,
)
from holdfast.sources.files.dividing import Room, piece_of, pieces
from holdfast.sources.files.file_format import FileFormat, FileShape
from holdfast.sources.files.trees import FileInfo, FileTree, changed
from holdfast.storage import names

log = logger(__name__)

READS_MAX = 256
"""Reads of a batch. A higher value makes batches of many small files larger."""
AHEAD = 16
"""Number of remote files whose sizes are requested at once. A higher value hides more of the store's latency."""
SHAPES_MAX = 4_096
"""Number of files whose shapes are kept in memory. With a lower value, shapes are requested again more often."""


@dataclass
class ReplacedChunks:
    """Chunks that another chunk has replaced; `since`: the first progress whose record does not name them."""

    chunks: list[str]
    since: tuple[int, int] | None = None


class FileEnumerator(Enumerator):
    """Finds, numbers and plans files; `starting` as in `FileSource`."""

    def __init__(self, tree: FileTree, form: FileFormat, starting: datetime | str, context: EnumeratorContext) -> None:
        self._tree = tree
        self._format = form
        self._starting = starting
        self._context = context
        self._backlog = FileBacklog()
        self._chunks: list[DiscoveryChunk] = []
        self._named: set[str] = set()
        self._replaced: list[ReplacedChunks] = []
        self._unneeded: list[str] = []
        self._shapes: dict[int, FileShape] = {}
        self._message = ""

    def initial(self) -> Offsets:
        files = self._backlog.files
        if self._starting != "earliest" and not files:
            self._discover()
        if self._starting == "latest":
            return {NEXT: len(files)}
        if isinstance(self._starting, datetime):
            since_us = int(self._starting.timestamp() * 1_000_000)
            return {NEXT: sum(file.modified_us < since_us for file in files)}
        return {NEXT: 0}

    @property
    def initial_varies(self) -> bool:
        return self._starting != "earliest"

    def latest(self) -> Offsets:
        self._discover()
        return {NEXT: len(self._backlog.files)}

    def open_splits(self, offsets: Offsets) -> Collection[str]:
        """Return the file that is read in part, if any. Files that are not begun hold nothing back."""
        return [self._backlog.files[number].path for number in open_files(offsets)]

    def objects(self, offsets: Offsets) -> list[str]:
        found = [chunk.name for chunk in self._chunks]
        self._named = set(found)
        for replaced in self._replaced:
            replaced.since = replaced.since or progress(offsets)
        return found

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        if not isinstance(offsets.get(NEXT), int):
            raise JobRefused(
                f"source {self._context.source!r}: the checkpoint's position {offsets!r} is not a FileSource's "
                "position: give the source a new name"
            )
        stored = [(name, decode(name, self._context.store.get(name))) for name in objects]
        self._chunks, files = join(self._context.source, stored)
        self._backlog = FileBacklog()
        self._backlog.extend(files)
        self._named = set(objects)
        if next_file(offsets) > len(files):
            raise CorruptObject(
                f"source {self._context.source!r}: the checkpoint has read {next_file(offsets)} files, but its "
                f"discovery chunks {objects} name {len(files)}"
            )
        self._check_unread(offsets)

    def _check_unread(self, offsets: Offsets) -> None:
        """Refuse positions of files that are not open, and files to be read that the source's path does not match."""
        last = next_file(offsets)
        odd = [name for name in offsets if name != NEXT and not (name.isdecimal() and int(name) < last)]
        if odd:
            raise CorruptObject(
                f"source {self._context.source!r}: the checkpoint has a position in file {odd[0]!r}, expected the "
                f"number of a file below {last}"
            )
        for number in self._backlog.unread(offsets, len(self._backlog.files)):
            path = self._backlog.files[number].path
            if not self._tree.matches(path):
                raise JobRefused(
                    f"source {self._context.source!r}: the stored discovery chunks name {path} as a file to be read, "
                    f"which the source's path does not match: give the path with which the file was found until the "
                    "job has read it; if no such file was ever there, somebody has changed the job's storage"
                )

    def completed(self, offsets: Offsets) -> None:
        reached = progress(offsets)
        for number in [number for number in self._shapes if number < reached[0]]:
            del self._shapes[number]
        unneeded = [replaced for replaced in self._replaced if replaced.since is not None and replaced.since < reached]
        self._replaced = [replaced for replaced in self._replaced if replaced not in unneeded]
        self._unneeded += [chunk for replaced in unneeded for chunk in replaced.chunks]
        self._delete_unneeded()

    @property
    def message(self) -> str:
        return self._message

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        return self._backlog.waiting(offsets)

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        reads: list[SplitRead] = []
        room, piece = Room(rows_max, bytes_max), piece_of(rows_max, bytes_max)
        end = min(next_file(until), len(self._backlog.files))
        to: Offsets = dict(start)
        for number in self._backlog.unread(start, end):
            if not room.left or len(reads) >= READS_MAX:
                break
            shape = self._shape(number)
            position = position_in(start, number)
            stop = msgspec.convert(until.get(str(number), shape.length), int)
            if 0 < stop <= position:
                continue
            for read, used in pieces(self._backlog.files[number], shape, position, stop, room, piece):
                reads.append(read)
                room = room.without(used)
                position = msgspec.convert(read.stop, int)
            to = {NEXT: max(next_file(to), number + 1), str(number): position}
            if position >= shape.length:
                del to[str(number)]
        return SourcePlan(to, reads) if reads else SourcePlan(start, [])

    def _shape(self, number: int) -> FileShape:
        """Return the shape of a file; from a remote store, request the shapes of the next files too, at once."""
        if number not in self._shapes:
            files = self._backlog.files
            while len(self._shapes) >= SHAPES_MAX:
                self._shapes.pop(next(iter(self._shapes)))
            ahead = range(number + 1, min(number + AHEAD, len(files))) if self._tree.remote else range(0)
            with ThreadPoolExecutor(AHEAD) as pool:
                futures = {other: pool.submit(self._format.shape, self._tree, files[other]) for other in ahead}
                self._shapes[number] = self._format.shape(self._tree, files[number])
            # An error for a later file is reported when that file's turn has come.
            self._shapes.update({other: known.result() for other, known in futures.items() if not known.exception()})
        return self._shapes[number]

    def _discover(self) -> None:
        """Number the new files and store the chunk that names them; a failure changes nothing."""
        new = []
        for file in self._tree.list():
            known = self._backlog.known(file.path)
            if known is None:
                new.append(file)
            elif known != file:
                raise BadRecord(f"source {self._context.source!r}: {changed(known, file)}")
        if not new and not self._backlog.files and not self._message:
            self._message = (
                f"no file matches {self._tree.pattern} ({self._format.name}): see that path and suffix are right"
            )
            log.warning("source %r: %s", self._context.source, self._message)
        if new:
            self._message = ""
            self._append(sorted(new, key=lambda file: (file.modified_us, file.path)))
        self._delete_unneeded()

    def _append(self, new: list[FileInfo]) -> None:
        kept, level = replaced_by_next([chunk.level for chunk in self._chunks])
        known = self._backlog.files
        first = self._chunks[kept].first if kept < len(self._chunks) else len(known)
        files = [*known[first:], *new]
        name = names.source_chunk(self._context.epoch)
        content = ChunkContent(
            self._context.source, level, first, [(file.path, file.size, file.modified_us) for file in files], name
        )
        self._context.store.put(name, encode(content))
        replaced = [chunk.name for chunk in self._chunks[kept:]]
        self._unneeded += [chunk for chunk in replaced if chunk not in self._named]
        if named := [chunk for chunk in replaced if chunk in self._named]:
            self._replaced.append(ReplacedChunks(named))
        self._chunks = [*self._chunks[:kept], DiscoveryChunk(name, level, first, len(files))]
        self._backlog.extend(new)

    def _delete_unneeded(self) -> None:
        """Delete the chunks that nothing needs; those that cannot be deleted now stay queued."""
        try:
            self._context.store.delete(self._unneeded)
            self._unneeded = []
        except StorageError:
            return


def utc(moment: datetime) -> datetime:
    """Return a datetime with a zone; without it, the datetime is taken as UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
