"""Segments: what a reader stored of a slot's changes, and the rows of one table in them.

    part of table 1 (Arrow IPC) | part of table 2 | … | head (msgpack, in a frame) | length of that, 4 bytes

Segments of a slot form a chain: each names the one before by its `uuid`. The head says where a checkpoint may be cut.
Format: `docs/format/segments.md`.
"""

from collections import OrderedDict
from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptObject
from holdfast.sources.postgres.columns import Ints
from holdfast.storage import checksum, framing, names
from holdfast.storage.store import ObjectStore

MAGIC, VERSION = b"HFPG", 1
TAIL_BYTES = 65_536
"""Bytes that are read of a segment's end to find its head. A lower value reads twice more often."""
CACHED_PARTS_MAX = 4
"""Parts that a process keeps of the last segments, so that batches smaller than a segment do not fetch it again."""


class SegmentPart(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one table: where they lie in the object, and their checksum."""

    offset: int
    length: int
    crc: int
    rows: int


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts of a segment.

    `sequences` is the number of messages (of rows, in a snapshot) that it holds; `ends`, as int32, the sequence numbers
    at which a checkpoint may be cut, that is, numbers of messages before the cut. `open_xid` and `open_changes` tell of
    the transaction in which it ends (0: none). `snapshot` is the reason why its end may not be a cut otherwise, and
    `chunks` the state of a chunked snapshot after it.
    """

    number: int
    previous: str
    system: str
    slot: str
    sequences: int
    ends: bytes
    end_lsn: int
    open_xid: int
    open_changes: int
    snapshot: str
    parts: dict[str, SegmentPart]
    chunks: dict[str, int | None] = {}


class Segment:
    """A stored segment: its name and its head."""

    def __init__(self, name: str, head: Head, size: int) -> None:
        self.name = name
        self.head = head
        self.size = size
        self.ends: Ints = np.frombuffer(head.ends, np.int32).astype(np.int64)

    @property
    def uuid(self) -> str:
        return self.name.rpartition("-")[2]

    @property
    def refusal(self) -> str:
        """Return the reason why a checkpoint may not be cut behind this segment; empty if it may."""
        if len(self.ends) and self.ends[-1] == self.head.sequences:
            return ""
        return self.head.snapshot or self.inside()

    def refusal_at(self, sequence: int) -> str:
        """Return the reason why a checkpoint may not be cut at a sequence number within; empty if it may."""
        if sequence == self.head.sequences:
            return self.refusal
        at = int(np.searchsorted(self.ends, sequence))
        if at < len(self.ends) and self.ends[at] == sequence:
            return ""
        return self.head.snapshot or self.inside()

    def inside(self) -> str:
        xid = f" {self.head.open_xid}" if self.head.open_xid else ""
        return f"inside transaction{xid} of slot {self.head.slot!r}"


def encode_segment(head: Head, tables: Mapping[str, pa.Table]) -> bytes:
    """Build a segment's bytes; `head` without its parts."""
    body, parts, offset = [], {}, 0
    for table, rows in tables.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        data = sink.getvalue()
        parts[table] = SegmentPart(offset, data.size, checksum.crc32(data), rows.num_rows)
        offset += data.size
        body.append(data)
    framed = framing.frame(MAGIC, VERSION, msgspec.msgpack.encode(msgspec.structs.replace(head, parts=parts)))
    return b"".join([*body, framed, len(framed).to_bytes(4, "little")])


def read_head(store: ObjectStore, name: str, size: int) -> Segment:
    """Read the head of a stored segment. Raises `CorruptObject`."""
    start = max(0, size - TAIL_BYTES)
    tail = store.get_range(name, start, size - start)
    return Segment(name, decode_head(name, tail), size)


def decode_head(name: str, tail: bytes) -> Head:
    """Decode the head from the last bytes of a segment."""
    length = int.from_bytes(tail[-4:], "little")
    if len(tail) < length + 4 or not length:
        raise CorruptObject(f"{name}: damaged: its end tells of a head of {length} bytes")
    payload = framing.unframe(name, tail[-4 - length : -4], MAGIC, VERSION)
    try:
        return msgspec.msgpack.decode(payload, type=Head)
    except msgspec.DecodeError as error:
        raise CorruptObject(f"{name}: its head cannot be read: {error}") from error


def check_segment(name: str, data: bytes) -> None:
    """Check all of a segment's bytes. Raises `CorruptObject`."""
    for table, part in decode_head(name, data).parts.items():
        _check_part(name, table, data[part.offset : part.offset + part.length], part)


def read_part(store: ObjectStore, name: str, table: str, part: SegmentPart) -> pa.Table:
    """Return a table's rows in a segment, from this process's memory if they were read just now."""
    key = (name, table)
    found = _cached.get(key)
    if found is None:
        data = store.get_range(name, part.offset, part.length)
        _check_part(name, table, data, part)
        found = pa.ipc.open_stream(data).read_all().combine_chunks()
        _cached[key] = found
        while len(_cached) > CACHED_PARTS_MAX:
            _cached.popitem(last=False)
    return found


def _check_part(name: str, table: str, data: bytes, part: SegmentPart) -> None:
    if len(data) != part.length or checksum.crc32(data) != part.crc:
        raise CorruptObject(
            f"{name}: damaged: the checksum of the rows of table {table} differs; restore it from a copy"
        )


def new_name(epoch: int, source: str, number: int) -> str:
    """A new name at each call."""
    return names.segment(epoch, source, number)


_cached: OrderedDict[tuple[str, str], pa.Table] = OrderedDict()
