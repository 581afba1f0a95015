"""`holdfast verify`: whatever is damaged, missing or in the wrong place is named; whole objects are not; nothing is
written."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cleanup.observation import observe
from holdfast.errors import CorruptObject
from holdfast.formats.manifests import decode_manifest
from holdfast.journal.fence import exists, journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.maintenance.verify import verify
from holdfast.references import object_of
from holdfast.storage import names
from holdfast.storage.reading import read
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing import SlowStore, start
from maintenance_kit import as_json, holdfast, job_of_every_kind, run_every_kind, stored, write_files

AREAS = {"job", "journal", "gathered", "dstl", "shared", "sources", "staging"}
"""The kinds of objects that a storage may have."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified")
    run_every_kind(folder, until=lambda storage: {area(name) for name in read_whole(storage)} == AREAS)
    return folder / "storage"


@pytest.fixture
def storage(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "storage"))


def needed(storage: Path) -> list[str]:
    """All objects that the newest checkpoint needs, its record and the job included."""
    store = open_store(storage.as_uri())
    observed = observe(store)
    assert observed is not None and observed.taken.base_number is not None
    return sorted({*observed.needed, "job", f"journal/{observed.taken.base_number:012d}"})


def read_whole(storage: Path) -> list[str]:
    """Names of objects whose bytes are read where they are going to be damaged: an object of the changelog, or a
    gathered object, may hold parts that nobody names any more.
    """
    named: dict[str, list[range]] = {}

    def name_range(name: str, offset: int, length: int) -> None:
        named.setdefault(name, []).append(range(offset, offset + length))

    store = open_store(storage.as_uri())
    observed = observe(store)
    assert observed is not None and observed.taken.base is not None
    base = observed.taken.base
    for reference in [*base.manifests, *(group.object for groups in base.groups.values() for group in groups)]:
        part = names.part(reference)
        assert part is not None
        name_range(part.object, part.offset, part.length)
        if isinstance(part.stands_for, names.ManifestName):
            for handle in decode_manifest(reference, read(store, reference)).tables:
                for piece in handle.log:
                    name_range(piece.object, piece.offset, piece.length)

    def is_read(name: str) -> bool:
        size = (storage / name).stat().st_size
        return all(any(at in each for each in named[name]) for at in (_damaged(size), size - 1))

    return [name for name in needed(storage) if name not in named or is_read(name)]


def area(name: str) -> str:
    """Return the kind of an object."""
    return name.partition("/")[0]


def test_a_whole_storage_is_well_and_is_left_as_it_is(storage: Path) -> None:
    before = stored(storage)
    result = holdfast("verify", storage, "--json")
    assert result.exit_code == 0, result.stdout
    report = as_json(result)
    assert report["ok"] and report["problems"] == [] and report["job"] == "every-kind"
    assert all(count["objects"] > 0 for count in report["read"].values()), report["read"]
    assert sum(count["objects"] for count in report["read"].values()) >= len(needed(storage))
    assert stored(storage) == before


@pytest.mark.parametrize("changelog", [True, False], ids=["changelog", "no changelog"])
@pytest.mark.parametrize("state", [hf.HashMapState(), hf.RocksDBState()], ids=["memory", "rocksdb"])
def test_what_every_backend_stores_is_read(
    state: hf.HashMapState | hf.RocksDBState, changelog: bool, tmp_path: Path
) -> None:
    # With the default bounds no table is materialized here, so that logs are left to read.
    config = hf.CheckpointConfig(trigger=hf.manual(), changelog=hf.ChangelogConfig(enabled=changelog))
    wanted = "gathered" if changelog else "shared"
    run_every_kind(
        tmp_path, 3, lambda storage: wanted in {area(name) for name in needed(storage)}, state=state, checkpoint=config
    )
    report = verify(open_store((tmp_path / "storage").as_uri()))
    assert report.ok, report.problems
    kind = "changelog objects" if changelog else "materialized objects"
    assert report.read[kind].objects > 0


def test_what_people_read_is_a_table_and_a_verdict(storage: Path) -> None:
    result = holdfast("verify", storage.as_uri())
    assert result.exit_code == 0
    assert "materialized objects" in result.stdout and "changelog objects" in result.stdout
    assert result.stdout.rstrip().endswith("all is well")


def _damaged(size: int) -> int:
    return size * 2 // 3


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[_damaged(len(data))] ^= 0x10
    path.write_bytes(data)


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES: dict[str, Callable[[Path], None]] = {"missing": Path.unlink, "flipped": _flip, "cut short": _cut_short}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_kind_of_object_that_is_damaged_is_named_and_nothing_else_is(storage: Path, damage: str) -> None:
    kinds = {area(name): name for name in read_whole(storage)}
    assert set(kinds) == AREAS
    for kind, name in kinds.items():
        if kind == "journal" and damage == "missing":
            continue  # a record that is not there is no record
        whole = (storage / name).read_bytes()
        DAMAGES[damage](storage / name)
        result = holdfast("verify", storage, "--json")
        assert result.exit_code == 1, f"{name}, {damage}, was not noticed"
        problems = as_json(result)["problems"]
        assert {each["object"] for each in problems} == {name}
        assert all(each["found"] and each["expected"] for each in problems)
        (storage / name).write_bytes(whole)
    assert holdfast("verify", storage).exit_code == 0


def test_every_object_that_a_restart_reads_is_read(storage: Path) -> None:
    missed = []
    for name in read_whole(storage):
        whole = (storage / name).read_bytes()
        _flip(storage / name)
        if verify(open_store(storage.as_uri())).ok:
            missed.append(name)
        (storage / name).write_bytes(whole)
    assert not missed


def test_what_no_checkpoint_refers_to_is_of_no_concern(storage: Path) -> None:
    (storage / "dstl/000000000001/000000000001").mkdir(parents=True, exist_ok=True)
    (storage / "dstl/000000000001/000000000001/nobody-s").write_bytes(b"scratched")
    assert holdfast("verify", storage).exit_code == 0


def test_objects_of_the_same_size_that_changed_places_are_noticed(storage: Path) -> None:
    observed = observe(open_store(storage.as_uri()))
    assert observed is not None and observed.taken.base is not None
    one, other = map(object_of, observed.taken.base.manifests)
    first, second = (storage / one).read_bytes(), (storage / other).read_bytes()
    (storage / one).write_bytes(second)
    (storage / other).write_bytes(first)
    found = as_json(holdfast("verify", storage, "--json"))["problems"]
    assert {one, other} <= {each["object"] for each in found}


def test_the_message_names_object_found_and_expected(storage: Path) -> None:
    observed = observe(open_store(storage.as_uri()))
    assert observed is not None and observed.taken.base is not None
    name = object_of(observed.taken.base.manifests[0])
    (storage / name).unlink()
    result = holdfast("verify", storage)
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert f"{name} found no such object expected" in text and "a TaskManager's part of" in text
    assert text.endswith("1 thing is wrong")


def test_a_takeover_that_is_gone_is_noticed(storage: Path) -> None:
    (storage / "journal/000000000001").unlink()
    problems = as_json(holdfast("verify", storage, "--json"))["problems"]
    assert [each["object"] for each in problems] == ["journal/000000000001"]


class Overtaken(SlowStore):
    """A store whose job completes checkpoints at the first read of a manifest, until that manifest has gone."""

    def __init__(self, inner: ObjectStore, overtake: Callable[[str], None]) -> None:
        super().__init__(inner, 0.0, lambda seconds: None)
        self._overtake: Callable[[str], None] | None = overtake

    def get(self, name: str) -> bytes:
        self._read(name)
        return super().get(name)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        self._read(name)
        return super().get_range(name, offset, length)

    def _read(self, name: str) -> None:
        if name.startswith(names.CHANGELOG) and self._overtake is not None:
            overtake, self._overtake = self._overtake, None
            overtake(name)


def test_a_running_job_that_subsumes_what_is_being_verified_has_lost_nothing(tmp_path: Path) -> None:
    write_files(tmp_path / "in", 1)
    changelog = hf.ChangelogConfig(log_handles_max=1, gathered_size_max=0)
    config = hf.CheckpointConfig(trigger=hf.manual(), changelog=changelog)
    job = job_of_every_kind(tmp_path, checkpoint=config)
    query = start(job, hf.processing_time())
    try:
        query.awaitTermination(0.05)
        while query.lastProgress is None:
            query.awaitTermination(0.005)
        query.trigger_checkpoint(60)
        store = open_store((tmp_path / "storage").as_uri())
        first = newest(store)

        def overtake(read: str) -> None:
            for seed in range(3):
                write_files(tmp_path / "in", 1, seed)
                rows = (query.totals.rows // 200 + 1) * 200
                while query.totals.rows < rows:
                    query.awaitTermination(0.005)
                query.trigger_checkpoint(60)
            while first in journal_numbers(store) or exists(store, read):
                query.awaitTermination(0.005)

        report = verify(Overtaken(store, overtake))
        assert report.ok, report.problems
        assert first not in [each.number for each in report.checkpoints]
    finally:
        query.stop()


def newest(store: ObjectStore) -> int:
    return max(number for number in journal_numbers(store) if isinstance(read_record(store, number), CheckpointRecord))


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    result = holdfast("verify", tmp_path / "nowhere")
    assert result.exit_code == 1 and "no such folder" in result.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_of_something_else_is_no_storage(tmp_path: Path) -> None:
    (tmp_path / "picture.jpg").write_bytes(b"x")
    result = holdfast("verify", tmp_path)
    assert result.exit_code == 1 and "this is not the storage of a job" in result.stderr


def test_an_option_without_a_value_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    assert holdfast("verify", tmp_path, "-o", "aws_region").exit_code == 2


@pytest.mark.parametrize("as_environment", [False, True])
def test_options_of_the_storage_come_from_flags_or_the_environment(as_environment: bool) -> None:
    """A store that refuses the connection says which endpoint it was asked at."""
    options = ["aws_endpoint=http://127.0.0.1:1", "allow_http=true", "aws_region=x", "aws_access_key_id=an-id"]
    options.append("aws_secret_access_key=not-to-be-shown")
    if as_environment:
        result = holdfast("verify", "s3://bucket/job", env={"HOLDFAST_STORAGE_OPTIONS": " ".join(options)})
    else:
        result = holdfast("verify", "s3://bucket/job", *[word for each in options for word in ("-o", each)])
    assert result.exit_code == 1 and result.stdout == ""
    assert "127.0.0.1:1" in result.stderr and "the connection was refused" in result.stderr
    assert "not-to-be-shown" not in result.stderr


def test_a_lost_newest_record_is_wrong_for_verify_gc_and_a_start_and_nothing_is_written(tmp_path: Path) -> None:
    run_every_kind(tmp_path)
    storage = tmp_path / "storage"
    store = open_store(storage.as_uri())
    newest = max(journal_numbers(store))
    record = storage / f"journal/{newest:012d}"
    earlier = [each for each in journal_numbers(store) if isinstance(read_record(store, each), CheckpointRecord)]
    store.delete([names.journal(each) for each in earlier if each != newest])  # where the end came before they expired
    record.rename(tmp_path / "lost")
    before = stored(storage)
    result = holdfast("verify", storage, "--json")
    [problem] = [each for each in as_json(result)["problems"] if "is missing" in each["found"]]
    assert result.exit_code == 1 and "Restore the object from a backup" in problem["found"]
    result = holdfast("gc", storage)
    assert result.exit_code == 1 and "the newest checkpoint record was lost" in result.stderr
    with pytest.raises(CorruptObject, match=r"journal/\d+, or a later record, is missing.*still holds the state"):
        start(job_of_every_kind(tmp_path), hf.processing_time())
    assert stored(storage) == before
    (tmp_path / "lost").rename(record)
    assert verify(store).ok
