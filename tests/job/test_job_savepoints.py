"""Savepoints: copied while the query runs or at its end, moved, read, and started from in both modes."""

import json
import shutil
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from job_kit import Feed, new_job, pairs, store_of
from savepoints_kit import LIVE, Folders, files_of, made, put, sums, with_savepoint
from typer.testing import CliRunner

import holdfast as hf
from holdfast import cli
from holdfast.jobmaster.savepoints import copying, savepoints
from holdfast.journal.codec import SAVEPOINT_MAGIC, SAVEPOINT_VERSION
from holdfast.journal.job import read_job
from holdfast.maintenance.verify import verify
from holdfast.storage.copying import CopyOrder
from holdfast.storage.framing import frame
from holdfast.storage.store import open_store
from holdfast.taskmanager.taskmanager import TaskManager
from holdfast.testing import start
from waiting import until


@pytest.fixture
def url(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_a_savepoint_is_read_after_it_was_moved_and_the_storage_is_gone(url: Folders) -> None:
    feed = Feed(name="feed")
    query = start(made(url("one"), feed, hf.MemorySink(name="out")), LIVE)
    put(query, feed, 1, 2)
    saved = query.savepoint(url("save"))
    put(query, feed, 4)
    query.trigger_checkpoint(timeout=30)
    query.stop()
    assert saved.objects > 0 and saved.size_bytes > 0
    shutil.rmtree(url.root / "one")
    shutil.move(url.root / "save", url.root / "moved")
    assert hf.read_state(url("moved"), "sums").column("total.sum").to_pylist() == [3]

    sink = hf.MemorySink(name="out")
    job = made(url("two"), feed, sink, start_from=url("moved"))
    query = start(job, LIVE)
    put(query, feed, 8)
    query.stop()
    assert sums(sink) == 15
    assert verify(store_of(job)).ok


def test_task_managers_copy_the_objects_and_the_driver_does_not(url: Folders) -> None:
    feed, copied = Feed(name="feed"), dict[int, list[str]]()
    before = TaskManager.copy

    def copy(self: TaskManager, order: CopyOrder) -> Any:
        copied.setdefault(self.index, []).extend(order.names)
        if len(copied) == 1 and self.index == 0:
            until(lambda: 1 in copied)
        return before(self, order)

    alone = hf.ChangelogConfig(gathered_size_max=0)
    job = made(url("one"), feed, hf.MemorySink(name="out"), changelog=alone, parallelism=8, task_managers=2)
    with (
        mock.patch.object(TaskManager, "copy", copy),
        mock.patch.object(savepoints, "copy_objects", side_effect=AssertionError("the driver copies")),
        mock.patch.object(copying, "OBJECTS_A_PORTION", 1),
    ):
        query = start(job, LIVE)
        for key in range(20):
            feed.put(pairs((key, 1)))
        query.processAllAvailable()
        saved = query.savepoint(url("save"))
        query.stop()
    assert sorted(copied) == [0, 1]
    assert len(copied[0]) + len(copied[1]) == saved.objects


def test_a_task_manager_that_ends_while_it_copies_is_replaced_and_the_savepoint_is_whole(url: Folders) -> None:
    feed, sink, killed = Feed(name="feed"), hf.MemorySink(name="out"), []
    query = start(made(url("one"), feed, sink, parallelism=2, task_managers=2), LIVE)
    put(query, feed, 1, 2)
    before = TaskManager.copy

    def copy(self: TaskManager, order: CopyOrder) -> Any:
        if not killed:
            killed.append(self.index)
            query._master.parts.cluster.kill(self.index)
        return before(self, order)

    with mock.patch.object(TaskManager, "copy", copy):
        query.savepoint(url("save"))
    put(query, feed, 4)
    query.stop()
    assert killed and sums(sink) == 7
    assert hf.read_state(url("save"), "sums").column("total.sum").to_pylist() == [3]


def test_after_a_savepoint_that_could_not_be_written_the_query_goes_on(url: Folders) -> None:
    feed, sink = Feed(name="feed"), hf.MemorySink(name="out")
    query = start(made(url("one"), feed, sink), LIVE)
    put(query, feed, 1, 2)
    failed = mock.patch.object(TaskManager, "copy", side_effect=hf.StorageError("the disk is full"))
    for take in (query.savepoint, lambda url: query.stop(with_savepoint=url)):
        with failed, pytest.raises(hf.StorageError, match="the disk is full"):
            take(url("save"))
    put(query, feed, 4)
    assert sums(sink) == 7 and not query.view().savepoints
    query.stop(with_savepoint=url("save"))
    assert hf.read_state(url("save"), "sums").column("total.sum").to_pylist() == [7]


def test_the_history_has_the_size_and_the_duration_of_savepoints(url: Folders) -> None:
    feed = Feed(name="feed")
    query = start(made(url("one"), feed, hf.MemorySink(name="out")), LIVE)
    put(query, feed, 1, 2)
    saved = query.savepoint(url("save"))
    query.stop()
    (stats,) = query.savepoints
    assert (stats.url, stats.checkpoint, stats.outcome) == (saved.url, saved.checkpoint, "completed")
    assert (stats.objects, stats.size_bytes) == (saved.objects, saved.size_bytes)
    assert stats.size_bytes == sum(each.size for each in files_of(url, "save") if each.name != "savepoint")
    assert stats.duration_s >= saved.duration_s > 0

    again = start(made(url("one"), feed, hf.MemorySink(name="out")), LIVE)
    put(again, feed, 4)
    again.stop()
    assert again.savepoints == [stats], "a restart goes on with the history"
    shown = CliRunner().invoke(cli.app, ["checkpoints", url("one")])
    assert f"{stats.size_bytes:,}" in shown.output and stats.url in shown.output
    told = json.loads(CliRunner().invoke(cli.app, ["checkpoints", url("one"), "--json"]).output)
    assert told["savepoints"] == [asdict(stats)]


def test_the_history_names_the_checkpoint_of_a_savepoint(url: Folders) -> None:
    feed = Feed(name="feed")
    query = start(made(url("one"), feed, hf.MemorySink(name="out")), LIVE)
    feed.put(pairs((1, 1)))
    while not query.totals.batches:
        query.awaitTermination(0.01)
    saved = query.savepoint(url("save"))
    ended = [each for each in query.checkpoints if each.trigger == "savepoint"]
    query.stop()
    assert [each.number for each in ended] == [saved.checkpoint]


@pytest.mark.parametrize("changelog", [True, False], ids=["changelog", "tables"])
def test_a_new_job_has_other_parallelism_changelog_and_operators(url: Folders, changelog: bool) -> None:
    feed = Feed(name="feed")
    with_savepoint(url, feed, changelog=changelog, max_parallelism=16)
    before = sorted((url.root / "save").rglob("*"))
    changes: list[dict[str, Any]] = [{"parallelism": 3}, {"changelog": not changelog}, {"more": True}]
    for number, settings in enumerate([*changes, {"state": hf.RocksDBState()}]):
        sink = hf.MemorySink(name="out")
        job = made(url(f"two-{number}"), feed, sink, **{"changelog": changelog, "start_from": url("save"), **settings})
        query = start(job, LIVE)
        put(query, feed, 10)
        query.stop()
        assert sums(sink) == 3 + 10 * (number + 1)
        assert query.id != read_job(open_store(url("one"))).job_id
    assert sorted((url.root / "save").rglob("*")) == before


def test_an_operator_that_a_new_job_lacks_has_to_be_dropped_by_name(url: Folders) -> None:
    feed = Feed(name="feed")
    with_savepoint(url, feed, more=True)
    with pytest.raises(hf.JobRefused, match="'counts'"):
        start(made(url("two"), feed, hf.MemorySink(name="out"), start_from=url("save")), LIVE)
    sink = hf.MemorySink(name="out")
    query = start(made(url("two"), feed, sink, start_from=url("save"), drop_state=["counts"]), LIVE)
    put(query, feed, 5)
    query.stop()
    assert sums(sink) == 8


def test_the_chunks_of_a_source_are_in_the_savepoint(url: Folders) -> None:
    rows = url.root / "rows"
    rows.mkdir()
    sink = hf.MemorySink(name="out")

    def job(storage: str, **settings: Any) -> hf.Job:
        made = new_job(storage, checkpoint=hf.CheckpointConfig(trigger=hf.manual()), **settings)
        files = hf.FileSource(rows.as_uri(), format="csv", header=False, schema="k BIGINT, v BIGINT", name="files")
        made.read(files).key_by("k").aggregate(total=hf.sum("v"), name="sums").write(sink)
        return made

    (rows / "a.csv").write_text("1,1\n1,2\n")
    query = start(job(url("one")), LIVE)
    query.processAllAvailable()
    query.stop(with_savepoint=url("save"))
    assert any((url.root / "save" / "sources").rglob("*"))
    shutil.rmtree(url.root / "one")
    (rows / "b.csv").write_text("1,4\n")
    query = start(job(url("two"), start_from=url("save")), LIVE)
    query.processAllAvailable()
    query.stop()
    assert sums(sink) == 7


def test_later_starts_with_the_savepoint_go_on_from_where_the_job_is(url: Folders) -> None:
    feed, sink = Feed(name="feed"), hf.MemorySink(name="out")
    with_savepoint(url, feed)
    for value in (4, 8):
        query = start(made(url("two"), feed, sink, start_from=url("save")), LIVE)
        put(query, feed, value)
        query.stop()
    assert sums(sink) == 15
    assert len(sink.rows()) == 2


def test_a_claim_takes_the_job_back_under_its_own_id(url: Folders) -> None:
    feed, sink = Feed(name="feed"), hf.MemorySink(name="out")
    query = start(made(url("one"), feed, sink), LIVE)
    put(query, feed, 1, 2)
    query.savepoint(url("save"))
    put(query, feed, 4)
    query.trigger_checkpoint(timeout=30)
    query.stop()
    claim = {"start_from": url("save"), "restore_mode": "claim"}
    with pytest.raises(hf.JobRefused, match="a second time to out"):
        start(made(url("one"), feed, sink, **claim), LIVE)
    feed.rows[-1:] = pairs((1, 100))
    job = made(url("one"), feed, sink, publish_again=True, **claim)
    again = start(job, LIVE)
    again.processAllAvailable()
    again.trigger_checkpoint(timeout=30)
    again.stop()
    assert again.id == query.id
    assert sums(sink) == 103
    assert verify(store_of(job)).ok


def test_a_stop_with_a_savepoint_is_exactly_once_for_a_new_job(url: Folders) -> None:
    feed, sink = Feed(name="feed"), hf.MemorySink(name="out")
    query = start(made(url("one"), feed, sink), LIVE)
    feed.put(pairs((1, 0)))
    while not query.totals.batches:
        query.awaitTermination(0.01)
    for value in range(1, 30):
        feed.put(pairs((1, value)))
    saved = query.stop(with_savepoint=url("save"))
    assert saved is not None and not query.isActive
    published = len(sink.rows())
    after = hf.MemorySink(name="out")
    query = start(made(url("two"), feed, after, start_from=url("save")), LIVE)
    put(query, feed, 1000)
    query.stop()
    totals = [row["total"] for row in [*sink.rows(), *after.rows()]]
    assert len(totals) == len(set(totals)), "no change is published twice"
    assert totals[-1] == sum(range(1, 30)) + 1000 and published <= len(totals)


class HeldAtFour:
    """A step that waits with a row whose value is 4."""

    arrived, goes_on = threading.Event(), threading.Event()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if 4 in batch.column("v").to_pylist():
            HeldAtFour.arrived.set()
            HeldAtFour.goes_on.wait()
        return batch


def test_a_batch_in_flight_at_a_stop_is_in_the_savepoint(url: Folders) -> None:
    """Were it committed while the objects are copied, its output would come from the old and from the new query."""
    feed, sink = Feed(name="feed"), hf.MemorySink(name="out")

    def job(storage: str, sink: hf.MemorySink, **settings: Any) -> hf.Job:
        made = new_job(storage, checkpoint=hf.CheckpointConfig(trigger=hf.every("10ms")), **settings)
        rows = made.read(feed).map_batches(HeldAtFour(), "k BIGINT, v BIGINT")
        rows.key_by("k").aggregate(total=hf.sum("v"), name="sums").write(sink)
        return made

    query = start(job(url("one"), sink), LIVE)
    put(query, feed, 1, 2)
    feed.put(pairs((1, 4)))
    HeldAtFour.arrived.wait()
    before = TaskManager.copy

    def copy(self: TaskManager, order: CopyOrder) -> Any:
        HeldAtFour.goes_on.set()
        until(lambda: 7 in totals_of(sink))
        return before(self, order)

    with mock.patch.object(TaskManager, "copy", copy):
        stopping = threading.Thread(target=lambda: query.stop(with_savepoint=url("save")))
        stopping.start()
        until(lambda: bool(query.view().paused_by))
        stopping.join(1)
        HeldAtFour.goes_on.set()
        stopping.join(60)
    after = hf.MemorySink(name="out")
    again = start(job(url("two"), after, start_from=url("save")), LIVE)
    again.processAllAvailable()
    put(again, feed, 8)
    again.stop()
    assert [total for total in totals_of(sink) + totals_of(after) if total > 3] == [7, 15]


def totals_of(sink: hf.MemorySink) -> list[int]:
    return [row["total"] for row in sink.rows()]


def test_refusals_name_what_was_found(url: Folders) -> None:
    feed, sink = Feed(name="feed"), hf.MemorySink(name="out")
    with_savepoint(url, feed)
    (url.root / "empty").mkdir()
    wrong = [
        ("one", "save", "no_claim", "has checkpoints already"),
        ("two", "save", "claim", "is empty: a second storage with one job id"),
        ("two", "empty", "no_claim", "there is no savepoint"),
    ]
    for storage, savepoint, mode, message in wrong:
        with pytest.raises(hf.JobRefused, match=message):
            start(made(url(storage), feed, sink, start_from=url(savepoint), restore_mode=mode), LIVE)
    (url.root / "empty" / "savepoint").write_bytes(frame(SAVEPOINT_MAGIC, SAVEPOINT_VERSION + 1, b""))
    with pytest.raises(hf.JobRefused, match=r"cannot be read by this version.*version"):
        start(made(url("two"), feed, sink, start_from=url("empty")), LIVE)
    assert not list((url.root / "two").rglob("*")), "a refused start writes nothing"
    with pytest.raises(hf.SettingsError, match="restore_mode needs start_from"):
        made(url("two"), feed, sink, restore_mode="claim")


def test_a_savepoint_is_verified_as_a_storage_is(url: Folders) -> None:
    with_savepoint(url, Feed(name="feed"))
    save = url.root / "save"
    report = verify(open_store(url("save")))
    assert report.ok and report.job == "test" and len(report.checkpoints) == 1
    assert report.read["changelog objects"].objects == 1
    for folder in ("gathered",):
        file = next(each for each in sorted((save / folder).rglob("*")) if each.is_file())
        whole = file.read_bytes()
        file.write_bytes(whole + b"more")
        assert {each.object for each in verify(open_store(url("save"))).problems} == {str(file.relative_to(save))}
        file.unlink()
        assert [each.found for each in verify(open_store(url("save"))).problems] == ["no such object"]
        file.write_bytes(whole)
    (save / "savepoint").write_bytes(b"nothing")
    assert [each.object for each in verify(open_store(url("save"))).problems] == ["savepoint"]


def test_a_damaged_object_is_found_before_the_job_begins(url: Folders) -> None:
    feed = Feed(name="feed")
    with_savepoint(url, feed)
    damaged = next(each for each in sorted((url.root / "save" / "gathered").rglob("*")) if each.is_file())
    damaged.write_bytes(bytes(len(damaged.read_bytes())))
    with pytest.raises(hf.CorruptObject, match=f"{damaged.name}.*CRC"):
        start(made(url("two"), feed, hf.MemorySink(name="out"), start_from=url("save")), LIVE)


def test_a_folder_that_holds_a_savepoint_is_not_written_again(url: Folders) -> None:
    feed = Feed(name="feed")
    query = start(made(url("one"), feed, hf.MemorySink(name="out")), LIVE)
    put(query, feed, 1)
    query.savepoint(url("save"))
    with pytest.raises(hf.HoldfastError, match="there is a savepoint already"):
        query.savepoint(url("save"))
    with pytest.raises(hf.HoldfastError, match="the storage of a job"):
        query.savepoint(url("one"))
    query.stop()
