"""Files of a storage on a disk are for its user alone, whatever the umask, unless a setting says otherwise."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import SettingsError
from holdfast.storage.store import open_store
from holdfast.testing import run

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder under a umask that takes nothing away."""
    before = os.umask(0)
    yield tmp_path
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    return [str(path) for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & OTHERS]


def job(folder: Path, **options: str) -> hf.Job:
    made = hf.Job(
        None,
        name="j",
        storage=(folder / "new" / "storage").as_uri(),
        storage_options=dict(options),
        bad_records="dead_letter",
        dead_letters=(folder / "letters").as_uri(),
    )
    (folder / "in").mkdir(exist_ok=True)
    if not (folder / "in" / "a.json").exists():
        (folder / "in" / "a.json").write_text('{"k": 1}\n{"k": "bad"}\n')
    keyed = made.read(hf.FileSource(str(folder / "in" / "*.json"), schema="k BIGINT", name="s")).key_by("k")
    keyed.aggregate(n=hf.count(), name="a").write(hf.ParquetSink((folder / "table").as_uri(), name="o"))
    return made


def test_storage_and_dead_letters_are_private_and_a_table_is_not(folder: Path) -> None:
    run(job(folder))
    assert list((folder / "new" / "storage").rglob("journal/*")) and list((folder / "letters").rglob("*.parquet"))
    assert open_to_others(folder / "new" / "storage") == []
    assert open_to_others(folder / "letters") == []
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in (folder / "table").rglob("*.parquet"))
    run(job(folder))  # what is private is read by its own user


def test_a_setting_leaves_the_rights_to_the_umask(folder: Path) -> None:
    run(job(folder, file_permissions="umask"))
    files = [path for path in (folder / "new").rglob("*") if path.is_file()]
    assert files and all(path.stat().st_mode & 0o044 for path in files)
    with pytest.raises(SettingsError, match=r"file_permissions='all'.*'private'.*'umask'"):
        run(job(folder, file_permissions="all"))


def test_a_folder_that_is_there_keeps_its_rights(folder: Path) -> None:
    own = folder / "own"
    own.mkdir(mode=0o755)
    store = open_store(own.as_uri())
    store.create("journal/begun", b"x")
    store.put("journal/begun", b"y")
    assert stat.S_IMODE(own.stat().st_mode) == 0o755
    assert open_to_others(own) == [str(own)]
