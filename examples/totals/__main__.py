"""Orders from Kafka into totals in Kafka and in a Delta table, with the driver killed; compared with the orders.

Exit code 0: the table has each customer's sum, and the topic has the total after each order once, in order.
"""

import json
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from examples.kafka.broker import Broker
from examples.running import ExampleDriver, said, wait
from examples.totals.generator import Generator
from examples.totals.job import ORDERS, TOTALS

DRIVER = "examples.totals.driver"
PARTITIONS = 2
PER_S = 1_000
MORE = 10_000
"""Orders in the table before the driver is killed, and beyond those before the load ends."""


class Lag:
    """The lag of the job's consumer group, as any tool for Kafka shows it."""

    def __init__(self, servers: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "totals", "enable.auto.commit": False})
        self._partitions = [TopicPartition(ORDERS, number) for number in range(PARTITIONS)]

    def messages(self) -> int:
        committed = self._consumer.committed(self._partitions, timeout=10)
        ends = [self._consumer.get_watermark_offsets(one, timeout=10)[1] for one in self._partitions]
        return sum(end - max(0, one.offset) for one, end in zip(committed, ends, strict=True))

    def close(self) -> None:
        self._consumer.close()


def in_table(folder: Path) -> dict[int, tuple[int, int]]:
    """Cents and orders of each customer in the Delta table."""
    try:
        rows = DeltaTable(f"file://{folder}/totals").to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return {}
    return {row["customer"]: (row["cents"], row["orders"]) for row in rows}


class TotalsReader:
    """The totals in the topic, as a reader of committed messages sees them; each look goes on where the last ended."""

    def __init__(self, servers: str) -> None:
        self.found: dict[int, list[tuple[int, int]]] = {}
        """Orders and cents of each customer after each order."""
        self.count = 0
        self._reader = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
        self._reader.assign([TopicPartition(TOTALS, number, 0) for number in range(PARTITIONS)])

    def has(self, orders: int) -> bool:
        for message in self._reader.consume(5_000, timeout=1):
            if message.error() is not None:
                raise SystemExit(f"the topic of totals: {message.error()}")
            row = json.loads(message.value())
            self.found.setdefault(row["customer"], []).append((row["orders"], row["cents"]))
            self.count += 1
        return self.count >= orders

    def close(self) -> None:
        self._reader.close()


def check(found: dict[int, list[tuple[int, int]]], generator: Generator) -> None:
    """Compare the topic of totals with the sums that the generator wrote. Raises `SystemExit` naming the difference."""
    for customer, count in generator.orders.items():
        numbers = [number for number, _ in found.get(customer, [])]
        if numbers != list(range(1, count + 1)):
            raise SystemExit(
                f"customer {customer}: wanted are the orders 1 to {count} once and in order, not {numbers}"
            )
        if found[customer][-1][1] != generator.cents[customer]:
            raise SystemExit(f"customer {customer}: {found[customer][-1][1]} cents, not {generator.cents[customer]}")


def demo(folder: Path, servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (ORDERS, TOTALS)])
    for topic in made.values():
        topic.result(30)
    said(f"Kafka runs at {servers}; the job starts, and {PER_S:,} orders a second come in")
    driver, generator, lag = ExampleDriver(DRIVER, folder, servers), Generator(servers, PER_S), Lag(servers)
    counted = lambda: sum(orders for _, orders in in_table(folder).values())  # noqa: E731
    try:
        wait(folder, "totals", lambda: counted() >= MORE)
        driver.kill()
        at_death = counted()
        said(f"the driver was killed after {at_death:,} orders, while more come in; a new one starts")
        driver = ExampleDriver(DRIVER, folder, servers)
        said(f"the job is {lag.messages():,} orders behind")
        wait(folder, "further totals", lambda: counted() >= at_death + MORE)
    finally:
        generator.finish()
    orders = sum(generator.orders.values())
    said(f"{orders:,} orders are in the topic, the job is {lag.messages():,} behind")
    expected = {customer: (generator.cents[customer], count) for customer, count in generator.orders.items()}
    wait(folder, "equality", lambda: in_table(folder) == expected)
    wait(folder, "the group's offsets", lambda: lag.messages() == 0)
    lag.close()
    said(f"the Delta table equals the generator's sums in all {len(expected)} customers, the lag is 0")
    reader = TotalsReader(servers)
    wait(folder, "the topic to have all totals", lambda: reader.has(orders))
    driver.kill()
    reader.has(orders + 1)  # Whatever comes twice would come now.
    reader.close()
    check(reader.found, generator)
    said(f"the topic has the total after each of {orders:,} orders, once and in order")


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        broker = Broker(Path(folder) / "broker").start()
        try:
            demo(Path(folder), broker.address)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
