"""Blocks: rows of a contiguous range of key groups, as a compressed Arrow IPC stream.

    block := Arrow IPC stream: schema, one record batch for each change set, end of stream; compressed or not

Logs and materialized tables both consist of blocks. Blocks of a log cover contiguous, disjoint ranges of key groups, so
that a reader of few key groups decompresses few blocks. Within a block, rows of a change set are sorted by key group.
Lengths and checksums of blocks are in a framed directory in front of them (`storage.framing`); the caller defines the
rest of the directory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from holdfast.errors import CorruptObject
from holdfast.storage import checksum
from holdfast.storage.framing import HEADER_BYTES, checksum_in, unframe
from holdfast.storage.reading import decode, read_batches

KEY_GROUP_COLUMN = "__key_group"
BLOCK_BYTES = 1024 * 1024
"""Target for the uncompressed size of a block. Blocks are large enough that repeating the schema costs nothing, and
small enough to be skipped and divided."""

Compression = Literal["lz4", "zstd"]

SAMPLE_BYTES = 32 * 1024
SHRINKS_TO = 0.9
"""The compressed share of a sample above which rows are stored uncompressed, which is cheaper to write and to read."""

_LENGTH_OFFSET = 12


class SortedRows(Protocol):
    """Rows sorted by key group that are kept elsewhere, and become a record batch a slice at a time."""

    @property
    def num_rows(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def key_groups(self) -> Any: ...

    def slice(self, offset: int = 0, length: int | None = None) -> pa.RecordBatch: ...


Merge = Callable[[list[pa.RecordBatch]], pa.RecordBatch]
"""A function that keeps the last row of each key, sorted by key group: `state.table.merge_changes`."""


class BlockEntry(msgspec.Struct, frozen=True, array_like=True):
    """A block in a directory: the key groups it covers, its length in bytes, its CRC-32."""

    key_group_start: int
    key_group_stop: int
    length: int
    crc: int


class HasLength(Protocol):
    @property
    def length(self) -> int: ...


class HasBlocks(Protocol):
    """A directory of any kind, which lists the blocks that follow it."""

    @property
    def blocks(self) -> Sequence[HasLength]: ...


D = TypeVar("D", bound=HasBlocks)


@dataclass(frozen=True)
class Block:
    """An encoded block; `data` holds the bytes to store."""

    entry: BlockEntry
    data: pa.Buffer


def encode_blocks(
    change_sets: Sequence[pa.RecordBatch | SortedRows],
    key_group_start: int,
    key_group_stop: int,
    codec: Compression,
    target_bytes: int,
    merge: Merge | None = None,
) -> Iterator[Block]:
    """Divide rows sorted by key group into blocks that together cover `[key_group_start, key_group_stop)`.

    Blocks are compressed if a sample says that it helps. The iterator is lazy: it makes a block when the caller asks
    for it. A single key group is never divided. With `merge` the change sets are merged into a single change set, block
    by block, because few keys at a time fit into the processor's caches.

    Raises
    ------
    ValueError
        Rows are not sorted by key group, or lie outside the range.
    """
    groups = [_key_groups(rows, key_group_start, key_group_stop) for rows in change_sets]
    edges = _edges(change_sets, groups, key_group_start, key_group_stop, target_bytes)
    cuts = [np.searchsorted(each, edges) for each in groups]
    compression = codec if _shrinks(change_sets, codec) else None
    for index, (start, stop) in enumerate(pairwise(edges)):
        slices = [
            rows.slice(int(cut[index]), int(cut[index + 1] - cut[index]))
            for rows, cut in zip(change_sets, cuts, strict=True)
        ]
        if merge is not None:
            filled = [rows for rows in slices if rows.num_rows]
            slices = [merge(filled)] if len(filled) > 1 else filled or slices[:1]
        yield _encode(slices, int(start), int(stop), compression)


def decode_block(what: str, entry: BlockEntry, data: memoryview, batches: int) -> list[pa.RecordBatch]:
    """Return the record batches of a block, of which there must be exactly `batches`.

    Raises
    ------
    CorruptObject
        The checksum differs, or the bytes are no block of these key groups; `what` names the object.
    """
    if len(data) != entry.length or checksum.crc32(data) != entry.crc:
        raise CorruptObject(
            f"{what}: the block of key groups {entry.key_group_start} to {entry.key_group_stop} is damaged "
            f"(expected {entry.length} bytes with checksum {entry.crc:#010x}, found {len(data)} bytes); "
            "restore the object from a copy"
        )
    found = read_batches(f"{what}: a block", data)
    if len(found) != batches:
        raise CorruptObject(f"{what}: a block has {len(found)} change sets, expected {batches}")
    for rows in found:
        _check_key_groups(what, entry, rows)
    return found


def read_framed_directory(
    what: str,
    data: memoryview,
    length: int,
    magic: bytes,
    version: int,
    kind: type[D],
    head_crc: int | None = None,
    version_min: int | None = None,
) -> tuple[D, int]:
    """Return the directory in front of blocks, and the offset at which the blocks start.

    `head_crc` is the checksum that a handle names for the frame; None: the handle names none.

    Raises
    ------
    CorruptObject
        The bytes are not `length` long, are no frame of this kind, or are not the bytes that the handle refers to; or
        the directory describes another length.
    """
    if len(data) != length or length < HEADER_BYTES:
        raise CorruptObject(f"{what}: truncated: expected {length} bytes, found {len(data)}")
    return read_framed_head(what, data, length, magic, version, kind, head_crc, version_min)


def directory_bytes(head: bytes | memoryview) -> int:
    """Return the length of a framed directory; the blocks start there. `head` begins with the frame's header."""
    return HEADER_BYTES + int.from_bytes(head[_LENGTH_OFFSET:HEADER_BYTES], "little")


def read_framed_head(
    what: str,
    data: memoryview,
    length: int,
    magic: bytes,
    version: int,
    kind: type[D],
    head_crc: int | None = None,
    version_min: int | None = None,
) -> tuple[D, int]:
    """Read a directory as `read_framed_directory` does. `data` may end anywhere after the directory."""
    stop = directory_bytes(data)
    payload = unframe(what, bytes(data[:stop]), magic, version, version_min)
    check_head(what, data, head_crc)
    directory = decode(what, payload, msgspec.msgpack.Decoder(kind), "its directory cannot be read")
    if any(entry.length < 0 for entry in directory.blocks):
        raise CorruptObject(f"{what}: its directory describes blocks of less than no bytes")
    found = stop + sum(entry.length for entry in directory.blocks)
    if found != length:
        raise CorruptObject(f"{what}: its directory describes {found} bytes, the handle {length}")
    return directory, stop


def check_head(what: str, head: bytes | memoryview, expected: int | None) -> None:
    """Compare the checksum in a frame with the checksum in the handle (None: the handle has none).

    The frame's checksum covers the directory, which contains the checksums of all blocks or files. Raises
    `CorruptObject`.
    """
    found = checksum_in(head)
    if expected is not None and found != expected:
        raise CorruptObject(
            f"{what}: holds other bytes than the checkpoint refers to (checksum {found:#010x}, expected "
            f"{expected:#010x}): objects were exchanged, or this one was overwritten; restore the object from a copy"
        )


def within(rows: pa.RecordBatch, key_group_start: int, key_group_stop: int) -> pa.RecordBatch:
    """Return the rows of key groups `[key_group_start, key_group_stop)` uncopied; `rows` is sorted by key group."""
    groups = rows.column(KEY_GROUP_COLUMN).to_numpy()
    start, stop = np.searchsorted(groups, np.array([key_group_start, key_group_stop], np.int32))
    return rows.slice(int(start), int(max(stop - start, 0)))


def _check_key_groups(what: str, entry: BlockEntry, rows: pa.RecordBatch) -> None:
    """Check the column of key groups, on which `within` relies. Raises `CorruptObject`."""
    at = rows.schema.get_all_field_indices(KEY_GROUP_COLUMN)
    if len(at) != 1 or rows.schema.field(at[0]).type != pa.int32() or rows.column(at[0]).null_count:
        raise CorruptObject(f"{what}: a block has no column {KEY_GROUP_COLUMN!r} of key groups (int32, never null)")
    try:
        _key_groups(rows, entry.key_group_start, entry.key_group_stop)
    except ValueError as error:
        raise CorruptObject(f"{what}: a block's {error}") from error


def _key_groups(rows: pa.RecordBatch | SortedRows, start: int, stop: int) -> npt.NDArray[np.int32]:
    column = rows.column(KEY_GROUP_COLUMN) if isinstance(rows, pa.RecordBatch) else rows.key_groups
    groups: npt.NDArray[np.int32] = column.to_numpy()
    if len(groups) and (groups[0] < start or groups[-1] >= stop or bool(np.any(groups[1:] < groups[:-1]))):
        raise ValueError(
            f"changes have key groups {groups.min()} to {groups.max()}, expected sorted ones within [{start}, {stop})"
        )
    return groups


def _edges(
    change_sets: Sequence[pa.RecordBatch | SortedRows],
    groups: Sequence[npt.NDArray[np.int32]],
    start: int,
    stop: int,
    target_bytes: int,
) -> npt.NDArray[np.int32]:
    """Return the key groups at which blocks begin, followed by `stop`."""
    sizes = np.zeros(stop - start, np.float64)
    every_edge = np.arange(start, stop + 1, dtype=np.int32)
    for rows, each in zip(change_sets, groups, strict=True):
        sizes += np.diff(np.searchsorted(each, every_edge)) * (rows.nbytes / max(1, len(each)))
    before = np.cumsum(sizes) - sizes
    block_of_group = (before // target_bytes).astype(np.int64)
    inner = np.flatnonzero(np.diff(block_of_group)) + 1 + start
    # The edges get the type of `groups`: a search for values of another type would copy `groups`.
    return np.concatenate(([start], inner, [stop])).astype(np.int32)


def _shrinks(change_sets: Sequence[pa.RecordBatch | SortedRows], codec: Compression) -> bool:
    """Return whether compressing these rows is worthwhile, judged by a sample."""
    rows = max(change_sets, key=lambda each: each.num_rows)
    count = rows.num_rows * SAMPLE_BYTES // max(1, rows.nbytes)
    if count >= rows.num_rows or not count:
        return True
    sample = rows.slice(rows.num_rows // 2, count).serialize()
    packed = pa.compress(sample, codec="lz4_raw" if codec == "lz4" else codec)
    return bool(packed.size < SHRINKS_TO * sample.size)


def _encode(slices: Sequence[pa.RecordBatch], start: int, stop: int, compression: Compression | None) -> Block:
    sink = pa.BufferOutputStream()
    # Encode on this thread alone: Arrow's threads would take the processor from the thread that batches run on.
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, slices[0].schema, options=options) as writer:
        for rows in slices:
            writer.write_batch(rows)
    data = sink.getvalue()
    return Block(BlockEntry(start, stop, data.size, checksum.crc32(data)), data)
