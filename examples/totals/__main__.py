"""Orders from Kafka into totals in Kafka and in a Delta table, with the driver killed; compared with the orders.

Exit code 0: the table has each customer's sum, and the topic has the total after each order once, in order.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from examples.kafka.broker import Broker
from examples.totals.generator import Generator
from examples.totals.job import ORDERS, TOTALS

PARTITIONS = 2
PER_S = 1_000
MORE = 10_000
"""Orders in the table before the driver is killed, and beyond those before the load ends."""
WAIT_S_MAX = 180.0


def said(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class Driver:
    """The driver process and everything that it starts."""

    def __init__(self, servers: str, folder: Path) -> None:
        with (folder / "driver.log").open("ab") as log:
            command = [sys.executable, "-m", "examples.totals.driver", servers, str(folder)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Kill driver, JVM and workers at once, as a machine that loses power does."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


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


def in_topic(servers: str) -> dict[int, list[tuple[int, int]]]:
    """Orders and cents of each customer after each order, as a reader of committed messages sees them."""
    reader = Consumer(
        {"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    reader.assign([TopicPartition(TOTALS, number, 0) for number in range(PARTITIONS)])
    found: dict[int, list[tuple[int, int]]] = {}
    ended = 0
    while ended < PARTITIONS:
        for message in reader.consume(5_000, timeout=1):
            if message.error() is not None:
                ended += 1
                continue
            row = json.loads(message.value())
            found.setdefault(row["customer"], []).append((row["orders"], row["cents"]))
    reader.close()
    return found


def wait(folder: Path, condition: str, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited in vain for {condition}:\n{(folder / 'driver.log').read_text()[-3000:]}")
        time.sleep(0.2)


def check(servers: str, generator: Generator) -> None:
    """Compare the topic of totals with what the generator wrote. Raises `SystemExit` naming the difference."""
    found = in_topic(servers)
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
    driver, generator, lag = Driver(servers, folder), Generator(servers, PER_S), Lag(servers)
    counted = lambda: sum(orders for _, orders in in_table(folder).values())  # noqa: E731
    try:
        wait(folder, "totals", lambda: counted() >= MORE)
        driver.kill()
        at_death = counted()
        said(f"the driver was killed after {at_death:,} orders, while more come in; a new one starts")
        driver = Driver(servers, folder)
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
    wait(folder, "the topic", lambda: sum(map(len, in_topic(servers).values())) >= orders)
    driver.kill()
    check(servers, generator)
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
