"""Sinks that share a folder with each other or with the job's storage are refused at `start()`, in any spelling."""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import JobRefused
from holdfast.sinks.base import Sink
from holdfast.sinks.targets import place_of
from holdfast.storage.store import open_store
from holdfast.testing import TestSource, run

BASE = "a folder/out"
SPELLINGS = ["{path}", "{path}/", "{path}/.", "{path}/x/..", "{parent}//out", "{parent}/./out", "{link}", "{quoted}"]
INSIDE = ["{path}/deeper", "{link}/deep/er/", "{quoted}/x/../y"]
APART = ["{path}-2", "{parent}/other", "{path}/../outer"]
KINDS = {
    "parquet": lambda url: hf.ParquetSink(url, name="one"),
    "delta": lambda url: hf.DeltaSink(url, name="one"),
}


@pytest.fixture
def spelled(tmp_path: Path) -> dict[str, str]:
    """Spell the parts of a path in another way, some by a symbolic link; the folder is there already."""
    path = tmp_path / BASE
    path.mkdir(parents=True)
    (tmp_path / "link").symlink_to(path.parent, target_is_directory=True)
    return {
        "path": str(path),
        "parent": str(path.parent),
        "link": str(tmp_path / "link" / "out"),
        "quoted": quote(str(path)),
    }


def new_job(storage: str | None = None, **settings: object) -> hf.Job:
    return hf.Job(None, name="targets", storage=storage or f"memory://{uuid4().hex}", **settings)  # type: ignore[arg-type]


def written(job: hf.Job, *sinks: Sink) -> hf.Job:
    stream = job.read(TestSource([[{"k": 1}]], "k BIGINT"))
    for sink in sinks:
        stream.write(sink)
    return job


def refused(job: hf.Job, *named: str) -> None:
    with pytest.raises(JobRefused, match="share a folder") as found:
        run(job)
    for each in named:
        assert each in str(found.value)
    assert open_store(job.storage).list("journal/") == []


@pytest.mark.parametrize("other", [*SPELLINGS, *INSIDE])
@pytest.mark.parametrize("kind", list(KINDS))
def test_two_sinks_on_one_folder_are_refused_and_both_are_named(
    kind: str, other: str, spelled: Mapping[str, str]
) -> None:
    first, second = f"file://{spelled['path']}", "file://" + other.format(**spelled)
    for urls in ((first, second), (second, first)):
        sinks = KINDS[kind](urls[0]), hf.ParquetSink(urls[1], name="two")
        refused(written(new_job(), *sinks), f"sink 'one' at {urls[0]}", f"sink 'two' at {urls[1]}")
    assert not any(Path(spelled["path"]).iterdir()), "something was written"


@pytest.mark.parametrize("other", [*SPELLINGS, *INSIDE])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_sink_in_the_storage_of_the_job_or_around_it_is_refused(
    kind: str, other: str, spelled: Mapping[str, str]
) -> None:
    first, second = f"file://{spelled['path']}", "file://" + other.format(**spelled)
    for storage, target in ((first, second), (second, first)):
        job = written(new_job(storage), KINDS[kind](target))
        refused(job, f"the job's storage at {storage}", f"sink 'one' at {target}")


def test_dead_letters_are_a_sink_like_any_other(spelled: Mapping[str, str]) -> None:
    url = f"file://{spelled['path']}"
    job = new_job(bad_records="dead_letter", dead_letters=f"{url}/bad")
    refused(written(job, hf.ParquetSink(url, name="one")), "sink 'dead-letters'", "sink 'one'")


@pytest.mark.parametrize("other", APART)
def test_folders_beside_each_other_are_fine(other: str, spelled: Mapping[str, str]) -> None:
    first, second = f"file://{spelled['path']}", "file://" + other.format(**spelled)
    in_memory = hf.MemorySink()
    run(written(new_job(first), hf.ParquetSink(second), in_memory))
    assert rows_below(second) == in_memory.rows() == [{"k": 1}]
    run(written(new_job(), hf.ParquetSink(f"{second}/p"), hf.DeltaSink(f"{second}/d")))
    assert rows_below(f"{second}/p") == rows_below(f"{second}/d") == [{"k": 1}]


def rows_below(url: str) -> list[dict[str, object]]:
    """The rows of the Parquet files in a folder."""
    folder = Path(unquote(url.removeprefix("file://")))
    files = [path for path in folder.glob("*.parquet") if path.is_file()]
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def test_sinks_in_memory_share_nothing_unless_they_have_one_url() -> None:
    url = f"memory://{uuid4().hex}"
    run(written(new_job(), hf.ParquetSink(url), hf.ParquetSink(f"{url}/deeper")))
    refused(written(new_job(), hf.ParquetSink(url), hf.ParquetSink(url)))


@pytest.mark.parametrize(
    ("one", "other", "options", "shared"),
    [
        ("s3://b/a", "s3a://b/a/", ({}, {}), True),
        ("s3://b/a", "s3://b//a/./x/../c", ({}, {}), True),
        ("s3://b", "s3://b/a", ({}, {}), True),
        ("s3://b/a%20b", "s3://b/a b", ({}, {}), True),
        ("s3://b/a", "s3://b/ab", ({}, {}), False),
        ("s3://b/a", "s3://c/a", ({}, {}), False),
        ("s3://b/a", "gs://b/a", ({}, {}), False),
        ("s3://b/a", "s3://b/a", ({"aws_endpoint": "http://x/"}, {"AWS_ENDPOINT_URL": "http://x"}), True),
        ("s3://b/a", "s3://b/a", ({"aws_endpoint": "http://x"}, {"endpoint": "http://y"}), False),
        ("s3://b/a", "s3://b/a", ({"aws_endpoint": "http://x"}, {}), True),
        ("az://c/a", "abfss://c@account.dfs.core.windows.net/a/b", ({}, {}), True),
        ("az://c/a", "az://c/a", ({"azure_storage_account_name": "x"}, {"account_name": "y"}), False),
        ("gs://b/a/b", "gs://b/a", ({}, {}), True),
    ],
)
def test_keys_of_object_stores_are_compared_by_bucket_and_folder(
    one: str, other: str, options: tuple[Mapping[str, str], Mapping[str, str]], shared: bool
) -> None:
    first, second = place_of(one, options[0]), place_of(other, options[1])
    assert first is not None and second is not None
    assert first.shares(second) is second.shares(first) is shared


def test_a_refusal_says_nothing_of_credentials() -> None:
    options = {"aws_secret_access_key": "hush"}
    sinks = [hf.ParquetSink("s3://b/a", storage_options=options), hf.DeltaSink("s3://b/a/t", storage_options=options)]
    with pytest.raises(JobRefused, match=re.escape("s3://b/a/t")) as found:
        run(written(new_job(), *sinks))
    assert "hush" not in str(found.value)
