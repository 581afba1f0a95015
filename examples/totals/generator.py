"""The generator: writes orders to a topic at a steady rate, and knows the sums that must come out."""

import json
import random
import threading
from collections import Counter

from confluent_kafka import Producer

from examples.totals.job import ORDERS

CUSTOMERS = 500
PAUSE_S = 0.05


class Generator:
    """Writes orders in a thread until `finish`. `cents` and `orders` are then the expected result by customer."""

    def __init__(self, servers: str, per_s: int) -> None:
        self.cents: Counter[int] = Counter()
        self.orders: Counter[int] = Counter()
        self._burst = max(1, int(per_s * PAUSE_S))
        self._finish = threading.Event()
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
        self._thread = threading.Thread(target=self._run, name="generator")
        self._thread.start()

    def finish(self) -> None:
        """Write no more, and wait until all orders are in the topic."""
        self._finish.set()
        self._thread.join()

    def _run(self) -> None:
        draw = random.Random(7)
        while not self._finish.wait(PAUSE_S):
            for _ in range(self._burst):
                self._write(draw.randrange(CUSTOMERS), draw.randint(100, 100_000))
        assert self._producer.flush(60) == 0, "the broker has not taken all orders"

    def _write(self, customer: int, cents: int) -> None:
        self.cents[customer] += cents
        self.orders[customer] += 1
        self._producer.produce(ORDERS, json.dumps({"customer": customer, "cents": cents}), str(customer))
        self._producer.poll(0)
