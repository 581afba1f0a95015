"""The PostgreSQL source while driver, senders and server are killed: copies equal their tables in the end, and no
checkpoint of the journal divides a transaction."""

import os
import random
import sys
import threading
from pathlib import Path

import pytest
from kills_postgres import BoundaryWatch, CopyDriver

from waiting import until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sources"))

from sources_postgres_server import Database, History, is_equal

from examples.revenue.postgres import LocalPostgres

pytestmark = pytest.mark.kill

TRANSACTIONS = int(os.environ.get("HOLDFAST_HISTORY", "10000"))
"""Transactions of the long history, of 1 to 500 rows each."""

SPARK = "local[4]"
WAIT_S_MAX = 600.0


class Under:
    """A history under kills: which process is killed when, and the invariants of the end."""

    def __init__(self, folder: Path, snapshot: str, seed: int, truncate: str = "delete", master: str = SPARK) -> None:
        self._draw = random.Random(seed)
        self._folder = folder
        self._settings = (snapshot, truncate, master)
        self.server = LocalPostgres(fsync="on").start()
        self.database = Database(self.server, f"k{seed}")
        self.database.create("a", "b", "c", "d")
        self.history = History(self.database, seed, truncates=0.02 if truncate == "delete" else 0.0)

    def run(self, transactions: int, rows_max: int, kills: list[str], large_rows: int) -> None:
        share = transactions // (2 + len(kills))
        self.history.write(share, rows_max)
        self.driver = CopyDriver(self.database, self._folder, *self._settings)
        until(lambda: (self._folder / "job" / "journal").exists(), lambda: self.driver.said, WAIT_S_MAX)
        watch = BoundaryWatch(self._folder)
        if self._settings[0] == "initial":
            until(lambda: "initial snapshot took" in self.driver.said, lambda: self.driver.said, WAIT_S_MAX)
        for who in kills:
            writing = threading.Thread(target=self.history.write, args=(share, rows_max))
            writing.start()
            self._kill(who, writing)
            writing.join()
            if who == "server":  # not while transactions are open, whose writer would lose them
                self.server.kill()
                self.server.start()
        self._write_large(large_rows)
        self.driver.kill()
        self.driver.start()
        self.history.write(transactions - self.history.transactions, rows_max)
        until(lambda: is_equal(self.database, self._folder), lambda: self.driver.said, WAIT_S_MAX)
        self.driver.clear()
        watch.end()
        assert not watch.wrong
        assert len(watch.checked) > len(kills)

    def _kill(self, who: str, writing: threading.Thread) -> None:
        share = self.history.transactions
        until(lambda: self.history.transactions > share or not writing.is_alive(), lambda: self.driver.said)
        if who == "driver":
            self.driver.kill()
            self.driver.start()
        elif who == "sender":
            until(lambda: self.driver.kill_worker(self._draw), lambda: self.driver.said, WAIT_S_MAX)
        if self.driver.process.poll() is not None:
            raise AssertionError(self.driver.said)

    def _write_large(self, rows: int) -> None:
        """Write a transaction of so many rows."""
        large, stop = self.database.tables[0], 10_000 + rows
        self.database.execute(f"INSERT INTO {large} (id, name) SELECT g, 'large' FROM generate_series(10001, {stop}) g")

    def end(self) -> None:
        if hasattr(self, "driver"):
            self.driver.clear()
        self.server.stop()


@pytest.fixture
def under(tmp_path, request):
    made = Under(tmp_path, *request.param)
    yield made
    made.end()


@pytest.mark.parametrize("under", [("initial", 1, "delete", "")], indirect=True, ids=["initial"])
def test_copies_equal_their_tables_though_driver_and_server_are_killed(under):
    under.run(200, 20, ["driver", "server"], large_rows=2_000)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("under", [("chunked", 2, "ignore")], indirect=True, ids=["chunked"])
def test_copies_equal_their_tables_though_senders_are_killed(under):
    under.run(200, 20, ["sender", "server"], large_rows=2_000)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("under", [("initial", 7), ("chunked", 8)], indirect=True, ids=["initial", "chunked"])
def test_copies_equal_their_tables_after_ten_thousand_transactions_under_kills(under):
    under.run(TRANSACTIONS, 500, ["driver", "sender", "server", "sender"] * 2, large_rows=100_000)
