"""The search for a source's chain of segments in the job's storage, after a restart of the driver.

A record names the segments that were stored when its position was taken. No record names segments stored later, and
their rows are not sent again: they are found by a listing, each by its number and `SegmentHead.follows`. If two
segments follow the same segment, the segment of the newer epoch counts: an older driver may continue for a moment after
it was replaced.
"""

from collections.abc import Collection, Sequence

from holdfast.errors import ObjectNotFound
from holdfast.sources.spooled.segments import H, Segment, read_head
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo, ObjectStore


def stored_segments(store: ObjectStore, source: str) -> list[ObjectInfo]:
    """List the objects of a source's segments, of all epochs."""
    return [info for info in store.list(names.SEGMENTS) if number_of(info.name, source) is not None]


def number_of(name: str, source: str) -> int | None:
    """Return the number of the segment that an object of a source belongs to; None for any other object."""
    parsed = names.parse(name)
    return parsed.number if isinstance(parsed, names.SegmentName) and parsed.source == source else None


def follow(
    store: ObjectStore,
    source: str,
    listed: Sequence[ObjectInfo],
    number: int,
    before: Segment[H] | None,
    head: type[H],
    preferred: Collection[str] = (),
) -> list[Segment[H]]:
    """Return the segments from `number` on, in their order. `before`: the segment before them, if there is one.

    If two segments with the same number fit, a `preferred` one counts first, then the one of the newer epoch.
    """
    by_number: dict[int, list[ObjectInfo]] = {}
    for info in listed:
        parsed = names.parse(info.name)
        if isinstance(parsed, names.SegmentName) and parsed.source == source and not parsed.part:
            by_number.setdefault(parsed.number, []).append(info)
    chain: list[Segment[H]] = []
    while True:
        candidates = by_number.get(number + len(chain), [])
        ranked = sorted(candidates, key=lambda info: (info.name in preferred, info.name), reverse=True)
        found = _first_fitting(store, ranked, chain[-1] if chain else before, head)
        if found is None:
            return chain
        chain.append(found)


def _first_fitting(
    store: ObjectStore, candidates: Sequence[ObjectInfo], before: Segment[H] | None, head: type[H]
) -> Segment[H] | None:
    for info in candidates:
        try:
            segment = read_head(store, info.name, info.size, head)
        except ObjectNotFound:
            continue  # an older driver's clean-up deleted it after the listing
        if segment.head.follows(before):
            return segment
    return None


def find_root(store: ObjectStore, listed: Sequence[ObjectInfo], name: str, head: type[H]) -> Segment[H]:
    """Return the segment of that name. Raises `ObjectNotFound` if it is not there."""
    for info in listed:
        if info.name == name:
            return read_head(store, info.name, info.size, head)
    raise ObjectNotFound(f"{store.url}: the checkpoint names {name!r}, and there is no such object")
