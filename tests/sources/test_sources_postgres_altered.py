"""Tables, publications and slots that change while the PostgreSQL source reads: an error that names the change."""

import threading

import pytest
from sources_postgres_server import Database, copied, is_equal, job_of, running

import holdfast as hf
from examples.revenue.postgres import LocalPostgres
from holdfast.errors import JobRefused, QueryFailed
from holdfast.sources.postgres import reader
from holdfast.sources.postgres.writer import SegmentWriter
from holdfast.testing import run
from sampling import some
from waiting import until

NO_RESTARTS = hf.FailoverConfig(restarts_max=0)


@pytest.mark.parametrize(
    ("change", "said"),
    some(
        [
            ("ALTER TABLE {table} ADD COLUMN extra int", "new columns: extra"),
            ("ALTER TABLE {table} DROP COLUMN name", "'name' was dropped or renamed"),
            ("ALTER TABLE {table} RENAME COLUMN name TO called", "'name' was dropped or renamed"),
            (
                "ALTER TABLE {table} ALTER COLUMN amount TYPE numeric(20,4)",
                r"'amount' was decimal128\(12, 2\) and is decimal128\(20, 4\)",
            ),
            ("TRUNCATE {table}", "was truncated"),
            ("ALTER TABLE {table} RENAME TO {name}_x; INSERT INTO {table}_x (id) VALUES (3)", "has the name .*_x now"),
            (
                "ALTER TABLE {table} RENAME TO {name}_x; CREATE TABLE {table} (LIKE {table}_x); "
                "ALTER PUBLICATION {publication} ADD TABLE {table}",
                "was dropped and made anew, or another table has its name",
            ),
            (
                "ALTER TABLE {table} REPLICA IDENTITY DEFAULT; DELETE FROM {table}",
                "under REPLICA IDENTITY DEFAULT .of id., which do not tell the row before, expected FULL",
            ),
            (
                "INSERT INTO {table} (id, amount) VALUES (5, 'NaN')",
                r"column 'amount': the value 'NaN' does not fit .*text_columns=\['public.*_a.amount'\]",
            ),
        ],
        0,
        1,
        4,
    ),
)
def test_a_change_of_the_table_ends_the_running_query_with_its_name(database, tmp_path, change, said):
    database.prefix = f"c{abs(hash(said)) % 10**8}"
    database.slot, database.publication = f"slot_{database.prefix}", f"pub_{database.prefix}"
    tables = database.create("a")
    name = tables[0].partition(".")[2]
    job = job_of(database.source(), tables, tmp_path, failover=NO_RESTARTS)
    with running(job) as query:
        database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
        until(lambda: is_equal(database, tmp_path), "the first row")
        database.execute(change.format(table=tables[0], name=name, publication=database.publication))
        if database.execute("SELECT to_regclass(%s)", (tables[0],)) != [(None,)]:
            database.execute(f"INSERT INTO {tables[0]} (id) VALUES (2)")
        with pytest.raises(QueryFailed, match=said):
            query.awaitTermination(60)
    database.execute(f"DROP TABLE IF EXISTS {tables[0]}_x")


@pytest.mark.parametrize(
    ("change", "said"),
    some(
        [
            ("DROP TABLE {table}", "_a is gone, or has another name now"),
            (
                "ALTER PUBLICATION {publication} DROP TABLE {table}",
                "does not have table .* any more, and changes since then",
            ),
            (
                "DROP PUBLICATION {publication}",
                "there is no publication .*CREATE PUBLICATION .*and start on a new storage",
            ),
            (
                "ALTER PUBLICATION {publication} SET TABLE {table} WHERE (id > 5)",
                r"has another row filter .* \(id > 5\) instead of none",
            ),
        ],
        0,
        3,
    ),
)
def test_changes_that_are_told_no_more_end_the_running_query_though_nothing_comes(
    database, tmp_path, monkeypatch, change, said
):
    monkeypatch.setattr(reader, "LOOK_S", 0.1)
    database.prefix = f"d{abs(hash(said)) % 10**8}"
    database.slot, database.publication = f"slot_{database.prefix}", f"pub_{database.prefix}"
    tables = database.create("a")
    with running(job_of(database.source(), tables, tmp_path, failover=NO_RESTARTS)) as query:
        database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
        until(lambda: is_equal(database, tmp_path), "the first row")
        database.execute(change.format(table=tables[0], publication=database.publication))
        with pytest.raises(QueryFailed, match=said):
            query.awaitTermination(60)


def test_a_publication_that_was_made_anew_ends_the_query_where_changes_were_made_without_it(database, tmp_path):
    tables = database.create("a")
    run(job_of(database.source(), tables, tmp_path))
    database.execute(f"DROP PUBLICATION {database.publication}")
    database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
    database.execute(f"CREATE PUBLICATION {database.publication} FOR TABLE {tables[0]}")
    with pytest.raises((JobRefused, QueryFailed), match="did not when these changes were made: start on a new storage"):
        run(job_of(database.source(), tables, tmp_path, failover=NO_RESTARTS))


def test_a_new_primary_key_under_the_default_identity_ends_the_query(database, tmp_path):
    tables = database.create("a", columns="id int PRIMARY KEY, other int", full=False)
    name = tables[0].partition(".")[2]
    with running(job_of(database.source(before="key"), tables, tmp_path, failover=NO_RESTARTS)) as query:
        database.execute(f"INSERT INTO {tables[0]} VALUES (1, 2)")
        until(lambda: is_equal(database, tmp_path), "the first row")
        database.execute(f"ALTER TABLE {tables[0]} DROP CONSTRAINT {name}_pkey, ADD PRIMARY KEY (other)")
        database.execute(f"UPDATE {tables[0]} SET id = 7")
        said = r"REPLICA IDENTITY DEFAULT \(of other\).* expected FULL, or DEFAULT with the primary key id"
        with pytest.raises(QueryFailed, match=said):
            query.awaitTermination(60)


def test_a_type_that_reads_as_the_same_arrow_type_is_no_change(database, tmp_path):
    tables = database.create("a")
    with running(job_of(database.source(), tables, tmp_path)):
        database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
        until(lambda: is_equal(database, tmp_path), "the first row")
        database.execute(f"ALTER TABLE {tables[0]} ALTER word TYPE varchar(40), ALTER moment TYPE timestamp(3)")
        database.execute(f"INSERT INTO {tables[0]} (id, word) VALUES (2, repeat('w', 40))")
        until(lambda: is_equal(database, tmp_path), "the row with the longer word")


def test_a_slot_whose_changes_the_server_has_removed_ends_the_query_and_refuses_a_start(tmp_path, monkeypatch):
    server = LocalPostgres(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB").start()
    go_on = threading.Event()
    written = SegmentWriter.write

    def waits(self, piece):
        go_on.wait(60)
        return written(self, piece)

    try:
        database = Database(server, "lost")
        tables = database.create("a")

        def is_lost() -> bool:
            database.execute("SELECT pg_logical_emit_message(false, 'fill', 'x')")
            database.execute("SELECT pg_switch_wal()")
            database.execute("CHECKPOINT")
            slots = database.execute("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", ("slot_lost",))
            return slots == [("lost",)]

        said = r"slot 'slot_lost' is lost: the server removed WAL that it needs \(max_slot_wal_keep_size\)"
        with running(job_of(database.source(), tables, tmp_path, failover=NO_RESTARTS)) as query:
            database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
            until(lambda: is_equal(database, tmp_path), "the first row")
            monkeypatch.setattr(SegmentWriter, "write", waits)
            database.execute(f"INSERT INTO {tables[0]} (id) VALUES (2)")
            until(is_lost, "the loss of the slot")
            go_on.set()
            with pytest.raises(QueryFailed, match=said):
                query.awaitTermination(60)
        with pytest.raises(JobRefused, match=said):
            run(job_of(database.source(), tables, tmp_path))
    finally:
        go_on.set()
        server.stop()


def test_a_query_that_a_new_column_ended_goes_on_with_the_column_after_a_start(database, tmp_path):
    tables = database.create("a")
    settings = {"checkpoint": hf.CheckpointConfig(trigger=hf.manual()), "schema_mode": "merge"}
    with running(job_of(database.source(), tables, tmp_path, failover=NO_RESTARTS, **settings)) as query:
        database.execute(f"INSERT INTO {tables[0]} (id, name) VALUES (1, 'one')")
        until(lambda: query.totals.rows == 1, "the first row")
        query.trigger_checkpoint(timeout=30)
        database.execute(f"INSERT INTO {tables[0]} (id, name) VALUES (2, 'two')")
        until(lambda: query.totals.rows == 2, "a row that no checkpoint is past")
        database.execute(f"ALTER TABLE {tables[0]} ADD COLUMN extra int, DROP COLUMN tags")
        database.execute(f"INSERT INTO {tables[0]} (id, extra) VALUES (3, 33)")
        with pytest.raises(QueryFailed, match="'tags' was dropped or renamed"):
            query.awaitTermination(60)
    run(job_of(database.source(), tables, tmp_path, **settings))
    assert [(row["id"], row["name"], row["extra"]) for row in copied(tmp_path, 0)] == [
        (1, "one", None), (2, "two", None), (3, None, 33)
    ]  # fmt: skip


def test_columns_that_are_added_are_passed_over_by_choice(database, tmp_path):
    tables = database.create("a")
    with running(job_of(database.source(on_new_column="ignore"), tables, tmp_path)):
        database.execute(f"INSERT INTO {tables[0]} (id) VALUES (1)")
        until(lambda: is_equal(database, tmp_path), "the first row")
        database.execute(f"ALTER TABLE {tables[0]} ADD COLUMN extra int")
        database.execute(f"INSERT INTO {tables[0]} (id, extra) VALUES (2, 3)")
        until(lambda: is_equal(database, tmp_path), "the row with the further column")
