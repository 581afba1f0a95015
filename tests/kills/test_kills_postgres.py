"""The PostgreSQL source while driver and server are killed: copies equal their tables in the end, and no checkpoint of
the journal divides a transaction."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.journal.fence import journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.storage.store import open_store
from waiting import until

SOURCES = Path(__file__).resolve().parents[1] / "sources"
sys.path.insert(0, str(SOURCES))

from sources_postgres_server import Database, History, is_equal  # noqa: E402

from examples.revenue.postgres import LocalPostgres  # noqa: E402

pytestmark = pytest.mark.kill


class Driver:
    """A driver as a process of its own, which is started again when it was killed."""

    def __init__(self, database: Database, folder: Path, snapshot: str) -> None:
        self._arguments = [database.server.dsn, database.slot, database.publication, str(folder), snapshot]
        self._arguments += database.tables
        self._log = folder / "log"
        self.start()

    def start(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCES), str(SOURCES.parent), str(Path.cwd())])}
        command = [sys.executable, str(SOURCES / "sources_postgres_driver.py"), *self._arguments]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text()[-4000:]


def divided_transactions(folder: Path) -> list[str]:
    """Positions of recorded checkpoints that are not at the end of a transaction, by the segments themselves."""
    from holdfast.sources.postgres.segments import read_head

    store = open_store(f"file://{folder}/job")
    sizes = {info.name: info.size for info in store.list("segments/")}
    wrong = []
    for number in journal_numbers(store):
        record = read_record(store, number)
        if not isinstance(record, CheckpointRecord):
            continue
        for source, offsets in record.offsets.items():
            heads = [read_head(store, name, sizes[name]) for name in record.source_objects[source] if name in sizes]
            at = next((each for each in heads if each.head.number == offsets["segment"]), None)
            before = next((each for each in heads if each.head.number == offsets["segment"] - 1), None)
            inside = offsets["sequence"] and at is not None and at.refusal_at(offsets["sequence"])
            if inside or (not offsets["sequence"] and before is not None and before.refusal):
                wrong.append(f"checkpoint {record.checkpoint_id} at {offsets}")
    return wrong


def history_under_kills(
    folder: Path, snapshot: str, seed: int, transactions: int, rows_max: int, kills: int, large_rows: int
) -> None:
    draw = random.Random(seed)
    server = LocalPostgres(fsync="on").start()
    try:
        database = Database(server, f"k{seed}")
        database.create("a", "b", "c", "d")
        history = History(database, seed)
        history.write(transactions // 4, rows_max)
        driver = Driver(database, folder, snapshot)
        until(lambda: "initial snapshot took" in driver.said or snapshot != "initial", lambda: driver.said)
        for kill in range(kills):
            writing = threading.Thread(target=history.write, args=(transactions // (2 * kills), rows_max))
            writing.start()
            size = len(driver.said)
            until(lambda size=size: len(driver.said) != size or draw.random() < 0.01, lambda: driver.said)
            if kill % 3 != 2:
                driver.kill()
                driver.start()
            writing.join()
            history.truncate()
            if kill % 2 == 0:
                server.kill()
                server.start()
            assert not divided_transactions(folder)
        if driver.process.poll() is not None:
            raise AssertionError(driver.said)
        large, stop = database.tables[0], 10_000 + large_rows
        database.execute(f"INSERT INTO {large} (id, name) SELECT g, 'large' FROM generate_series(10001, {stop}) g")
        driver.kill()
        driver.start()
        history.write(transactions // 4, rows_max)
        until(lambda: is_equal(database, folder), lambda: driver.said)
        assert not divided_transactions(folder)
        driver.kill()
    finally:
        server.stop()


@pytest.mark.parametrize("snapshot", ["initial", "chunked"])
def test_copies_equal_their_tables_though_driver_and_server_are_killed(tmp_path, snapshot):
    history_under_kills(tmp_path, snapshot, seed=1, transactions=40, rows_max=30, kills=1, large_rows=2_000)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("snapshot", ["initial", "chunked"])
def test_copies_equal_their_tables_after_ten_thousand_transactions_under_kills(tmp_path, snapshot):
    history_under_kills(tmp_path, snapshot, seed=7, transactions=10_000, rows_max=500, kills=20, large_rows=100_000)
