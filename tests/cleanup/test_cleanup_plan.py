"""Clean-up after a takeover: older epochs only, planned before anything is deleted, unknown names left alone."""

from collections.abc import Sequence

import pytest

from holdfast.cleanup.plan import (
    CleanupPlan,
    StorageSurvey,
    carry_out,
    needed_objects,
    plan_cleanup,
    survey,
)
from holdfast.errors import CorruptObject, StorageError
from holdfast.journal.codec import encode_committables
from holdfast.journal.fence import TakenOver
from holdfast.journal.records import GroupRef
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo, ObjectStore
from holdfast.testing.stores import Fault
from journal_kit import Steered, advance, checkpoint, fresh_store, numbers, start

JOB_ID = "0123456789abcdef" * 2


def manifest_objects(name: str, data: bytes) -> list[str]:
    """Read the manifest of these tests: a list of names, a line each."""
    if data == b"damaged":
        raise CorruptObject(f"{name}: damaged")
    return data.decode().split()


def staged_files(sink: str, committables: Sequence[bytes]) -> list[str]:
    return [committable.decode() for committable in committables]


def staged(epoch: int, file: str) -> str:
    return f"{names.staging_folder(JOB_ID, epoch, 1)}/sink/{file}"


class Abandoned:
    """The storage of a job whose first JobMaster left two checkpoints behind, and much that neither names."""

    def __init__(self) -> None:
        self.store: ObjectStore = fresh_store()
        _, journal = start(self.store)
        journal.append(checkpoint(1, 1))
        log, part, chunk = names.changelog_object(1, 1), names.shared_object(1, 2), names.source_chunk(1)
        manifest, group = names.manifest(1, 2, 0), names.committables(1, 2, "delta")
        self.needed = {log, part, chunk, manifest, group, staged(1, "recorded")}
        self.garbage = {
            names.changelog_object(1, 1),
            names.shared_object(1, 1),
            names.source_chunk(1),
            names.probe(1),
            names.manifest(1, 1, 0),
            names.committables(1, 1, "delta"),
            staged(1, "unrecorded"),
        }
        self.unknown = {"dstl/000000000001/mine.txt", "staging/notes", "manifests/000000000001/000000000001/tm-0"}
        self.foreign = {"savepoints/000000000001/x", "pictures/1.jpg", "job"}
        for name in self.needed | self.garbage | self.unknown | self.foreign:
            self.store.put(name, b"")
        self.store.put(manifest, f"{log}\n{part}".encode())
        self.store.put(group, encode_committables("delta", [staged(1, "recorded").encode()]))
        journal.append(
            checkpoint(
                1, 2, manifests=[manifest], source_objects={"s": [chunk]}, groups={"delta": [GroupRef(3, group)]}
            )
        )
        self.taken, self.journal = start(self.store)
        self.own = {names.changelog_object(4, 1), staged(4, "in flight")}
        for name in self.own:
            self.store.put(name, b"")

    def plan(self) -> CleanupPlan:
        needed = needed_objects(self.store, self.taken.base, manifest_objects, staged_files)
        return plan_cleanup(survey(self.store, self.taken, needed))

    def left(self) -> set[str]:
        return {info.name for info in self.store.list("")}


def test_what_the_base_needs_stays_and_the_rest_of_older_epochs_goes() -> None:
    job = Abandoned()
    plan = job.plan()
    assert {info.name for info in plan.deleted} == job.garbage
    assert plan.expired == [2]
    assert set(plan.unknown) == job.unknown
    assert plan.kept == len(job.needed)
    journal = {names.begun(), *(names.journal(number) for number in (1, 3, 4))}
    assert carry_out(job.store, plan) == len(job.garbage) + 1
    assert job.left() == job.needed | job.own | job.unknown | job.foreign | journal
    assert job.plan() == CleanupPlan(kept=len(job.needed), unknown=plan.unknown)


def test_a_plan_alone_deletes_nothing_and_can_be_read() -> None:
    job = Abandoned()
    before = job.left()
    lines = job.plan().lines()
    assert job.left() == before
    assert lines[0] == "delete journal/000000000002"
    assert "leave  staging/notes (unknown name)" in lines
    assert lines[-1].startswith("1 records and 7 objects (0 bytes) to delete, 6 objects of older epochs to keep, 3 of")


def test_nothing_is_deleted_of_the_living_epoch_or_a_later_one() -> None:
    listing = [ObjectInfo(names.changelog_object(epoch, 1), 1, 0.0) for epoch in (3, 4, 5, 6)]
    plan = plan_cleanup(StorageSurvey(4, frozenset(), {}, listing))
    assert [info.name for info in plan.deleted] == [listing[0].name]


def test_the_oldest_epoch_goes_first_and_within_it_the_oldest_object() -> None:
    listing = [
        ObjectInfo(names.shared_object(2, 1), 1, 10.0),
        ObjectInfo(names.changelog_object(2, 1), 1, 20.0),
        ObjectInfo(names.source_chunk(1), 1, 30.0),
    ]
    plan = plan_cleanup(StorageSurvey(4, frozenset(), {}, listing))
    assert [info.modified_s for info in plan.deleted] == [30.0, 10.0, 20.0]


def test_without_a_base_everything_older_goes_but_takeovers() -> None:
    store = fresh_store()
    start(store)
    store.put(names.changelog_object(1, 1), b"")
    taken, _ = start(store)
    carry_out(store, plan_cleanup(survey(store, taken, needed_objects(store, None, manifest_objects, staged_files))))
    assert numbers(store) == [1, 2]
    assert store.list(names.CHANGELOG) == []


def test_records_go_before_the_objects_they_name() -> None:
    job = Abandoned()
    plan = job.plan()
    steered = Steered(job.store, {("delete", 1): Fault.FAIL})
    with pytest.raises(StorageError):
        carry_out(steered.store, plan)
    deleted: list[str] = []
    steered = Steered(job.store, {})
    steered.store.delete = lambda wanted: deleted.extend(wanted)  # type: ignore[method-assign]
    carry_out(steered.store, plan)
    assert deleted[0] == names.journal(2)


@pytest.mark.parametrize("broken", ["manifest", "group"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_if_the_base_cannot_be_read_in_full_nothing_is_planned(broken: str, how: str) -> None:
    job = Abandoned()
    name = names.manifest(1, 2, 0) if broken == "manifest" else names.committables(1, 2, "delta")
    if how == "missing":
        job.store.delete([name])
    else:
        job.store.put(name, b"damaged")
    with pytest.raises((CorruptObject, StorageError), match=name):
        job.plan()


def test_an_old_record_that_cannot_be_read_is_left_alone_and_reported() -> None:
    job = Abandoned()
    job.store.put(names.journal(2), b"scratched")
    plan = job.plan()
    assert plan.expired == []
    assert names.journal(2) in plan.unknown


def test_records_that_expire_while_they_are_read_are_passed_over() -> None:
    inner = fresh_store()
    _, running = start(inner)
    running.append(checkpoint(1))
    newest = advance(running, 1, 2, keep=2)
    taken, _ = start(inner)
    steered = Steered(inner, {("get", 1): lambda: inner.delete([names.journal(2)])})
    seen = survey(steered.store, TakenOver(taken.epoch, newest, taken.base), [])
    assert sorted(seen.older_records) == [1, 3]


def test_cleaning_up_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cleanup.plan.DELETE_BATCH", 3)
    job = Abandoned()
    told: list[tuple[int, int]] = []
    assert carry_out(job.store, job.plan(), progress=lambda done, total: told.append((done, total))) == 8
    assert told == [(0, 8), (3, 8), (6, 8)]


@pytest.mark.parametrize(("failing", "left"), [([2], 3), ([3], 2), ([2, 3], 5), ([1], 8)])
def test_a_deletion_that_fails_keeps_only_the_objects_of_its_records(
    monkeypatch: pytest.MonkeyPatch, failing: list[int], left: int
) -> None:
    """A plan of a record and seven objects, three at a time: the second and third requests delete objects alone."""
    monkeypatch.setattr("holdfast.cleanup.plan.DELETE_BATCH", 3)
    job = Abandoned()
    before = len(job.store.list(""))
    steered = Steered(job.store, {("delete", number): Fault.FAIL for number in failing})
    with pytest.raises(StorageError):
        carry_out(steered.store, job.plan())
    assert len(job.store.list("")) == before - 8 + left


def test_a_store_that_does_not_answer_is_left_to_the_next_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cleanup.plan.DELETE_BATCH", 1)
    job = Abandoned()
    steered = Steered(job.store, {("delete", number): Fault.FAIL for number in (2, 4, 5, 6)})
    before = len(job.store.list(""))
    with pytest.raises(StorageError):
        carry_out(steered.store, job.plan())
    assert len(job.store.list("")) == before - 2, "the record and one object, before three failures in a row"


def test_cleaning_up_stops_when_told() -> None:
    job = Abandoned()
    before = job.left()
    assert carry_out(job.store, job.plan(), stopped=lambda: True) == 0
    assert job.left() == before


def test_what_the_base_needs_survives_being_cleaned_up_by_a_jobmaster_that_was_fenced_meanwhile() -> None:
    job = Abandoned()
    plan = job.plan()
    newer, _ = start(job.store)
    carry_out(job.store, plan)
    assert newer.base == job.taken.base
    assert needed_objects(job.store, newer.base, manifest_objects, staged_files) == job.needed
    assert job.needed <= job.left()
