"""Safe reading of stored bytes that may be forged: memory is bounded, content is checked, and errors name the object.

    payload ──inflate──► decode ──► msgspec data           Arrow stream ──read_batches──► record batches, checked fully

A user who may write to a storage can also forge checksums. So readers must be safe for every content: memory is
proportional to the stored bytes (`inflated_bytes_max`), Python's own bound limits nesting, and Arrow data refers only
to its own buffers. The only error that a content can cause is `CorruptObject`, which names the object. This module does
not know the meaning of the data that it reads.
"""

import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc

from holdfast.errors import CorruptObject
from holdfast.references import object_of
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

INFLATED_BYTES = 64 * 1024 * 1024
INFLATED_RATIO = 100
"""Bound on the inflated size of stored bytes: `INFLATED_BYTES`, and `INFLATED_RATIO` for each stored byte. Keys, paths
and names differ, so real objects shrink to a twentieth at best. A higher value lets a forged object use more memory."""
STEP_BYTES = 1024 * 1024

T = TypeVar("T")

_ALONE = pa.ipc.IpcReadOptions(use_threads=False)
"""Options without threads: passing the columns of a small batch to other threads takes longer than decoding them, and
several streams are decoded in parallel anyway."""
_CONTINUATION = 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_CUSTOM_METADATA = 4
_PLAIN = -1
"""The value instead of a buffer's inflated length that means: this buffer is not compressed."""


def read(store: ObjectStore, reference: str) -> bytes:
    """Return the bytes of an object, or of a part of a gathered object. Raises `StorageError`, `ObjectNotFound`."""
    part = names.part(reference)
    return store.get(reference) if part is None else store.get_range(part.object, part.offset, part.length)


def read_all(store: ObjectStore, references: Sequence[str], each: Callable[..., Iterable[bytes]] = map) -> list[bytes]:
    """Return the bytes of all references, in order. An object of which several parts are wanted is read once,
    completely.

    `each` maps a function over names, perhaps on several threads. Raises as `read` does.
    """
    wanted = Counter(map(object_of, references))
    names_read = list(dict.fromkeys(ref if wanted[object_of(ref)] == 1 else object_of(ref) for ref in references))
    found = dict(zip(names_read, each(partial(read, store), names_read), strict=True))
    return [found[ref] if ref in found else _cut_out(found[object_of(ref)], ref) for ref in references]


def _cut_out(data: bytes, reference: str) -> bytes:
    part = names.part(reference)
    if part is None or part.offset + part.length > len(data):
        raise CorruptObject(f"{reference}: the object has {len(data)} bytes; restore it from a copy")
    return data[part.offset : part.offset + part.length]


def inflated_bytes_max(stored_bytes: int) -> int:
    """Return the bound on the inflated size of so many stored bytes."""
    return INFLATED_BYTES + INFLATED_RATIO * stored_bytes


def inflate(what: str, payload: bytes, problem: str) -> bytes:
    """Inflate bytes of zlib. Raises `CorruptObject`, with the texts of `decode`, for other bytes and if the result is
    too large."""
    bytes_max, inflated, rest = inflated_bytes_max(len(payload)), bytearray(), payload
    stream = zlib.decompressobj()
    try:
        while not stream.eof and (rest or not inflated):
            inflated += stream.decompress(rest, STEP_BYTES)
            rest = stream.unconsumed_tail
            if len(inflated) > bytes_max:
                raise CorruptObject(
                    f"{what}: {problem}: {len(payload)} bytes inflate to more than the {bytes_max} allowed"
                )
        inflated += stream.flush()
    except zlib.error as error:
        raise CorruptObject(f"{what}: {problem}: {error}") from error
    if not stream.eof or stream.unused_data:
        raise CorruptObject(f"{what}: {problem}: it ends too early, or other bytes follow")
    return bytes(inflated)


def decode(what: str, payload: bytes, decoder: "msgspec.msgpack.Decoder[T]", problem: str) -> T:
    """Decode msgpack. Raises `CorruptObject`, whose message names the object `what` and its `problem`."""
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CorruptObject(f"{what}: {problem}: {error}") from error


def read_schema(what: str, data: bytes) -> pa.Schema:
    """Read a stored Arrow schema. Raises `CorruptObject`."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        _check_texts(schema)
        return schema
    except Exception as error:  # nothing but the bytes can be wrong
        raise CorruptObject(f"{what}: a stored schema cannot be read: {error}") from error


def read_batches(what: str, data: bytes | memoryview | pa.Buffer) -> list[pa.RecordBatch]:
    """Return the record batches of a stored Arrow stream. Uncompressed buffers are not copied.

    Raises
    ------
    CorruptObject
        The bytes are no Arrow stream, a buffer lies outside them or inflates to too many bytes, or a value refers to
        bytes outside its column.
    """
    buffer = pa.py_buffer(data)
    try:
        _check_sizes(memoryview(buffer))
        with pa.ipc.open_stream(buffer, options=_ALONE) as reader:
            _check_texts(reader.schema)
            found: list[pa.RecordBatch] = list(reader)
        for rows in found:
            rows.validate(full=True)
    except Exception as error:  # nothing but the bytes can be wrong
        raise CorruptObject(f"{what} is no Arrow stream that can be used: {error}") from error
    return found


def read_table(what: str, data: bytes | memoryview | pa.Buffer) -> pa.Table:
    """Return the table in a stored Arrow stream. Raises `CorruptObject`, as `read_batches` does."""
    batches = read_batches(what, data)
    if batches:
        return pa.Table.from_batches(batches)
    try:
        return pa.ipc.open_stream(pa.py_buffer(data), options=_ALONE).read_all()
    except Exception as error:
        raise CorruptObject(f"{what} is no Arrow stream that can be used: {error}") from error


def _check_texts(fields: Iterable[pa.Field]) -> None:
    """Check that names and time zones are valid UTF-8, since Arrow does not. Raises `UnicodeDecodeError`."""
    for field in fields:
        str(field.name), getattr(field.type, "tz", None)
        _check_texts(field.type.field(at) for at in range(field.type.num_fields))


def _check_sizes(data: memoryview) -> None:
    """Check that each buffer lies within its message, and that all together inflate to no more than the bound.

    Arrow allocates the inflated size that a buffer claims before it reads the buffer. Raises `ValueError`, `IndexError`
    or `struct.error`.
    """
    left = inflated_bytes_max(len(data))
    for metadata, body in _messages(data):
        message = _Table(metadata, _u32(metadata, 0))
        kind = message.scalar("<B", 1)
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            continue
        if message.has(_CUSTOM_METADATA):
            raise ValueError("a batch has custom metadata, in which old versions of Arrow described compression")
        batch = message.table(2)
        if kind == _DICTIONARY_BATCH and batch is not None:
            batch = batch.table(1)
        if batch is None:
            raise ValueError("a batch without a description")
        buffers = batch.buffers()
        starts, lengths = buffers[:, 0], buffers[:, 1]
        if len(buffers) and (buffers.min() < 0 or (starts > len(body)).any() or (lengths > len(body) - starts).any()):
            raise ValueError(f"a buffer lies outside of the {len(body)} bytes of its batch")
        if batch.table(3) is None:
            continue
        for start, length in buffers.tolist():
            claimed = _PLAIN if length < 8 else struct.unpack_from("<q", body, start)[0]
            left -= length if claimed == _PLAIN else max(claimed, 0)
        if left < 0:
            raise ValueError(f"{len(data)} bytes inflate to more than the {inflated_bytes_max(len(data))} allowed")


def _messages(data: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield the metadata and the body of each message of a stream."""
    at = 0
    while at + 4 <= len(data):
        length = _u32(data, at)
        at += 4
        if length == _CONTINUATION:
            length = _u32(data, at)
            at += 4
        if not length:
            return
        metadata = data[at : at + length]
        at += length
        body_length = _Table(metadata, _u32(metadata, 0)).scalar("<q", 3)
        if body_length < 0 or at + body_length > len(data):
            raise ValueError(f"a message of {body_length} bytes does not fit into {len(data)} bytes")
        yield metadata, data[at : at + body_length]
        at += body_length


class _Table:
    """A table of FlatBuffers, the format of the metadata in Arrow's messages. Fields have numbers."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise ValueError("a message describes itself outside of its bytes")
        self._fields_length = struct.unpack_from("<H", data, self._fields)[0]

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = struct.unpack_from("<H", self._data, self._fields + entry)[0] if entry < self._fields_length else 0
        return self._at + offset if offset else None

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def scalar(self, form: str, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from(form, self._data, place)[0])

    def table(self, field: int) -> "_Table | None":
        place = self._place(field)
        return None if place is None else _Table(self._data, place + _u32(self._data, place))

    def buffers(self) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
        """Return the start and length of each buffer of a record batch."""
        place = self._place(2)
        if place is None:
            return np.empty((0, 2), np.int64)
        start = place + _u32(self._data, place)
        return np.frombuffer(self._data, "<i8", 2 * _u32(self._data, start), start + 4).reshape(-1, 2)


def _u32(data: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])
