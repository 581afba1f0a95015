"""Objects of a job's storage that somebody deletes: the error names the thing, the object, and what to do."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.testing import run

ADVICE = r"deleted, or not copied, from outside\. Restore it from a backup .*holdfast verify.*start_from=…\)"


class Stuck(hf.MemorySink):
    """Refuses all output, so that it stays in the storage."""

    stuck = True

    def publish(self, number: int, committables: Any, context: Any) -> None:
        if self.stuck:
            raise hf.PublishFailed("not today")
        super().publish(number, committables, context)


def made(folder: Path, sink: hf.Sink, **settings: Any) -> hf.Job:
    job = hf.Job(None, name="lost", storage=f"file://{folder}/storage", **settings)
    rows = job.read(hf.FileSource(f"file://{folder}/in/*.parquet", schema="k BIGINT", name="files"))
    rows.key_by("k").aggregate(n=hf.count(), name="counts").write(sink)
    return job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's storage with a checkpoint, whose output is not published."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "in" / "1.parquet")
    with pytest.raises(hf.HoldfastError, match="not today"):
        run(made(tmp_path, Stuck(name="out")))
    return tmp_path


@pytest.mark.parametrize(
    ("deleted", "error", "named", "instead"),
    [
        ("sources", hf.ObjectNotFound, r"source 'files' cannot go on.*'sources/", r"drop_state=\['files'\]"),
        ("manifests/*/*/sink-*", hf.PublishFailed, r"sink 'out' has yet.*/sink-out'", r"drop_state=\['out'\]"),
        ("manifests/*/*/tm-*", hf.ObjectNotFound, r"1 of the 1 manifests.*/tm-0", ""),
        ("dstl", hf.ObjectNotFound, r"operator 'counts', subtask 0.*'dstl/", r"drop_state=\['counts'\]"),
    ],
)
def test_a_lost_object_is_named_with_its_use_and_the_ways_out(folder, deleted, error, named, instead):
    for path in (folder / "storage").glob(deleted):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(error, match=named) as caught:
        run(made(folder, hf.MemorySink(name="out")))
    assert not deleted.startswith("dstl") or "Restore the object from a backup" in str(caught.value)
    if not deleted.startswith("dstl"):
        caught.match(ADVICE)
    caught.match(instead)


def test_the_output_that_is_lost_can_be_given_up_under_another_name(folder):
    for path in (folder / "storage").glob("manifests/*/*/sink-*"):
        path.unlink()
    pq.write_table(pa.table({"k": [1]}), folder / "in" / "2.parquet")
    sink = hf.MemorySink(name="other")
    run(made(folder, sink, drop_state=["out"]))
    assert sink.rows() == [{"k": 1, "n": 2}]
