"""Debezium as a second opinion: it reads the same history from a slot of its own, with the same values and order."""

import os
import shutil

import pytest
from debezium_engine import UNAVAILABLE, changes_of, engine, ours
from sources_postgres_server import History

import holdfast as hf
from holdfast.testing import run

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("mvn") is None or shutil.which("javac") is None, reason="Debezium needs Maven and a JDK"
    ),
]
TRANSACTIONS = int(os.environ.get("HOLDFAST_HISTORY", "300"))
"""Transactions of the history, of 1 to 60 rows each."""
LAST = 10**9
"""Key of the last row of each table."""


def test_the_source_tells_the_values_and_the_order_that_debezium_tells(database, tmp_path):
    tables = database.create("a", "b", "c", "d")
    second = f"{database.slot}_2"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.slot,))
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (second,))
    History(database, seed=11, truncates=0.05).write(TRANSACTIONS, 60)
    for table in tables:
        database.execute(f"INSERT INTO {table} (id) VALUES ({LAST})")
    try:
        told = told_by_debezium(database, second, tmp_path)
    finally:
        database.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s AND "
            "active_pid IS NOT NULL",
            (second,),
        )
        database.execute("SELECT pg_drop_replication_slot(%s)", (second,))
    found = told_by_the_source(database, tables, tmp_path)
    print(f"{sum(map(len, told.values())):,} changes of {TRANSACTIONS:,} transactions")
    for table in tables:
        assert len(found[table]) == len(told[table]), table
        for number, (one, other) in enumerate(zip(found[table], told[table], strict=True)):
            assert without_unknown(one, other) == without_unknown(other, other), f"change {number} of {table}"
    assert sum(map(len, told.values())) > 10 * TRANSACTIONS


def told_by_debezium(database, slot, folder):
    """The changes of each table, up to its last row; truncations left out, for which the source gives no row."""
    told = {table: [] for table in database.tables}
    open_tables = set(database.tables)
    with engine(database, slot, folder / "debezium.log") as events:
        for event in events:
            table = f"{event['source']['schema']}.{event['source']['table']}"
            changes = [each for each in changes_of(event) if each[0] != "truncate"]
            told[table] += changes
            if changes and changes[-1][3]["id"] == LAST:
                open_tables.discard(table)
            if not open_tables:
                return told
    raise AssertionError((folder / "debezium.log").read_text()[-3000:])


def told_by_the_source(database, tables, folder):
    source = database.source(snapshot="never", truncate="ignore")
    job = hf.Job(None, name="first", storage=f"file://{folder}/job")
    sinks = {table: hf.MemorySink() for table in tables}
    for table, sink in sinks.items():
        job.read(source.table(table)).write(sink)
    run(job)
    return {table: list(map(ours, sink.rows())) for table, sink in sinks.items()}


def without_unknown(change, told):
    """Leave out values that Debezium does not tell."""
    unknown = [name for name, value in told[3].items() if value == UNAVAILABLE]
    return (*change[:3], {name: value for name, value in change[3].items() if name not in unknown})
