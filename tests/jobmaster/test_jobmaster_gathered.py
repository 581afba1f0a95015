"""Objects of a checkpoint besides its record: one for all that is small, put beside those of large committables."""

import pytest
from obstore.store import MemoryStore

from holdfast.changelog_config import RetryPolicy
from holdfast.errors import StorageError
from holdfast.ids import CheckpointId
from holdfast.jobmaster.checkpoints import gathered as module
from holdfast.jobmaster.checkpoints.gathered import CarriedPart, GatheredObjects, StoredObjects, Unstored
from holdfast.references import object_of
from holdfast.storage import names
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.reading import read
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore
from holdfast.testing.scheduler import ManualScheduler
from holdfast.testing.stores import Fault, FaultyStore
from holdfast.uploads.hedged_store import DriverUploads

Parts = dict[int, CarriedPart]
PARTS = {2: CarriedPart(b"log-2manifest-2", 5), 0: CarriedPart(b"manifest-0", 0)}


def inner() -> ObstoreStore:
    return ObstoreStore("memory://gathered", MemoryStore())


def gathered(store: ObjectStore, scheduler: ManualScheduler | None = None) -> GatheredObjects:
    return GatheredObjects(DriverUploads(store, RetryPolicy.fixed(), scheduler or ManualScheduler()), 1)


def stored_by(objects: GatheredObjects, checkpoint: int, parts: Parts, committables: dict[str, bytes]) -> StoredObjects:
    return objects.end(objects.begin(CheckpointId(checkpoint), parts, committables))


def test_parts_and_committables_lie_in_one_object_and_references_lead_to_them() -> None:
    store = inner()
    stored = stored_by(gathered(store), 3, PARTS, {"a": b"of a", "b=c": b"of b"})
    [info] = store.list("")
    assert isinstance(names.parse(info.name), names.GatheredName)
    found = {**stored.manifests, **stored.committables}
    assert {object_of(each) for each in found.values()} == {info.name}
    assert {of: read(store, each) for of, each in found.items()} == {
        0: b"manifest-0",
        2: b"manifest-2",
        "a": b"of a",
        "b=c": b"of b",
    }
    assert names.meaning(stored.manifests[2]) == names.ManifestName(1, 3, 2)
    assert names.meaning(stored.committables["b=c"]) == names.CommittablesName(1, 3, "b=c")
    place = names.part(stored.manifests[2])
    assert place is not None
    assert store.get_range(info.name, place.offset - 5, 5) == b"log-2", "logs end where their manifest begins"


def test_a_checkpoint_without_parts_and_committables_stores_nothing() -> None:
    store = inner()
    stored = stored_by(gathered(store), 3, {}, {})
    assert not stored.manifests and not stored.committables and not store.list("")


def test_large_committables_get_an_object_of_their_own_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALONE_BYTES_MIN", 10)
    store, scheduler = inner(), ManualScheduler(lambda lane: 1.0)
    objects = gathered(store, scheduler)
    stored = stored_by(objects, 3, PARTS, {"small": b"small", "large": b"0123456789"})
    assert scheduler.monotonic() == 1.0, "side by side"
    assert len(store.list("")) == 2
    assert read(store, stored.committables["large"]) == b"0123456789"
    assert object_of(stored.committables["small"]) == object_of(stored.manifests[0])


def test_a_put_that_fails_is_tried_again_by_this_layer_alone_and_the_error_counts_as_cured() -> None:
    faults, tried = [Fault.FAIL], list[str]()

    def decide(operation: str, name: str) -> Fault | None:
        if operation == "put":
            tried.append(name)
        return faults.pop() if faults and operation == "put" else None

    objects = gathered(RetryingStore(FaultyStore(inner(), decide)))
    stored = stored_by(objects, 3, PARTS, {})
    assert len(set(tried)) == len(tried) == 2, "each attempt has a name of its own"
    assert object_of(stored.manifests[0]) == tried[1]
    assert objects._puts.metrics()["curedUploadErrors"] == 1
    assert objects._puts.metrics()["gatheredUploadErrors"] == 1
    assert not objects._puts._repeats, "nobody would ask for them"


def test_where_one_object_cannot_be_stored_the_others_are_named_for_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALONE_BYTES_MIN", 10)
    sizes: dict[str, int] = {}

    class Refusing(FaultyStore):
        def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
            sizes[name] = len(data)
            if len(data) == 26:  # the header, and the large committables
                raise StorageError("not this one")
            super().put(name, data)

    store = inner()
    objects = gathered(Refusing(store, lambda *_: None))
    with pytest.raises(Unstored, match="not this one") as failure:
        stored_by(objects, 3, PARTS, {"large": b"0123456789"})
    assert failure.value.stored == {info.name for info in store.list("")}
    assert len(failure.value.stored) == 1


def test_objects_stored_ahead_are_taken_only_where_the_same_bytes_are_wanted() -> None:
    objects = gathered(inner())
    begun = objects.begin(CheckpointId(3), PARTS, {"a": b"of a"})
    assert begun.holds(CheckpointId(3), dict(PARTS), {"a": b"of a"})
    for checkpoint, parts, committables in ((4, PARTS, {"a": b"of a"}), (3, {}, {"a": b"of a"}), (3, PARTS, {})):
        assert not begun.holds(CheckpointId(checkpoint), parts, committables)
