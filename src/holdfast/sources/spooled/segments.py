"""Segments: rows that a source stored, in parts, because an outside system sends them only once.

    part 1 (Arrow IPC) | part 2 | … | head (msgpack, in a frame) | length of that, 4 bytes

Segments have numbers, and form a chain. The head says where a checkpoint may be cut. A part may also lie in an object
of its own, which has a head of its own; it counts once the segment's head, stored after it, names it.
Format: `docs/reference/format/segments.md`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.ids import Epoch
from holdfast.storage import checksum, framing, names, reading
from holdfast.storage.lost import lost
from holdfast.storage.store import ObjectStore

MAGIC, VERSION, VERSION_MIN = b"HFPG", 2, 1
TAIL_BYTES = 65_536
"""Bytes that are read from a segment's end to find its head. With a lower value, a second read is needed more often."""
CACHED_PARTS_MAX = 4
"""Parts that a process keeps of the last segments, so that batches smaller than a segment do not fetch it again."""


class SegmentPart(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a table, or of a partition: their place, and their checksum.

    `object` is the name of the object that holds the part; empty for the segment itself.
    """

    offset: int
    length: int
    crc: int
    rows: int
    object: str = ""


class SegmentHead(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a segment that all sources share; each source adds its own.

    `sequences` is the number of messages (in a snapshot: of rows) that it holds. `ends` has, as int32, the sequence
    numbers at which a checkpoint may be cut, that is, the numbers of messages before the cut. `snapshot` is the reason
    why its end may not be a cut, if the segment belongs to a first full read.
    """

    number: int
    sequences: int
    ends: bytes
    parts: dict[str, SegmentPart]
    snapshot: str = ""
    named: str | None = None
    """Name under which the segment is stored. None: written before heads had it."""

    def follows(self, before: "Segment[Any] | None") -> bool:
        """Return whether this segment, which has the next number, continues where `before` ends. None: it is the first
        segment."""
        return True

    @property
    def inside(self) -> str:
        """The reason why a checkpoint may not be cut between the `ends`."""
        return "inside a segment"

    def divided(self, first: int, stop: int) -> list[tuple[int, int, dict[str, SegmentPart]]]:
        """Divide a range of sequence numbers into reads: first and last number, and the parts that hold them."""
        return [(first, stop, self.parts)]


H = TypeVar("H", bound=SegmentHead)


class Segment(Generic[H]):
    """A stored segment: its name, its head, and the bytes of all its objects."""

    def __init__(self, name: str, head: H, size: int) -> None:
        self.name = name
        self.head = head
        self.size = size + sum(part.length for part in head.parts.values() if part.object)
        self.ends: npt.NDArray[np.int64] = np.frombuffer(head.ends, np.int32).astype(np.int64)

    @property
    def uuid(self) -> str:
        return self.name.rpartition("-")[2]

    @property
    def objects(self) -> list[str]:
        """Names of all its objects; the head's is the last, because a segment without its head does not count."""
        return [*(part.object for part in self.head.parts.values() if part.object), self.name]

    @property
    def refusal(self) -> str:
        """Return the reason why a checkpoint may not be cut after this segment; empty if it may."""
        if len(self.ends) and self.ends[-1] == self.head.sequences:
            return ""
        return self.head.snapshot or self.head.inside

    def refusal_at(self, sequence: int) -> str:
        """Return the reason why a checkpoint may not be cut at a sequence number within; empty if it may."""
        if sequence == self.head.sequences:
            return self.refusal
        at = int(np.searchsorted(self.ends, sequence))
        if at < len(self.ends) and self.ends[at] == sequence:
            return ""
        return self.head.snapshot or self.head.inside


def encode_segment(head: SegmentHead, tables: Mapping[str, pa.Table]) -> bytes:
    """Build a segment's bytes; `head` has only the parts that are stored in objects of their own."""
    body, parts, offset = [], dict(head.parts), 0
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


def read_head(store: ObjectStore, name: str, size: int, head: type[H]) -> Segment[H]:
    """Read the head of a stored segment. Raises `CorruptObject`."""
    start = max(0, size - TAIL_BYTES)
    tail = store.get_range(name, start, size - start)
    return Segment(name, decode_head(name, tail, head), size)


def decode_head(name: str, tail: bytes, head: type[H]) -> H:
    """Decode the head from the last bytes of a segment."""
    length = int.from_bytes(tail[-4:], "little")
    if len(tail) < length + 4 or not length:
        raise CorruptObject(f"{name}: damaged: its end announces a head of {length} bytes")
    payload = framing.unframe(name, tail[-4 - length : -4], MAGIC, VERSION, VERSION_MIN)
    found = reading.decode(name, payload, msgspec.msgpack.Decoder(head), "its head cannot be read")
    said = names.parse(name)
    if isinstance(said, names.SegmentName):
        if found.named is not None:
            names.check_same(name, str, found.named)
        if found.number != said.number:
            raise CorruptObject(f"{name}: holds segment {found.number}: objects were exchanged; restore it from a copy")
    if len(found.ends) % 4 or any(min(part.offset, part.length, part.rows) < 0 for part in found.parts.values()):
        raise CorruptObject(f"{name}: its head describes places that no segment has")
    strange = [part.object for part in found.parts.values() if part.object and not _is_part(part.object, name)]
    if strange:
        raise CorruptObject(f"{name}: its head names {strange[0]!r}, expected a part of the segment")
    return found


def _is_part(name: str, segment: str) -> bool:
    """Return True for a name that `names.segment_part` gave to a part of the segment."""
    parsed = names.parse(name)
    return isinstance(parsed, names.SegmentName) and name == f"{segment}.{parsed.part}"


def check_segment(name: str, data: bytes) -> None:
    """Check all of a segment's bytes. Raises `CorruptObject`."""
    for table, part in decode_head(name, data, SegmentHead).parts.items():
        if not part.object:
            _check_part(name, table, data[part.offset : part.offset + part.length], part)


def read_part(store: ObjectStore, name: str, table: str, part: SegmentPart) -> pa.Table:
    """Return the rows of a segment's part, from this process's memory if they were read just now."""
    key = (name, table)
    found = _cached.get(key)
    if found is None:
        try:
            data = store.get_range(part.object or name, part.offset, part.length)
        except ObjectNotFound as error:
            raise lost(f"rows that a source has stored are gone ({table})", error) from error
        _check_part(part.object or name, table, data, part)
        found = reading.read_table(f"{part.object or name}: the rows of {table}", data).combine_chunks()
        if found.num_rows != part.rows:
            raise CorruptObject(f"{name}: {table} has {found.num_rows} rows, its head announces {part.rows}")
        _cached[key] = found
        while len(_cached) > CACHED_PARTS_MAX:
            _cached.popitem(last=False)
    return found


def _check_part(name: str, table: str, data: bytes, part: SegmentPart) -> None:
    if len(data) != part.length or checksum.crc32(data) != part.crc:
        raise CorruptObject(f"{name}: damaged: the checksum of the rows of {table} differs; restore it from a copy")


def new_name(epoch: Epoch, source: str, number: int) -> str:
    """A new name at each call."""
    return names.segment(epoch, source, number)


_cached: OrderedDict[tuple[str, str], pa.Table] = OrderedDict()
