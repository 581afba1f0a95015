"""Restore a table from its handles (choose the handles that a subtask needs, fetch their objects, replay these), and
advance it to later checkpoints by the new pieces of its log.

Rescaling needs no special case: a subtask takes the handles that share key groups with it, narrowed to these key
groups, whichever subtask wrote them. Invariants: each key group comes from exactly one handle; materialized parts come
before the log; an object is fetched once, however many tables need it. Writes nothing.
"""

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.ipc

from holdfast.errors import CorruptObject
from holdfast.formats.base_files import FilesDirectory, read_files, read_files_head
from holdfast.formats.handles import FILE, HEADING, ROWS, LogPiece, MaterializedPart, TableHandle
from holdfast.formats.log_objects import check_object, read_piece
from holdfast.formats.snapshots import read_part
from holdfast.recovery.continuation import continuation
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.local import Copy
from holdfast.recovery.spans import StoredRange
from holdfast.state.base_rocksdb import scan_folder
from holdfast.state.changes import check_rows
from holdfast.state.local_disk import on_disk, stored_files
from holdfast.state.table import StateTable
from holdfast.storage.framing import HEADER_BYTES
from holdfast.storage.reading import read_schema


def select(
    handles: Iterable[TableHandle], operator: str, table: str, key_group_start: int, key_group_stop: int
) -> list[TableHandle]:
    """Return the handles of a table that share key groups with `[key_group_start, key_group_stop)`, narrowed to these;
    an empty list if the checkpoint has no state of that table at all.

    Raises
    ------
    CorruptObject
        Some of these key groups are in no handle, or in two.
    """
    own = [handle for handle in handles if (handle.operator, handle.table) == (operator, table)]
    chosen = sorted(
        (
            handle.narrow(key_group_start, key_group_stop)
            for handle in own
            if max(handle.key_group_start, key_group_start) < min(handle.key_group_stop, key_group_stop)
        ),
        key=lambda handle: handle.key_group_start,
    )
    if own:
        _check_cover(chosen, f"{operator}.{table}", key_group_start, key_group_stop)
    return chosen


def ranges_of(handles: Iterable[TableHandle], key_group_start: int, key_group_stop: int) -> list[StoredRange]:
    """List the ranges that `restore_table` reads for these key groups, in its order."""
    ranges: list[StoredRange] = []
    for handle in handles:
        own = handle.narrow(key_group_start, key_group_stop)
        ranges += own.materialized
        ranges += own.log
    return ranges


def read_range(handle: TableHandle, each: StoredRange, copy: Copy) -> list[pa.RecordBatch]:
    """The rows in a range of an object, in the stored schema, for the key groups of its handle.

    Raises
    ------
    CorruptObject
        The object is damaged, or does not fit its handle.
    """
    own = copy.part(each.offset, each.length)
    tail = (handle.operator, handle.table, handle.key_group_start, handle.key_group_stop)
    if isinstance(each, LogPiece):
        if not copy.start:
            check_object(each.object, copy.part(0, HEADER_BYTES))
        found = list(read_piece(own, each, *tail))
    else:
        found = list(read_part(own, each, *tail))
    for rows in found:
        check_rows(each.object, rows)
    return found


class TableFollower:
    """A table that has the state of a checkpoint, for some key groups, and is advanced to later checkpoints.

    A restore is a follower that follows a single checkpoint. The first call reads everything that the handles name,
    later calls only new pieces of log. It writes nothing. After an error, the table has only a part of the state. If it
    was being filled, it must be made anew; otherwise `follow` may be called again, with the same or newer handles.

    Parameters
    ----------
    table
        Empty. Files of a base store are laid out in a folder below `local_dir`.
    """

    def __init__(
        self, table: StateTable, key_group_start: int, key_group_stop: int, local_dir: str | None = None
    ) -> None:
        self.table = table
        self._groups = key_group_start, key_group_stop
        self._local_dir = local_dir
        self._held: list[TableHandle] | None = None
        self._begun = False
        self._files: dict[str, MaterializedPart] = {}

    def missing(self, handles: Sequence[TableHandle]) -> list[TableHandle] | None:
        """Return the handles, each with only the ranges that must still be read; None if the table must be made anew.

        `handles` are those of `select`, for the table's key groups.
        """
        wanted = [handle.narrow(*self._groups) for handle in handles]
        if self._held is None:
            return None if self._begun else wanted
        found = []
        for each in wanted:
            held = [
                before
                for before in self._held
                if max(before.key_group_start, each.key_group_start) < min(before.key_group_stop, each.key_group_stop)
            ]
            pieces = continuation(held, each)
            if pieces is None:
                return None
            found.append(msgspec.structs.replace(each, materialized=[], log=pieces))
        return found if found or not self._held else None

    def follow(self, handles: Sequence[TableHandle], fetch: ObjectCache) -> None:
        """Advance the table to the state that the handles describe. The caller may have announced the `missing` ranges
        to `fetch` before, together with those of other tables.

        Raises
        ------
        StorageError
            An object is missing or cannot be fetched.
        CorruptObject
            An object is damaged, or does not fit its handle.
        JobRefused
            A stored column has another type than declared.
        """
        missing = self.missing(handles)
        if missing is None:
            raise RuntimeError("the log's new pieces do not connect the table with the checkpoint; restore a new table")
        self._begun = True
        for handle in missing:
            self._files |= _Restoration(self.table, handle, fetch, len(missing) == 1).run(self._local_dir)
        self._held = [handle.narrow(*self._groups) for handle in handles]

    def stored(self, files: Mapping[str, MaterializedPart]) -> None:
        """Note files of the table that were stored: later checkpoints may name them."""
        self._files |= files

    def files(self) -> dict[str, MaterializedPart]:
        """The stored files that the table adopted unchanged and that the last followed checkpoint still names, as parts
        by file name: the table need not store them again."""
        start, stop = self._groups
        named = {part.object for handle in self._held or () for part in handle.materialized}
        # The next heading covers all key groups of the table, and so do these parts then.
        return {
            name: msgspec.structs.replace(part, key_group_start=start, key_group_stop=stop)
            for name, part in self._files.items()
            if part.object in named
        }


def restore_table(
    table: StateTable,
    handles: Sequence[TableHandle],
    fetch: ObjectCache,
    key_group_start: int,
    key_group_stop: int,
    local_dir: str | None = None,
) -> dict[str, MaterializedPart]:
    """Fill an empty table with the state that the handles describe, for these key groups. Returns the parts of the
    files that the table adopted unchanged, if any. Raises as `TableFollower.follow`."""
    follower = TableFollower(table, key_group_start, key_group_stop, local_dir)
    fetch.expect(ranges_of(handles, key_group_start, key_group_stop))
    follower.follow(handles, fetch)
    return follower.files()


@dataclass
class _Restoration:
    """The restore of a handle, narrowed to the wanted key groups, into a table."""

    table: StateTable
    handle: TableHandle
    fetch: ObjectCache
    only: bool
    """True if this handle is the only source of the table's rows."""
    _rows_materialized: int | None = None
    """The number of rows after the files were adopted, if it is known."""

    def run(self, local_dir: str | None) -> dict[str, MaterializedPart]:
        """Restore everything; return the parts of the files that the table adopted unchanged."""
        adopted: dict[str, MaterializedPart] = {}
        for parts in _file_sets(self.handle):
            adopted |= self._take_files(parts, local_dir)
        self._replay([part for part in self.handle.materialized if part.kind == ROWS], self._rows_materialized)
        self._replay(self.handle.log, self._rows)
        return adopted

    @property
    def _rows(self) -> int | None:
        """The table's final number of rows, if it is known."""
        return self.handle.rows if self.only else None

    def _replay(self, ranges: Sequence[StoredRange], rows: int | None) -> None:
        """Apply the ranges to the table. With a known number of `rows` at the end, it looks up no old rows."""
        start, stop = self.handle.key_group_start, self.handle.key_group_stop
        for changes in self.fetch.ahead(ranges, lambda each, copy: read_range(self.handle, each, copy)):
            for batch in changes:
                self.table.apply(batch, start, stop, blind=rows is not None)
        if rows is not None:
            self.table.count_is(rows)

    def _take_files(self, parts: Sequence[MaterializedPart], local_dir: str | None) -> dict[str, MaterializedPart]:
        """Lay out the files of a base store in a folder; then the table adopts the files, or loads their rows."""
        if local_dir is not None:
            Path(local_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="holdfast-restore-", dir=local_dir) as temporary:
            folder = Path(temporary) / "files"
            folder.mkdir()
            directories = list(self.fetch.ahead(parts, partial(self._lay_out, folder)))
            heading = directories[0]
            schema = read_schema(parts[0].object, heading.schema)
            rows = self._rows_with(parts[0], heading)
            with stored_files(parts[0].object, folder):
                if rows is None or not self.table.adopt(schema, folder):
                    edges = (parts[0].key_group_start.to_bytes(2, "big"), parts[0].key_group_stop.to_bytes(2, "big"))
                    self.table.load(schema, scan_folder(folder, *edges))
                    return {}
            self._rows_materialized = rows
            return {
                entry.name: part
                for part, directory in zip(parts, directories, strict=True)
                for entry in directory.blocks
                if part.kind == FILE
            }

    def _rows_with(self, part: MaterializedPart, heading: FilesDirectory) -> int | None:
        """Return the table's number of rows with these files; None: it is unknown, or the files hold rows of other key
        groups too. Key groups for which the handle names a later materialization count as others.
        """
        covered = range(heading.key_group_start, heading.key_group_stop)
        if range(part.key_group_start, part.key_group_stop) != covered:
            return None
        own = range(self.handle.key_group_start, self.handle.key_group_stop)
        if covered == own:  # no part of the handle is of another materialization
            return heading.rows
        return self._rows if own.start <= covered.start and covered.stop <= own.stop else None

    def _lay_out(self, folder: Path, each: StoredRange, copy: Copy) -> FilesDirectory:
        """Write the files of an object into the folder, or link them there if this machine has them."""
        assert isinstance(each, MaterializedPart)
        handle = self.handle
        if copy.body is not None:
            directory = read_files_head(each, bytes(copy.head), handle.operator, handle.table)
            if _linked(copy.body, folder / directory.blocks[0].name):
                return directory
            copy = self.fetch.from_store(each.object)
        data = copy.data()
        directory, files = read_files(copy.part(each.offset, each.length), each, handle.operator, handle.table)
        with on_disk(folder):
            for name, content in files:
                (folder / name).write_bytes(content)
        if each.kind == FILE:
            self.fetch.keep_file(each.object, data, folder / directory.blocks[0].name)
        return directory


def _linked(file: Path, to: Path) -> bool:
    """Link a file; return False if that fails, since the local copy may have been deleted."""
    try:
        os.link(file, to)
    except OSError:
        return False
    return True


def _file_sets(handle: TableHandle) -> list[list[MaterializedPart]]:
    """The parts that are files, grouped by base store, each group with its heading first."""
    sets: list[list[MaterializedPart]] = []
    for part in handle.materialized:
        if part.kind == HEADING:
            sets.append([part])
        elif part.kind == FILE and not sets:
            raise CorruptObject(f"{part.object}: the checkpoint names it without the heading of its base store")
        elif part.kind == FILE:
            sets[-1].append(part)
    return sets


def _check_cover(handles: Sequence[TableHandle], what: str, start: int, stop: int) -> None:
    reached = start
    for handle in handles:
        if handle.key_group_start != reached:
            problem = "have no state" if handle.key_group_start > reached else "are there twice"
            between = sorted((reached, handle.key_group_start))
            raise CorruptObject(f"{what}: in this checkpoint, key groups {between[0]} to {between[1]} {problem}")
        reached = handle.key_group_stop
    if reached != stop:
        raise CorruptObject(f"{what}: in this checkpoint, key groups {reached} to {stop} have no state")
