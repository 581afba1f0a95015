"""Objects of a job's storage that somebody deletes: the error names the thing, the object, and what to do."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_kit import manifests_and_logs, own_logs

import holdfast as hf
from holdfast.storage.store import open_store
from holdfast.testing import run

ADVICE = r"deleted, or not copied, from outside\. Restore it from a backup .*holdfast verify.*start_from=…\)"


class Stuck(hf.MemorySink):
    """Refuses all output, so that it stays in the storage."""

    stuck = True

    def publish(self, number: int, committables: Any, context: Any) -> None:
        if self.stuck:
            raise hf.PublishFailed("not today")
        super().publish(number, committables, context)


def made(folder: Path, sink: hf.Sink, *, keyed: bool = True, **settings: Any) -> hf.Job:
    """A job whose logs lie by themselves; without an operator its objects are for the sink alone."""
    settings.setdefault("checkpoint", own_logs())
    job = hf.Job(None, name="lost", storage=f"file://{folder}/storage", **settings)
    rows = job.read(hf.FileSource(f"file://{folder}/in/*.parquet", schema="k BIGINT", name="files"))
    (rows.key_by("k").aggregate(n=hf.count(), name="counts") if keyed else rows).write(sink)
    return job


def begin(folder: Path, keyed: bool) -> None:
    """Make a storage with a checkpoint, whose output is not published."""
    (folder / "in").mkdir()
    pq.write_table(pa.table({"k": [1, 2]}), folder / "in" / "1.parquet")
    with pytest.raises(hf.HoldfastError, match="not today"):
        run(made(folder, Stuck(name="out"), keyed=keyed))


@pytest.mark.parametrize(
    ("deleted", "keyed", "error", "named", "instead"),
    [
        ("sources", True, hf.ObjectNotFound, r"source 'files' cannot go on.*'sources/", r"drop_state=\['files'\]"),
        ("manifests", True, hf.ObjectNotFound, r"1 of the 1 manifests.*dstl/", ""),
        ("gathered", False, hf.HoldfastError, r"sink 'out' has yet.*gathered/", r"drop_state=\['out'\]"),
        ("logs", True, hf.ObjectNotFound, r"operator 'counts', subtask 0.*'dstl/", r"drop_state=\['counts'\]"),
    ],
)
def test_a_lost_object_is_named_with_its_use_and_the_ways_out(tmp_path, deleted, keyed, error, named, instead):
    begin(tmp_path, keyed)
    if deleted in ("manifests", "logs"):
        store = open_store(f"file://{tmp_path}/storage")
        store.delete(manifests_and_logs(store)[deleted == "logs"])
    else:
        shutil.rmtree(tmp_path / "storage" / deleted)
    with pytest.raises(error, match=named) as caught:
        run(made(tmp_path, hf.MemorySink(name="out"), keyed=keyed))
    caught.match("Restore the object from a backup" if deleted == "logs" else ADVICE)
    caught.match(instead)


def test_the_output_that_is_lost_can_be_given_up_under_another_name(tmp_path):
    begin(tmp_path, keyed=False)
    shutil.rmtree(tmp_path / "storage" / "gathered")
    pq.write_table(pa.table({"k": [3]}), tmp_path / "in" / "2.parquet")
    sink = hf.MemorySink(name="other")
    run(made(tmp_path, sink, keyed=False, drop_state=["out"]))
    assert sink.rows() == [{"k": 3}]
