"""Symbolic links below the folder of a file:// store: nothing is listed, deleted or written through them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import holdfast as hf
from holdfast.errors import StorageError
from holdfast.journal.job import read_job
from holdfast.storage import links
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing import TestSource, run
from sampling import some

OUTSIDE = ("precious.txt", "sub/b.txt", "0" * 31 + "a", "000000000001", f"tm-{'0' * 12}", "x.parquet")


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder that belongs to somebody else; it is as it was when the test ends."""
    folder = tmp_path / "outside"
    for name in OUTSIDE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    yield folder
    assert {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()} == {
        name: name for name in OUTSIDE
    }


@pytest.fixture(params=[False, True], ids=["storage", "target"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "store").as_uri(), public=request.param)


@pytest.fixture
def link(tmp_path: Path, store: ObjectStore, outside: Path) -> Callable[[str, str], None]:
    """Make a link in the store's folder to a file or folder outside."""

    def make(name: str, to: str = "") -> None:
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(outside / to)

    return make


def listed(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.name for info in store.list(prefix)]


def test_a_listing_shows_nothing_behind_a_link(store: ObjectStore, link: Callable[..., None]) -> None:
    store.put("a/own", b"1")
    link("a/linked")
    link("whole")
    link("a/file", "precious.txt")
    link("a/cycle", "../store/a")
    link("a/broken", "missing")
    assert listed(store) == listed(store, "a/") == ["a/own"]
    for prefix in ("whole/", "a/linked/", "a/linked/sub/", "a/file/", "a/broken/", "missing/"):
        assert listed(store, prefix) == []


def test_a_deletion_ends_at_a_link(store: ObjectStore, link: Callable[..., None], tmp_path: Path) -> None:
    link("a/linked")
    link("a/file", "precious.txt")
    store.delete(["a/linked/precious.txt", "a/linked/sub/b.txt", "a/linked/missing", "missing/x"])
    store.delete(["a/file"])
    left = [path.name for path in (tmp_path / "store" / "a").iterdir()]
    assert left == ["linked"], "a link itself is an entry of the store's folder"


@pytest.mark.parametrize("name", ["../outside/precious.txt", "a/../../outside/precious.txt", "a/./own", "..", "."])
def test_a_name_that_leads_out_of_the_folder_is_refused(store: ObjectStore, outside: Path, name: str) -> None:
    store.put("a/own", b"1")
    for call in (store.get, lambda name: store.put(name, b"2"), lambda name: store.create(name, b"2")):
        with pytest.raises(StorageError):
            call(name)
    with pytest.raises(StorageError, match="leads out of the folder"):
        store.delete([name])
    with pytest.raises(StorageError, match="leads out of the folder"):
        store.list(f"{name}/")
    assert listed(store) == ["a/own"]


def test_nothing_is_written_through_a_link(store: ObjectStore, link: Callable[..., None]) -> None:
    link("a/linked")
    for write in (store.put, store.create):
        for name in ("a/linked/new", "a/linked/precious.txt", "a/linked/sub/deeper/new"):
            with pytest.raises(StorageError, match=r"linked is a symbolic link: .*follows no links"):
                write(name, b"2")
    link("a/file", "precious.txt")
    store.put("a/file", b"takes the link's place")
    assert store.get("a/file") == b"takes the link's place"


def test_the_folder_of_a_store_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "named").symlink_to(tmp_path / "real")
    store = open_store((tmp_path / "named").as_uri())
    store.put("a/b", b"1")
    assert listed(store) == ["a/b"]
    store.delete(["a/b"])
    assert listed(store) == []
    assert (tmp_path / "real").is_dir()


def test_a_listing_is_of_files_with_their_sizes_after_a_name(store: ObjectStore) -> None:
    for name in ("a/1", "a/2", "a/b/3", "c"):
        store.put(name, name.encode())
    assert [(info.name, info.size) for info in store.list("", after="a/1")] == [("a/2", 3), ("a/b/3", 5), ("c", 1)]
    assert listed(store, "a/b/") == ["a/b/3"]


def test_folders_without_end_are_listed_to_a_bounded_depth(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "DEPTH_MAX", 3)
    store.put("1/2/3/4", b"")
    store.put("1/2/3/4/5".replace("4/", "d/"), b"")
    assert listed(store) == ["1/2/3/4"]


def test_a_name_that_is_not_utf8_is_listed_with_escapes_and_left_alone(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "store" / os.fsdecode(b"\xff")).touch()
    (name,) = listed(store)
    assert name == r"\xff"
    store.delete([name])
    assert listed(store) == [name]


PLACES = (
    "s/staging/{job}/{one}/{one}",
    "s/staging/{job}/{one}/{one}/out",
    "s/staging/{job}",
    "s/dstl/{one}/000000000007",
    "s/shared/{one}/000000000007",
    "s/manifests/{one}/000000000009",
    "s/sources/{one}",
    "s/probes/{one}",
    "s/history/sub",
    "s/segments/{one}/in",
    "t/_staging/{job}/{one}/{one}/out",
    "t/_staging/{job}",
    "bad/_staging/{job}/{one}/{one}/dead-letters",
)


@pytest.mark.parametrize("place", some(PLACES, 0, 3, 6, 9))
def test_clean_up_deletes_nothing_behind_a_link(place: str, tmp_path: Path, outside: Path) -> None:
    def job() -> hf.Job:
        made = hf.Job(
            None,
            name="linked",
            storage=(tmp_path / "s").as_uri(),
            bad_records="dead_letter",
            dead_letters=(tmp_path / "bad").as_uri(),
        )
        read = made.read(TestSource([[{"k": 1}], [{"k": 2}]], "k BIGINT", name="in")).key_by("k")
        read.aggregate(n=hf.count(), name="counts").write(hf.ParquetSink((tmp_path / "t").as_uri(), name="out"))
        return made

    run(job())
    path = tmp_path / place.format(job=read_job(open_store((tmp_path / "s").as_uri())).job_id, one="000000000001")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(tmp_path / uuid4().hex)
    path.symlink_to(outside)
    for _ in range(2):
        run(job())
