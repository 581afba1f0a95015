"""Revenue per customer from a PostgreSQL database under load, with the driver killed; compared with the database.

Exit code 0: the Delta table equals the database's own answer, to the last customer.
"""

import subprocess
import tempfile
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from examples.revenue.job import PUBLICATION, TABLE
from examples.revenue.postgres import LocalPostgres
from examples.running import ExampleDriver, said, wait

CUSTOMERS, ORDERS = 500, 20_000
LOAD_S = 10
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


def revenues(folder: Path) -> Rows:
    """The Delta table, from which a customer goes with the last order."""
    try:
        rows = DeltaTable(f"file://{folder}/revenue").to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
    return sorted((row["customer"], row["revenue"], row["orders"]) for row in rows)


def computed_directly(server: LocalPostgres) -> Rows:
    sql = f"SELECT customer, sum(cents)::int8, count(*) FROM {TABLE} GROUP BY customer ORDER BY customer"
    return [(customer, cents, orders) for customer, cents, orders in server.execute(sql)]


def demo(folder: Path, server: LocalPostgres) -> None:
    server.execute(
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, customer int, cents bigint); "
        f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL; CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}; "
        f"INSERT INTO {TABLE} SELECT g, g % {CUSTOMERS} + 1, g FROM generate_series(1, {ORDERS}) g"
    )
    said(f"PostgreSQL runs on port {server.port}, with {ORDERS:,} orders of {CUSTOMERS} customers; the job starts")
    driver = ExampleDriver("examples.revenue.driver", folder, server.dsn)
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
    driver = ExampleDriver("examples.revenue.driver", folder, server.dsn)
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
