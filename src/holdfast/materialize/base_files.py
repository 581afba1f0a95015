"""Files of a base store as stored objects: what an incremental materialization consists of.

    object := frame("HFBF", version, directory), file, file, …
    directory := msgpack: table, schema, of each file its name, length, CRC-32

A base's files never change once they are written, except for a few small ones that say which belong together: those
share one object, the first of a materialization; each of the others has one of its own, which the next
materialization names again. It does not own uploads, nor what the files mean (`state/base_rocksdb`).
"""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.changelog.blocks import read_framed_directory
from holdfast.changelog.format import LogId
from holdfast.changelog.handles import FILE, HEADING, MaterializedPart
from holdfast.errors import CorruptObject
from holdfast.storage.framing import frame

FILES_MAGIC = b"HFBF"
VERSION = 1
LASTING_SUFFIX = ".sst"


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file in an object; files follow in this order."""

    name: str
    length: int
    crc: int


class FilesDirectory(msgspec.Struct, frozen=True, array_like=True):
    """What an object holds; a heading also has the stored schema of the table (Arrow IPC bytes)."""

    operator: str
    table: str
    schema: bytes
    blocks: list[FileEntry]


def lasting_files(folder: Path) -> list[Path]:
    """Files that never change, in order."""
    return sorted(each for each in folder.iterdir() if each.suffix == LASTING_SUFFIX)


def encode_heading(log: LogId, schema: bytes, folder: Path) -> tuple[bytes, MaterializedPart]:
    """The object of the files that change with each materialization. Objects come with parts without names."""
    files = sorted(each for each in folder.iterdir() if each.suffix != LASTING_SUFFIX)
    return _encode(log, HEADING, schema, files)


def encode_lasting(log: LogId, file: Path) -> tuple[bytes, MaterializedPart]:
    """The object of one file that never changes."""
    return _encode(log, FILE, b"", [file])


def read_files(
    data: memoryview, part: MaterializedPart, operator: str, table: str
) -> tuple[bytes, Iterator[tuple[str, memoryview]]]:
    """The schema that a heading has, and the files by name.

    Raises
    ------
    CorruptObject
        The bytes are not what was written, or belong to another table.
    """
    what = f"{part.object}, part at {part.offset}"
    directory, offset = read_framed_directory(what, data, part.length, FILES_MAGIC, VERSION, FilesDirectory)
    if (directory.operator, directory.table) != (operator, table):
        raise CorruptObject(
            f"{what}: holds files of the table {directory.operator}.{directory.table}, expected {operator}.{table}"
        )
    return directory.schema, _checked(what, directory.blocks, data[offset:])


def _checked(what: str, entries: Sequence[FileEntry], data: memoryview) -> Iterator[tuple[str, memoryview]]:
    offset = 0
    for entry in entries:
        content = data[offset : offset + entry.length]
        if zlib.crc32(content) != entry.crc or Path(entry.name).name != entry.name:
            raise CorruptObject(f"{what}: the file {entry.name!r} is damaged; restore the object from a copy")
        yield entry.name, content
        offset += entry.length


def _encode(log: LogId, kind: str, schema: bytes, files: Sequence[Path]) -> tuple[bytes, MaterializedPart]:
    contents = [file.read_bytes() for file in files]
    entries = [FileEntry(f.name, len(c), zlib.crc32(c)) for f, c in zip(files, contents, strict=True)]
    head = frame(FILES_MAGIC, VERSION, msgspec.msgpack.encode(FilesDirectory(log.operator, log.table, schema, entries)))
    data = b"".join([head, *contents])
    return data, MaterializedPart("", 0, len(data), log.key_group_start, log.key_group_stop, kind)
