"""Finding a slot's chain of segments again in the job's storage, after a restart of the driver.

A record names the segments that were stored when its position was taken. No record names those stored later, and their
changes are gone from the server: they are found by a listing, each by its `previous`. Where two segments name the same
segment as the one before, that of the newer epoch counts: an older driver may go on for a moment after it was replaced.
"""

from collections.abc import Sequence

from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.sources.postgres.segments import Segment, read_head
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo, ObjectStore


def stored_segments(store: ObjectStore, source: str) -> list[ObjectInfo]:
    """List the segments of a source, of all epochs."""
    found = []
    for info in store.list(names.SEGMENTS):
        parsed = names.parse(info.name)
        if isinstance(parsed, names.SegmentName) and parsed.source == source:
            found.append(info)
    return found


def follow(store: ObjectStore, source: str, listed: Sequence[ObjectInfo], root: Segment) -> list[Segment]:
    """Return the segments behind `root`, in their order."""
    by_number: dict[int, list[ObjectInfo]] = {}
    for info in listed:
        parsed = names.parse(info.name)
        if isinstance(parsed, names.SegmentName) and parsed.source == source:
            by_number.setdefault(parsed.number, []).append(info)
    chain = [root]
    while True:
        candidates = sorted(by_number.get(chain[-1].head.number + 1, []), key=lambda info: info.name, reverse=True)
        for info in candidates:
            try:
                segment = read_head(store, info.name, info.size)
            except ObjectNotFound:
                continue
            if segment.head.previous == chain[-1].uuid:
                chain.append(segment)
                break
        else:
            return chain[1:]


def find_root(store: ObjectStore, listed: Sequence[ObjectInfo], name: str) -> Segment:
    """Return the segment of that name. Raises `CorruptObject` if it is not there."""
    for info in listed:
        if info.name == name:
            return read_head(store, info.name, info.size)
    raise CorruptObject(f"{name}: the checkpoint names this segment, and it is not in the storage")
