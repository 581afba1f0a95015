"""Servers and tables that the PostgreSQL source cannot read are refused at the start, in words that name the remedy."""

from contextlib import closing

import psycopg2
import pytest
from sources_postgres_server import Database, assert_equal, copied, job_of

import holdfast as hf
from examples.revenue.postgres import LocalPostgres
from holdfast.errors import JobRefused, QueryFailed
from holdfast.testing import run
from sampling import some

NO_RESTARTS = hf.FailoverConfig(restarts_max=0)


@pytest.mark.parametrize(
    ("prepare", "settings", "said"),
    [
        ("DROP PUBLICATION {publication}", {}, "there is no publication .* CREATE PUBLICATION"),
        ("ALTER PUBLICATION {publication} DROP TABLE {table}", {}, "does not have table .* ADD TABLE"),
        ("ALTER TABLE {table} REPLICA IDENTITY DEFAULT", {}, "REPLICA IDENTITY DEFAULT.*REPLICA IDENTITY FULL"),
        ("ALTER TABLE {table} REPLICA IDENTITY NOTHING", {"before": "key"}, "REPLICA IDENTITY NOTHING"),
        ("ALTER TABLE {table} DROP CONSTRAINT {name}_pkey", {}, "no primary key"),
        ("ALTER TABLE {table} RENAME TO {name}_x", {}, "there is no table"),
        (
            "ALTER TABLE {table} RENAME TO {name}_x; CREATE VIEW {table} AS SELECT * FROM {table}_x",
            {},
            "is no table; the changes",
        ),
        ("ALTER PUBLICATION {publication} SET (publish = 'insert')", {}, "not tell of update, delete, truncate: .*SET"),
        ("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete')", {}, "or give truncate='ignore'"),
        ("ALTER TABLE {table} ADD COLUMN _lsn bigint", {}, "has a column '_lsn'.*: rename it.* SET TABLE"),
        ("ALTER TABLE {table} ADD COLUMN _change_type text", {}, "has a column '_change_type'"),
        ("ALTER TABLE {table} ADD COLUMN _sequence int, ADD COLUMN _xid int", {}, "has a column '_sequence'"),
        ("ALTER TABLE {table} ADD COLUMN _commit_time date", {"snapshot": "never"}, "has a column '_commit_time'"),
        ("SELECT pg_create_physical_replication_slot('{slot}')", {}, "is a physical slot"),
        ("SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')", {}, "plugin 'test_decoding'"),
        ("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')", {}, "exists already"),
    ],
)
def test_what_keeps_the_source_from_reading_is_refused_at_the_start(database, tmp_path, prepare, settings, said):
    database.prefix = f"e{abs(hash(said)) % 10**8}"
    database.slot, database.publication = f"slot_{database.prefix}", f"pub_{database.prefix}"
    tables = database.create("a")
    name = tables[0].partition(".")[2]
    facts = {"publication": database.publication, "table": tables[0], "name": name, "slot": database.slot}
    database.execute(prepare.format(**facts))
    with pytest.raises(JobRefused, match=said):
        run(job_of(database.source(**settings), tables, tmp_path))
    database.execute(f"DROP TABLE IF EXISTS public.{name}_x CASCADE")  # with the view of the table's name


def test_a_user_who_may_not_replicate_is_refused(database, tmp_path):
    tables = database.create("a")
    database.execute("DROP ROLE IF EXISTS weak; CREATE ROLE weak LOGIN")
    source = hf.PostgresCdcSource(
        database.server.dsn.replace("user=holdfast", "user=weak"), database.slot, database.publication, tables
    )
    with pytest.raises(JobRefused, match="user 'weak' may not replicate: ALTER ROLE weak REPLICATION"):
        run(job_of(source, tables, tmp_path))


def test_a_member_of_rds_replication_passes_the_check_and_the_server_has_the_last_word(database, tmp_path):
    tables = database.create("a")
    database.execute("DROP ROLE IF EXISTS member; CREATE ROLE member LOGIN")
    database.execute(
        "DROP ROLE IF EXISTS rds_replication; CREATE ROLE rds_replication; GRANT rds_replication TO member"
    )
    database.execute(f"GRANT SELECT ON {tables[0]} TO member")
    dsn = database.server.dsn.replace("user=holdfast", "user=member")
    source = hf.PostgresCdcSource(dsn, database.slot, database.publication, tables, snapshot="never")
    try:
        with pytest.raises(JobRefused, match="the server refuses: must be superuser or replication role"):
            run(job_of(source, tables, tmp_path))
    finally:
        database.execute(f"REVOKE ALL ON {tables[0]} FROM member; DROP ROLE member; DROP ROLE rds_replication")


def test_a_server_without_logical_wal_and_a_replaced_server_are_refused(database, tmp_path):
    tables = database.create("a")
    run(job_of(database.source(), tables, tmp_path))
    other = LocalPostgres(wal_level="replica").start()
    try:
        elsewhere = Database(other, database.prefix)
        elsewhere.create("a")
        with pytest.raises(JobRefused, match="wal_level is 'replica': set wal_level = logical"):
            run(job_of(elsewhere.source(), tables, tmp_path))
        other.kill()
        other.start(wal_level="logical")
        with pytest.raises(JobRefused, match=r"checkpoint is of system '\d+', and this is system '\d+'"):
            run(job_of(elsewhere.source(), tables, tmp_path))
    finally:
        other.stop()


def test_a_slot_of_another_database_is_refused_and_so_is_a_server_without_a_free_slot(tmp_path):
    server = LocalPostgres(max_replication_slots="1").start()
    try:
        database = Database(server, "one")
        tables = database.create("a")
        server.execute("CREATE DATABASE other")
        with closing(psycopg2.connect(server.dsn.replace("dbname=postgres", "dbname=other"))) as other:
            other.cursor().execute("SELECT pg_create_logical_replication_slot('slot_one', 'pgoutput')")
        with pytest.raises(JobRefused, match="slot 'slot_one' is of database 'other': give another"):
            run(job_of(database.source(snapshot="never"), tables, tmp_path))
        database.slot = "slot_two"
        for snapshot in ("never", "initial"):
            job = job_of(database.source(snapshot=snapshot), tables, tmp_path / snapshot, failover=NO_RESTARTS)
            with pytest.raises((JobRefused, QueryFailed), match=r"all replication slots are in use\. Free one"):
                run(job)
    finally:
        server.stop()


def test_a_standby_is_refused(tmp_path):
    server = LocalPostgres().start()
    try:
        database = Database(server, "standby")
        tables = database.create("a")
        server.execute("CHECKPOINT")
        server.kill()
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        with pytest.raises(JobRefused, match="is a standby, which can be read only: give the primary server's DSN"):
            run(job_of(database.source(), tables, tmp_path))
    finally:
        server.stop()


@pytest.mark.parametrize("dsn", ["host=127.0.0.1 secret", "postgresql://a:secret%@b/c", "hostt=secret"])
def test_a_dsn_that_cannot_be_read_is_refused_and_not_shown(dsn):
    source = hf.PostgresCdcSource(dsn, "slot", "publication", ["public.a"])
    with pytest.raises(JobRefused, match="the dsn cannot be read: expected libpq's form") as refused:
        source.outputs()
    assert "secret" not in str(refused.value)


def test_a_partitioned_table_is_read_by_its_key_alone(database, tmp_path):
    tables = database.create("a", columns="id int PRIMARY KEY, name text) PARTITION BY RANGE (id", full=False)
    for first in (0, 100):
        database.execute(
            f"CREATE TABLE {tables[0]}{first} PARTITION OF {tables[0]} FOR VALUES FROM ({first}) TO ({first + 100})"
        )
    with pytest.raises(JobRefused, match=r"is partitioned.*give before='key', or read the partitions"):
        run(job_of(database.source(), tables, tmp_path))
    with pytest.raises(JobRefused, match=r"SET \(publish_via_partition_root = true\)"):
        run(job_of(database.source(before="key"), tables, tmp_path))
    database.execute(f"ALTER PUBLICATION {database.publication} SET (publish_via_partition_root = true)")
    database.execute(f"INSERT INTO {tables[0]} SELECT g, 'first' FROM generate_series(90, 110) g")
    run(job_of(database.source(before="key"), tables, tmp_path))
    database.execute(f"UPDATE {tables[0]} SET name = 'moved', id = id + 50 WHERE id BETWEEN 60 AND 95")
    database.execute(f"DELETE FROM {tables[0]} WHERE id IN (96, 109)")
    run(job_of(database.source(before="key"), tables, tmp_path))
    assert_equal(database, tmp_path)


@pytest.mark.parametrize("snapshot", some(["initial", "chunked"], 1))
def test_rows_that_the_publication_filters_out_are_in_no_snapshot_and_no_change(database, tmp_path, snapshot):
    tables = database.create("a")
    database.execute(f"ALTER PUBLICATION {database.publication} SET TABLE {tables[0]} WHERE (name = 'in')")
    names = "CASE WHEN g % 3 = 0 THEN 'in' ELSE 'out' END"
    database.execute(f"INSERT INTO {tables[0]} (id, name) SELECT g, {names} FROM generate_series(1, 30) g")
    source = {"snapshot": snapshot, "chunk_rows": 7}
    run(job_of(database.source(**source), tables, tmp_path))
    assert [row["id"] for row in copied(tmp_path, 0)] == list(range(3, 31, 3))
    database.execute(
        f"UPDATE {tables[0]} SET name = 'in' WHERE id < 3; UPDATE {tables[0]} SET name = 'out' WHERE id > 9"
    )
    run(job_of(database.source(**source), tables, tmp_path))
    assert [row["id"] for row in copied(tmp_path, 0)] == [1, 2, 3, 6, 9]


def test_texts_of_a_database_in_another_encoding_are_read(postgres, tmp_path):
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    dsn = postgres.dsn.replace("dbname=postgres", "dbname=latin")
    sink = hf.MemorySink()

    def execute(sql):
        with closing(psycopg2.connect(dsn)) as connection:
            connection.autocommit = True
            connection.cursor().execute(sql)

    def read():
        source = hf.PostgresCdcSource(dsn, "slot_latin", "latin", ["public.a"], name="latin")
        job = hf.Job(None, name="latin", storage=f"file://{tmp_path}/job")
        job.read(source.table("public.a")).write(sink)
        run(job)

    try:
        execute("CREATE TABLE a (id int PRIMARY KEY, name text); ALTER TABLE a REPLICA IDENTITY FULL")
        execute("CREATE PUBLICATION latin FOR TABLE a; INSERT INTO a VALUES (1, 'Gr\u00fc\u00dfe')")
        read()
        execute("INSERT INTO a VALUES (2, '\u00e7a')")
        read()
        assert [row["name"] for row in sink.rows()] == ["Gr\u00fc\u00dfe", "\u00e7a"]
    finally:
        execute("SELECT pg_drop_replication_slot('slot_latin')")
        postgres.execute("DROP DATABASE latin")


def test_a_user_with_the_documented_rights_reads_and_without_select_is_refused(database, tmp_path):
    tables = database.create("a")
    database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
    database.execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN REPLICATION")
    dsn = database.server.dsn.replace("user=holdfast", "user=reader")
    try:
        source = hf.PostgresCdcSource(dsn, database.slot, database.publication, tables)
        with pytest.raises(JobRefused, match=f"may not read table {tables[0]}: GRANT SELECT ON {tables[0]} TO reader"):
            run(job_of(source, tables, tmp_path))
        database.execute(f"GRANT SELECT ON {tables[0]} TO reader")
        source = hf.PostgresCdcSource(dsn, database.slot, database.publication, tables)
        run(job_of(source, tables, tmp_path))
        database.execute(f"INSERT INTO {tables[0]} (id) VALUES (2)")
        run(job_of(source, tables, tmp_path))
        assert_equal(database, tmp_path)
    finally:
        database.execute(f"REVOKE ALL ON {tables[0]} FROM reader; DROP ROLE reader")
