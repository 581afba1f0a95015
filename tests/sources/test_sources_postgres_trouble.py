"""The PostgreSQL source in trouble: a server that goes away, a slot in use, older checkpoints; and quiet times."""

import re
import threading
from contextlib import closing

import psycopg2
import psycopg2.extras
import pytest
from sources_postgres_server import assert_equal, copied, is_equal, job_of, running

import holdfast as hf
from holdfast.errors import Fenced, JobRefused, QueryFailed
from holdfast.sources.postgres import chunks, claim, reader, snapshot
from holdfast.sources.postgres.claim import SlotClaim
from holdfast.sources.postgres.server import ReaderName, Server
from holdfast.sources.postgres.writer import SegmentWriter
from holdfast.testing import run
from holdfast.testing.run import start
from small_disk import fill, small_disk
from waiting import until

NO_RESTARTS = hf.FailoverConfig(restarts_max=0)


@pytest.mark.parametrize("away_s", [0, pytest.param(30, marks=pytest.mark.long)])
def test_a_server_that_comes_back_is_read_again_and_the_status_tells_the_outage(
    database, tmp_path, monkeypatch, away_s
):
    monkeypatch.setattr(reader, "RECONNECT_S_MAX", 0.2)
    tables = database.create("a")
    with running(job_of(database.source(), tables, tmp_path)) as query:
        database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
        until(lambda: is_equal(database, tmp_path), "the first row")
        database.server.kill()
        try:
            until(lambda: told_s(query) >= away_s, lambda: query.status["message"])
        finally:
            database.server.start()
        database.execute(f"INSERT INTO {tables[0]} (id) VALUES (2)")
        until(lambda: is_equal(database, tmp_path), "the row after the outage")
        until(lambda: "away" not in query.status["message"], lambda: query.status["message"])


def told_s(query):
    """The seconds for which the server has been away, as the query's status tells them; -1: it is not away."""
    told = re.search(r"away for (\d+) s", query.status["message"])
    return int(told[1]) if told else -1


def test_a_server_that_stays_away_ends_the_query_with_its_name(database, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "RECONNECT_S_MAX", 0.1)
    tables = database.create("a")
    config = hf.CheckpointConfig(trigger=hf.every("50ms"), outage_timeout="100ms")
    job = job_of(database.source(outage_timeout="200ms"), tables, tmp_path, checkpoint=config, failover=NO_RESTARTS)
    with running(job) as query:
        database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
        until(lambda: is_equal(database, tmp_path), "the first row")
        database.server.kill()
        try:
            with pytest.raises(QueryFailed, match="the server does not answer"):
                query.awaitTermination(60)
        finally:
            database.server.start()


def test_a_connection_lost_during_the_initial_snapshot_ends_the_query_and_the_next_start_begins_it_anew(
    database, tmp_path, monkeypatch
):
    tables = database.create("a")
    database.execute(
        f"INSERT INTO {tables[0]} (id, big) SELECT g, repeat(md5(g::text), 500) FROM generate_series(1, 1000) g"
    )
    monkeypatch.setattr(snapshot, "PIECE_ROWS_MAX", 100)
    written = SegmentWriter.write

    def loses(self, piece):
        if self._spool.end.segment == 3:
            database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%'")
        return written(self, piece)

    monkeypatch.setattr(SegmentWriter, "write", loses)
    with pytest.raises((JobRefused, QueryFailed), match=r"during the initial snapshot.*begins anew"):
        run(job_of(database.source(), tables, tmp_path, failover=NO_RESTARTS))
    monkeypatch.setattr(SegmentWriter, "write", written)
    database.execute(f"DELETE FROM {tables[0]} WHERE id > 700")
    run(job_of(database.source(), tables, tmp_path))
    assert_equal(database, tmp_path)


def test_isolation_by_rows_lets_checkpoints_divide_a_transaction(database, tmp_path):
    tables = database.create("a")
    database.execute(f"INSERT INTO {tables[0]} (id) VALUES (0)")
    run(job_of(database.source(isolation="row"), tables, tmp_path))
    database.execute(f"INSERT INTO {tables[0]} (id) SELECT generate_series(1, 1500)")
    often = hf.CheckpointConfig(trigger=hf.every("1ms"))
    job = job_of(database.source(isolation="row"), tables, tmp_path, max_rows_per_batch=100, checkpoint=often)
    query = run(job)
    assert query.totals.refused_checkpoints == 0
    assert query.totals.completed_checkpoints > 1
    assert len(copied(tmp_path, 0)) == 1501
    assert_equal(database, tmp_path)


def test_a_slot_that_another_program_reads_is_refused_with_its_process(database, tmp_path):
    tables = database.create("a")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.slot,))
    kind = psycopg2.extras.LogicalReplicationConnection
    other = psycopg2.connect(database.server.dsn, connection_factory=kind, application_name="other_program")
    with closing(other), other.cursor() as cursor:
        options = {"proto_version": "1", "publication_names": database.publication}
        cursor.start_replication(slot_name=database.slot, options=options)
        with pytest.raises(JobRefused, match=r"is in use by process \d+ \('other_program'\): stop it"):
            run(job_of(database.source(snapshot="never"), tables, tmp_path))


def test_the_slot_is_never_past_what_is_stored_however_much_others_write_and_how_often_the_connection_ends(
    database, tmp_path, monkeypatch
):
    """psycopg2 confirms keepalives by itself, and a slot that is past the stored changes is refused as another slot."""
    monkeypatch.setattr(reader, "MARK_S", 0.05)
    monkeypatch.setattr(reader, "MARK_BYTES", 1)
    monkeypatch.setattr(reader, "FEEDBACK_S", 0.02)
    monkeypatch.setattr(reader, "RECONNECT_S_MAX", 0.05)
    tables = database.create("a")
    other = f"public.{database.prefix}_other"
    database.execute(f"CREATE TABLE {other} (id int)")
    with running(job_of(database.source(), tables, tmp_path)) as query:
        database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
        until(lambda: is_equal(database, tmp_path), "the first row")
        for _ in range(4):
            before = confirmed(database)
            while confirmed(database) == before:
                database.execute(f"INSERT INTO {other} SELECT generate_series(1, 100)")
            ((pid, _),) = reading(database)
            database.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            until(lambda: not query.isActive or reading(database), "the next connection")
            assert query.isActive, query.exception()
        database.execute(f"DROP TABLE {other}; INSERT INTO {tables[0]} (id) VALUES (2)")
        until(lambda: is_equal(database, tmp_path), "the second row")


def confirmed(database):
    """The LSN up to which the slot tells nothing more."""
    return database.execute(
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", (database.slot,)
    )


def test_quiet_times_longer_than_the_server_waits_keep_the_connection_and_a_large_slot_is_warned_about(
    database, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(reader, "LOOK_S", 0.1)
    tables = database.create("a")
    database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
    database.execute("ALTER ROLE holdfast SET wal_sender_timeout = '1s'")
    try:
        with running(job_of(database.source(slot_warning_bytes=1), tables, tmp_path)):
            until(lambda: is_equal(database, tmp_path) and reading(database), "the connection after the snapshot")
            ((pid, _),) = reading(database)
            until(lambda: reading(database)[0][1] > 3, lambda: reading(database))
            assert reading(database)[0][0] == pid
        until(lambda: "MB of WAL for slot" in caplog.text, lambda: caplog.text)
    finally:
        database.execute("ALTER ROLE holdfast RESET wal_sender_timeout")


def test_a_chunk_that_is_read_for_longer_than_the_server_waits_keeps_the_connection(database, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "PIECE_ROWS_MAX", 10)
    copy_table, reads = chunks.copy_table, []

    def copies_slowly(cursor, table, where, take):
        def takes_slowly(rows):
            database.execute("SELECT pg_sleep(0.2)")
            take(rows)

        reads.append(where)
        copy_table(cursor, table, where, takes_slowly)

    monkeypatch.setattr(chunks, "copy_table", copies_slowly)
    tables = database.create("a")
    database.execute(f"INSERT INTO {tables[0]} (id) SELECT generate_series(1, 100)")
    database.execute("ALTER ROLE holdfast SET wal_sender_timeout = '1500ms'")
    try:
        run(job_of(database.source(snapshot="chunked"), tables, tmp_path))
    finally:
        database.execute("ALTER ROLE holdfast RESET wal_sender_timeout")
    assert len(reads) == 1
    assert_equal(database, tmp_path)


def reading(database):
    """The process that reads the slot, and the seconds for which it has been connected."""
    return database.execute(
        "SELECT s.active_pid, extract(epoch FROM now() - a.backend_start)::float8 FROM pg_replication_slots s "
        "JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s",
        (database.slot,),
    )


def claim_of(database, job, epoch):
    name = ReaderName(job, epoch)
    server = Server(database.server.dsn, "a test", str(name))
    return server, SlotClaim(server, database.slot, name, threading.Event().wait)


def test_an_older_reader_that_comes_back_during_a_takeover_is_ended_again_and_then_ends_itself(database):
    database.create("a")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.slot,))
    options = {"proto_version": "1", "publication_names": database.publication}
    old_server, old = claim_of(database, "job", 9)
    new_server, new = claim_of(database, "job", 10)
    with closing(old_server.connect(replication=True)) as first, closing(old_server.connect(replication=True)) as again:
        assert old.start(first.cursor(), 0, options)
        assert new.end_older() == ""
        assert old.start(again.cursor(), 0, options), "the older reader comes back"
        with closing(new_server.connect(replication=True)) as connection:
            assert new.start(connection.cursor(), 0, options)
            with pytest.raises(Fenced, match="is read by epoch 10 of this job, and this is epoch 9"):
                old.end_older()
            assert reading(database)[0][0] == connection.info.backend_pid


def test_a_slot_that_another_job_reads_is_refused_and_its_reader_goes_on(database, tmp_path):
    tables = database.create("a")
    database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
    with running(job_of(database.source(), tables, tmp_path / "one")):
        until(lambda: is_equal(database, tmp_path / "one") and reading(database), "the connection after the snapshot")
        ((pid, _),) = reading(database)
        with pytest.raises(
            JobRefused, match=rf"in use by process {pid} \('holdfast [\w.]+ 1'\), which is no reader of"
        ):
            run(job_of(database.source(snapshot="never"), tables, tmp_path / "two"))
        assert reading(database)[0][0] == pid


def test_a_full_disk_below_the_spool_is_waited_for_visibly_and_nothing_is_lost(database, tmp_path):
    tables = database.create("a")
    sink = hf.MemorySink()
    with small_disk(tmp_path / "disk") as disk:
        job = hf.Job(None, name="full", storage=f"file://{disk}/job")
        job.read(database.source().table(tables[0])).write(sink)
        query = start(job, hf.processing_time("10ms"))
        try:
            database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
            until(lambda: len(sink.rows()) == 1, lambda: query.status["message"])
            filler = fill(disk)
            database.execute(f"INSERT INTO {tables[0]} (id) SELECT generate_series(2, 500)")
            until(lambda: "No space left on device" in query.status["message"], lambda: query.status["message"])
            filler.unlink()
            until(lambda: len(sink.rows()) == 500, lambda: query.status["message"])
        finally:
            query.stop()
    assert query.exception() is None


def test_two_sources_of_a_job_with_the_same_slot_are_refused(database, tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "BUSY_S_MAX", 1)
    tables = database.create("a")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.slot,))
    job = hf.Job(None, name="two", storage=f"file://{tmp_path}/job", failover=NO_RESTARTS)
    for name in ("one", "other"):
        job.read(database.source(snapshot="never", name=name).table(tables[0])).write(hf.NoopSink())
    with pytest.raises((JobRefused, QueryFailed), match=r"is in use by process .* no reader of this source"):
        start(job, hf.processing_time("10ms")).awaitTermination(100)
