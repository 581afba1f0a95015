"""Materialized parts: a table's rows as of a batch boundary. docs/reference/format/materialized.md draws them.

    object := frame("HFMP", version, directory), block, block, …          a single part of a table
    directory := msgpack: table, key groups, boundary, blocks             lengths, checksums, key groups

The framing and the blocks are those of a changelog piece, with a snapshot in the place of change sets. A part is an
object of its own, and has the rows of a contiguous range of key groups. The rows of a key group may be divided between
two neighbouring parts, but each row is in a single part. This module neither uploads nor decides when to materialize.
"""

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from holdfast.errors import CorruptObject
from holdfast.formats.blocks import (
    BLOCK_BYTES,
    BlockEntry,
    Compression,
    decode_block,
    encode_blocks,
    read_framed_directory,
    within,
)
from holdfast.formats.handles import MaterializedPart
from holdfast.formats.log_objects import LogId
from holdfast.ids import BatchNumber
from holdfast.storage.framing import checksum_in, frame

PART_MAGIC = b"HFMP"
VERSION = 1
PART_BYTES = 16 * 1024 * 1024
"""Target for the uncompressed size of a part: large enough that parts are few, and small enough to store and fetch
several of them in parallel."""


class PartDirectory(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a part: the rows as they were after `batch`. Its blocks follow in this order."""

    operator: str
    table: str
    key_group_start: int
    key_group_stop: int
    sqn: int
    batch: BatchNumber
    blocks: list[BlockEntry]


def in_parts(pieces: Iterable[pa.RecordBatch], part_bytes: int = PART_BYTES) -> Iterator[pa.RecordBatch]:
    """Join and divide rows, which arrive sorted by key group, into parts of about `part_bytes`; no part is empty.

    The iterator is lazy: no more than a part and an arriving piece are in memory.
    """
    waiting: list[pa.RecordBatch] = []
    for piece in pieces:
        rows_max = max(1, piece.num_rows * part_bytes // max(1, piece.nbytes))
        for start in range(0, piece.num_rows, rows_max):
            waiting.append(piece.slice(start, rows_max))
            if sum(each.nbytes for each in waiting) * 4 >= part_bytes * 3:
                yield _together(waiting)
                waiting = []
    if waiting:
        yield _together(waiting)


def encode_part(
    log: LogId,
    rows: pa.RecordBatch,
    sqn: int,
    batch: BatchNumber,
    *,
    codec: Compression = "zstd",
    block_bytes: int = BLOCK_BYTES,
) -> tuple[bytes, MaterializedPart]:
    """Encode at least one row, sorted by key group; returns the object, and the handle's part without its name.

    `sqn` is the next SQN of the log at the boundary.
    """
    groups = rows.column(0)
    start, stop = groups[0].as_py(), groups[-1].as_py() + 1
    blocks = list(encode_blocks([rows], start, stop, codec, block_bytes))
    entries = [block.entry for block in blocks]
    directory = PartDirectory(log.operator, log.table, start, stop, sqn, batch, entries)
    head = frame(PART_MAGIC, VERSION, msgspec.msgpack.encode(directory))
    data = b"".join([head, *(block.data for block in blocks)])
    return data, MaterializedPart("", 0, len(data), start, stop, head_crc=checksum_in(head))


def read_part(
    data: memoryview, part: MaterializedPart, operator: str, table: str, key_group_start: int, key_group_stop: int
) -> Iterator[pa.RecordBatch]:
    """Return the rows of the key groups that both the part and the requested range contain.

    `data` is the part's own bytes, `[offset, offset + length)` of its object.

    Raises
    ------
    CorruptObject
        The bytes are damaged, or belong to another table.
    """
    what = f"{part.object}, part at {part.offset}"
    directory, offset = read_framed_directory(
        what, data, part.length, PART_MAGIC, VERSION, PartDirectory, part.head_crc
    )
    if (directory.operator, directory.table) != (operator, table):
        raise CorruptObject(
            f"{what}: holds the table {directory.operator}.{directory.table}, expected {operator}.{table}"
        )
    start, stop = max(key_group_start, part.key_group_start), min(key_group_stop, part.key_group_stop)
    for entry in directory.blocks:
        if max(start, entry.key_group_start) < min(stop, entry.key_group_stop):
            rows = within(decode_block(what, entry, data[offset : offset + entry.length], 1)[0], start, stop)
            if rows.num_rows:
                yield rows
        offset += entry.length


def _together(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
