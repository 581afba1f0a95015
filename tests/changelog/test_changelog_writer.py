"""The writer, its uploader and a store: the seed's worked example, exactly-once upload, failures, ownership."""

import threading

import pyarrow as pa
import pytest

from changelog_harness import RETRIES, Harness, wait_until
from changelog_world import LOG, SCHEMA, change, spans
from holdfast.changelog.writer import ChangelogWriter
from holdfast.changelog_config import RetryPolicy
from holdfast.errors import CheckpointFailed, SettingsError, StorageError
from holdfast.formats.log_objects import LogId
from holdfast.state.table import merge_changes
from holdfast.testing.stores import Fault
from holdfast.uploads.uploader import Uploader


def test_the_life_of_a_change_follows_the_worked_example_of_the_seed(harness: Harness):
    writer, gate = harness.writer, harness.gate
    assert writer.next_sqn() == 0  # T0
    writer.append(0, change("a"))
    gate.opened.clear()
    cp1 = writer.persist(0, 0)
    wait_until(lambda: len(gate.puts) == 1)
    assert writer.next_sqn() == 1  # T1
    writer.append(1, change("b"))
    materialized_to = writer.next_sqn()
    assert materialized_to == 2  # T2
    writer.append(2, change("c"))
    cp2 = writer.persist(2, 0)
    assert writer.next_sqn() == 3  # T3
    assert not cp1.done()
    gate.opened.set()
    assert spans(cp1.result(30)) == [(0, 1)]
    assert harness.keys(cp1.result()) == [["a"]]
    assert spans(cp2.result(30)) == [(0, 1), (1, 3)]
    assert harness.keys(cp2.result()) == [["a"], ["b", "c"]]
    assert cp2.result()[0] == cp1.result()[0]
    harness.acknowledge(cp1.result())
    harness.acknowledge(cp2.result())
    writer.append(3, change("d"))
    cp3 = writer.persist(3, materialized_to)
    assert spans(cp3.result(30)) == [(2, 3), (3, 4)]  # T2 to T4: the range of "b", "c" is narrowed
    assert harness.keys(cp3.result())[1] == ["d"]
    assert len(gate.puts) == 3
    writer.truncate(materialized_to)
    assert writer.held() == [piece.object for piece in cp3.result()]
    assert cp1.result()[0].object in harness.names()  # acknowledged: the JobMaster deletes it


def test_append_alone_uploads_nothing(harness: Harness):
    for batch in range(10):
        harness.writer.append(batch, change("a"))
    assert harness.gate.puts == []
    assert harness.writer.size(0).pending_sets == 10


def test_a_cut_persists_exactly_the_batches_up_to_it(harness: Harness):
    for batch in range(4):
        harness.writer.append(batch, change(str(batch)))
    assert harness.keys(harness.writer.persist(1).result(30)) == [["0", "1"]]
    assert harness.keys(harness.writer.persist(2).result(30)) == [["0", "1"], ["2"]]
    assert harness.writer.size(0) == (2, sum(p.length for p in harness.writer.persist(2).result(30)), 1)


def test_a_second_persist_before_the_first_completes_uploads_nothing_twice(harness: Harness):
    harness.gate.opened.clear()
    harness.writer.append(0, change("a"))
    first, second = harness.writer.persist(0), harness.writer.persist(0)
    harness.gate.opened.set()
    assert first.result(30) == second.result(30) == harness.writer.persist(0).result(30)
    assert len(harness.gate.puts) == 1


def test_after_confirmation_nothing_is_uploaded_again_and_after_reset_it_still_works(harness: Harness):
    harness.writer.append(0, change("a"))
    pieces = harness.writer.persist(0).result(30)
    harness.acknowledge(pieces)
    assert harness.writer.persist(0).result(30) == pieces
    harness.writer.reset()
    harness.writer.append(1, change("b"))
    assert harness.keys(harness.writer.persist(1).result(30)) == [["a"], ["b"]]
    assert len(harness.gate.puts) == 2


def test_pending_change_sets_are_merged_per_key(harness: Harness):
    for batch in range(5):
        harness.writer.append(batch, change("a", batch))
    [piece] = harness.writer.persist(4).result(30)
    assert harness.keys([piece]) == [["a"]]
    assert spans([piece]) == [(0, 5)]


def test_a_failed_upload_fails_the_future_and_persist_over_it_at_once_until_reset(harness: Harness):
    harness.gate.faults = [Fault.FAIL] * 3
    harness.writer.append(0, change("a"))
    with pytest.raises(StorageError, match="injected"):
        harness.writer.persist(0).result(30)
    assert len(harness.gate.puts) == 3
    harness.writer.append(1, change("b"))
    over = harness.writer.persist(1)
    assert over.done()
    with pytest.raises(StorageError, match="injected"):
        over.result()
    assert harness.keys(harness.writer.persist(1, from_sqn=1).result(30)) == [["b"]]  # past the failed range
    harness.writer.reset()
    assert harness.keys(harness.writer.persist(1).result(30)) == [["a"], ["b"]]


def test_what_failed_is_stored_together_with_what_came_later(harness: Harness):
    harness.gate.faults = [Fault.FAIL] * 3
    harness.writer.append(0, change("a"))
    assert harness.writer.persist(0).exception(30) is not None
    harness.writer.reset()
    harness.writer.append(1, change("b"))
    assert harness.keys(harness.writer.persist(1).result(30)) == [["a", "b"]]


def test_a_put_that_succeeded_but_was_reported_as_failed_leaves_no_double(harness: Harness):
    harness.gate.faults = [Fault.LOST_ANSWER]
    harness.writer.append(0, change("a"))
    [piece] = harness.writer.persist(0).result(30)
    assert len(set(harness.gate.puts)) == 2
    wait_until(lambda: harness.names() == [piece.object])


def test_attempts_end_with_the_first_success_and_only_io_errors_are_repeated(harness: Harness):
    harness.gate.faults = [Fault.FAIL, Fault.FAIL]
    harness.writer.append(0, change("a"))
    harness.writer.persist(0).result(30)
    assert len(harness.gate.puts) == 3
    metrics = harness.uploader.metrics()
    assert (metrics["numberOfUploadRequests"], metrics["totalAttemptsPerUpload#sum"]) == (1, 3)
    broken = harness.inner.put
    harness.inner.put = lambda name, data: (_ for _ in ()).throw(RuntimeError("no I/O error"))  # type: ignore[method-assign]
    harness.writer.append(1, change("b"))
    with pytest.raises(RuntimeError, match="no I/O error"):
        harness.writer.persist(1).result(30)
    assert len(harness.gate.puts) == 4
    harness.inner.put = broken  # type: ignore[method-assign]


def test_a_policy_without_attempts_is_refused():
    with pytest.raises(SettingsError, match="max_attempts"):
        RetryPolicy(max_attempts=0)


@pytest.mark.parametrize(("up_to_batch", "from_sqn"), [(1, 0), (1, 3), (2, 1)])
def test_persist_below_the_truncation_point_or_past_the_end_is_refused(harness: Harness, up_to_batch, from_sqn):
    harness.writer.append(0, change("a"))
    harness.writer.append(1, change("b"))
    harness.writer.truncate(1)
    with pytest.raises(ValueError, match="cannot persist"):
        harness.writer.persist(up_to_batch, from_sqn)


def test_a_cut_inside_a_range_that_was_persisted_as_a_whole_is_refused(harness: Harness):
    harness.writer.append(0, change("a"))
    harness.writer.append(1, change("b"))
    harness.writer.persist(1)
    with pytest.raises(ValueError, match="cuts go forward"):
        harness.writer.persist(0)


def test_an_empty_range_does_not_raise_the_sqn_and_asks_the_store_for_nothing(harness: Harness):
    harness.writer.append(0, None)
    harness.writer.append(1, change("a").slice(0, 0))
    assert harness.writer.persist(1).result(30) == []
    assert harness.writer.next_sqn() == 0
    harness.writer.append(2, change("a"))
    assert harness.writer.next_sqn() == 1
    assert harness.gate.puts == []


@pytest.mark.parametrize("batch", [2, 1])
def test_a_batch_is_appended_once_and_in_order(harness: Harness, batch):
    harness.writer.append(2, None)
    with pytest.raises(ValueError, match="batch"):
        harness.writer.append(batch, change("a"))


def test_a_restored_log_continues_above_its_sqns_and_only_before_the_first_append(harness: Harness):
    harness.writer.resume(7)
    harness.writer.append(0, change("a"))
    assert spans(harness.writer.persist(0).result(30)) == [(7, 8)]
    with pytest.raises(ValueError, match="cannot resume"):
        harness.writer.resume(9)


def test_a_range_that_a_later_base_made_unnecessary_is_still_there_for_an_earlier_one(harness: Harness):
    harness.writer.append(0, change("a"))
    harness.writer.append(1, change("b"))
    assert harness.keys(harness.writer.persist(1, from_sqn=1).result(30)) == [["b"]]
    assert harness.keys(harness.writer.persist(1, from_sqn=0).result(30)) == [["a"], ["b"]]


def test_truncation_deletes_what_no_acknowledgement_named_and_keeps_what_one_did(harness: Harness):
    harness.writer.append(0, change("a"))
    unnamed = harness.writer.persist(0).result(30)
    harness.writer.append(1, change("b"))
    named = harness.writer.persist(1).result(30)[1:]
    harness.acknowledge(named)
    harness.writer.truncate(2)
    wait_until(lambda: unnamed[0].object not in harness.names())
    assert harness.names() == [piece.object for piece in named]
    assert harness.writer.held() == []


def test_a_writer_closed_before_its_upload_completes_deletes_the_object_that_arrives_late(harness: Harness):
    harness.gate.opened.clear()
    harness.writer.append(0, change("a"))
    future = harness.writer.persist(0)
    wait_until(lambda: len(harness.gate.puts) == 1)
    harness.writer.close()
    harness.gate.opened.set()
    future.result(30)
    wait_until(lambda: harness.names() == [])
    with pytest.raises(CheckpointFailed, match="closed"):
        harness.writer.persist(0)


def test_an_object_that_arrives_late_is_deleted_also_when_the_uploader_is_closed(harness: Harness):
    harness.gate.opened.clear()
    harness.writer.append(0, change("a"))
    harness.writer.persist(0)
    wait_until(lambda: len(harness.gate.puts) == 1)
    harness.writer.close()
    harness.uploader.close()
    harness.gate.opened.set()
    wait_until(lambda: harness.uploader.metrics()["uploadQueueSize"] == 0 and harness.names() == [])


def test_an_object_that_arrives_late_stays_when_the_job_master_is_gone(harness: Harness):
    harness.gate.opened.clear()
    harness.writer.append(0, change("a"))
    future = harness.writer.persist(0)
    wait_until(lambda: len(harness.gate.puts) == 1)
    harness.uploader.close(discard=False)
    harness.writer.close()
    harness.gate.opened.set()
    [piece] = future.result(30)
    assert harness.names() == [piece.object]


def test_a_put_that_hangs_is_overtaken_by_the_next_one_on_a_thread_of_its_own(harness: Harness):
    uploader = Uploader(harness.store, 1, 6, uploads_max=1, retries=RetryPolicy.fixed(2, timeout="50ms"))
    writer = ChangelogWriter(LOG, uploader, merge_changes)
    for batch in range(20):  # a twentieth may be hedged
        writer.append(batch, change("a"))
        writer.persist(batch).result(30)
    hanging, released = iter([True]), threading.Event()
    inner_put = harness.inner.put

    def put(name: str, data: bytes) -> None:
        if next(hanging, False):
            released.wait(30)
        inner_put(name, data)

    harness.inner.put = put  # type: ignore[method-assign]
    harness.gate.puts.clear()
    writer.append(20, change("b"))
    [piece] = writer.persist(20, 20).result(30)
    lost, won = harness.gate.puts
    assert won == piece.object
    released.set()
    wait_until(lambda: uploader.metrics()["queuedDeletes"] == 0 and lost not in harness.names())
    uploader.close()


def test_nothing_is_deleted_when_the_job_master_is_gone(harness: Harness):
    harness.writer.append(0, change("a"))
    [piece] = harness.writer.persist(0).result(30)
    harness.uploader.close(discard=False)
    harness.writer.close()
    assert harness.names() == [piece.object]


def test_a_request_that_waits_when_the_uploader_closes_fails(harness: Harness):
    other = ChangelogWriter(LogId("op", "other", 0, 4), harness.uploader, merge_changes)
    slow = Uploader(harness.store, 1, 2, persist_delay_s=1000.0)
    first = ChangelogWriter(LOG, slow, merge_changes)
    slow.register(LogId("op", "silent", 0, 4))
    first.append(0, change("a"))
    future = first.persist(0)
    slow.close()
    with pytest.raises(CheckpointFailed, match="closed"):
        future.result(30)
    first.append(1, change("b"))
    with pytest.raises(CheckpointFailed, match="closing"):
        first.persist(1, 1).result(30)
    other.close()


def test_logs_of_one_cut_share_an_object_and_it_goes_when_both_let_go(harness: Harness):
    uploader = Uploader(harness.store, 1, 3, persist_delay_s=1000.0, retries=RETRIES)
    writers = [ChangelogWriter(LogId("op", "state", i, i + 1), uploader, merge_changes) for i in range(3)]
    for index, writer in enumerate(writers):
        rows = change("a").set_column(0, SCHEMA.field(0), pa.array([index], pa.int32()))
        writer.append(0, None if index == 2 else rows.cast(SCHEMA))
    futures = [writer.persist(0) for writer in writers]
    [a], [b], nothing = (future.result(30) for future in futures)
    assert a.object == b.object
    assert nothing == []
    assert (a.offset + a.length, len(harness.gate.puts)) == (b.offset, 1)
    writers[0].close()
    assert harness.names() == [a.object]
    writers[1].close()
    wait_until(lambda: harness.names() == [])
    uploader.close()


def test_a_log_larger_than_an_object_is_split_and_fails_as_a_whole(harness: Harness):
    uploader = Uploader(harness.store, 1, 4, object_bytes_max=2000, retries=RetryPolicy.none())
    log = LogId("op", "state", 0, 128)
    writer = ChangelogWriter(log, uploader, merge_changes)
    rows = [{"__key_group": g, "__deleted": False, "k": f"{g:0900}", "n": 1} for g in range(128)]
    writer.append(0, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    harness.gate.faults = [None, None, Fault.FAIL]
    with pytest.raises(StorageError):
        writer.persist(0).result(30)
    wait_until(lambda: harness.names() == [])
    writer.reset()
    pieces = writer.persist(0).result(30)
    assert len(harness.names()) > 3
    assert all(info.size <= 2000 for info in harness.inner.list(""))
    assert [p.key_group_stop for p in pieces[:-1]] == [p.key_group_start for p in pieces[1:]]
    writer.close()
    uploader.close()


def test_the_bound_in_flight_holds_uploads_back_until_others_are_stored(harness: Harness):
    uploader = Uploader(harness.store, 1, 5, in_flight_bytes_max=1, retries=RETRIES, persist_delay_s=0.0)
    writers = [ChangelogWriter(LogId("op", str(i), 0, 4), uploader, merge_changes) for i in range(3)]
    harness.gate.opened.clear()
    futures = []
    for writer in writers:
        writer.append(0, change("a"))
        futures.append(writer.persist(0))
        wait_until(lambda: len(harness.gate.puts) == 1)
    assert len(harness.gate.puts) == 1
    harness.gate.opened.set()
    for future in futures:
        future.result(30)
    uploader.close()
