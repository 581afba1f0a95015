"""Checks of stored data. Objects are read block by block, as by a restart, and nothing is kept.

Each check takes the bytes of an object and raises `Wrong` if they differ from the checkpoint's description.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.ipc

from holdfast.errors import CorruptObject, HoldfastError
from holdfast.formats.base_files import read_files
from holdfast.formats.handles import ROWS, LogPiece, MaterializedPart, TableHandle
from holdfast.formats.log_objects import check_object, read_piece
from holdfast.formats.snapshots import read_part
from holdfast.recovery.schema import check_schema
from holdfast.sinks.staging import StagedRows, open_rows
from holdfast.storage import checksum
from holdfast.storage.copying import CopiedObject
from holdfast.storage.reading import read_schema

Key = tuple[object, ...]


class Wrong(Exception):
    """A difference between an object and its description: what was found, and what was expected."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"found {found}, expected {expected}")
        self.found = found
        self.expected = expected


@dataclass(frozen=True)
class Check:
    """Description of an object by a checkpoint. Equal checks describe the same thing."""

    kind: str
    name: str
    """Name of the object."""
    what: str
    """The object's content, and the checkpoint that needs it, in words."""
    length: int
    key: Key
    """Distinguishes this check from others of the same object."""
    run: Callable[[memoryview], None]


def piece_check(kind: str, handle: TableHandle, piece: LogPiece, referrer: str) -> Check:
    """Check a piece of a log: its checksums, its key groups and SQNs, the schema of its rows."""
    what = f"SQNs {piece.sqn_start} to {piece.sqn_stop} of the log of {_table(handle)}, named by {referrer}"

    def run(data: memoryview) -> None:
        check_object(piece.object, data)
        groups = piece.key_group_start, piece.key_group_stop
        for rows in read_piece(_range(data, piece), piece, handle.operator, handle.table, *groups):
            _check_rows(rows, handle)

    return Check(kind, piece.object, what, piece.length, (handle.operator, handle.table, piece), _guarded(run, what))


def part_check(kind: str, handle: TableHandle, part: MaterializedPart, referrer: str) -> Check:
    """Check a part of a materialized table: its checksums, and the schema of its rows."""
    what = f"a part ({part.kind}) of the table {_table(handle)}, named by {referrer}"

    def run(data: memoryview) -> None:
        content = _range(data, part)
        groups = part.key_group_start, part.key_group_stop
        if part.kind == ROWS:
            for rows in read_part(content, part, handle.operator, handle.table, *groups):
                _check_rows(rows, handle)
            return
        directory, files = read_files(content, part, handle.operator, handle.table)
        for _ in files:
            continue  # reading a file compares its checksum
        if directory.schema:
            _check_schema(read_schema(part.object, directory.schema), handle)

    return Check(kind, part.object, what, part.length, (handle.operator, handle.table, part), _guarded(run, what))


def staged_check(kind: str, staged: StagedRows, name: str, referrer: str) -> Check:
    """Check rows that wait for their publication: size, checksum, number of rows."""
    what = f"{staged.rows} staged rows, named by {referrer}"

    def run(data: memoryview) -> None:
        if len(data) != staged.size_bytes or checksum.crc32(data) != staged.crc32:
            raise Wrong(
                f"{len(data):,} bytes with checksum {checksum.crc32(data):#010x}",
                f"{staged.size_bytes:,} bytes with checksum {staged.crc32:#010x}: {what}",
            )
        open_rows(bytes(data), staged, name).validate(full=True)

    return Check(kind, name, what, staged.size_bytes, (staged.size_bytes, staged.crc32), _guarded(run, what))


def copy_check(kind: str, copy: CopiedObject) -> Check:
    """Check that an object of a savepoint is as it was when it was copied."""
    what = "a copy that the savepoint lists"

    def run(data: memoryview) -> None:
        if len(data) != copy.size or checksum.crc32(data) != copy.crc32:
            raise Wrong(
                f"{len(data):,} bytes with checksum {checksum.crc32(data):#010x}",
                f"{copy.size:,} bytes with checksum {copy.crc32:#010x}: {what}",
            )

    # This check has no length: the checks of the content say how much there is to read.
    return Check(kind, copy.name, what, 0, (copy.size, copy.crc32), _guarded(run, what))


def _guarded(run: Callable[[memoryview], None], what: str) -> Callable[[memoryview], None]:
    """Turn every error that a reader raises about the bytes into a `Wrong`."""

    def guarded(data: memoryview) -> None:
        try:
            run(data)
        except (HoldfastError, pa.ArrowException, ValueError) as error:
            raise Wrong(str(error), what) from error

    return guarded


def _range(data: memoryview, ranged: LogPiece | MaterializedPart) -> memoryview:
    if ranged.offset + ranged.length > len(data):
        raise CorruptObject(f"{len(data):,} bytes, which end before {ranged.offset + ranged.length:,}")
    return data[ranged.offset : ranged.offset + ranged.length]


def _check_rows(rows: pa.RecordBatch, handle: TableHandle) -> None:
    rows.validate(full=True)
    _check_schema(rows.schema, handle)


def _check_schema(found: pa.Schema, handle: TableHandle) -> None:
    """Compare the schema of stored rows with the declared one. Rows older than the job's last change may have columns
    of narrower types."""
    declared = read_schema(_table(handle), handle.schema)
    if not found.equals(declared):
        check_schema(found, declared, handle.operator, handle.table)


def _table(handle: TableHandle) -> str:
    return f"{handle.operator}.{handle.table}[{handle.key_group_start}:{handle.key_group_stop}]"
