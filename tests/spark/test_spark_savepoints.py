"""Savepoints on Spark: TaskManagers and senders copy over Flight; other layouts begin from them; claims go back."""

from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import msgspec
import pytest
from spark_kit import new_job, newest, write_rows

import holdfast as hf
from holdfast.errors import CorruptObject
from holdfast.jobmaster.savepoints import savepoints
from holdfast.journal.codec import StoredSavepoint
from holdfast.journal.savepoints import find_savepoint
from holdfast.maintenance.verify import verify
from holdfast.spark import savepoint_copies
from holdfast.storage import names
from holdfast.storage.copying import CopiedObject
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.store import open_store

pytestmark = pytest.mark.spark
LOGS_AND_TABLES = (names.CHANGELOG, names.SHARED)
"""Folders of objects that grow with the state."""
ALONE = hf.CheckpointConfig(trigger=hf.manual(), changelog=hf.ChangelogConfig(gathered_size_max=0))
"""TaskManagers store their logs, as if these were large. Small logs lie in the objects of their manifests, and the
driver reads them along."""
MANUAL = hf.CheckpointConfig(trigger=hf.manual())


def read(spark: Any, folder: Path, storage: str, **settings: Any) -> tuple[hf.Job, hf.Stream]:
    job = new_job(spark, folder, storage=(folder / storage).as_uri(), **settings)
    (folder / "in").mkdir(exist_ok=True)
    return job, job.read(hf.FileSource(f"{folder}/in/*.parquet", schema="k BIGINT, v BIGINT", name="rows"))


def summed(spark: Any, folder: Path, storage: str, sink: hf.MemorySink, *more: str, **settings: Any) -> hf.Job:
    """Sums of each key, and other operators by name."""
    job, rows = read(spark, folder, storage, **settings)
    rows.key_by("k").aggregate(total=hf.sum("v"), name="sums").write(sink)
    for name in more:
        rows.key_by("k").aggregate(n=hf.count(), name=name).write(hf.NoopSink(name=f"{name}-out"))
    return job


def file(folder: Path, number: int, keys: int = 8) -> None:
    """Write a file with a value for each key."""
    write_rows(folder / "in" / f"{number}.parquet", [{"k": k, "v": 10**number} for k in range(keys)])


def carried_on(job: hf.Job, folder: Path, number: int) -> hf.Query:
    """Start the job, process a further file, and record it."""
    query = job.start(hf.processing_time())
    file(folder, number)
    query.processAllAvailable()
    query.trigger_checkpoint(timeout=60)
    return query


def noting(reads: set[tuple[Any, ...]], method: str) -> Any:
    """Patch a method of `ObstoreStore` that reads, so that it notes the names and ranges that it reads here."""
    before = getattr(ObstoreStore, method)

    def read(self: ObstoreStore, name: str, *place: int) -> bytes:
        reads.add((name, *place))
        found: bytes = before(self, name, *place)
        return found

    return mock.patch.object(ObstoreStore, method, read)


def found_in(url: str) -> StoredSavepoint:
    stored = find_savepoint(open_store(url))
    assert stored is not None
    return stored


def test_a_task_copies_no_more_than_its_portion() -> None:
    sizes = [100, 300, *[savepoint_copies.PORTION_BYTES_MAX] * 2, *[0] * savepoint_copies.PORTION_OBJECTS_MAX, 1]
    objects = [CopiedObject(str(number), size, 0) for number, size in enumerate(sizes)]
    portions = list(savepoint_copies.portions_of(objects))
    assert [each for portion in portions for each in portion] == objects
    assert [len(portion) for portion in portions] == [2, 1, savepoint_copies.PORTION_OBJECTS_MAX, 2]


def test_a_task_answers_the_error_of_a_damaged_object_and_writes_nothing() -> None:
    source, target = (open_store(f"memory://{uuid4().hex}") for _ in range(2))
    source.put("dstl/a", b"damaged")
    portion = [CopiedObject("dstl/a", 7, 1)]
    (answer,) = savepoint_copies.CopyPortions(source.url, target.url, {})(msgspec.msgpack.encode(portion))
    found = msgspec.msgpack.decode(answer, type=savepoint_copies.CopyAnswer)
    assert found.failure is not None and isinstance(found.failure.error(), CorruptObject)
    assert "dstl/a" in found.failure.message
    assert found.requests == {"storeGets": 1, "storeGetBytes": 7}, "the job counts them too"
    assert not target.list("")


@pytest.mark.timeout(300)
def test_other_layouts_begin_from_a_savepoint_and_its_own_job_goes_back_to_it(spark: Any, tmp_path: Path) -> None:
    sink, url = hf.MemorySink(name="out"), (tmp_path / "save").as_uri()
    query = carried_on(summed(spark, tmp_path, "one", sink, "counts", checkpoint=ALONE, task_managers=2), tmp_path, 0)
    with mock.patch.object(savepoints, "copy_objects", side_effect=AssertionError("the driver copies")):
        query.savepoint(url)
    file(tmp_path, 1)
    query.processAllAvailable()
    query.stop()
    assert newest(sink) == dict.fromkeys(range(8), 11)
    assert verify(open_store(url)).ok

    after, read_here = hf.MemorySink(name="out"), set[tuple[Any, ...]]()
    other = {"parallelism": 3, "state": hf.RocksDBState(), "checkpoint": hf.CheckpointConfig(changelog=False)}
    dropped = {"drop_state": ["counts"], "start_from": url}
    with noting(read_here, "get"), noting(read_here, "get_range"):
        new = carried_on(summed(spark, tmp_path, "two", after, "many", **other, **dropped), tmp_path, 2)
    new.stop()
    assert ("savepoint",) in read_here
    saved = found_in(url)
    copied, parts = {each.name for each in saved.objects}, map(names.part, saved.record.manifests)
    manifests = {(part.object, part.offset, part.length) for part in parts if part is not None}
    assert len(manifests) == 2
    assert {each for each in read_here if each[0].startswith(LOGS_AND_TABLES)} == manifests, "the driver reads state"
    assert any(name.startswith(LOGS_AND_TABLES) for name in copied), "the savepoint has state to copy"
    assert verify(open_store((tmp_path / "two").as_uri())).ok
    assert newest(after) == dict.fromkeys(range(8), 111)
    assert new.id != query.id

    claim = {"start_from": url, "restore_mode": "claim", "task_managers": 2}
    with pytest.raises(hf.JobRefused, match="a second storage with one job id"):
        summed(spark, tmp_path, "three", sink, "counts", **claim).start()
    again = carried_on(summed(spark, tmp_path, "one", sink, "counts", publish_again=True, **claim), tmp_path, 3)
    again.stop()
    assert again.id == query.id
    assert newest(sink) == dict.fromkeys(range(8), 1111)


@pytest.mark.timeout(300)
def test_senders_copy_the_savepoint_of_a_job_without_operators(spark: Any, tmp_path: Path) -> None:
    url, sinks = (tmp_path / "save").as_uri(), [hf.MemorySink(name="out"), hf.MemorySink(name="out")]

    def passed(storage: str, sink: hf.MemorySink, **settings: Any) -> hf.Job:
        job, rows = read(spark, tmp_path, storage, checkpoint=MANUAL, **settings)
        rows.write(sink)
        return job

    query = carried_on(passed("one", sinks[0]), tmp_path, 0)
    with mock.patch.object(savepoints, "copy_objects", side_effect=AssertionError("the driver copies")):
        saved = query.stop(with_savepoint=url)
    assert saved is not None and saved.objects > 0
    carried_on(passed("two", sinks[1], start_from=url), tmp_path, 1).stop()
    assert [len(each.rows()) for each in sinks] == [8, 8]
