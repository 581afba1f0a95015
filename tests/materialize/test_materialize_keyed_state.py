"""A table's log and materializations together: bases, adoption, truncation, failures, bounds."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from holdfast.errors import CheckpointFailed, StorageError
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.storage.obstore_store import ObstoreStore
from logged_kit import Subtask, make
from waiting import until


@pytest.fixture
def subtask() -> Iterator[Subtask]:
    subtask = make(log_handles_max=2)
    yield subtask
    subtask.shared_open.set()
    subtask.uploader.close()


def test_a_checkpoint_names_the_log_and_later_a_materialization_with_the_log_since_it(subtask: Subtask):
    subtask.run(1, 2)
    first = subtask.checkpoint(1)
    assert (len(first.materialized), len(first.log)) == (0, 1)
    subtask.run(2)
    assert len(subtask.checkpoint(2).log) == 2
    subtask.run(3)  # two handles: materialized at this boundary
    subtask.materialized(1)
    subtask.run(4)
    third = subtask.checkpoint(3)
    assert (len(third.materialized), len(third.log)) == (1, 1)
    assert pa.ipc.read_schema(pa.py_buffer(third.schema)) == subtask.table.stored_schema()


def test_a_log_of_rows_that_are_all_new_is_no_reason_to_materialize_and_a_log_longer_than_the_table_is():
    subtask = make(log_bytes_min=1)
    for batch in range(5):
        subtask.run(*range(100 * batch, 100 * batch + 100))
        subtask.checkpoint(batch)
    subtask.run(0)
    assert subtask.metric("startedMaterialization") == 0
    subtask.run(*range(100))
    handle = subtask.checkpoint(5)
    subtask.run(0)  # each of 100 rows is twice in the log
    subtask.materialized(1)
    assert len(handle.log) == 6 and len(subtask.checkpoint(6).materialized) == 1
    subtask.uploader.close()


def test_the_log_is_truncated_only_when_a_checkpoint_that_uses_the_materialization_completes(subtask: Subtask):
    subtask.run(1)
    old = subtask.checkpoint(1)
    subtask.run(2)
    subtask.checkpoint(2)
    subtask.run(3)
    subtask.materialized(1)
    new = subtask.checkpoint(3)
    assert set(old.objects()) < set(subtask.keyed.held())
    subtask.keyed.completed(2)
    assert set(old.objects()) < set(subtask.keyed.held())
    subtask.keyed.completed(3)
    assert subtask.keyed.held() == new.objects()
    assert set(old.objects()) < set(subtask.names())  # acknowledged: the JobMaster deletes them


def test_a_table_holds_all_that_its_completed_checkpoint_names_so_that_local_copies_stay(subtask: Subtask):
    materialized = 0
    for checkpoint in range(1, 8):
        subtask.run(checkpoint)
        if checkpoint % 3 == 0:
            materialized += 1
            subtask.materialized(materialized)
        handle = subtask.checkpoint(checkpoint)
        subtask.keyed.completed(checkpoint)
        assert set(handle.objects()) <= set(subtask.keyed.held())


def test_what_a_handle_names_goes_with_the_subtask_where_no_acknowledgement_came_to_name_it(subtask: Subtask):
    subtask.run(1)
    acknowledged = subtask.checkpoint(1)
    subtask.run(1)
    subtask.checkpoint(2)
    subtask.run(1)
    subtask.materialized(1)
    subtask.run(1)
    handle = subtask.keyed.checkpoint(3, subtask.batch).result(60)
    assert handle.materialized and handle.log
    subtask.keyed.close()
    until(lambda: not set(handle.objects()) & set(subtask.names()))
    assert set(acknowledged.objects()) <= set(subtask.names())


def test_a_cut_before_the_boundary_does_not_use_the_materialization(subtask: Subtask):
    subtask.run(1)
    subtask.checkpoint(1)
    subtask.run(1)
    subtask.checkpoint(2)
    subtask.run(1)
    subtask.run(1)
    subtask.materialized(1)
    assert subtask.checkpoint(3, batch=1).materialized == []
    assert len(subtask.checkpoint(4, batch=3).materialized) == 1


def test_checkpoints_go_on_while_a_materialization_uploads(subtask: Subtask):
    subtask.shared_open.clear()
    for checkpoint_id in range(6):
        subtask.run(checkpoint_id)
        assert subtask.checkpoint(checkpoint_id).materialized == []
        subtask.keyed.completed(checkpoint_id)
    assert subtask.metric("startedMaterialization") == 1
    subtask.shared_open.set()
    subtask.materialized(1)
    assert len(subtask.checkpoint(9).materialized) == 1


def test_a_materialization_that_no_checkpoint_came_to_use_never_blocks_the_next(subtask: Subtask):
    for checkpoint_id in range(12):
        subtask.run(1)
        handle = subtask.checkpoint(checkpoint_id)
        subtask.keyed.aborted(checkpoint_id)
        subtask.materialized(int(subtask.metric("startedMaterialization")))
    assert subtask.metric("completedMaterialization") >= 3
    assert len(handle.materialized) == 1
    assert sum(name.startswith("shared/") for name in subtask.keyed.held()) == 1


def test_a_superseded_materialization_that_no_handle_named_is_deleted():
    subtask = make(interval_s=1.0, log_ratio_max=0.0)
    for _ in range(3):
        subtask.clock.advance(2.0)
        subtask.run(1)
        subtask.materialized(subtask.batch + 1)
    until(lambda: len(subtask.names()) == 1)
    assert subtask.keyed.held() == subtask.names()
    subtask.uploader.close()


def test_nothing_new_is_not_materialized_however_long_it_takes():
    subtask = make(interval_s=1.0)
    for _ in range(3):
        subtask.clock.advance(100.0)
        subtask.run()
    assert subtask.metric("startedMaterialization") == 0
    subtask.uploader.close()


def test_one_failure_is_tolerated_and_three_in_a_row_fail_the_subtask():
    subtask = make(interval_s=1.0, log_ratio_max=0.0)
    subtask.fail_shared = 2
    for attempt in range(1, 4):
        subtask.clock.advance(2.0)
        subtask.run(1)
        subtask.materialized(attempt)
    assert subtask.metric("failedMaterialization") == 2
    assert len(subtask.checkpoint(1).materialized) == 1
    subtask.fail_shared = 3
    for attempt in range(4, 7):
        subtask.clock.advance(2.0)
        subtask.run(1)
        subtask.materialized(attempt)
    with pytest.raises(StorageError, match="injected"):
        subtask.run(1)
    subtask.uploader.close()


def test_an_aborted_checkpoint_deletes_nothing_and_the_next_one_uses_what_it_stored(subtask: Subtask):
    subtask.run(1)
    handle = subtask.checkpoint(1)
    subtask.keyed.aborted(1)
    assert subtask.names() == handle.objects()
    subtask.run(2)
    assert subtask.checkpoint(2).log[0] == handle.log[0]


def test_aborted_checkpoints_let_go_of_the_log_that_a_newer_base_replaces_and_a_rewind_goes_on_from_the_completed(
    subtask: Subtask,
):
    subtask.run(1)
    completed = subtask.checkpoint(1)
    subtask.keyed.completed(1)
    for number in range(2, 12):
        subtask.run(number)
        subtask.keyed.checkpoint(number, subtask.batch).result(60)
        subtask.uploader.in_background(lambda: None).result(60)  # after the materialization, if it runs
        subtask.keyed.aborted(number)
    until(lambda: len(subtask.names()) <= 6)
    assert set(completed.objects()) <= set(subtask.names())
    with pytest.raises(CheckpointFailed, match="came too late"):
        subtask.keyed.checkpoint(12, 2)
    subtask.keyed.rewind(0)
    subtask.expected[subtask.batch] = subtask.expected[0]
    subtask.run(1, 2)
    again = subtask.checkpoint(13)
    assert (again.materialized, again.log[: len(completed.log)]) == (completed.materialized, completed.log)


def test_a_checkpoint_that_was_aborted_or_subsumed_before_it_was_stored_gives_no_handle():
    subtask = make()
    held_up, opened = threading.Event(), threading.Event()

    def put(name: str, data: bytes) -> None:
        held_up.set()
        opened.wait(60)
        ObstoreStore.put(subtask.inner, name, data)

    subtask.inner.put = put  # type: ignore[method-assign,assignment]
    subtask.run(1)
    first, second, third = (subtask.keyed.checkpoint(number, 0) for number in (1, 2, 3))
    assert subtask.keyed.checkpoint(3, 0) is third
    assert held_up.wait(60)
    subtask.keyed.aborted(2)
    opened.set()
    with pytest.raises(CheckpointFailed, match="ended before"):
        second.result(60)
    assert first.result(60) == third.result(60)
    subtask.keyed.completed(3)
    subtask.keyed.completed(1)
    subtask.uploader.close()


def test_a_failed_checkpoint_fails_with_the_io_error_and_the_next_one_stores_all_of_it():
    subtask = make()
    subtask.run(1)
    put = subtask.inner.put
    subtask.inner.put = lambda name, data: (_ for _ in ()).throw(StorageError("down"))  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="down"):
        subtask.keyed.checkpoint(1, 0).result(60)
    subtask.inner.put = put  # type: ignore[method-assign]
    subtask.run(1, 2)
    assert len(subtask.checkpoint(2).log) == 1
    subtask.uploader.close()


def test_a_pending_cut_keeps_the_log_from_its_lead_when_an_earlier_cut_without_a_lead_completes():
    """Found by seed 168 of the simulation: the JobMaster deleted what the third checkpoint named."""
    subtask = make(log_bytes_min=1, log_ratio_max=1e-9)
    subtask.run(1)
    subtask.checkpoint(1)
    subtask.run(1)
    subtask.materialized(1)
    subtask.run(1)
    subtask.checkpoint(2)
    subtask.keyed.completed(1)
    subtask.run(1)
    third = subtask.checkpoint(3)
    assert min(piece.sqn_start for piece in third.log) == 0
    subtask.keyed.completed(2)
    assert {piece.object for piece in third.log} <= set(subtask.keyed.held())
    subtask.keyed.completed(3)
    subtask.uploader.close()


def test_closing_deletes_what_no_handle_named_and_keeps_what_one_did():
    subtask = make(log_bytes_min=1, log_ratio_max=1e-9)
    subtask.run(1)
    handle = subtask.checkpoint(1)
    subtask.run(1)
    subtask.materialized(1)
    assert len(subtask.names()) == 2
    subtask.keyed.close()
    until(lambda: subtask.names() == handle.objects())
    subtask.uploader.close()


def test_a_materialization_under_way_when_the_table_is_closed_is_deleted_and_counts_as_nothing():
    subtask = make(interval_s=1.0)
    subtask.shared_open.clear()
    subtask.clock.advance(2.0)
    subtask.run(1)
    until(lambda: subtask.puts == 1)
    subtask.keyed.close()
    subtask.shared_open.set()
    subtask.uploader.in_background(lambda: None).result(60)
    until(lambda: subtask.names() == [])
    assert subtask.metric("completedMaterialization") == subtask.metric("failedMaterialization") == 0
    subtask.uploader.close()


def test_checkpoints_taken_while_batches_commit_hold_exactly_their_cut():
    subtask = make(log_handles_max=4)
    committed = [-1]
    stop = threading.Event()

    def process() -> None:
        while not stop.is_set() and committed[0] < 5000:
            committed[0] = subtask.run(*(key % 50 for key in range(subtask.batch, subtask.batch + 9)))

    thread = threading.Thread(target=process)
    thread.start()
    until(lambda: committed[0] >= 0)
    for checkpoint_id in range(40):
        cut = committed[0]
        subtask.checkpoint(checkpoint_id, cut)
        (subtask.keyed.aborted if checkpoint_id % 5 == 4 else subtask.keyed.completed)(checkpoint_id)
    stop.set()
    thread.join()
    assert subtask.metric("completedMaterialization") > 1
    subtask.checkpoint(99)
    subtask.uploader.close()


@pytest.mark.parametrize(("early", "late"), [(200, 500), pytest.param(1_000, 10_000, marks=pytest.mark.long)])
def test_later_checkpoints_take_no_more_than_early_ones_did(early: int, late: int):
    """Objects, bytes and handles, with a registry that deletes objects that neither a record names nor a log holds."""
    subtask = make(log_handles_max=16, interval_s=1e9)
    known: set[str] = set()
    largest = {"objects": 0, "bytes": 0, "handles": 0}
    at_first: dict[str, int] = {}
    for number in range(late):
        subtask.run(number % 8, (number * 7) % 8)
        until(lambda: not subtask.keyed._merging)
        handle = subtask.keyed.checkpoint(number, number).result(60)
        subtask.keyed.completed(number)
        known.update(handle.objects())
        wanted = {*handle.objects(), *subtask.keyed.held()}
        subtask.inner.delete(sorted(known - wanted))
        known &= wanted
        if number % 8 == 7:
            stored = subtask.inner.list("")
            largest["objects"] = max(largest["objects"], len(stored))
            largest["bytes"] = max(largest["bytes"], sum(info.size for info in stored))
            largest["handles"] = max(largest["handles"], len(handle.log) + len(handle.materialized))
        if number == early - 1:
            at_first, largest = largest, dict.fromkeys(largest, 0)
    print(at_first, largest)
    assert subtask.restored(handle) == subtask.expected[late - 1]
    for what, bound in at_first.items():
        assert largest[what] <= 1.2 * bound, what
    subtask.uploader.close()


def test_after_a_materialization_that_took_long_the_next_one_waits_a_fifth_as_long():
    subtask = make(interval_s=100.0, log_ratio_max=0.0)
    subtask.clock.advance(200.0)
    subtask.run(1)
    subtask.materialized(1)
    subtask.clock.advance(200.0)
    subtask.shared_open.clear()
    subtask.run(1)
    subtask.clock.advance(5.0)
    subtask.shared_open.set()
    subtask.materialized(2)
    subtask.keyed._schedule._policy = MaterializationPolicy(log_handles_max=1)
    subtask.run(1)
    subtask.checkpoint(1)
    subtask.clock.advance(0.5)
    subtask.run(1)
    assert subtask.metric("startedMaterialization") == 2
    subtask.clock.advance(0.5)
    subtask.run(1)
    subtask.materialized(3)
    assert subtask.metric("startedMaterialization") == 3
    subtask.uploader.close()


def test_parts_of_a_patient_materialization_wait_for_checkpoints_and_those_of_a_hurried_one_do_not(monkeypatch):
    subtask = make(log_handles_max=1)
    waited: list[int] = []
    monkeypatch.setattr(subtask.uploader, "wait_for_checkpoints", waited.append)
    subtask.run(1)
    subtask.checkpoint(1)
    subtask.run(1)
    subtask.materialized(1)
    assert not waited, "the first one hurries"
    subtask.clock.advance(10.0)
    subtask.shared_open.clear()
    subtask.run(1)
    subtask.checkpoint(2)
    subtask.run(1)
    subtask.clock.advance(9.0)
    subtask.shared_open.set()
    subtask.materialized(2)
    assert len(waited) == 1
    assert waited[0] > 0
    subtask.clock.advance(2.0)
    subtask.run(1)
    subtask.checkpoint(3)
    subtask.run(1)
    subtask.materialized(3)
    assert len(waited) == 1, "the log would nearly double meanwhile"
    subtask.uploader.close()


def test_gauges_tell_the_sizes_of_tables_and_logs_and_what_of_them_is_new():
    subtask = make(log_handles_max=2)
    subtask.run(*range(50))
    first = subtask.checkpoint(1)
    assert subtask.keyed.sizes.gauges() == {
        "lastFullSizeOfNonMaterialization": first.stored_bytes(),
        "lastIncSizeOfNonMaterialization": first.stored_bytes(),
        "lastFullSizeOfMaterialization": 0.0,
        "lastIncSizeOfMaterialization": 0.0,
    }
    subtask.run(1)
    second = subtask.checkpoint(2)
    gauges = subtask.keyed.sizes.gauges()
    assert gauges["lastFullSizeOfNonMaterialization"] == second.stored_bytes()
    assert gauges["lastIncSizeOfNonMaterialization"] == second.log[1].length
    subtask.run(2)
    subtask.materialized(1)
    assert subtask.keyed.sizes.gauges()["lastFullSizeOfMaterialization"] == 0.0, "no checkpoint has named it yet"
    third = subtask.checkpoint(3)
    table = sum(part.length for part in third.materialized)
    gauges = subtask.keyed.sizes.gauges()
    assert gauges["lastFullSizeOfMaterialization"] == gauges["lastIncSizeOfMaterialization"] == table > 0
    assert gauges["lastDurationOfMaterialization"] == 0.0
    subtask.checkpoint(4)
    gauges = subtask.keyed.sizes.gauges()
    assert (gauges["lastFullSizeOfMaterialization"], gauges["lastIncSizeOfMaterialization"]) == (table, 0.0)
    again = make()
    again.keyed.restored([third])
    again.keyed.checkpoint(5, again.batch).result(60)
    gauges = again.keyed.sizes.gauges()
    assert (gauges["lastFullSizeOfMaterialization"], gauges["lastIncSizeOfMaterialization"]) == (table, 0.0)
    again.uploader.close()
    subtask.uploader.close()
