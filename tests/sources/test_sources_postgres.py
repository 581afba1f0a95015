"""The PostgreSQL source against a real server: copies equal their tables, and errors name the remedy."""

import itertools
import threading

import pytest
from sources_postgres_server import History, assert_equal, copied, is_equal, job_of, running

import holdfast as hf
from holdfast.errors import JobRefused, QueryFailed
from holdfast.sources.postgres import reader, snapshot
from holdfast.sources.postgres.chunks import Chunks
from holdfast.sources.postgres.writer import SegmentWriter
from holdfast.storage.store import open_store
from holdfast.testing import run
from holdfast.testing.run import start
from sampling import some
from waiting import until


@pytest.mark.parametrize("snapshot", ["initial", "chunked", "never"])
def test_copies_equal_their_tables_after_a_history(database, tmp_path, snapshot):
    tables = database.create("a", "b")
    history = History(database, seed=1)
    if snapshot != "never":
        history.write(12)
    run(job_of(database.source(snapshot=snapshot, chunk_rows=50), tables, tmp_path))
    history.write(12)
    run(job_of(database.source(snapshot=snapshot, chunk_rows=50), tables, tmp_path, max_rows_per_batch=100))
    assert_equal(database, tmp_path)


def test_the_table_keeps_up_while_the_query_runs_and_segments_go(database, tmp_path):
    tables = database.create("a", "b")
    store = open_store(f"file://{tmp_path}/job")
    with running(job_of(database.source(), tables, tmp_path, checkpoint=hf.CheckpointConfig(trigger=hf.every("50ms")))):
        for seed in range(2):
            History(database, seed).write(10)
        number = int(database.execute(f"SELECT count(*) FROM {tables[0]}")[0][0])
        until(lambda: (tmp_path / "copy0" / "_delta_log").exists(), "the copy")
        until(lambda: len(copied(tmp_path, 0)) == number, lambda: f"{len(copied(tmp_path, 0))} of {number} rows")
        until(lambda: is_equal(database, tmp_path), "equality")
        until(lambda: len(store.list("segments/")) <= 4, lambda: f"{len(store.list('segments/'))} segments")


@pytest.mark.parametrize("snapshot", some(["initial", "chunked"], 1))
def test_each_change_fits_the_row_before_though_rows_change_during_the_snapshot(database, tmp_path, snapshot):
    tables = database.create("a")
    History(database, seed=5, keys=100).write(15)
    job = hf.Job(None, name="strict", storage=f"file://{tmp_path}/job")
    sink = hf.MemorySink()
    job.read(database.source(snapshot=snapshot, chunk_rows=30).table(tables[0])).write(sink)
    writing = threading.Thread(target=History(database, seed=6, keys=100).write, args=(24, 20))
    writing.start()
    run(job)
    writing.join()
    run(job)
    kept = replayed(sink.rows())
    expected = database.execute(f"SELECT id, name, amount FROM {tables[0]} ORDER BY id")
    assert [(key, kept[key]["name"], kept[key]["amount"]) for key in sorted(kept)] == expected


def replayed(rows):
    """Apply changes strictly: an existing row cannot be inserted, and a changed row must be as it was before."""
    kept = {}
    for row in rows:
        kind = row["_change_type"]
        values = {name: value for name, value in row.items() if not name.startswith("_")}
        key = values["id"]
        if kind in ("insert", "update_postimage"):
            assert key not in kept, f"{kind} of a row that is there: {row}, {kept[key]}"
            kept[key] = values
        else:
            assert kept.pop(key, None) == values, f"{kind} of a row that is not there as it was: {row}"
    return kept


def test_a_transaction_larger_than_a_batch_is_divided_by_no_checkpoint(database, tmp_path):
    tables = database.create("a", "b")
    for table in tables:
        database.execute(f"INSERT INTO {table} (id) VALUES (0)")
    run(job_of(database.source(), tables, tmp_path))
    both = "; ".join(f"INSERT INTO {table} (id) SELECT generate_series(1, 1500)" for table in tables)
    database.execute(f"BEGIN; {both}; COMMIT")
    job = job_of(
        database.source(),
        tables,
        tmp_path,
        max_rows_per_batch=300,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("1ms")),
    )
    query = run(job)
    assert query.totals.refused_checkpoints > 0
    counts = {(len(copied(tmp_path, 0)), len(copied(tmp_path, 1)))}
    assert counts == {(1501, 1501)}
    assert query.totals.completed_checkpoints <= 3


def test_updates_without_a_preimage_read_back_large_values(database, tmp_path):
    tables = database.create("a", full=False)
    database.execute(
        f"INSERT INTO {tables[0]} (id, big) SELECT g, repeat(md5(random()::text), 400) FROM generate_series(1, 20) g"
    )
    run(job_of(database.source(before="key"), tables, tmp_path))
    database.execute(f"UPDATE {tables[0]} SET name = 'new'; UPDATE {tables[0]} SET id = id + 100 WHERE id < 5")
    database.execute(f"UPDATE {tables[0]} SET name = 'newer' WHERE id = 6; DELETE FROM {tables[0]} WHERE id IN (6, 7)")
    run(job_of(database.source(before="key"), tables, tmp_path))
    assert_equal(database, tmp_path)


def test_a_slot_that_was_made_anew_is_refused(database, tmp_path):
    tables = database.create("a")
    database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
    run(job_of(database.source(), tables, tmp_path))
    database.drop_slot()
    with pytest.raises((JobRefused, QueryFailed), match="is gone"):
        run(job_of(database.source(), tables, tmp_path, failover=hf.FailoverConfig(restarts_max=0)))
    database.execute(f"INSERT INTO {tables[0]} (id) VALUES (2)")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.slot,))
    with pytest.raises((JobRefused, QueryFailed), match="re-created"):
        run(job_of(database.source(), tables, tmp_path, failover=hf.FailoverConfig(restarts_max=0)))


def test_a_new_driver_ends_the_connection_of_the_old_one_and_goes_on(database, tmp_path):
    tables = database.create("a")
    old = start(job_of(database.source(), tables, tmp_path), hf.processing_time("10ms"))
    database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
    until(lambda: is_equal(database, tmp_path), "the first row")
    (pid,) = database.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (database.slot,))[0]
    with running(job_of(database.source(), tables, tmp_path)):
        database.execute(f"INSERT INTO {tables[0]} (id) SELECT generate_series(2, 500)")
        until(lambda: is_equal(database, tmp_path), "the rows after the takeover")
        reader = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        until(lambda: database.execute(reader, (database.slot,))[0][0] not in (None, pid), "the new driver's reader")
        with pytest.raises(QueryFailed):
            old.awaitTermination(60)


def test_a_full_spool_stops_reading_until_a_checkpoint_completes(database, tmp_path, caplog):
    tables = database.create("a")
    source = database.source(spool_bytes_max=20_000)
    rare = hf.CheckpointConfig(trigger=hf.every("1h"))
    query = start(job_of(source, tables, tmp_path, checkpoint=rare), hf.processing_time("10ms"))
    batches = itertools.count()

    def is_full_after_more_rows() -> bool:  # how many rows fill the spool depends on how many the reader takes at once
        first = 1_000 * next(batches) + 1
        database.execute(f"INSERT INTO {tables[0]} (id) SELECT generate_series({first}, {first + 999})")
        return "the spool is full" in caplog.text

    try:
        until(is_full_after_more_rows, "the spool to be full")
        while not is_equal(database, tmp_path):
            query.trigger_checkpoint(timeout=30)
    finally:
        query.stop()


def test_a_bounded_run_reads_to_its_end_though_its_spool_is_too_small_for_it(database, tmp_path, monkeypatch):
    tables = database.create("a")
    run(job_of(database.source(), tables, tmp_path))
    monkeypatch.setattr(reader, "PIECE_MESSAGES_MAX", 500)
    for first in range(1, 10_001, 1_000):
        database.execute(f"INSERT INTO {tables[0]} (id) SELECT generate_series({first}, {first + 999})")
    run(job_of(database.source(spool_bytes_max=2_000), tables, tmp_path))
    assert_equal(database, tmp_path)


def test_a_driver_that_ends_during_the_initial_snapshot_begins_it_anew(database, tmp_path, monkeypatch):
    tables = database.create("a")
    database.execute(f"INSERT INTO {tables[0]} (id) SELECT generate_series(1, 1200)")
    monkeypatch.setattr(snapshot, "PIECE_ROWS_MAX", 200)
    written = SegmentWriter.write

    def breaks(self, piece):
        if self._spool.end.segment == 4:
            raise RuntimeError("ends here")
        return written(self, piece)

    monkeypatch.setattr(SegmentWriter, "write", breaks)
    with pytest.raises(QueryFailed, match="ends here"):
        run(job_of(database.source(), tables, tmp_path, failover=hf.FailoverConfig(restarts_max=0)))
    monkeypatch.setattr(SegmentWriter, "write", written)
    database.execute(f"DELETE FROM {tables[0]} WHERE id > 800")
    run(job_of(database.source(), tables, tmp_path))
    assert_equal(database, tmp_path)
    assert len(copied(tmp_path, 0)) == 800


@pytest.mark.parametrize("key", some(["int", "uuid"], 1))
def test_a_chunked_snapshot_that_a_crash_ends_goes_on_at_the_chunk_under_way(database, tmp_path, monkeypatch, key):
    columns = "id int PRIMARY KEY, name text" if key == "int" else "id uuid PRIMARY KEY, name text"
    made = "g" if key == "int" else "md5(g::text)::uuid"
    gone = "20" if key == "int" else "'20000000-0000-0000-0000-000000000000'"
    tables = database.create("a", columns=columns)
    database.execute(f"INSERT INTO {tables[0]} SELECT {made}, 'first' FROM generate_series(1, 100) g")
    read, written, ranges = Chunks._read, SegmentWriter.write, []

    def notes(self, chunk, beat):
        ranges.append((chunk.first, chunk.stop))
        read(self, chunk, beat)

    def breaks(self, piece):
        if len(ranges) == 5 and piece.tables:
            raise RuntimeError("ends here")
        return written(self, piece)

    def job():
        source = database.source(snapshot="chunked", chunk_rows=10)
        return job_of(source, tables, tmp_path, failover=hf.FailoverConfig(restarts_max=0))

    monkeypatch.setattr(Chunks, "_read", notes)
    monkeypatch.setattr(SegmentWriter, "write", breaks)
    with pytest.raises((JobRefused, QueryFailed), match="ends here"):
        run(job())
    monkeypatch.setattr(SegmentWriter, "write", written)
    database.execute(f"UPDATE {tables[0]} SET name = 'second'")
    database.execute(f"DELETE FROM {tables[0]} WHERE id < {gone}")
    run(job())
    assert_equal(database, tmp_path)
    assert ranges[4] == ranges[5], "the chunk under way is read again, and none before it"
    assert all(first[1] == second[0] for first, second in itertools.pairwise(ranges[5:]))
    assert len(ranges) >= 9


@pytest.mark.parametrize("snapshot", some(["initial", "chunked"], 1))
def test_who_waits_for_all_that_is_available_gets_all_that_was_committed_at_the_call(
    database, tmp_path, monkeypatch, snapshot
):
    monkeypatch.setattr("holdfast.sources.postgres.reader.FLUSH_S", 60.0)
    tables = database.create("a", columns="id int PRIMARY KEY, name text")
    database.execute(f"INSERT INTO {tables[0]} SELECT n, 'a' FROM generate_series(1, 25) n")
    with running(job_of(database.source(snapshot=snapshot, chunk_rows=5), tables, tmp_path)) as query:
        query.processAllAvailable()
        assert_equal(database, tmp_path)
        for number in range(3):
            database.execute(f"UPDATE {tables[0]} SET name = '{number}' WHERE id = {number}")
            query.processAllAvailable()
            assert_equal(database, tmp_path)
