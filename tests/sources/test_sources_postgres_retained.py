"""The PostgreSQL source with retained checkpoints: their segments stay, and a start can go back to them."""

import pytest
from sources_postgres_server import assert_equal, job_of, running

import holdfast as hf
from holdfast.errors import JobRefused, QueryFailed
from holdfast.journal.fence import journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.storage.store import open_store
from holdfast.testing import run
from waiting import until


def named_and_stored(folder):
    """The segments that the records of a job's journal name, and those that are in its storage."""
    store = open_store(f"file://{folder}/job")
    records = [read_record(store, number) for number in journal_numbers(store)]
    checkpoints = [record for record in records if isinstance(record, CheckpointRecord)]
    named = {name for record in checkpoints for names in record.source_objects.values() for name in names}
    return named, {info.name for info in store.list("segments/")}


def rounds(database, tables, folder, kept, count):
    """Start a job so often, each time with three rows and a checkpoint; return the checkpoints' numbers."""
    numbers = []
    for number in range(count):
        with running(job_of(database.source(), tables, folder, checkpoint=kept)) as query:
            for row in range(3):
                database.execute(f"INSERT INTO {tables[0]} (id) VALUES ({10 * number + row})")
                until(lambda rows=row + 1: query.totals.rows >= rows, "the row")
            numbers.append(query.trigger_checkpoint(timeout=30))
        named, there = named_and_stored(folder)
        assert named <= there
    return numbers


def test_segments_of_retained_checkpoints_outlive_restarts_and_a_start_goes_back_to_them(database, tmp_path):
    tables = database.create("a")
    kept = hf.CheckpointConfig(trigger=hf.manual(), retained=5)
    first, *_ = rounds(database, tables, tmp_path, kept, 3)
    again = job_of(database.source(), tables, tmp_path, checkpoint=kept, start_from=first, publish_again=True)
    query = run(again)
    assert query.totals.rows == 6
    assert_equal(database, tmp_path)


def test_an_older_checkpoint_whose_changes_are_gone_is_refused(database, tmp_path):
    tables = database.create("a")
    kept = hf.CheckpointConfig(trigger=hf.manual(), retained=5)
    first, *_ = rounds(database, tables, tmp_path, kept, 2)
    store = open_store(f"file://{tmp_path}/job")
    named = read_record(store, first).source_objects["postgres-1"]
    after = [info.name for info in store.list("segments/") if info.name not in named]
    store.delete(sorted(after, key=lambda name: int(name.rpartition("/")[2].partition("-")[0]))[:1])
    with pytest.raises((JobRefused, QueryFailed), match=r"checkpoint is not the newest.*were deleted"):
        run(job_of(database.source(), tables, tmp_path, checkpoint=kept, start_from=first, publish_again=True))
