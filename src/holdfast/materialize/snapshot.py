"""Materialized parts: a table's rows as of a batch boundary. Drawn in docs/format/materialized.md.

    object := frame("HFMP", version, directory), block, block, …          one part of one table
    directory := msgpack: table, key groups, boundary, blocks             lengths, checksums, key groups

The framing and the blocks of a changelog piece, with a snapshot in place of change sets. A part is its own
object and covers a contiguous range of key groups; the parts of a materialization cover the subtask's range
together. It does not own uploads, nor when to materialize.
"""

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from holdfast.changelog.blocks import (
    BLOCK_BYTES,
    Block,
    BlockEntry,
    Codec,
    decode_block,
    encode_blocks,
    read_framed_directory,
    within,
)
from holdfast.changelog.format import LogId
from holdfast.changelog.handles import MaterializedPart
from holdfast.errors import CorruptObject
from holdfast.storage.framing import frame

PART_MAGIC = b"HFMP"
VERSION = 1
PART_BYTES = 16 * 1024 * 1024
"""Compressed target: large enough to be few, small enough to be fetched and decoded in parallel."""


class PartDirectory(msgspec.Struct, frozen=True, array_like=True):
    """What a part holds: all rows of its key groups as they were after `batch`; its blocks follow in this order."""

    operator: str
    table: str
    key_group_start: int
    key_group_stop: int
    sqn: int
    batch: int
    blocks: list[BlockEntry]


def encode_parts(
    log: LogId,
    snapshot: pa.RecordBatch,
    sqn: int,
    batch: int,
    *,
    codec: Codec = "zstd",
    block_bytes: int = BLOCK_BYTES,
    part_bytes: int = PART_BYTES,
) -> Iterator[tuple[bytes, MaterializedPart]]:
    """Encode a snapshot, sorted by key group: objects, and the handles' parts without their names.

    Lazily: a part is encoded when it is asked for. `sqn` is the log's next one at the boundary. An empty table
    has no parts.
    """
    if not snapshot.num_rows:
        return
    blocks: list[Block] = []
    blocks_bytes = 0
    for block in encode_blocks([snapshot], log.key_group_start, log.key_group_stop, codec, block_bytes):
        if blocks and blocks_bytes + block.data.size > part_bytes:
            yield _part(log, sqn, batch, blocks)
            blocks, blocks_bytes = [], 0
        blocks.append(block)
        blocks_bytes += block.data.size
    yield _part(log, sqn, batch, blocks)


def read_part(
    data: memoryview, part: MaterializedPart, operator: str, table: str, key_group_start: int, key_group_stop: int
) -> Iterator[pa.RecordBatch]:
    """The rows of the key groups that the part and the range asked for have in common.

    `data` is the part's own bytes, `[offset, offset + length)` of its object.

    Raises
    ------
    CorruptObject
        The bytes are not what was written, or belong to another table.
    """
    what = f"{part.object}, part at {part.offset}"
    directory, offset = read_framed_directory(what, data, part.length, PART_MAGIC, VERSION, PartDirectory)
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


def _part(log: LogId, sqn: int, batch: int, blocks: list[Block]) -> tuple[bytes, MaterializedPart]:
    entries = [block.entry for block in blocks]
    start, stop = entries[0].key_group_start, entries[-1].key_group_stop
    directory = PartDirectory(log.operator, log.table, start, stop, sqn, batch, entries)
    head = frame(PART_MAGIC, VERSION, msgspec.msgpack.encode(directory))
    data = b"".join([head, *(block.data for block in blocks)])
    return data, MaterializedPart("", 0, len(data), start, stop)
