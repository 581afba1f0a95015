"""A PostgreSQL server for all tests of a process, tables and jobs on it, and a seeded history of changes."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

import holdfast as hf
from examples.revenue.postgres import LocalPostgres
from holdfast.testing.run import start

COLUMNS = (
    "id int PRIMARY KEY, name text, amount numeric(12,2), at timestamptz, on_day date, paid bool, ratio float8, "
    "raw bytea, big text, code char(6), tags int[], doc jsonb, small smallint, wide bigint, single real, "
    "moment timestamp, clock time, ident uuid, span interval, word varchar(20)"
)

PIECES = 5
"""Least number of pieces that the longest transaction of a history is sent in, between pieces of others."""
FACTS = ("_lsn", "_xid", "_commit_time")


class Database:
    """A server on which each test has tables, publication and slot of its own; `prefix` tells them apart."""

    def __init__(self, server: LocalPostgres, prefix: str) -> None:
        self.server = server
        self.prefix = prefix
        self.slot = f"slot_{prefix}"
        self.publication = f"pub_{prefix}"
        self.tables: list[str] = []

    def create(self, *names: str, columns: str = COLUMNS, full: bool = True) -> list[str]:
        for name in names:
            table = f"public.{self.prefix}_{name}"
            self.execute(f"CREATE TABLE {table} ({columns})")
            if full:
                self.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
            self.tables.append(table)
        self.execute(f"CREATE PUBLICATION {self.publication} FOR TABLE {', '.join(self.tables)}")
        return self.tables

    def execute(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        return self.server.execute(sql, parameters)

    def source(self, **settings: Any) -> hf.PostgresCdcSource:
        return hf.PostgresCdcSource(self.server.dsn, self.slot, self.publication, self.tables, **settings)

    def drop_slot(self) -> None:
        """End the reader of the slot, which the server may not have noticed to be gone, and drop the slot."""
        self.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s AND "
            "active_pid IS NOT NULL",
            (self.slot,),
        )
        self.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)
        )

    def drop(self) -> None:
        self.drop_slot()
        self.execute(f"DROP PUBLICATION IF EXISTS {self.publication}")
        for table in self.tables:
            self.execute(f"DROP TABLE IF EXISTS {table}")


def job_of(
    source: hf.PostgresCdcSource,
    tables: list[str],
    folder: Path,
    spark: Any = None,
    schema_mode: Literal["fail", "merge"] = "fail",
    **settings: Any,
) -> hf.Job:
    """A job that keeps each table as a Delta table."""
    settings.setdefault("checkpoint", hf.CheckpointConfig(trigger=hf.every("50ms")))
    job = hf.Job(spark, name="copies", storage=f"file://{folder}/job", **settings)
    for number, table in enumerate(tables):
        sink = hf.DeltaSink(f"file://{folder}/copy{number}", mode="upsert", keys=["id"], schema_mode=schema_mode)
        job.read(source.table(table)).write(sink)
    return job


def copied(folder: Path, number: int, key: str = "id") -> list[dict[str, Any]]:
    """The rows of a Delta table, in the order of their keys."""
    rows = DeltaTable(f"file://{folder}/copy{number}").to_pyarrow_table().sort_by(key)
    return rows.drop_columns([name for name in rows.column_names if name in FACTS]).to_pylist()


def stored(database: Database, table: str, like: Path, number: int) -> list[dict[str, Any]]:
    """The rows of a table, as Delta shows them."""
    schema = pa.schema(DeltaTable(f"file://{like}/copy{number}").schema().to_arrow())
    texts = {field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)}
    names = [name for name in schema.names if name not in FACTS]
    listed = ", ".join(f"CASE WHEN {n} IS NULL THEN NULL ELSE concat({n}) END" if n in texts else n for n in names)
    rows = database.execute(f"SELECT {listed} FROM {table} ORDER BY id")
    return [{n: bytes(v) if isinstance(v, memoryview) else v for n, v in zip(names, row, strict=True)} for row in rows]


def assert_equal(database: Database, folder: Path) -> None:
    for number, table in enumerate(database.tables):
        assert copied(folder, number) == stored(database, table, folder, number), table


class History:
    """A seeded history of transactions over some tables: several open at once, some rolled back, some that truncate.

    A function of the server makes the changes, since a history of millions of statements would wait for its client.
    `truncates`: share of the rounds after which tables are truncated, with TRUNCATE alone.
    """

    def __init__(self, database: Database, seed: int, keys: int = 300, truncates: float = 0.0) -> None:
        self._database = database
        self._random = random.Random(seed)
        self._keys = keys
        self._truncates = truncates
        self._change = f"SELECT {database.prefix}_changes(%s, {keys}, %s, %s)"
        self.transactions = 0
        database.execute(changing(f"{database.prefix}_changes", database.tables))

    def write(self, transactions: int, rows_max: int = 60, at_once: int = 3) -> None:
        """Write transactions; up to `at_once` are interleaved, each on keys of its own."""
        import psycopg2

        connections = [psycopg2.connect(self._database.server.dsn) for _ in range(at_once)]
        try:
            for connection in connections:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT setseed(%s)", (self._random.random(),))
            for first in range(0, transactions, at_once):
                live = connections[: min(at_once, transactions - first)]
                steps = [self._random.randint(1, rows_max) for _ in live]
                while any(steps):
                    lane = self._random.choice([n for n, left in enumerate(steps) if left])
                    taken = min(steps[lane], self._random.randint(1, 1 + rows_max // PIECES))
                    with live[lane].cursor() as cursor:
                        cursor.execute(self._change, (taken, lane, at_once))
                    steps[lane] -= taken
                for connection in live:
                    connection.rollback() if self._random.random() < 0.1 else connection.commit()
                self.transactions += len(live)
                if self._random.random() < self._truncates:
                    self._truncate(connections[0])
        finally:
            for connection in connections:
                connection.close()

    def truncate(self) -> None:
        """Truncate a table whose rows the same transaction deletes, so that changes tell that they are gone."""
        table = self._random.choice(self._database.tables)
        self._database.execute(f"BEGIN; DELETE FROM {table}; TRUNCATE {table}; COMMIT")

    def _truncate(self, connection: Any) -> None:
        """Truncate 1 or 2 tables between changes of the same transaction, which may be rolled back."""
        draw = self._random
        tables = ", ".join(draw.sample(self._database.tables, draw.randint(1, min(2, len(self._database.tables)))))
        with connection.cursor() as cursor:
            cursor.execute(self._change, (draw.randint(1, 5), 0, 1))
            cursor.execute(f"TRUNCATE {tables}")
            cursor.execute(self._change, (draw.randint(1, 5), 0, 1))
        connection.rollback() if draw.random() < 0.2 else connection.commit()
        self.transactions += 1


ROW = """k, (ARRAY[NULL, '', 'é' || chr(92) || chr(9) || chr(39), 'plain'])[1 + floor(random() * 4)::int],
    (random() * 2e9 - 1e9)::numeric(12, 2), timestamptz '2024-01-01 10:00+02' + random() * interval '1 day',
    date '2024-01-01' + floor(random() * 999)::int, (ARRAY[NULL, true, false])[1 + floor(random() * 3)::int],
    CASE WHEN random() < 0.5 THEN random() * 1e300 END, decode(md5(random()::text), 'hex'),
    CASE WHEN random() < 0.02 THEN (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 260)) END,
    'ab', ARRAY[1, 2, floor(random() * 9)::int], '{"a": [1, null]}', floor(random() * 65536 - 32768)::int,
    (random() * 1e18)::bigint, floor(random() * 1000) / 4, timestamp '2024-02-29' + random() * interval '1 day',
    '10:11:12.5', md5(random()::text)::uuid,
    (ARRAY['1 day 02:03:04', '-1 mon'])[1 + floor(random() * 2)::int]::interval,
    (ARRAY[NULL, 'word'])[1 + floor(random() * 2)::int]"""
"""A row of `COLUMNS` with the key `k`. `big` is stored out of its row (TOAST) where it is not null."""


def changing(name: str, tables: list[str]) -> str:
    """Return the SQL of a function that makes so many changes: inserts, updates also of keys, deletes."""
    changes = "".join(
        f"""
        WHEN {number} THEN
            IF kind < 0.45 THEN
                INSERT INTO {table} VALUES ({ROW})
                ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, big = excluded.big;
            ELSIF kind < 0.75 THEN
                UPDATE {table} SET amount = amount + 1, name = random()::text WHERE id = k;
            ELSIF kind < 0.85 THEN
                UPDATE {table} SET id = other WHERE id = k AND NOT EXISTS (SELECT 1 FROM {table} WHERE id = other);
            ELSE
                DELETE FROM {table} WHERE id = k;
            END IF;"""
        for number, table in enumerate(tables)
    )
    return f"""
    CREATE OR REPLACE FUNCTION {name}(count int, keys int, lane int, lanes int) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE k int; other int; kind float8;
    BEGIN
        FOR _ IN 1..count LOOP
            k := floor(random() * keys)::int * lanes + lane;
            other := floor(random() * keys)::int * lanes + lane;
            kind := random();
            CASE floor(random() * {len(tables)})::int {changes}
            END CASE;
        END LOOP;
    END $$""".replace("%", "%%")


def is_equal(database: Database, folder: Path) -> bool:
    """True if all copies equal their tables by now."""
    try:
        assert_equal(database, folder)
    except (AssertionError, TableNotFoundError):
        return False
    return True


@contextmanager
def running(job: hf.Job) -> Iterator[hf.Query]:
    query = start(job, hf.processing_time("10ms"))
    try:
        yield query
    finally:
        query.stop()
