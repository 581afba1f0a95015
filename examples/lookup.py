"""Customers of orders, looked up in PostgreSQL with a pool of connections, many at a time.

python -m examples.lookup "host=… dbname=… user=…"
"""

import sys

import psycopg
from psycopg_pool import AsyncConnectionPool

import holdfast as hf
from holdfast.testing import TestSource, run

ORDERS = [{"id": 1, "customer": 7}, {"id": 2, "customer": 8}, {"id": 3, "customer": 99}]


class Customer(hf.AsyncFunction):
    """Gives an order with the name of its customer; no row for a customer who is unknown."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    async def open(self, ctx: hf.CallContext) -> None:
        self._pool = AsyncConnectionPool(self._conninfo, min_size=1, max_size=min(10, ctx.capacity), open=False)
        await self._pool.open()

    async def call(self, row):
        async with self._pool.connection() as connection:
            found = await connection.execute("SELECT name FROM customers WHERE id = %s", (row.customer,))
            customer = await found.fetchone()
        return None if customer is None else {"id": row.id, "name": customer[0]}

    async def close(self) -> None:
        await self._pool.close()


def looked_up(conninfo: str) -> list[dict[str, object]]:
    """Run the orders through the look-up; return what comes out."""
    job = hf.Job(None, name="lookup", storage="memory://lookup")
    sink = hf.MemorySink()
    orders = job.read(TestSource([ORDERS], "id BIGINT, customer BIGINT"))
    orders.map_async(Customer(conninfo), "id BIGINT, name STRING", retry_on=psycopg.OperationalError).write(sink)
    run(job)
    return sink.rows()


if __name__ == "__main__":
    print(looked_up(sys.argv[1]))
