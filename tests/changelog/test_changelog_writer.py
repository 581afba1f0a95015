"""The writer, its uploader and a store: the seed's worked example, exactly-once upload, failures, ownership."""

import threading

import pyarrow as pa
import pytest

from changelog_kit import LOG, RETRIES, SCHEMA, ThreadedLog, change, go_back_into_a_gap, spans
from holdfast.changelog.writer import ChangelogWriter
from holdfast.changelog_config import RetryPolicy
from holdfast.errors import CheckpointFailed, SettingsError, StorageError
from holdfast.formats.log_objects import LogId
from holdfast.state.table import merge_changes
from holdfast.testing.stores import Fault
from holdfast.uploads.uploader import Uploader
from waiting import until


def test_the_life_of_a_change_follows_the_worked_example_of_the_seed(threaded: ThreadedLog):
    writer, gate = threaded.writer, threaded.gate
    assert writer.next_sqn() == 0  # T0
    writer.append(0, change("a"))
    gate.opened.clear()
    cp1 = writer.persist(0, 0)
    until(lambda: len(gate.puts) == 1)
    assert writer.next_sqn() == 1  # T1
    writer.append(1, change("b"))
    materialized_to = writer.next_sqn()
    assert materialized_to == 2  # T2
    writer.append(2, change("c"))
    cp2 = writer.persist(2, 0)
    assert writer.next_sqn() == 3  # T3
    assert not cp1.done()
    gate.opened.set()
    assert spans(cp1.result(60)) == [(0, 1)]
    assert threaded.keys(cp1.result()) == [["a"]]
    assert spans(cp2.result(60)) == [(0, 1), (1, 3)]
    assert threaded.keys(cp2.result()) == [["a"], ["b", "c"]]
    assert cp2.result()[0] == cp1.result()[0]
    threaded.acknowledge(cp1.result())
    threaded.acknowledge(cp2.result())
    writer.append(3, change("d"))
    cp3 = writer.persist(3, materialized_to)
    assert spans(cp3.result(60)) == [(2, 3), (3, 4)]  # T2 to T4: the range of "b", "c" is narrowed
    assert threaded.keys(cp3.result())[1] == ["d"]
    assert len(gate.puts) == 3
    writer.truncate(materialized_to)
    assert writer.held() == [piece.object for piece in cp3.result()]
    assert cp1.result()[0].object in threaded.names()  # acknowledged: the JobMaster deletes it


def test_append_alone_uploads_nothing(threaded: ThreadedLog):
    for batch in range(10):
        threaded.writer.append(batch, change("a"))
    assert threaded.gate.puts == []
    assert threaded.writer.size(0).pending_sets == 10


def test_a_cut_persists_exactly_the_batches_up_to_it(threaded: ThreadedLog):
    for batch in range(4):
        threaded.writer.append(batch, change(str(batch)))
    assert threaded.keys(threaded.writer.persist(1).result(60)) == [["0", "1"]]
    assert threaded.keys(threaded.writer.persist(2).result(60)) == [["0", "1"], ["2"]]
    assert threaded.writer.size(0)[:3] == (2, sum(p.length for p in threaded.writer.persist(2).result(60)), 1)


def test_a_second_persist_before_the_first_completes_uploads_nothing_twice(threaded: ThreadedLog):
    threaded.gate.opened.clear()
    threaded.writer.append(0, change("a"))
    first, second = threaded.writer.persist(0), threaded.writer.persist(0)
    threaded.gate.opened.set()
    assert first.result(60) == second.result(60) == threaded.writer.persist(0).result(60)
    assert len(threaded.gate.puts) == 1


def test_after_confirmation_nothing_is_uploaded_again_and_after_reset_it_still_works(threaded: ThreadedLog):
    threaded.writer.append(0, change("a"))
    pieces = threaded.writer.persist(0).result(60)
    threaded.acknowledge(pieces)
    assert threaded.writer.persist(0).result(60) == pieces
    threaded.writer.reset()
    threaded.writer.append(1, change("b"))
    assert threaded.keys(threaded.writer.persist(1).result(60)) == [["a"], ["b"]]
    assert len(threaded.gate.puts) == 2


def test_pending_change_sets_are_merged_per_key(threaded: ThreadedLog):
    for batch in range(5):
        threaded.writer.append(batch, change("a", batch))
    [piece] = threaded.writer.persist(4).result(60)
    assert threaded.keys([piece]) == [["a"]]
    assert spans([piece]) == [(0, 5)]


def test_a_failed_upload_fails_the_future_and_persist_over_it_at_once_until_reset(threaded: ThreadedLog):
    threaded.gate.faults = [Fault.FAIL] * 3
    threaded.writer.append(0, change("a"))
    with pytest.raises(StorageError, match="injected"):
        threaded.writer.persist(0).result(60)
    assert len(threaded.gate.puts) == 3
    threaded.writer.append(1, change("b"))
    over = threaded.writer.persist(1)
    assert over.done()
    with pytest.raises(StorageError, match="injected"):
        over.result()
    assert threaded.keys(threaded.writer.persist(1, from_sqn=1).result(60)) == [["b"]]  # past the failed range
    threaded.writer.reset()
    assert threaded.keys(threaded.writer.persist(1).result(60)) == [["a"], ["b"]]


def test_what_failed_is_stored_together_with_what_came_later(threaded: ThreadedLog):
    threaded.gate.faults = [Fault.FAIL] * 3
    threaded.writer.append(0, change("a"))
    assert threaded.writer.persist(0).exception(30) is not None
    threaded.writer.reset()
    threaded.writer.append(1, change("b"))
    assert threaded.keys(threaded.writer.persist(1).result(60)) == [["a", "b"]]


def test_a_put_that_succeeded_but_was_reported_as_failed_leaves_no_double(threaded: ThreadedLog):
    threaded.gate.faults = [Fault.LOST_ANSWER]
    threaded.writer.append(0, change("a"))
    [piece] = threaded.writer.persist(0).result(60)
    assert len(set(threaded.gate.puts)) == 2
    until(lambda: threaded.names() == [piece.object])


def test_attempts_end_with_the_first_success_and_only_io_errors_are_repeated(threaded: ThreadedLog):
    threaded.gate.faults = [Fault.FAIL, Fault.FAIL]
    threaded.writer.append(0, change("a"))
    threaded.writer.persist(0).result(60)
    assert len(threaded.gate.puts) == 3
    metrics = threaded.uploader.metrics()
    assert (metrics["numberOfUploadRequests"], metrics["totalAttemptsPerUpload#sum"]) == (1, 3)
    broken = threaded.inner.put
    threaded.inner.put = lambda name, data: (_ for _ in ()).throw(RuntimeError("no I/O error"))  # type: ignore[method-assign]
    threaded.writer.append(1, change("b"))
    with pytest.raises(RuntimeError, match="no I/O error"):
        threaded.writer.persist(1).result(60)
    assert len(threaded.gate.puts) == 4
    threaded.inner.put = broken  # type: ignore[method-assign]


def test_a_policy_without_attempts_is_refused():
    with pytest.raises(SettingsError, match="max_attempts"):
        RetryPolicy(max_attempts=0)


@pytest.mark.parametrize(("up_to_batch", "from_sqn"), [(1, 0), (1, 3), (2, 1)])
def test_persist_below_the_truncation_point_or_past_the_end_is_refused(threaded: ThreadedLog, up_to_batch, from_sqn):
    threaded.writer.append(0, change("a"))
    threaded.writer.append(1, change("b"))
    threaded.writer.truncate(1)
    with pytest.raises(ValueError, match="cannot persist"):
        threaded.writer.persist(up_to_batch, from_sqn)


def test_a_cut_inside_a_range_that_was_persisted_as_a_whole_is_refused(threaded: ThreadedLog):
    threaded.writer.append(0, change("a"))
    threaded.writer.append(1, change("b"))
    threaded.writer.persist(1)
    with pytest.raises(ValueError, match="cuts go forward"):
        threaded.writer.persist(0)


def test_an_empty_range_does_not_raise_the_sqn_and_asks_the_store_for_nothing(threaded: ThreadedLog):
    threaded.writer.append(0, None)
    threaded.writer.append(1, change("a").slice(0, 0))
    assert threaded.writer.persist(1).result(60) == []
    assert threaded.writer.next_sqn() == 0
    threaded.writer.append(2, change("a"))
    assert threaded.writer.next_sqn() == 1
    assert threaded.gate.puts == []


@pytest.mark.parametrize("batch", [2, 1])
def test_a_batch_is_appended_once_and_in_order(threaded: ThreadedLog, batch):
    threaded.writer.append(2, None)
    with pytest.raises(ValueError, match="batch"):
        threaded.writer.append(batch, change("a"))


def test_a_restored_log_continues_above_its_sqns_and_only_before_the_first_append(threaded: ThreadedLog):
    threaded.writer.resume(7)
    threaded.writer.append(0, change("a"))
    assert spans(threaded.writer.persist(0).result(60)) == [(7, 8)]
    with pytest.raises(ValueError, match="cannot resume"):
        threaded.writer.resume(9)


def test_a_range_that_a_later_base_made_unnecessary_is_still_there_for_an_earlier_one(threaded: ThreadedLog):
    threaded.writer.append(0, change("a"))
    threaded.writer.append(1, change("b"))
    assert threaded.keys(threaded.writer.persist(1, from_sqn=1).result(60)) == [["b"]]
    assert threaded.keys(threaded.writer.persist(1, from_sqn=0).result(60)) == [["a"], ["b"]]


def test_a_rewind_may_go_to_a_cut_whose_changes_were_skipped_with_those_after_it():
    assert go_back_into_a_gap() == [["again"]]


def test_truncation_deletes_what_no_acknowledgement_named_and_keeps_what_one_did(threaded: ThreadedLog):
    threaded.writer.append(0, change("a"))
    unnamed = threaded.writer.persist(0).result(60)
    threaded.writer.append(1, change("b"))
    named = threaded.writer.persist(1).result(60)[1:]
    threaded.acknowledge(named)
    threaded.writer.truncate(2)
    until(lambda: unnamed[0].object not in threaded.names())
    assert threaded.names() == [piece.object for piece in named]
    assert threaded.writer.held() == []


def test_a_writer_closed_before_its_upload_completes_deletes_the_object_that_arrives_late(threaded: ThreadedLog):
    threaded.gate.opened.clear()
    threaded.writer.append(0, change("a"))
    future = threaded.writer.persist(0)
    until(lambda: len(threaded.gate.puts) == 1)
    threaded.writer.close()
    threaded.gate.opened.set()
    future.result(60)
    until(lambda: threaded.names() == [])
    with pytest.raises(CheckpointFailed, match="closed"):
        threaded.writer.persist(0)


def test_an_object_that_arrives_late_is_deleted_also_when_the_uploader_is_closed(threaded: ThreadedLog):
    threaded.gate.opened.clear()
    threaded.writer.append(0, change("a"))
    threaded.writer.persist(0)
    until(lambda: len(threaded.gate.puts) == 1)
    threaded.writer.close()
    threaded.uploader.close()
    threaded.gate.opened.set()
    until(lambda: threaded.uploader.metrics()["uploadQueueSize"] == 0 and threaded.names() == [])


def test_an_object_that_arrives_late_stays_when_the_job_master_is_gone(threaded: ThreadedLog):
    threaded.gate.opened.clear()
    threaded.writer.append(0, change("a"))
    future = threaded.writer.persist(0)
    until(lambda: len(threaded.gate.puts) == 1)
    threaded.uploader.close(discard=False)
    threaded.writer.close()
    threaded.gate.opened.set()
    [piece] = future.result(60)
    assert threaded.names() == [piece.object]


def test_a_put_that_hangs_is_overtaken_by_the_next_one_on_a_thread_of_its_own(threaded: ThreadedLog):
    uploader = Uploader(threaded.store, 1, 6, uploads_max=1, retries=RetryPolicy.fixed(2, timeout="50ms"))
    writer = ChangelogWriter(LOG, uploader, merge_changes)
    for batch in range(20):  # a twentieth may be hedged
        writer.append(batch, change("a"))
        writer.persist(batch).result(60)
    hanging, released = iter([True]), threading.Event()
    inner_put = threaded.inner.put

    def put(name: str, data: bytes) -> None:
        if next(hanging, False):
            released.wait(60)
        inner_put(name, data)

    threaded.inner.put = put  # type: ignore[method-assign]
    threaded.gate.puts.clear()
    writer.append(20, change("b"))
    [piece] = writer.persist(20, 20).result(60)
    lost, won = threaded.gate.puts
    assert won == piece.object
    released.set()
    until(lambda: uploader.metrics()["queuedDeletes"] == 0 and lost not in threaded.names())
    uploader.close()


def test_nothing_is_deleted_when_the_job_master_is_gone(threaded: ThreadedLog):
    threaded.writer.append(0, change("a"))
    [piece] = threaded.writer.persist(0).result(60)
    threaded.uploader.close(discard=False)
    threaded.writer.close()
    assert threaded.names() == [piece.object]


def test_a_request_that_waits_when_the_uploader_closes_fails(threaded: ThreadedLog):
    other = ChangelogWriter(LogId("op", "other", 0, 4), threaded.uploader, merge_changes)
    slow = Uploader(threaded.store, 1, 2, persist_delay_s=1000.0)
    first = ChangelogWriter(LOG, slow, merge_changes)
    slow.register(LogId("op", "silent", 0, 4))
    first.append(0, change("a"))
    future = first.persist(0)
    slow.close()
    with pytest.raises(CheckpointFailed, match="closed"):
        future.result(60)
    first.append(1, change("b"))
    with pytest.raises(CheckpointFailed, match="closing"):
        first.persist(1, 1).result(60)
    other.close()


def test_logs_of_one_cut_share_an_object_and_it_goes_when_both_let_go(threaded: ThreadedLog):
    uploader = Uploader(threaded.store, 1, 3, persist_delay_s=1000.0, retries=RETRIES)
    writers = [ChangelogWriter(LogId("op", "state", i, i + 1), uploader, merge_changes) for i in range(3)]
    for index, writer in enumerate(writers):
        rows = change("a").set_column(0, SCHEMA.field(0), pa.array([index], pa.int32()))
        writer.append(0, None if index == 2 else rows.cast(SCHEMA))
    futures = [writer.persist(0) for writer in writers]
    [a], [b], nothing = (future.result(60) for future in futures)
    assert a.object == b.object
    assert nothing == []
    assert (a.offset + a.length, len(threaded.gate.puts)) == (b.offset, 1)
    writers[0].close()
    assert threaded.names() == [a.object]
    writers[1].close()
    until(lambda: threaded.names() == [])
    uploader.close()


def test_a_log_larger_than_an_object_is_split_and_fails_as_a_whole(threaded: ThreadedLog):
    uploader = Uploader(threaded.store, 1, 4, object_bytes_max=2000, retries=RetryPolicy.none())
    log = LogId("op", "state", 0, 128)
    writer = ChangelogWriter(log, uploader, merge_changes)
    rows = [{"__key_group": g, "__deleted": False, "k": f"{g:0900}", "n": 1} for g in range(128)]
    writer.append(0, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    threaded.gate.faults = [None, None, Fault.FAIL]
    with pytest.raises(StorageError):
        writer.persist(0).result(60)
    until(lambda: threaded.names() == [])
    writer.reset()
    pieces = writer.persist(0).result(60)
    assert len(threaded.names()) > 3
    assert all(info.size <= 2000 for info in threaded.inner.list(""))
    assert [p.key_group_stop for p in pieces[:-1]] == [p.key_group_start for p in pieces[1:]]
    writer.close()
    uploader.close()


def test_the_bound_in_flight_holds_uploads_back_until_others_are_stored(threaded: ThreadedLog):
    uploader = Uploader(threaded.store, 1, 5, in_flight_bytes_max=1, retries=RETRIES, persist_delay_s=0.0)
    writers = [ChangelogWriter(LogId("op", str(i), 0, 4), uploader, merge_changes) for i in range(3)]
    threaded.gate.opened.clear()
    futures = []
    for writer in writers:
        writer.append(0, change("a"))
        futures.append(writer.persist(0))
        until(lambda: len(threaded.gate.puts) == 1)
    assert len(threaded.gate.puts) == 1
    threaded.gate.opened.set()
    for future in futures:
        future.result(60)
    uploader.close()
