"""Spans: the bytes of an object that a recovery reads from the store. This module chooses spans, and reads them.

    ranges of an object ──spans_of──► whole object                       files of a base store, objects to be copied
                                      a span of neighbouring ranges      a request
                                      a range, by key group              its directory first, then its blocks in between

An object may hold the logs of many subtasks, and a part may hold rows of many key groups. After a rescale, or for a
table that others wrote, only some of these bytes are wanted. Bytes of a span that are not read are zero and never used:
a directory names the blocks with the wanted key groups, and its checksum is checked again when it is decoded. A damaged
or short object is read completely, so that decoding can report the damage.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import msgspec
import numpy as np

from holdfast.errors import CorruptObject, ObjectNotFound, StorageError
from holdfast.formats import log_objects, snapshots
from holdfast.formats.blocks import BlockEntry, directory_bytes, read_framed_head
from holdfast.formats.handles import ROWS, LogPiece, MaterializedPart, TableHandle
from holdfast.printable import logger
from holdfast.recovery.local import Copy
from holdfast.storage.store import ObjectStore

log = logger(__name__)

GAP_BYTES_MAX = 16 * 1024
"""Greatest gap in bytes between two ranges that are read in a single request. A higher value makes fewer requests, and
reads more."""
DIVIDED_BYTES_MIN = 512 * 1024
"""Length in bytes below which a range is read with all its key groups. Such a range has a block or two, and a second
request takes as long as a store takes to send 1 MB. A higher value makes fewer requests, and reads more after a
rescale."""
DIRECTORY_BYTES = 8 * 1024
"""Bytes of a range that are read first, since most directories are shorter."""
SPAN_BYTES_MAX = 1 << 30
"""Bound on the bytes of a span. If a handle refers to more, the object is read completely, so that a wrong handle
cannot make a reader allocate so much."""

StoredRange = LogPiece | MaterializedPart
GroupBounds = tuple[int, int]


@dataclass(frozen=True)
class Span:
    """Bytes `[start, stop)` of an object; `stop` None: the complete object, whose length is not known.

    `divided`: the span's only range, narrowed to the wanted key groups; only their blocks are read.
    """

    object: str
    start: int
    stop: int | None
    divided: StoredRange | None = None

    def has(self, each: StoredRange) -> bool:
        """True if the range can be decoded from this span."""
        if self.stop is None:
            return True
        if self.divided is None:
            return self.start <= each.offset and each.offset + each.length <= self.stop
        inside = self.divided.key_group_start <= each.key_group_start and (
            each.key_group_stop <= self.divided.key_group_stop
        )
        return inside and (each.offset, each.offset + each.length) == (self.start, self.stop)


def spans_of(ranges: Sequence[StoredRange], *, divide: bool) -> list[Span]:
    """Return the spans of an object to read for its ranges. `divide`: the object also holds key groups of others."""
    name = ranges[0].object
    if any(isinstance(each, MaterializedPart) and each.kind != ROWS for each in ranges):
        return [Span(name, 0, None)]
    spans: list[Span] = []
    for each in sorted(_joined(ranges), key=lambda each: each.offset):
        stop = each.offset + each.length
        before = spans[-1] if spans else Span(name, 0, 0)
        if divide and each.length >= DIVIDED_BYTES_MIN:
            spans.append(Span(name, each.offset, stop, each))
        elif before.stop is not None and before.divided is None and each.offset - before.stop <= GAP_BYTES_MAX:
            spans[-1:] = [replace(before, stop=max(stop, before.stop))]
        else:
            spans.append(Span(name, each.offset, stop))
    fits = all(each.stop is not None and each.stop - each.start <= SPAN_BYTES_MAX for each in spans)
    return spans if fits else [Span(name, 0, None)]


def read_span(store: ObjectStore, span: Span, count: Callable[[int], None]) -> Copy:
    """Read a span; `count` is called with the bytes of each request. Raises `StorageError`."""

    def ranged(start: int, stop: int) -> bytes:
        data = store.get_range(span.object, start, stop - start)
        count(len(data))
        return data

    if span.stop is not None:
        try:
            if span.divided is None:
                return Copy(ranged(span.start, span.stop), span.stop - span.start, start=span.start)
            return _divided(span.divided, ranged)
        except ObjectNotFound:
            raise
        except (StorageError, CorruptObject) as error:
            # The object is short or damaged, or the store is unreachable: to read all of it shows which.
            log.info("%s: all of it is read, since a part of it could not be used: %s", span.object, error)
    data = store.get(span.object)
    count(len(data))
    return Copy(data, len(data))


def bounds_of(handles: Iterable[TableHandle]) -> dict[str, GroupBounds]:
    """Return, for each object, the lowest key group and one past the highest for which these handles refer to it."""
    bounds: dict[str, GroupBounds] = {}
    for handle in handles:
        for each in handle.ranges():
            low, high = bounds.get(each.object, (each.key_group_start, each.key_group_stop))
            bounds[each.object] = min(low, each.key_group_start), max(high, each.key_group_stop)
    return bounds


def shared_objects(own: Iterable[TableHandle], bounds: Mapping[str, GroupBounds], start: int, stop: int) -> list[str]:
    """Return the objects of the `own` handles that also hold rows of key groups outside `[start, stop)`."""
    objects = dict.fromkeys(name for handle in own for name in handle.objects())
    return [name for name in objects if bounds[name][0] < start or stop < bounds[name][1]]


def _joined(ranges: Iterable[StoredRange]) -> Collection[StoredRange]:
    """Ranges of the same bytes as a single range, with the key groups of all."""
    joined: dict[GroupBounds, StoredRange] = {}
    for each in ranges:
        known = joined.setdefault((each.offset, each.length), each)
        if known is not each:
            low, high = min(known.key_group_start, each.key_group_start), max(known.key_group_stop, each.key_group_stop)
            known = msgspec.structs.replace(known, key_group_start=low, key_group_stop=high)
            joined[each.offset, each.length] = known
    return joined.values()


def _divided(each: StoredRange, ranged: Callable[[int, int], bytes]) -> Copy:
    """The directory of a range and the blocks of its key groups. Raises `StorageError`, `CorruptObject`."""
    head = ranged(each.offset, each.offset + min(DIRECTORY_BYTES, each.length))
    missing = min(directory_bytes(head), each.length) - len(head)
    if missing > 0:
        head += ranged(each.offset + len(head), each.offset + len(head) + missing)
    entries, blocks_start = _directory(each, memoryview(head))
    edges = list(accumulate((entry.length for entry in entries), initial=blocks_start))
    wanted = [
        at
        for at, entry in enumerate(entries)
        if max(entry.key_group_start, each.key_group_start) < min(entry.key_group_stop, each.key_group_stop)
    ]
    data = np.zeros(each.length, np.uint8).data  # pages that are never written take no memory
    data[: len(head)] = head
    start, stop = (max(edges[wanted[0]], len(head)), edges[wanted[-1] + 1]) if wanted else (0, 0)
    if start < stop:
        data[start:stop] = ranged(each.offset + start, each.offset + stop)
    return Copy(data, each.length, start=each.offset)


def _directory(each: StoredRange, head: memoryview) -> tuple[Sequence[BlockEntry], int]:
    """Return the blocks in a range, and the offset at which they start. Raises `CorruptObject`."""
    found: tuple[log_objects.Directory | snapshots.PartDirectory, int]
    if isinstance(each, LogPiece):
        magic, version = log_objects.PIECE_MAGIC, log_objects.VERSION
        found = read_framed_head(each.object, head, each.length, magic, version, log_objects.Directory, each.head_crc)
    else:
        magic, version = snapshots.PART_MAGIC, snapshots.VERSION
        found = read_framed_head(each.object, head, each.length, magic, version, snapshots.PartDirectory, each.head_crc)
    return found[0].blocks, found[1]
