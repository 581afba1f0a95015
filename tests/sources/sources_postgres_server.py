"""One PostgreSQL server for all tests of a process, tables and jobs on it, and a seeded history of changes."""

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
LARGE = "".join(random.Random(0).choices("abcdefgh", k=9_000))
"""Text that is stored out of its row (TOAST), since it does not compress well."""
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

    def drop(self) -> None:
        self.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s AND "
            "active_pid IS NOT NULL",
            (self.slot,),
        )
        self.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)
        )
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

    `truncates`: share of the rounds after which a table is truncated, with TRUNCATE alone.
    """

    def __init__(self, database: Database, seed: int, keys: int = 300, truncates: float = 0.0) -> None:
        self._database = database
        self._random = random.Random(seed)
        self._keys = keys
        self._truncates = truncates
        self.transactions = 0

    def write(self, transactions: int, rows_max: int = 60, at_once: int = 3) -> None:
        """Write transactions; up to `at_once` are interleaved, each on keys of its own."""
        import psycopg2

        connections = [psycopg2.connect(self._database.server.dsn) for _ in range(at_once)]
        try:
            for first in range(0, transactions, at_once):
                live = connections[: min(at_once, transactions - first)]
                steps = [self._random.randint(1, rows_max) for _ in live]
                while any(steps):
                    lane = self._random.choice([n for n, left in enumerate(steps) if left])
                    taken = min(steps[lane], self._random.randint(1, 1 + rows_max // PIECES))
                    with live[lane].cursor() as cursor:
                        cursor.execute(b"; ".join(self._change(cursor, lane, at_once) for _ in range(taken)))
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
        """Truncate one or two tables between changes of the same transaction, which may be rolled back."""
        draw = self._random
        tables = ", ".join(draw.sample(self._database.tables, draw.randint(1, 2)))
        with connection.cursor() as cursor:
            around = [b"; ".join(self._change(cursor, 0, 1) for _ in range(draw.randint(1, 5))) for _ in range(2)]
            cursor.execute(around[0] + f"; TRUNCATE {tables}; ".encode() + around[1])
        connection.rollback() if draw.random() < 0.2 else connection.commit()
        self.transactions += 1

    def _change(self, cursor: Any, lane: int, lanes: int) -> bytes:
        """Return a statement that changes a row."""
        draw = self._random
        table = draw.choice(self._database.tables)
        key, other = (draw.randrange(self._keys) * lanes + lane for _ in range(2))
        kind = draw.random()
        if kind < 0.45:
            values = self._values(key)
            sql = (
                f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(values))}) "
                "ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, big = excluded.big"
            )
        elif kind < 0.75:
            sql, values = f"UPDATE {table} SET amount = amount + 1, name = %s WHERE id = %s", (str(draw.random()), key)
        elif kind < 0.85:
            sql = f"UPDATE {table} SET id = %s WHERE id = %s AND NOT EXISTS (SELECT 1 FROM {table} WHERE id = %s)"
            values = (other, key, other)
        else:
            sql, values = f"DELETE FROM {table} WHERE id = %s", (key,)
        return bytes(cursor.mogrify(sql, values))

    def _values(self, key: int) -> tuple[Any, ...]:
        """Return a row of `COLUMNS`."""
        draw = self._random
        return (
            key,
            draw.choice([None, "", "é\\t'x", "plain"]),
            draw.randint(-(10**9), 10**9) / 100,
            f"2024-01-01 10:00:00.{draw.randrange(10**6):06}+02",
            "2024-01-01",
            draw.choice([None, True, False]),
            draw.choice([draw.random() * 1e300, None]),
            draw.randbytes(3),
            LARGE[: draw.randrange(8_000, 9_000)] if draw.random() < 0.02 else None,
            "ab",
            [1, 2, draw.randrange(9)],
            '{"a": [1, null]}',
            draw.randrange(-(2**15), 2**15),
            draw.randrange(-(2**63), 2**63),
            draw.randrange(1000) / 4,
            f"2024-02-29 00:00:00.{draw.randrange(10**6):06}",
            "10:11:12.5",
            f"{draw.getrandbits(128):032x}",
            draw.choice(["1 day 02:03:04", "-1 mon"]),
            draw.choice([None, "word"]),
        )


def is_equal(database: Database, folder: Path) -> bool:
    """Whether all copies equal their tables by now."""
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
