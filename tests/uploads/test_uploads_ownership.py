"""Uploaded objects are deleted by their owner alone, and failed deletions are repeated."""

from collections.abc import Sequence
from unittest.mock import Mock

from obstore.store import MemoryStore

from holdfast.errors import JobRefused, StorageError
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.routing import PartlyDeleted
from holdfast.testing.stores import Fault, FaultyStore
from holdfast.uploads.janitor import DeletionQueue
from holdfast.uploads.ownership import Ownership
from holdfast.uploads.uploader import Uploader


def test_an_object_that_no_acknowledgement_named_is_deleted_when_its_last_user_lets_go():
    deleted: list[Sequence[str]] = []
    ownership = Ownership(deleted.append)
    ownership.hold("o", users=2)
    ownership.release(["o"])
    assert deleted == []
    ownership.release(["o"])
    assert deleted == [["o"]]
    ownership.release(["o"])
    assert deleted == [["o"]]


def test_an_acknowledged_object_is_never_deleted_whoever_shares_it():
    deleted: list[Sequence[str]] = []
    ownership = Ownership(deleted.append)
    ownership.hold("o", users=2)
    ownership.release(["o"])
    ownership.acknowledge(["o", "of another incarnation"])
    ownership.release(["o", "of another incarnation"])
    assert deleted == []
    assert ownership.in_use() == set()


def test_nothing_is_deleted_once_the_job_master_is_gone():
    deleted: list[Sequence[str]] = []
    ownership = Ownership(deleted.append)
    ownership.hold("o")
    ownership.abandon()
    ownership.release(["o"])
    assert deleted == []


def test_a_delete_that_failed_stays_queued_until_it_succeeds():
    inner = ObstoreStore("memory://", MemoryStore())
    inner.put("o", b"x")
    faults = [Fault.FAIL, None]
    janitor = DeletionQueue(FaultyStore(inner, lambda operation, name: faults.pop(0)))
    janitor.discard(["o"])
    janitor.sweep()
    assert janitor.queued() == 1
    janitor.sweep()
    assert janitor.queued() == 0
    assert inner.list("") == []


def test_only_the_objects_that_storages_did_not_delete_stay_queued():
    errors = [JobRefused("the storage is another job's"), PartlyDeleted(StorageError("away"), frozenset({"b"}))]
    janitor = DeletionQueue(Mock(delete=Mock(side_effect=errors)))
    janitor.discard(["a", "b"])
    for left in (2, 1):
        janitor.sweep()
        assert janitor.queued() == left


def test_a_delete_that_failed_when_a_deployment_ended_is_repeated_by_the_next_one():
    inner = ObstoreStore("memory://", MemoryStore())
    faults = [Fault.FAIL, None]
    janitor = DeletionQueue(FaultyStore(inner, lambda operation, name: faults.pop(0)))
    for left in (1, 0):
        uploader = Uploader(inner, 1, 1, janitor=janitor)
        name = uploader.put_shared(b"part")
        uploader.close()
        uploader.release([name])
        assert len(inner.list("")) == left
