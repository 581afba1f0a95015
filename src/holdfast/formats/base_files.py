"""Files of a base store, encoded as stored objects: the parts of an incremental materialization.

    object := frame("HFBF", version, directory), file, file, …
    directory := msgpack: table, schema, name, length and CRC-32 of each file; key groups, rows

A base's files never change once they are written, except for a few small files that say which files belong together.
The small files share an object, which is the first part of a materialization. Each of the other files has an object of
its own, which the next materialization refers to again. This module owns neither uploads nor the meaning of the files
(`state/base_rocksdb`).
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from holdfast.errors import CorruptObject
from holdfast.formats.blocks import check_head, read_framed_directory
from holdfast.formats.handles import FILE, HEADING, MaterializedPart
from holdfast.formats.log_objects import LogId
from holdfast.storage import checksum
from holdfast.storage.framing import checksum_in, frame, unframe
from holdfast.storage.reading import decode

FILES_MAGIC = b"HFBF"
VERSION, VERSION_MIN = 3, 2
"""Files of version 2 have decimals and nested values as Arrow messages (`state/row_codec`)."""
LASTING_SUFFIXES = (".sst", ".blob")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""The pattern that the file names of a base store match."""


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file in an object. Files follow the directory in this order."""

    name: str
    length: int
    crc: int


class FilesDirectory(msgspec.Struct, frozen=True, array_like=True):
    """The contents of an object, and the key groups that its files cover.

    A heading also has the stored schema of the table (Arrow IPC bytes) and the table's number of rows, which includes
    the rows that are stored apart from the files. In other objects these fields are empty and 0.
    """

    operator: str
    table: str
    schema: bytes
    blocks: list[FileEntry]
    key_group_start: int
    key_group_stop: int
    rows: int


def lasting_files(folder: Path) -> list[Path]:
    """Return the files that never change, in order."""
    return sorted(each for each in folder.iterdir() if each.suffix in LASTING_SUFFIXES)


def encode_heading(log: LogId, schema: bytes, folder: Path, rows: int) -> tuple[memoryview, MaterializedPart]:
    """Encode the files that change with each materialization as an object; returns it and its part, without a name."""
    files = sorted(each for each in folder.iterdir() if each.suffix not in LASTING_SUFFIXES)
    return _encode(log, HEADING, schema, files, rows)


def encode_lasting(log: LogId, file: Path) -> tuple[memoryview, MaterializedPart]:
    """Encode a file that never changes as an object; returns it and its part, without a name."""
    return _encode(log, FILE, b"", [file], 0)


def read_files(
    data: memoryview, part: MaterializedPart, operator: str, table: str
) -> tuple[FilesDirectory, Iterator[tuple[str, memoryview]]]:
    """Read an object; returns its directory, and its files by name.

    Raises
    ------
    CorruptObject
        The bytes are damaged, or belong to another table.
    """
    what = f"{part.object}, part at {part.offset}"
    directory, offset = read_framed_directory(
        what, data, part.length, FILES_MAGIC, VERSION, FilesDirectory, part.head_crc, VERSION_MIN
    )
    _of_table(what, directory, operator, table)
    return directory, _checked(what, directory.blocks, data[offset:])


def read_files_head(part: MaterializedPart, head: bytes, operator: str, table: str) -> FilesDirectory:
    """Read the directory of an object from `head`, the frame in front of the files.

    Raises
    ------
    CorruptObject
        As for `read_files`.
    """
    what = f"{part.object}, part at {part.offset}"
    payload = unframe(what, head, FILES_MAGIC, VERSION, VERSION_MIN)
    check_head(what, head, part.head_crc)
    directory = decode(what, payload, _DIRECTORY, "its directory cannot be read")
    return _of_table(what, directory, operator, table)


def _of_table(what: str, directory: FilesDirectory, operator: str, table: str) -> FilesDirectory:
    if (directory.operator, directory.table) != (operator, table):
        raise CorruptObject(
            f"{what}: holds files of the table {directory.operator}.{directory.table}, expected {operator}.{table}"
        )
    strange = [entry.name for entry in directory.blocks if not _FILE_NAME.fullmatch(entry.name)]
    if strange or not directory.blocks or min(entry.length for entry in directory.blocks) < 0:
        raise CorruptObject(f"{what}: names {strange or 'no files'}, expected files of a base store")
    return directory


def _checked(what: str, entries: Sequence[FileEntry], data: memoryview) -> Iterator[tuple[str, memoryview]]:
    offset = 0
    for entry in entries:
        content = data[offset : offset + entry.length]
        if checksum.crc32(content) != entry.crc:
            raise CorruptObject(f"{what}: the file {entry.name!r} is damaged; restore the object from a copy")
        yield entry.name, content
        offset += entry.length


def _encode(
    log: LogId, kind: str, schema: bytes, files: Sequence[Path], rows: int
) -> tuple[memoryview, MaterializedPart]:
    """Read the files directly into the buffer that is stored: large files are not copied, and do not hold the GIL."""
    lengths = [file.stat().st_size for file in files]

    def head_of(checksums: Sequence[int]) -> bytes:
        entries = [FileEntry(f.name, n, crc) for f, n, crc in zip(files, lengths, checksums, strict=True)]
        directory = FilesDirectory(
            log.operator, log.table, schema, entries, log.key_group_start, log.key_group_stop, rows
        )
        return frame(FILES_MAGIC, VERSION, msgspec.msgpack.encode(directory))

    room = len(head_of([2**32 - 1] * len(files)))
    data = np.empty(room + sum(lengths), np.uint8).data  # a bytearray would be cleared, under the GIL
    checksums, offset = [], room
    for file, length in zip(files, lengths, strict=True):
        content = data[offset : offset + length]
        _read_into(file, content)
        checksums.append(checksum.crc32(content))
        offset += length
    head = head_of(checksums)
    stored = data[room - len(head) :]
    stored[: len(head)] = head
    crc = checksum_in(head)
    return stored, MaterializedPart("", 0, len(stored), log.key_group_start, log.key_group_stop, kind, crc)


_DIRECTORY = msgspec.msgpack.Decoder(FilesDirectory)


def _read_into(file: Path, content: memoryview) -> None:
    with file.open("rb", buffering=0) as opened:
        done = 0
        while done < len(content):
            read = opened.readinto(content[done:])
            if not read:
                raise OSError(f"{file} ends after {done} bytes, expected {len(content)}: it was changed meanwhile")
            done += read
