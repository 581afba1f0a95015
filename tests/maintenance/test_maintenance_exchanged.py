"""Objects under each other's name: every reader notices, whatever is exchanged."""

import itertools
from pathlib import Path

import pytest

import holdfast as hf
import maintenance_kit as kit
from holdfast.cleanup.observation import observe
from holdfast.errors import CorruptObject, HoldfastError
from holdfast.journal.codec import decode_record
from holdfast.journal.records import CheckpointRecord
from holdfast.maintenance.verify import verify
from holdfast.references import object_of
from holdfast.storage import names
from holdfast.storage.store import open_store
from holdfast.testing import run

CHANGELOG = hf.ChangelogConfig(log_handles_max=2, gathered_size_max=0)
SETTINGS = hf.CheckpointConfig(trigger=hf.manual(), retained=3, changelog=CHANGELOG)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every-kind")
    kit.run_every_kind(folder, checkpoint=SETTINGS)
    return folder


def referred(storage: Path) -> list[str]:
    """The objects that the retained checkpoints refer to: those that `verify` misses."""
    store, found = open_store(storage.as_uri()), []
    for path in sorted(path for path in storage.rglob("*") if path.is_file()):
        kept = path.read_bytes()
        path.unlink()
        if not verify(store).ok:
            found.append(str(path.relative_to(storage)))
        path.write_bytes(kept)
    return found


def exchange(storage: Path, one: str, other: str) -> None:
    first, second = (storage / one).read_bytes(), (storage / other).read_bytes()
    (storage / one).write_bytes(second)
    (storage / other).write_bytes(first)


def test_objects_that_are_exchanged_are_reported_whatever_they_hold(storage: Path) -> None:
    objects, store = referred(storage / "storage"), open_store((storage / "storage").as_uri())
    kinds: dict[str, list[str]] = {}
    for name in objects:
        kinds.setdefault(name.split("/")[0], []).append(name)
    kinds["journal"] = [f"journal/{path.name}" for path in sorted((storage / "storage" / "journal").glob("0*"))]
    for each in kinds.values():
        for one, other in itertools.islice(itertools.combinations(each, 2), 3):
            exchange(storage / "storage", one, other)
            assert not verify(store).ok, f"{one} and {other} were exchanged"
            exchange(storage / "storage", one, other)
    assert verify(store).ok
    pairs = {kind for kind, each in kinds.items() if len(each) > 1}
    assert pairs >= {"gathered", "dstl", "shared"}


def test_output_that_waits_under_another_number_ends_the_start(storage: Path) -> None:
    observed = observe(open_store((storage / "storage").as_uri()))
    assert observed is not None and observed.taken.base is not None
    one, other = (object_of(group.object) for group in observed.taken.base.groups["later"][:2])
    exchange(storage / "storage", one, other)
    with pytest.raises(HoldfastError, match=f"({one}|{other})@.*: the two were exchanged"):
        run(kit.job_of_every_kind(storage))
    exchange(storage / "storage", one, other)


def test_a_record_of_another_job_is_refused(storage: Path, tmp_path: Path) -> None:
    kit.run_every_kind(tmp_path, 1)
    own, foreign = storage / "storage" / "job", tmp_path / "storage" / "job"
    kept = own.read_bytes()
    own.write_bytes(foreign.read_bytes())
    with pytest.raises(HoldfastError, match="belongs to the storage of another job"):
        run(kit.job_of_every_kind(storage))
    own.write_bytes(kept)


def test_each_record_says_its_number_and_its_job(storage: Path) -> None:
    stored = [path for path in (storage / "storage" / "journal").iterdir() if path.name != "begun"]
    for path in stored:
        record = decode_record("x", path.read_bytes())
        assert record.job is not None
        if isinstance(record, CheckpointRecord):
            assert record.number == int(path.name)
        with pytest.raises(CorruptObject, match="the two were exchanged"):
            decode_record(names.journal(999), path.read_bytes())
