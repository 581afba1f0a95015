"""Truncations of PostgreSQL tables as deletes of the rows that the job knows."""

import threading

import pytest
from sources_postgres_server import History, assert_equal, is_equal, job_of, running

import holdfast as hf
from holdfast.testing import run
from sampling import some
from waiting import until


@pytest.mark.parametrize("snapshot", some(["initial", "chunked"], 0))
def test_a_truncated_table_leaves_an_empty_copy_to_which_later_rows_come(database, tmp_path, snapshot):
    tables = database.create("a", "b")
    for table in tables:
        database.execute(f"INSERT INTO {table} (id, name) SELECT g, 'first' FROM generate_series(1, 300) g")
    source = {"snapshot": snapshot, "truncate": "delete", "chunk_rows": 100}
    run(job_of(database.source(**source), tables, tmp_path))
    database.execute(f"INSERT INTO {tables[0]} (id) VALUES (301); DELETE FROM {tables[0]} WHERE id < 20")
    database.execute(f"TRUNCATE {tables[0]}")
    run(job_of(database.source(**source), tables, tmp_path))
    assert_equal(database, tmp_path)
    both = ", ".join(tables)
    database.execute(
        f"BEGIN; INSERT INTO {tables[0]} (id) SELECT generate_series(1, 50); TRUNCATE {both}; "
        f"INSERT INTO {tables[1]} (id, name) SELECT g, 'second' FROM generate_series(290, 400) g; COMMIT"
    )
    run(job_of(database.source(**source), tables, tmp_path, max_rows_per_batch=40))
    assert_equal(database, tmp_path)


def test_deletes_of_a_truncation_tell_the_rows_as_they_were_and_nothing_twice(database, tmp_path):
    tables = database.create("a")
    database.execute(f"INSERT INTO {tables[0]} (id, amount) SELECT g, g FROM generate_series(1, 40) g")
    job = hf.Job(None, name="strict", storage=f"file://{tmp_path}/job")
    sink = hf.MemorySink()
    job.read(database.source(truncate="delete").table(tables[0])).write(sink)
    run(job)
    database.execute(f"UPDATE {tables[0]} SET amount = -1 WHERE id = 7; UPDATE {tables[0]} SET id = 99 WHERE id = 8")
    database.execute(f"TRUNCATE {tables[0]}")
    database.execute(f"TRUNCATE {tables[0]}")
    run(job)
    deleted = [row for row in sink.rows() if row["_change_type"] == "delete"]
    moved, gone = deleted[0], deleted[1:]
    assert moved["id"] == 8
    expected = {key: key for key in range(1, 41) if key != 8} | {7: -1, 99: 8}
    assert {row["id"]: row["amount"] for row in gone} == expected
    assert len(gone) == len(expected)
    assert len({(row["_lsn"], row["_xid"], row["_commit_time"]) for row in gone}) == 1


def test_tables_that_are_truncated_while_their_chunks_are_read_equal_their_copies(database, tmp_path):
    tables = database.create("a")
    History(database, seed=3, keys=100).write(9, 30)
    source = {"snapshot": "chunked", "truncate": "delete", "chunk_rows": 10}
    history = History(database, seed=4, keys=100)

    def write():
        for _ in range(6):
            history.write(3, 10)
            database.execute(f"TRUNCATE {tables[0]}")
            history.write(3, 10)

    writing = threading.Thread(target=write)
    with running(job_of(database.source(**source), tables, tmp_path, max_rows_per_batch=50)):
        writing.start()
        writing.join()
        until(lambda: is_equal(database, tmp_path), "equality")
