"""Packing of requests into objects of bounded size, piece after piece.

Invariant: a request is answered once, after it was encoded and each object with one of its pieces was stored or has
failed. It fails as a whole with the first error, and then releases its stored objects. This module owns no upload and
no thread.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.formats.blocks import BLOCK_BYTES, Merge
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import OBJECT_HEADER, ChangeSet, EncodedPiece, LogId, encode_pieces

DENSE_BYTES_MAX = 64 * 1024
"""Bytes of a request up to which it is compressed by Zstandard, which takes longer than LZ4 and stores less. A higher
value lets checkpoints wait for longer: these bytes take 0.1 to 0.3 ms more."""
Release = Callable[[list[str]], None]
"""Function that releases the stored objects with pieces of a failed request."""


class PersistRequest:
    """Change sets of a log to store, and the future of the pieces that hold them.

    With `merge`, they are stored as a single change set, otherwise separately.
    """

    def __init__(self, log: LogId, change_sets: Sequence[ChangeSet], merge: Merge | None, *, is_of_cut: bool) -> None:
        self.log = log
        self.future: Future[list[LogPiece]] = Future()
        self.size_bytes = sum(each.rows.nbytes for each in change_sets)
        self._change_sets = list(change_sets)
        self._merge = merge
        self.is_of_cut = is_of_cut
        """True if a cut waits for it, False if it is stored ahead of a cut."""
        self._lock = threading.Lock()
        self._unfinished = 1
        self._pieces: list[LogPiece] = []
        self._error: BaseException | None = None

    def encode(self, piece_bytes_max: int) -> Iterator[EncodedPiece]:
        """Encode the change sets; yield the pieces of the object."""
        yield from encode_pieces(
            self.log,
            self._change_sets,
            merge=self._merge,
            codec="zstd" if self.size_bytes <= DENSE_BYTES_MAX else "lz4",
            block_bytes=min(BLOCK_BYTES, piece_bytes_max // 2),
            piece_bytes_max=piece_bytes_max,
        )

    def expect(self) -> None:
        """Note another object that has pieces of this request."""
        with self._lock:
            self._unfinished += 1

    def arrived(self, pieces: Sequence[LogPiece], release: Release) -> None:
        """Note that an object with these pieces was stored, or (without pieces) that encoding has ended."""
        self._finish(pieces, None, release)

    def failed(self, error: BaseException, release: Release) -> None:
        """Note that an object with some of its pieces could not be stored, or that encoding failed."""
        self._finish((), error, release)

    def _finish(self, pieces: Sequence[LogPiece], error: BaseException | None, release: Release) -> None:
        with self._lock:
            self._pieces.extend(pieces)
            self._error = self._error or error
            self._unfinished -= 1
            if self._unfinished:
                return
        if self._error is None:
            self.future.set_result(sorted(self._pieces, key=lambda piece: piece.key_group_start))
        else:
            release(list(dict.fromkeys(piece.object for piece in self._pieces)))
            self.future.set_exception(self._error)


@dataclass
class PackedObject:
    """An object before it is uploaded: its bytes, and the pieces of each request with their offsets."""

    buffers: list[bytes | pa.Buffer] = field(default_factory=lambda: [OBJECT_HEADER])
    length: int = len(OBJECT_HEADER)
    pieces: dict[PersistRequest, list[tuple[EncodedPiece, int]]] = field(default_factory=dict)
    is_alone: bool = False
    """True if it has all pieces of its requests."""

    @property
    def awaited(self) -> bool:
        """True if a cut has nothing else to store than this object and its manifest."""
        return self.is_alone and any(request.is_of_cut for request in self.pieces)

    def add(self, request: PersistRequest, piece: EncodedPiece) -> None:
        if request not in self.pieces:
            request.expect()
        self.pieces.setdefault(request, []).append((piece, self.length))
        self.buffers.extend(piece.buffers)
        self.length += piece.length

    def take_data(self) -> bytes:
        """Take the object's bytes out; may be called once."""
        data, self.buffers = b"".join(self.buffers), []
        return data

    def stored(self, name: str, release: Release) -> None:
        """Tell each request that its pieces are in the object of that name."""
        for request, pieces in self.pieces.items():
            request.arrived([piece.at(name, offset) for piece, offset in pieces], release)

    def failed(self, error: BaseException, release: Release) -> None:
        """Tell each request that its pieces could not be stored."""
        for request in self.pieces:
            request.failed(error, release)


def pack(requests: Sequence[PersistRequest], object_bytes_max: int, release: Release) -> Iterator[PackedObject]:
    """Encode requests in order into objects of at most `object_bytes_max`; yield each object as soon as it is full.

    A request that cannot be encoded fails by itself. When the iterator ends, every request has been told that encoding
    has ended.
    """
    packed, is_alone = PackedObject(), True
    for request in requests:
        pieces = request.encode(object_bytes_max - len(OBJECT_HEADER))
        try:
            for piece in pieces:
                if packed.pieces and packed.length + piece.length > object_bytes_max:
                    yield packed
                    packed, is_alone = PackedObject(), False
                packed.add(request, piece)
        except Exception as error:
            request.failed(error, release)
        else:
            request.arrived((), release)
    if packed.pieces:
        packed.is_alone = is_alone
        yield packed
