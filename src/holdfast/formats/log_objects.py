"""The changelog object, which the DSTL stores. docs/reference/format/changelog.md draws it.

    object := frame("HFDS", version, empty), piece, piece, …
    piece  := frame("HFLP", version, directory), block, block, …          a single log; self-contained
    directory := msgpack: log, change sets, blocks                        lengths, checksums, key groups

The layout is file → log → key group → change sets, with blocks for ranges of key groups. A piece is read by (offset,
length) without the rest of its object. Every byte is covered by the checksum of the frame or of a block. A reader
refuses unknown versions and kinds, naming the object, and never guesses.

Change sets hold absolute values. Replaying a change set that an earlier part already contains is therefore harmless if
everything after it is replayed too. This module owns neither names nor uploads, and does not decide which pieces belong
together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from holdfast.errors import CorruptObject
from holdfast.formats.blocks import (
    BLOCK_BYTES,
    Block,
    BlockEntry,
    Compression,
    Merge,
    SortedRows,
    decode_block,
    encode_blocks,
    read_framed_directory,
    within,
)
from holdfast.formats.handles import LogPiece
from holdfast.storage.framing import HEADER_BYTES, checksum_in, frame, unframe

OBJECT_MAGIC = b"HFDS"
PIECE_MAGIC = b"HFLP"
VERSION = 1
OBJECT_HEADER = frame(OBJECT_MAGIC, VERSION, b"")
OBJECT_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True)
class LogId:
    """The identity of a log: a table of an operator, in the subtask that owns `[key_group_start, key_group_stop)`."""

    operator: str
    table: str
    key_group_start: int
    key_group_stop: int

    def __str__(self) -> str:
        return f"{self.operator}.{self.table}[{self.key_group_start}:{self.key_group_stop}]"


@dataclass(frozen=True)
class ChangeSet:
    """The net changes of batches `[batch_start, batch_stop)`, with SQNs `[sqn_start, sqn_stop)`.

    It covers several batches and SQNs if it was merged from several change sets.
    """

    sqn_start: int
    sqn_stop: int
    batch_start: int
    batch_stop: int
    rows: pa.RecordBatch | SortedRows


class ChangeSetEntry(msgspec.Struct, frozen=True, array_like=True):
    """A change set, as a piece's directory describes it."""

    sqn_start: int
    sqn_stop: int
    batch_start: int
    batch_stop: int


class Directory(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a piece. Its blocks follow in this order, without gaps."""

    operator: str
    table: str
    key_group_start: int
    key_group_stop: int
    change_sets: list[ChangeSetEntry]
    blocks: list[BlockEntry]


@dataclass(frozen=True)
class EncodedPiece:
    """A piece that is not in an object yet: its bytes, and the values of its future handle."""

    buffers: list[bytes | pa.Buffer]
    length: int
    sqn_start: int
    sqn_stop: int
    key_group_start: int
    key_group_stop: int
    head_crc: int

    def at(self, name: str, offset: int) -> LogPiece:
        """Return the piece for the handle, given the name of its object and the offset there."""
        return LogPiece(
            name,
            offset,
            self.length,
            self.sqn_start,
            self.sqn_stop,
            self.key_group_start,
            self.key_group_stop,
            self.head_crc,
        )


def encode_pieces(
    log: LogId,
    change_sets: Sequence[ChangeSet],
    *,
    merge: Merge | None = None,
    codec: Compression = "lz4",
    block_bytes: int = BLOCK_BYTES,
    piece_bytes_max: int = OBJECT_BYTES_MAX - HEADER_BYTES,
) -> Iterator[EncodedPiece]:
    """Encode change sets of a log, in order of their SQNs, as pieces that each fit into an object.

    With `merge` they are stored as a single change set with the last row of each key, and otherwise as separate change
    sets.

    Several pieces divide the key groups among them and have the same SQN range. The iterator is lazy: the first piece
    can be uploaded while the next is compressed. A piece is larger than an object should be only if a single key group
    is.
    """
    entries = [ChangeSetEntry(each.sqn_start, each.sqn_stop, each.batch_start, each.batch_stop) for each in change_sets]
    if merge is not None:
        first, last = entries[0], entries[-1]
        entries = [ChangeSetEntry(first.sqn_start, last.sqn_stop, first.batch_start, last.batch_stop)]
    blocks: list[Block] = []
    blocks_bytes = 0
    encoded = encode_blocks(
        [each.rows for each in change_sets], log.key_group_start, log.key_group_stop, codec, block_bytes, merge
    )
    for block in encoded:
        directory_bytes_bound = 256 + len(log.operator) * 4 + len(log.table) * 4 + 40 * (len(entries) + len(blocks))
        if blocks and blocks_bytes + block.data.size + directory_bytes_bound > piece_bytes_max:
            yield _piece(log, entries, blocks)
            blocks, blocks_bytes = [], 0
        blocks.append(block)
        blocks_bytes += block.data.size
    yield _piece(log, entries, blocks)


def check_object(name: str, data: memoryview) -> None:
    """Check that the object starts as a changelog object of this version does. Raises `CorruptObject`."""
    unframe(name, bytes(data[:HEADER_BYTES]), OBJECT_MAGIC, VERSION)


def read_piece(
    data: memoryview, piece: LogPiece, operator: str, table: str, key_group_start: int, key_group_stop: int
) -> Iterator[pa.RecordBatch]:
    """Return the changes to replay, in order, for the key groups that both the piece and the requested range contain.

    `data` is the piece's own bytes, `[offset, offset + length)` of its object.

    Raises
    ------
    CorruptObject
        The bytes are damaged, belong to another table, or a merged change set would have to be divided. No rows of the
        damaged block are returned.
    """
    what = f"{piece.object}, piece at {piece.offset}"
    directory, blocks_start = read_directory(what, data, piece.length, piece.head_crc)
    if (directory.operator, directory.table) != (operator, table):
        raise CorruptObject(
            f"{what}: holds the log of {directory.operator}.{directory.table}, expected the log of {operator}.{table}"
        )
    wanted = _wanted(what, directory, piece)
    start, stop = max(key_group_start, piece.key_group_start), min(key_group_stop, piece.key_group_stop)
    offset = blocks_start
    for entry in directory.blocks:
        if max(start, entry.key_group_start) < min(stop, entry.key_group_stop):
            batches = decode_block(what, entry, data[offset : offset + entry.length], len(directory.change_sets))
            for index in wanted:
                rows = within(batches[index], start, stop)
                if rows.num_rows:
                    yield rows
        offset += entry.length


def read_directory(what: str, data: memoryview, length: int, head_crc: int | None = None) -> tuple[Directory, int]:
    """Return a piece's directory, and the offset at which its blocks start. Raises `CorruptObject`."""
    return read_framed_directory(what, data, length, PIECE_MAGIC, VERSION, Directory, head_crc)


def _piece(log: LogId, entries: list[ChangeSetEntry], blocks: list[Block]) -> EncodedPiece:
    directory = Directory(
        log.operator,
        log.table,
        blocks[0].entry.key_group_start,
        blocks[-1].entry.key_group_stop,
        entries,
        [block.entry for block in blocks],
    )
    head = frame(PIECE_MAGIC, VERSION, msgspec.msgpack.encode(directory))
    return EncodedPiece(
        [head, *(block.data for block in blocks)],
        len(head) + sum(block.data.size for block in blocks),
        entries[0].sqn_start,
        entries[-1].sqn_stop,
        directory.key_group_start,
        directory.key_group_stop,
        checksum_in(head),
    )


def _wanted(what: str, directory: Directory, piece: LogPiece) -> list[int]:
    """Return the indexes of the change sets within the piece's SQN range.

    A change set that begins before the range is replayed in full, because it is merged with changes that the range
    needs. The part that precedes this piece in the handle contains the changes before the range.
    """
    _check_holds(what, directory, piece)
    wanted = []
    for index, entry in enumerate(directory.change_sets):
        if entry.sqn_stop <= piece.sqn_start or entry.sqn_start >= piece.sqn_stop:
            continue
        if entry.sqn_stop > piece.sqn_stop:
            raise CorruptObject(
                f"{what}: the handle ends at SQN {piece.sqn_stop}, inside a merged change set of SQNs "
                f"{entry.sqn_start} to {entry.sqn_stop}, which cannot be divided"
            )
        wanted.append(index)
    return wanted


def _check_holds(what: str, directory: Directory, piece: LogPiece) -> None:
    """Check that the piece holds all changes to which the handle refers. Raises `CorruptObject`."""
    sqns = [each for entry in directory.change_sets for each in (entry.sqn_start, entry.sqn_stop)]
    groups = directory.key_group_start, directory.key_group_stop
    if not sqns or sqns != sorted(sqns) or not (sqns[0] <= piece.sqn_start <= piece.sqn_stop <= sqns[-1]):
        raise CorruptObject(
            f"{what}: the handle refers to SQNs {piece.sqn_start} to {piece.sqn_stop}, and the piece holds change sets "
            f"with the bounds {sqns[:6]}: objects were exchanged; restore the object from a copy"
        )
    if not groups[0] <= piece.key_group_start <= piece.key_group_stop <= groups[1]:
        raise CorruptObject(
            f"{what}: the handle refers to key groups {piece.key_group_start} to {piece.key_group_stop}, and the piece "
            f"holds {groups[0]} to {groups[1]}: objects were exchanged; restore the object from a copy"
        )
