"""Revenue per customer from a PostgreSQL database under load, with the driver killed; compared with the database.

Exit code 0: the Delta table equals the database's own answer, to the last customer.
"""

import subprocess
import tempfile
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from examples.revenue.job import CUSTOMERS, ORDERS, PUBLICATION
from examples.revenue.postgres import LocalPostgres
from examples.running import ExampleDriver, said, wait

CUSTOMERS_AT_FIRST, ORDERS_AT_FIRST = 500, 20_000
LOAD_S = 10
LOAD = f"""\\set id random(1, {2 * ORDERS_AT_FIRST})
\\set customer random(1, {CUSTOMERS_AT_FIRST})
\\set other random(1, {CUSTOMERS_AT_FIRST})
\\set cents random(100, 100000)
BEGIN;
INSERT INTO {ORDERS} VALUES (:id, :customer, :cents) ON CONFLICT (id) DO UPDATE SET cents = excluded.cents;
UPDATE {ORDERS} SET customer = :customer WHERE id = :id / 2;
DELETE FROM {ORDERS} WHERE id = :id / 3;
COMMIT;
UPDATE {CUSTOMERS} SET name = 'customer ' || :cents WHERE id = :other;
DELETE FROM {CUSTOMERS} WHERE id = :customer AND :cents < 5000;
INSERT INTO {CUSTOMERS} VALUES (:other, 'back again') ON CONFLICT DO NOTHING;
"""

Rows = list[tuple[int, str, int, int]]


def revenues(folder: Path) -> Rows:
    """The Delta table, from which a customer goes with the last order, or when the customer is deleted."""
    try:
        rows = DeltaTable(f"file://{folder}/revenue").to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
    return sorted((row["customer"], row["name"], row["revenue"], row["orders"]) for row in rows)


def computed_directly(server: LocalPostgres) -> Rows:
    sql = (
        f"SELECT customer, name, sum(cents)::int8, count(*) FROM {ORDERS} orders JOIN {CUSTOMERS} customers "
        "ON customers.id = orders.customer GROUP BY customer, name ORDER BY customer"
    )
    return [(customer, name, cents, orders) for customer, name, cents, orders in server.execute(sql)]


def demo(folder: Path, server: LocalPostgres) -> None:
    server.execute(
        f"CREATE TABLE {ORDERS} (id int PRIMARY KEY, customer int, cents bigint); "
        f"CREATE TABLE {CUSTOMERS} (id int PRIMARY KEY, name text); "
        f"ALTER TABLE {ORDERS} REPLICA IDENTITY FULL; ALTER TABLE {CUSTOMERS} REPLICA IDENTITY FULL; "
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {ORDERS}, {CUSTOMERS}; "
        f"INSERT INTO {ORDERS} SELECT g, g % {CUSTOMERS_AT_FIRST} + 1, g FROM generate_series(1, {ORDERS_AT_FIRST}) g; "
        f"INSERT INTO {CUSTOMERS} SELECT g, 'customer ' || g FROM generate_series(1, {CUSTOMERS_AT_FIRST}) g"
    )
    said(f"PostgreSQL runs on port {server.port}, with {ORDERS_AT_FIRST:,} orders of {CUSTOMERS_AT_FIRST} customers")
    driver = ExampleDriver("examples.revenue.driver", folder, server.dsn)
    wait(folder, "the snapshot", lambda: len(revenues(folder)) == CUSTOMERS_AT_FIRST)
    said("the snapshot is in the Delta table; pgbench changes orders and customers")
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
