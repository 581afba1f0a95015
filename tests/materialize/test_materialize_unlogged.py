"""The durable side of a table without a changelog: each checkpoint is a materialization at its cut."""

import gc
import weakref
from concurrent.futures import Future

import pytest
from materialize_kit import Unlogged

from holdfast.errors import CheckpointFailed, StorageError
from holdfast.formats import snapshots
from holdfast.formats.handles import FILE, TableHandle
from holdfast.materialize import materializer
from holdfast.settings import HashMapState, RocksDBState
from waiting import until

BACKENDS = [HashMapState(), RocksDBState(), RocksDBState(cache_max_entries=10)]


@pytest.fixture(params=BACKENDS, ids=str)
def table(request, tmp_path):
    table = Unlogged(request.param, tmp_path)
    yield table
    table.close()


def test_a_checkpoint_is_the_table_at_the_cut_and_names_no_log(table):
    table.run(range(100))
    first = table.checkpoint()
    table.run(range(50, 150))
    second = table.checkpoint()
    assert first.log == second.log == []
    assert table.restored(first) == dict.fromkeys(range(100), 1)
    assert table.restored(second) == table.counts()


def test_a_cut_taken_while_the_next_batch_is_in_flight_does_not_see_it(table):
    table.run(range(100))
    table.begin(range(50, 150))
    handle = table.checkpoint()
    assert table.restored(handle) == dict.fromkeys(range(100), 1)
    table.undo()
    table.begin(range(90, 110))
    again = table.cut(2)
    table.commit(range(90, 110))
    assert table.restored(again.result(60)) == dict.fromkeys(range(100), 1)
    assert table.restored(table.checkpoint()) == table.counts()


def test_where_nothing_changed_the_same_parts_are_named_again(table):
    table.run(range(20))
    first = table.checkpoint()
    table.run(range(0))
    second = table.checkpoint()
    assert second.materialized == first.materialized
    assert table.metric("startedMaterialization") == 1


def test_an_empty_table_has_a_checkpoint_without_parts(table):
    table.run(range(0))
    assert table.checkpoint().materialized == []


def test_a_cut_that_comes_after_the_next_commit_is_refused(table):
    table.run(range(5))
    table.run(range(5))
    with pytest.raises(ValueError, match="cut at batch 0, but batch 1 was committed"):
        table.cut(1, batch=0)
    assert table.restored(table.checkpoint()) == table.counts()


def test_a_failed_upload_fails_the_checkpoint_and_never_the_table(table):
    for _ in range(5):
        table.run(range(30))
        table.fail = 1
        with pytest.raises(StorageError, match="injected"):
            table.cut(table.batch).result(60)
        table.keyed.aborted(table.batch)
    assert table.metric("failedMaterialization") == 5
    table.run(range(10))
    assert table.restored(table.checkpoint()) == table.counts()


def test_what_no_acknowledgement_named_goes_with_the_next_checkpoint_that_completes(table):
    for number in range(6):
        table.run(range(number, 40 + number))
        future: Future[TableHandle] = table.cut(table.batch)
        future.result(60)
        if number % 2:
            table.keyed.aborted(table.batch)
        else:
            table.acknowledge(future)
    table.run(range(40))
    last = table.checkpoint()
    assert set(table.keyed.held()) == set(last.objects())
    until(lambda: table.stored() == table.acknowledged)


def test_of_rocksdb_only_new_files_are_stored(tmp_path):
    table = Unlogged(RocksDBState(), tmp_path)
    table.run(range(300))
    first = table.checkpoint()
    table.run(range(5))
    before = table.stored()
    second = table.checkpoint()
    assert {part.object for part in first.materialized if part.kind == FILE} < set(second.objects())
    assert len(table.stored() - before) == 2, "a heading and a file"
    table.close()


def test_a_rewind_gives_up_what_was_cut_later_and_the_next_cut_is_of_what_is_left(table):
    table.run(range(10))
    table.checkpoint()
    table.run(range(20))
    table.run(range(30))
    table.open.clear()
    later = table.cut(7)
    table.rewind(0)
    table.open.set()
    with pytest.raises(CheckpointFailed):
        later.result(60)
    with pytest.raises(CheckpointFailed, match="was undone"):
        table.cut(8, batch=1)
    table.run(range(5))
    assert table.restored(table.checkpoint()) == {key: 2 if key < 5 else 1 for key in range(10)}


def test_rows_that_were_stored_are_let_go_without_a_search_for_garbage(table, monkeypatch):
    stored = []

    def encode_part(log, rows, *where):
        stored.append(weakref.ref(rows))
        return snapshots.encode_part(log, rows, *where)

    monkeypatch.setattr(materializer, "encode_part", encode_part)
    gc.disable()
    try:
        for _ in range(3):
            table.run(range(5))
            table.checkpoint()
        until(lambda: not [rows for each in stored if (rows := each()) is not None])
    finally:
        gc.enable()
