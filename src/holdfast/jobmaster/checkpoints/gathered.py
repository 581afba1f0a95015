"""Objects of a checkpoint besides its record: parts that came with acknowledgements, and committables, joined in few
objects.

    parts of TaskManagers ─┐
    small committables ────┴─► one gathered object ─┐
    large committables ──────► an object each ──────┴─► side by side, each hedged and retried ──► references

    object := header of a changelog object, [logs, manifest] of each TaskManager, [committables] of each sink

Drawn in docs/reference/format/manifest.md. Invariants: every attempt to store an object uses a new name, so that a
superfluous attempt is deleted under its own name. If one of the objects cannot be stored, `Unstored` names the others,
which the registry deletes. Only the thread of records calls this module.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeVar

from holdfast.errors import StorageError, described
from holdfast.formats.log_objects import OBJECT_HEADER
from holdfast.ids import CheckpointId, Epoch
from holdfast.storage import names
from holdfast.uploads.hedged_store import COMMITTABLES, GATHERED, LOOKS, DriverUploads

ALONE_BYTES_MIN = 1024 * 1024
"""Bytes of a sink's committables from which on they get an object of their own. A higher value makes fewer requests,
but an object that holds logs too stays in the store for longer than the committables are needed."""


T = TypeVar("T")


class CarriedPart(NamedTuple):
    """The part of a checkpoint that came with a TaskManager's acknowledgement: logs, and the manifest behind them."""

    data: bytes
    manifest_start: int


class StoredObjects(NamedTuple):
    """References to manifests, by TaskManager, and to committables, by sink."""

    manifests: Mapping[int, str]
    committables: Mapping[str, str]


class Unstored(Exception):
    """Some object of a checkpoint could not be stored; `stored` names the objects that were stored."""

    def __init__(self, error: StorageError, stored: frozenset[str]) -> None:
        super().__init__(described(error))
        self.stored = stored


class _Object:
    """An object while it is put together. References are made once it has a name."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self._data = bytearray(OBJECT_HEADER)
        self._manifests: dict[int, tuple[int, int]] = {}
        self._committables: dict[str, tuple[int, int]] = {}

    def add_part(self, task_manager: int, part: CarriedPart) -> None:
        start = len(self._data) + part.manifest_start
        self._manifests[task_manager] = start, len(part.data) - part.manifest_start
        self._data += part.data

    def add_committables(self, sink: str, data: bytes) -> None:
        self._committables[sink] = len(self._data), len(data)
        self._data += data

    @property
    def is_empty(self) -> bool:
        return not self._manifests and not self._committables

    def take_data(self) -> bytes:
        """Take the bytes out, once."""
        data, self._data = bytes(self._data), bytearray()
        return data

    def manifests(self, name: str) -> dict[int, str]:
        return {each: names.manifest_part(name, *place, each) for each, place in self._manifests.items()}

    def committables(self, name: str) -> dict[str, str]:
        return {sink: names.committables_part(name, *place, sink) for sink, place in self._committables.items()}


class StoredAhead(NamedTuple):
    """A checkpoint's objects that are being stored, each with the future of its name, and the contents."""

    checkpoint_id: CheckpointId
    parts: Mapping[int, CarriedPart]
    committables: Mapping[str, bytes]
    objects: Sequence[tuple[_Object, Future[str]]]

    def holds(
        self, checkpoint_id: CheckpointId, parts: Mapping[int, CarriedPart], committables: Mapping[str, bytes]
    ) -> bool:
        """Return whether these objects have exactly these contents."""
        return (self.checkpoint_id, self.parts, self.committables) == (checkpoint_id, parts, committables)


class GatheredObjects:
    """Stores the objects of checkpoints."""

    def __init__(self, uploads: DriverUploads, epoch: Epoch) -> None:
        self._store = uploads.single
        self._epoch = epoch
        self._scheduler = uploads.scheduler
        self._puts = uploads.puts

    def begin(
        self, checkpoint_id: CheckpointId, parts: Mapping[int, CarriedPart], committables: Mapping[str, bytes]
    ) -> StoredAhead:
        """Begin to store everything side by side; `end` waits for it."""
        objects = [(each, self._put(checkpoint_id, each)) for each in _divide(parts, committables)]
        return StoredAhead(checkpoint_id, parts, committables, objects)

    def end(self, begun: StoredAhead) -> StoredObjects:
        """Wait for all objects, and return the references to their parts. Raises `Unstored`."""
        found, errors = dict[str, _Object](), list[StorageError]()
        for made, future in begun.objects:
            try:
                found[self._scheduler.result(future)] = made
            except StorageError as error:
                errors.append(error)
        self._puts.take_repeats(found)  # no other caller takes these repeated attempts
        if errors:
            raise Unstored(errors[0], frozenset(found))
        manifests = {each: ref for name, made in found.items() for each, ref in made.manifests(name).items()}
        return StoredObjects(
            manifests, {sink: ref for name, made in found.items() for sink, ref in made.committables(name).items()}
        )

    def beside(self, look: Callable[[], T]) -> Callable[[], T]:
        """Begin a call that reads the store, to run beside `store`; the returned function waits for its result."""
        future = self._scheduler.submit(LOOKS, look)
        return lambda: self._scheduler.result(future)

    def _put(self, checkpoint_id: CheckpointId, made: _Object) -> Future[str]:
        data = made.take_data()
        new_name = partial(names.gathered_object, self._epoch, checkpoint_id)
        return self._puts.put(partial(self._store.put, data=data), new_name, len(data), made.lane, made.lane)


def _divide(parts: Mapping[int, CarriedPart], committables: Mapping[str, bytes]) -> Sequence[_Object]:
    """Divide parts and committables among objects; empty objects are left out."""
    together, alone = _Object(GATHERED), list[_Object]()
    for task_manager, part in sorted(parts.items()):
        together.add_part(task_manager, part)
    for sink, data in committables.items():
        if len(data) < ALONE_BYTES_MIN:
            together.add_committables(sink, data)
        else:
            alone.append(_Object(COMMITTABLES))
            alone[-1].add_committables(sink, data)
    return [each for each in (together, *alone) if not each.is_empty]
