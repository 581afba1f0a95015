"""Storage of committables between two checkpoints, so that the driver need not keep them in memory.

    many committables ──gather──► an object in the job's storage, and a committable that names it
    a group of both   ──expanded──► the committables again, in their order, an object at a time

A sink never gets a committable that replaces others: callers expand committables before they pass them to a sink.
Invariants: the object's name has the number of the gathering, which is never used twice in an epoch; an object is
deleted after the staged files that the committables in it name, so that a deletion can be repeated.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.sinks.base import Owner
from holdfast.sinks.staging import StagedCommittables, StagedRows, check, decode_owned, encode
from holdfast.storage import checksum, names
from holdfast.storage.lost import lost
from holdfast.storage.reading import decode
from holdfast.storage.store import ObjectStore

_NAME = re.compile(rf"[^/]+/gathered-(\d{{{names.DIGITS}}})", re.ASCII)
_decoder = msgspec.msgpack.Decoder(list[bytes])


def gathered_name(folder: str, sink: str, gathering: int) -> str:
    """Name of the object, below the staging folder of a run."""
    return f"{folder}/{names.escape(sink)}/gathered-{gathering:0{names.DIGITS}d}"


def gathering_of(name: names.StagedName) -> int | None:
    """Number of the gathering in a name made by `gathered_name`; None for other names."""
    match = _NAME.fullmatch(name.rest)
    return None if match is None else int(match[1])


def gather(committables: Sequence[bytes], name: str, store: ObjectStore) -> bytes:
    """Store committables as the object `name`; return the committable that replaces them."""
    data = msgspec.msgpack.encode(committables)
    store.put(name, data)
    return encode(StagedCommittables(len(committables), len(data), checksum.crc32(data), name))


def gathered_names(committables: Iterable[bytes], owner: Owner) -> list[str]:
    """Return the names of the objects that these committables refer to, if they are gathered."""
    found = (decode_owned(each, owner) for each in committables)
    return [each.name for each in found if isinstance(each, StagedCommittables)]


@dataclass(frozen=True)
class Expanded(Iterable[bytes]):
    """Committables of a sink, with gathered objects replaced by their contents. Each iteration reads the objects anew.

    Iterating raises `ObjectNotFound` if an object is gone, `CorruptObject` if it was altered.
    """

    committables: Sequence[bytes]
    store: ObjectStore
    owner: Owner

    def __iter__(self) -> Iterator[bytes]:
        for each in self.committables:
            found = decode_owned(each, self.owner)
            if isinstance(found, StagedCommittables):
                yield from _read(found, self.store)
            else:
                yield each


def _read(gathered: StagedCommittables, store: ObjectStore) -> list[bytes]:
    try:
        data = store.get(gathered.name)
    except ObjectNotFound as error:
        raise lost("output that a sink has yet to publish is gone", error) from error
    check(data, gathered.size_bytes, gathered.crc32, f"{store.url}: {gathered.name}")
    found = decode(gathered.name, data, _decoder, "holds no committables that can be read")
    if len(found) != gathered.count:
        raise CorruptObject(f"{gathered.name}: {len(found)} committables found, {gathered.count} were stored")
    return found


class Named:
    """Names in committables, without the rows inside them: they take little memory, however many there are."""

    def __init__(self, store: ObjectStore, job: str | None) -> None:
        self.stored: set[str] = set()
        """Names of objects in the job's storage."""
        self.at_targets: dict[str, list[bytes]] = {}
        """Committables that name files at the sink's own target, by sink."""
        self._store = store
        self._job = job

    def add(self, sink: str, committables: Sequence[bytes]) -> list[str]:
        """Note the names in committables; return those of objects in the job's storage. Raises like `Expanded`."""
        owner = Owner(sink, self._job)
        found = gathered_names(committables, owner)
        self.stored.update(found)
        for each in Expanded(committables, self._store, owner):
            one = decode_owned(each, owner)
            if not isinstance(one, StagedRows):
                self.at_targets.setdefault(sink, []).append(each)
            elif one.name is not None:
                found.append(one.name)
                self.stored.add(one.name)
        return found
