"""Stored discovery chunks that name files outside of the source's path are refused before a byte of them is read."""

import os
from pathlib import Path

import pytest
from sources_kit import SCHEMA, enumerator, ids, new_store, rows_between, write

from holdfast.errors import CorruptObject, JobRefused
from holdfast.sources.files.discovery_chunks import ChunkContent, encode
from holdfast.sources.files.file_source import FileSource
from holdfast.sources.files.local_tree import path_of
from holdfast.sources.files.open_tree import open_tree

CHUNK = "sources/1/all"


def restored(path: str, files: list[str], at: dict[str, int]) -> None:
    source = FileSource(path, format="csv", schema=SCHEMA)
    store = new_store()
    store.put(CHUNK, encode(ChunkContent("files", 0, 0, [(file, 10, 1_000_000) for file in files])))
    enumerator(source, store).restore(at, [CHUNK])


@pytest.mark.parametrize(
    "path",
    [
        "OUT/secret.csv",
        "IN/../OUT/secret.csv",
        "IN/./a.csv",
        "IN//a.csv",
        "IN/sub/a.csv",
        "IN/a.json",
        "IN/_hidden.csv",
        "IN/a.csv/../../OUT/secret.csv",
        "file://IN/a.csv",
        "relative.csv",
        "s3://bucket/a.csv",
        "IN/a\0.csv",
        "",
    ],
)
def test_a_stored_path_that_the_sources_path_does_not_match_is_refused_by_name(tmp_path, path):
    path = path.replace("IN", f"{tmp_path}/in").replace("OUT", f"{tmp_path}/out")
    good = f"{tmp_path}/in/a.csv"
    with pytest.raises(JobRefused, match="as a file to be read, which the source's path does not match"):
        restored(f"{tmp_path}/in/*.csv", [good, path], {"next": 1})
    with pytest.raises(JobRefused, match="does not match"):
        restored(f"{tmp_path}/in/*.csv", [good, path], {"next": 2, "1": 3})
    restored(f"{tmp_path}/in/*.csv", [good, path], {"next": 2})  # it was read already, and never is again


@pytest.mark.parametrize("name", ["2", "-1", "x", "\u0661\u0661"])
def test_a_position_in_a_file_that_is_not_open_is_refused(tmp_path, name):
    with pytest.raises(CorruptObject, match="position in file"):
        restored(f"{tmp_path}/*.csv", [f"{tmp_path}/a.csv"] * 2, {"next": 2, name: 1})


@pytest.mark.parametrize(
    "pattern", ["", "/*.csv", "/**", "/**/*.csv", "/{a,sub/*}.csv", "/a.csv", "/s*/[bc]?csv", "/_x/*"]
)
def test_every_listed_file_matches_and_hidden_files_do_not(tmp_path, pattern):
    names = ["a.csv", "sub/b.csv", "sub/deep/c.csv", "sub/_d.csv", "_x/e.csv", "day=1/f.csv", "_day=1/g.csv", ".h.csv"]
    for name in names:
        write(tmp_path / name, ids(1))
    odd = Path(os.fsdecode(os.fsencode(tmp_path / "sub") + b"/caf\xe9.csv"))
    odd.write_text("id,word\n1,a\n")
    tree = open_tree(f"{tmp_path}{pattern}", {}, lambda path: True)
    listed = {file.path for file in tree.list()}
    every = {path_of(str(path)) for path in [odd, *(tmp_path / name for name in names)]}
    assert listed and listed == {path for path in every if tree.matches(path)}


def test_objects_of_a_store_match_as_they_are_listed():
    store = "memory://matching"
    tree = open_tree(f"{store}/in/**/*.csv", {}, lambda path: True)
    for key in ("in/a.csv", "in/sub/b.csv", "in/_sub/c.csv", "out/d.csv", "in/e.json"):
        tree._store.put(key, b"id\n1\n")
    assert {file.path for file in tree.list()} == {f"{store}/in/a.csv", f"{store}/in/sub/b.csv"}
    assert all(tree.matches(file.path) for file in tree.list())
    for path in (f"{store}/in/_sub/c.csv", f"{store}/in/../out/d.csv", f"{store}/out/d.csv", "memory://other/in/a.csv"):
        assert not tree.matches(path)


def test_a_restart_with_files_to_be_read_goes_on(tmp_path):
    write(tmp_path / "a.csv", ids(5))
    source, store = FileSource(f"{tmp_path}/*.csv", schema=SCHEMA), new_store()
    planner = enumerator(source, store)
    latest = planner.latest()
    at = planner.plan({"next": 0}, latest, 2, 10**9).to
    again = enumerator(source, store, epoch=2)
    again.restore(at, planner.objects(at))
    assert rows_between(source, at, latest, again)[0]
