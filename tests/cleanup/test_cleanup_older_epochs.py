"""`holdfast gc`: objects of dead epochs go, living objects and needs of the newest checkpoint stay; first as a plan."""

import re
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

import holdfast as hf
from holdfast.cleanup.observation import observe, plan
from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.ids import Epoch
from holdfast.journal.codec import encode_record
from holdfast.journal.fence import take_over
from holdfast.journal.job import open_job
from holdfast.journal.journal import Journal
from holdfast.journal.records import CheckpointRecord, Takeover
from holdfast.storage import names
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing import SlowStore, start
from journal_kit import LaggingStore
from maintenance_kit import as_json, holdfast, job_of_every_kind, run_every_kind, stored


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://{uuid4().hex}")


def record(epoch: int, checkpoint_id: int, manifests: tuple[str, ...] = ()) -> CheckpointRecord:
    return CheckpointRecord(epoch, checkpoint_id, 1, 1, 0, {}, {}, list(manifests), {}, {}, 1, 128)


def left(store: ObjectStore, *epochs: int) -> list[str]:
    """An object of each of these epochs that nobody names."""
    found = [names.source_chunk(Epoch(epoch)) for epoch in epochs]
    for name in found:
        store.put(name, b"x")
    return found


def planned(store: ObjectStore) -> list[str]:
    """The objects that would go."""
    observed = observe(store)
    assert observed is not None
    return [info.name for info in plan(store, observed).deleted]


def test_a_storage_that_a_dead_driver_left_is_cleaned_and_the_job_goes_on(tmp_path: Path) -> None:
    run_every_kind(tmp_path, 3)
    storage = tmp_path / "storage"
    garbage = [storage / names.shared_object(1, 7), storage / names.manifest(1, 999, 0)]
    notes = storage / "dstl" / "notes.txt"
    take_over(open_store(storage.as_uri()))
    for path in (*garbage, notes):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"garbage")
    before = stored(storage)
    planned = as_json(holdfast("gc", storage, "--dry-run", "--json"))
    # Uploads of the ended job that came too late may still go by its own hand.
    assert all(path.exists() for path in (*garbage, notes)) and stored(storage).items() <= before.items()
    assert {str(path.relative_to(storage)) for path in garbage} <= {each["name"] for each in planned["objects"]}
    assert planned["unknown"] == ["dstl/notes.txt"] and planned["deleted"] == 0 and planned["kept"] > 0
    result = holdfast("gc", storage)
    assert result.exit_code == 0 and "leave  dstl/notes.txt (unknown name)" in result.stdout
    assert not any(path.exists() for path in garbage) and notes.exists()
    assert as_json(holdfast("gc", storage, "--json"))["objects"] == []
    assert holdfast("verify", storage).exit_code == 0
    query = start(job_of_every_kind(tmp_path), hf.processing_time())
    assert query.isActive
    query.stop()


def test_nothing_of_a_running_job_is_touched(tmp_path: Path) -> None:
    run_every_kind(tmp_path, 2)
    storage = tmp_path / "storage"
    query = start(job_of_every_kind(tmp_path), hf.processing_time())
    try:
        epoch = max(int(name.rpartition("/")[2]) for name in stored(storage) if name.startswith("journal/0"))
        own = left(open_store(storage.as_uri()), epoch)
        assert holdfast("gc", storage).exit_code == 0
        assert own[0] in stored(storage)
        assert holdfast("verify", storage).exit_code == 0
    finally:
        query.stop()


def test_a_takeover_that_never_counted_makes_no_living_epoch_old(store: ObjectStore) -> None:
    taken = take_over(store)
    journal = Journal(store, taken.epoch)
    numbers = [journal.append(record(1, checkpoint)) for checkpoint in (1, 2, 3)]
    journal.expire(numbers[:2])
    # A JobMaster that was paused between its listing and its put creates a number that was freed meanwhile.
    store.create(names.journal(numbers[1]), encode_record(Takeover(numbers[1], uuid4().hex)))
    living = left(store, 1)
    observed = observe(store)
    assert observed is not None
    assert observed.taken[:2] == (Epoch(1), numbers[2])
    assert plan(store, observed).deleted == [] and living[0] in [info.name for info in store.list("")]


def test_a_record_of_the_living_epoch_is_the_job_masters_to_expire(store: ObjectStore) -> None:
    first = Journal(store, take_over(store).epoch)
    older = first.append(record(1, 1))
    taken = take_over(store)
    journal = Journal(store, taken.epoch, taken.base_number)
    journal.append(record(int(taken.epoch), 1))
    journal.append(record(int(taken.epoch), 2))
    observed = observe(store)
    assert observed is not None
    assert plan(store, observed).expired == [older]


def test_what_a_record_of_the_living_epoch_names_stays_until_the_record_goes(store: ObjectStore) -> None:
    take_over(store)
    named = left(store, 1)
    taken = take_over(store)
    journal = Journal(store, taken.epoch, taken.base_number)
    epoch = int(taken.epoch)
    before = journal.append(msgspec.structs.replace(record(epoch, 1), source_objects={"files": named}))
    journal.append(record(epoch, 2))
    assert planned(store) == []
    journal.expire([before])
    assert planned(store) == named


def test_a_job_master_that_was_fenced_unawares_keeps_what_records_of_its_successor_name(store: ObjectStore) -> None:
    take_over(store)
    named = left(store, 1)
    fenced = take_over(store).epoch
    taken = take_over(store)
    journal = Journal(store, taken.epoch, taken.base_number)
    epoch = int(taken.epoch)
    journal.append(msgspec.structs.replace(record(epoch, 1), source_objects={"files": named}))
    journal.append(record(epoch, 2))
    observed = observe(store, fenced)
    assert observed is not None
    assert plan(store, observed).deleted == []


class Subsuming(SlowStore):
    """When a manifest is read, the job records its next checkpoint, and deletes objects of the record before."""

    def __init__(self, inner: ObjectStore, journal: Journal) -> None:
        super().__init__(inner, 0.0, lambda seconds: None)
        self._journal: Journal | None = journal

    def get(self, name: str) -> bytes:
        if name.startswith(names.MANIFESTS) and self._journal is not None:
            journal, self._journal = self._journal, None
            before = journal.newest
            journal.append(record(1, 2))
            assert before is not None
            journal.expire([before])
            self.delete([name])
        return super().get(name)


def test_a_journal_that_moves_on_while_it_is_read_is_read_again(store: ObjectStore) -> None:
    journal = Journal(store, take_over(store).epoch)
    manifest = names.manifest(1, 1, 0)
    store.put(manifest, b"not read")
    journal.append(record(1, 1, (manifest,)))
    observed = observe(Subsuming(store, journal))
    assert observed is not None and observed.taken.base_number == journal.newest


def test_records_that_a_listing_does_not_show_yet_are_asked_for_by_name(store: ObjectStore) -> None:
    lagging = LaggingStore(store, 1)
    for _ in range(2):
        taken = take_over(lagging, wait=lagging.pass_time)
        journal = Journal(lagging, taken.epoch, taken.base_number, wait=lagging.pass_time)
        newest = journal.append(record(taken.epoch, 1))
    for epoch in (None, taken.epoch):
        observed = observe(lagging, epoch)
        assert observed is not None and observed.taken.base_number == newest


@pytest.mark.parametrize(("data", "error"), [(None, ObjectNotFound), (b"scratched", CorruptObject)])
def test_nothing_is_deleted_where_the_newest_checkpoint_cannot_be_read_whole(
    store: ObjectStore, data: bytes | None, error: type[Exception]
) -> None:
    manifest = names.manifest(1, 1, 0)
    Journal(store, take_over(store).epoch).append(record(1, 1, (manifest,)))
    take_over(store)
    if data is not None:
        store.put(manifest, data)
    with pytest.raises(error, match=manifest):
        observe(store)


def test_the_command_says_why_it_deletes_nothing(tmp_path: Path) -> None:
    storage = open_store(tmp_path.as_uri())
    Journal(storage, take_over(storage).epoch).append(record(1, 1, (names.manifest(1, 1, 0),)))
    garbage = left(storage, 0)
    result = holdfast("gc", tmp_path)
    assert result.exit_code == 1 and names.manifest(1, 1, 0) in result.stderr
    assert (tmp_path / garbage[0]).exists()


@pytest.mark.parametrize("command", ["gc", "verify"])
@pytest.mark.parametrize("files", [(), ("notes.txt", "journal.csv", "delays/job")])
def test_of_a_folder_that_is_no_job_a_command_says_only_that(
    tmp_path: Path, command: str, files: tuple[str, ...]
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("something else")
    result = holdfast(command, tmp_path)
    assert result.exit_code == 1 and result.stdout == ""
    refusal = r"holdfast: \S+: this is not the storage of a job, nor a savepoint: .*\n"
    assert re.fullmatch(refusal, result.stderr), result.stderr


def test_a_job_without_a_journal_has_nothing_to_clean(tmp_path: Path) -> None:
    open_job(open_store(tmp_path.as_uri()), 128)
    result = holdfast("gc", tmp_path)
    assert result.exit_code == 1 and "the job has no journal yet" in result.stderr
