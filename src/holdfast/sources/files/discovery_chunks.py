"""Discovery chunks: immutable objects that list the files that a source has seen, in order.

    frame "HFSC" version 2 | zlib( msgpack { source, level, first, files: [[path, size, modified_us], …], object } )

The file at place i of a chunk has number `first + i`. The chunks of a source, in order, cover the numbers from 0
without a gap. If `FAN` chunks of the same level would follow each other, the new chunk replaces them. So n discoveries
leave at most `(FAN - 1) * (log_FAN(n) + 1)` chunks, and each file's entry is written `log_FAN(n) + 1` times.

Pure: this module does no I/O, and does not know which objects are still needed.
"""

import zlib

import msgspec

from holdfast.errors import CorruptObject
from holdfast.sources.files.trees import FileInfo
from holdfast.storage import names
from holdfast.storage.framing import frame, unframe
from holdfast.storage.reading import decode as decode_payload
from holdfast.storage.reading import inflate

MAGIC = b"HFSC"
VERSION, VERSION_MIN = 2, 1
FAN = 8
_PROBLEM = "not a discovery chunk"


class ChunkContent(msgspec.Struct, frozen=True):
    """The stored content of a chunk."""

    source: str
    level: int
    first: int
    files: list[tuple[str, int, int]]
    object: str | None = None
    """Name under which it is stored. None: written before chunks had it."""


class DiscoveryChunk(msgspec.Struct, frozen=True):
    """A stored chunk, without its entries."""

    name: str
    level: int
    first: int
    count: int


def encode(content: ChunkContent) -> bytes:
    return frame(MAGIC, VERSION, zlib.compress(msgspec.msgpack.encode(content), 1))


def decode(name: str, data: bytes) -> ChunkContent:
    """Return the content of a stored chunk. Raises `CorruptObject` naming the object."""
    payload = inflate(name, unframe(name, data, MAGIC, VERSION, VERSION_MIN), _PROBLEM)
    content = decode_payload(name, payload, _CHUNK, _PROBLEM)
    if isinstance(names.parse(name), names.SourceName) and content.object is not None:
        names.check_same(name, str, content.object)
    return content


_CHUNK = msgspec.msgpack.Decoder(ChunkContent)


def replaced_by_next(levels: list[int]) -> tuple[int, int]:
    """Return the number of chunks that stay when a new chunk is written, and the level of the new chunk. It also holds
    the files of the chunks that do not stay."""
    stack = [*levels, 0]
    while len(stack) >= FAN and len(set(stack[-FAN:])) == 1:
        stack[-FAN:] = [stack[-1] + 1]
    return len(stack) - 1, stack[-1]


def join(source: str, stored: list[tuple[str, ChunkContent]]) -> tuple[list[DiscoveryChunk], list[FileInfo]]:
    """Return the chunks of a source in order, and all files that they name, by number.

    Raises
    ------
    CorruptObject
        A chunk is of another source, or the chunks together have a gap or an overlap.
    """
    chunks: list[DiscoveryChunk] = []
    files: list[FileInfo] = []
    for name, content in sorted(stored, key=lambda pair: pair[1].first):
        if content.source != source:
            raise CorruptObject(f"{name}: is of source {content.source!r}, expected source {source!r}")
        if content.first != len(files):
            raise CorruptObject(f"{name}: starts at file number {content.first}, expected {len(files)}")
        chunks.append(DiscoveryChunk(name, content.level, content.first, len(content.files)))
        files.extend(FileInfo(*entry) for entry in content.files)
    return chunks, files
