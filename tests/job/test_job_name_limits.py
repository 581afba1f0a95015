"""Names that stores cannot take are refused at start(), with the limit; names up to it run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_kit import new_job, new_storage, script

import holdfast as hf
from holdfast.storage import names
from holdfast.storage.names import NAME_BYTES_MAX
from holdfast.storage.urls import COMPONENT_BYTES_MAX, KEY_BYTES_MAX, refuse_long
from holdfast.testing import run, start

ROWS = [{"k": k, "v": k} for k in range(3)]
LONG = "x" * (NAME_BYTES_MAX + 1)
UNICODE = "ü" * (NAME_BYTES_MAX // 6 + 1)
"""Each letter is escaped as six bytes."""


def named(folder: Path, storage: str | None = None, **given: str) -> tuple[hf.Job, Callable[[], int]]:
    """A job with a Parquet sink, and the number of rows that it has published."""
    job = new_job(storage or (folder / "s").as_uri(), name=given.get("job", "job"))
    stream = job.read(script(ROWS, ROWS, name=given.get("source", "source"))).key_by("k")
    counted = stream.aggregate(n=hf.count(), name=given.get("operator", "operator"))
    counted.write(hf.ParquetSink((folder / "t").as_uri(), name=given.get("sink", "sink")))
    return job, lambda: len(list((folder / "t").glob("*.parquet")))


@pytest.mark.parametrize("name", [LONG, UNICODE], ids=["ascii", "escaped"])
@pytest.mark.parametrize("kind", ["source", "sink"])
def test_a_name_over_the_limit_is_refused_at_the_start(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(
        hf.JobRefused, match=rf"{kind} name '{name}': expected 1 to {NAME_BYTES_MAX} bytes when escaped"
    ):
        run(named(tmp_path, **{kind: name})[0])


@pytest.mark.parametrize("name", ["x" * NAME_BYTES_MAX, "ü" * (NAME_BYTES_MAX // 6)], ids=["ascii", "escaped"])
@pytest.mark.parametrize("kind", ["job", "source", "operator", "sink"])
def test_names_up_to_the_limit_run(kind: str, name: str, tmp_path: Path) -> None:
    job, files = named(tmp_path, **{kind: name})
    run(job)
    assert files() > 0


@pytest.mark.parametrize("kind", ["job", "operator"])
def test_names_that_are_part_of_no_objects_name_have_no_limit(kind: str, tmp_path: Path) -> None:
    job, files = named(tmp_path, **{kind: LONG * 10})
    run(job)
    assert files() > 0


@pytest.mark.parametrize("kind", ["job", "source", "operator", "sink"])
def test_a_name_that_is_not_unicode_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises((hf.JobRefused, hf.SettingsError), match=r"'\\ud800a'"):
        run(named(tmp_path, **{kind: "\ud800a"})[0])


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/" + "f" * (KEY_BYTES_MAX - 60),
        "gs://bucket/" + "%C3%BC" * (KEY_BYTES_MAX // 2 - 30),
        "file:///" + "/".join(["f" * 200] * 20),
        "file:///tmp/" + "f" * (COMPONENT_BYTES_MAX + 1),
        "file:///tmp/" + "%C3%BC" * (COMPONENT_BYTES_MAX // 2 + 1),
    ],
)
@pytest.mark.parametrize("place", ["storage", "target", "savepoint"])
def test_a_url_that_leaves_no_room_for_the_names_of_objects_is_refused(place: str, url: str, tmp_path: Path) -> None:
    storage = url if place == "storage" else new_storage()
    job = new_job(storage)
    sink: Any = hf.ParquetSink(url, name="sink") if place == "target" else hf.MemorySink()
    job.read(script(ROWS, name="source")).write(sink)
    with pytest.raises((hf.JobRefused, hf.SettingsError), match=r"bytes, and (the store takes|file systems take) \d+"):
        query = start(job, hf.processing_time())
        try:
            query.processAllAvailable()
            query.savepoint(url)
        finally:
            query.stop()


def test_the_longest_name_is_no_shorter_than_any_name_of_an_object(tmp_path: Path) -> None:
    sink, source = "s" * NAME_BYTES_MAX, "q" * NAME_BYTES_MAX
    longest = names.longest([source], [sink])
    built = [
        names.committables(1, 1, sink),
        names.manifest(1, 1, 1),
        names.segment_part(names.segment(1, source, 1)),
        names.sink_begun(sink),
        names.shared_object(1, 1),
        f"{names.staging_folder('0' * 32, 1, 1)}/{sink}/{1:012d}-{1:06d}-{'a' * 32}-{1:04d}.parquet",
    ]
    assert max(map(len, built)) <= len(longest)
    refuse_long("s3://bucket/" + "f" * (KEY_BYTES_MAX - 1 - len(longest)), longest, "storage")
