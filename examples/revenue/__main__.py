"""Revenue per customer from a PostgreSQL database under load, with the driver killed; compared with the database.

Exit code 0: the Delta table equals what the database says, to the last customer.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from examples.revenue.job import PUBLICATION, TABLE
from examples.revenue.postgres import LocalPostgres

CUSTOMERS, ORDERS = 500, 20_000
LOAD_S = 10
WAIT_S_MAX = 180.0
LOAD = f"""\\set id random(1, {2 * ORDERS})
\\set customer random(1, {CUSTOMERS})
\\set cents random(100, 100000)
BEGIN;
INSERT INTO {TABLE} VALUES (:id, :customer, :cents) ON CONFLICT (id) DO UPDATE SET cents = excluded.cents;
UPDATE {TABLE} SET customer = :customer WHERE id = :id / 2;
DELETE FROM {TABLE} WHERE id = :id / 3;
COMMIT;
"""

Rows = list[tuple[int, int, int]]


def said(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class Driver:
    """The driver process and everything that it starts."""

    def __init__(self, dsn: str, folder: Path) -> None:
        with (folder / "driver.log").open("ab") as log:
            command = [sys.executable, "-m", "examples.revenue.driver", dsn, str(folder)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Kill driver, JVM and workers at once, as a machine that loses power does."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def revenues(folder: Path) -> Rows:
    """The Delta table, without customers that have no order left."""
    try:
        rows = DeltaTable(f"file://{folder}/revenue").to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
    return sorted((row["customer"], row["cents"], row["orders"]) for row in rows if row["orders"])


def computed_directly(server: LocalPostgres) -> Rows:
    sql = f"SELECT customer, sum(cents)::int8, count(*) FROM {TABLE} GROUP BY customer ORDER BY customer"
    return [(customer, cents, orders) for customer, cents, orders in server.execute(sql)]


def wait(folder: Path, condition: str, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited in vain for {condition}:\n{(folder / 'driver.log').read_text()[-3000:]}")
        time.sleep(0.2)


def demo(folder: Path, server: LocalPostgres) -> None:
    server.execute(
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, customer int, cents bigint); "
        f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL; CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}; "
        f"INSERT INTO {TABLE} SELECT g, g % {CUSTOMERS} + 1, g FROM generate_series(1, {ORDERS}) g"
    )
    said(f"PostgreSQL runs on port {server.port}, with {ORDERS:,} orders of {CUSTOMERS} customers; the job starts")
    driver = Driver(server.dsn, folder)
    wait(folder, "the snapshot", lambda: len(revenues(folder)) == CUSTOMERS)
    said("the snapshot is in the Delta table; pgbench changes orders")
    (server.folder / "load.sql").write_text(LOAD)
    load = [server.program("pgbench"), "-n", "-f", str(server.folder / "load.sql"), "-T", str(LOAD_S), "-c", "4"]
    target = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "holdfast", "postgres"]
    pgbench = subprocess.Popen([*load, *target], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    before = revenues(folder)
    wait(folder, "changes in the table", lambda: revenues(folder) != before)
    driver.kill()
    said("the driver was killed with all its processes, while changes go on; a new one starts")
    driver = Driver(server.dsn, folder)
    output, _ = pgbench.communicate()
    done = next(line for line in output.splitlines() if "actually processed" in line)
    said(f"the load has ended: {done.partition(': ')[2]} transactions")
    wait(folder, "equality", lambda: revenues(folder) == computed_directly(server))
    driver.kill()
    said(f"the Delta table equals the database in all {len(revenues(folder))} customers")


def main() -> None:
    server = LocalPostgres().start()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            demo(Path(folder), server)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
