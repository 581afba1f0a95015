"""Kafka into folders by the hour, each with `_SUCCESS` when finished: failing partitions, kills, a broker that dies.

An hour of the messages' time takes `HOUR_S` here, and the trigger's expression has seconds in place of hours. A folder
that is first seen with `_SUCCESS` must have exactly the rows of its hour, of all partitions, each once; so at the end.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kills_topics import TopicDriver

import kafka_kit
from examples.kafka.broker import Broker
from waiting import until

pytestmark = [pytest.mark.kill, pytest.mark.timeout(300)]

HOUR_S = 0.5
TOPIC, PARTITIONS, PER_HOUR = "events", 4, 60
START_MS = 1_767_225_600_000
"""2026-01-01: longer ago than the topic's retention would allow by default."""


class Hours:
    """Writes the messages hour by hour, in a thread, until `finish`."""

    def __init__(self, servers: str) -> None:
        kafka_kit.new_topic(PARTITIONS, TOPIC, servers, **{"retention.ms": "-1"})
        self.written = 0
        self._writer = kafka_kit.Writer(servers=servers)
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hours")
        self._thread.start()

    def finish(self) -> None:
        self._finish.set()
        self._thread.join()

    def rows(self, hour: int) -> set[int]:
        """The numbers of all messages of an hour."""
        return set(range(hour * PARTITIONS * PER_HOUR, (hour + 1) * PARTITIONS * PER_HOUR))

    def _run(self) -> None:
        while not self._finish.wait(HOUR_S):
            for partition in range(PARTITIONS):
                self._write(self.written, partition)
            self.written += 1

    def _write(self, hour: int, partition: int) -> None:
        for place in range(PER_HOUR):
            number = (hour * PARTITIONS + partition) * PER_HOUR + place
            time_ms = START_MS + hour * 3_600_000 + place * 3_600_000 // PER_HOUR
            self._writer.begin_put(TOPIC, f'{{"n": {number}}}', partition, timestamp=time_ms)
        self._writer.await_delivery()


class Folders:
    """The sink's folders, by hour since the start."""

    def __init__(self, folder: Path, hours: Hours) -> None:
        self._folder = folder
        self._hours = hours
        self._finished: set[int] = set()

    def rows(self, hour: int) -> Counter[int]:
        files = self._of(hour).glob("*.parquet")
        return Counter(number for file in files for number in pq.read_table(file)["n"].to_pylist())

    def finished(self) -> set[int]:
        """The hours that are marked. Each has exactly its rows as soon as it is."""
        for hour in set(range(self._hours.written)) - self._finished:
            if (self._of(hour) / "_SUCCESS").exists():
                assert self.rows(hour) == Counter(self._hours.rows(hour)), f"hour {hour} is marked, and not as sent"
                self._finished.add(hour)
        return self._finished

    def has_rows(self, hour: int, partition: int) -> bool:
        return self._rows_of(hour, partition) <= self.rows(hour).keys()

    def _rows_of(self, hour: int, partition: int) -> set[int]:
        first = (hour * PARTITIONS + partition) * PER_HOUR
        return set(range(first, first + PER_HOUR))

    def _of(self, hour: int) -> Path:
        day, hour = divmod(hour, 24)
        return self._folder / "out" / f"day=2026-01-{day + 1:02d}" / f"hour={hour}"


class HourlyJob:
    """A broker, a writer of hours, a driver at a time, and their output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = Broker(folder / "broker").start()
        self.hours = Hours(self.broker.address)
        self.folders = Folders(folder, self.hours)
        self.driver = TopicDriver("hourly", self.broker.address, TOPIC, folder)

    def break_partitions(self, *partitions: int) -> None:
        self._note(" ".join(f"{TOPIC}/{partition}" for partition in partitions))

    def heal(self) -> None:
        self._note("")

    def _note(self, splits: str) -> None:
        fresh = self.folder / "broken.new"
        fresh.write_text(splits)
        fresh.rename(self.folder / "broken")

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver = TopicDriver("hourly", self.broker.address, TOPIC, self.folder)

    def kill_broker(self) -> None:
        self.broker.stop()
        self.broker.start()

    def await_finished(self, hour: int) -> None:
        self.until(lambda: hour in self.folders.finished(), f"the mark of hour {hour}")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        log = self.driver.log
        until(lambda: self.driver.code is not None or condition(), lambda: f"{what}:\n{log.read_text()[-3000:]}", 120)
        assert self.driver.code is None, log.read_text()[-3000:]

    def end(self) -> None:
        self.hours.finish()
        self.driver.kill()
        self.broker.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HourlyJob]:
    made = HourlyJob(tmp_path)
    yield made
    made.end()


def check(world: HourlyJob) -> None:
    """Every message that was sent is there once, and all hours before this check are finished."""
    before = world.hours.written
    world.await_finished(before)
    world.hours.finish()
    hours = range(world.hours.written)
    world.until(lambda: all(world.folders.rows(hour).keys() == world.hours.rows(hour) for hour in hours), "all rows")
    for hour in hours:
        assert world.folders.rows(hour) == Counter(world.hours.rows(hour)), f"hour {hour}"
    assert world.folders.finished() >= set(range(before))


@pytest.mark.long
def test_hours_are_finished_and_whole_while_a_partition_fails_and_driver_and_broker_are_killed(world: HourlyJob):
    world.await_finished(0)
    world.break_partitions(1)
    broken_at = world.hours.written + 1
    world.until(lambda: world.folders.has_rows(broken_at + 1, 0), "the rows of partitions that are well")
    assert not world.folders.has_rows(broken_at, 1)
    assert max(world.folders.finished()) < broken_at, "the partition that fails holds the marks back"
    world.kill_driver()
    world.until(lambda: world.folders.has_rows(broken_at + 3, 0), "rows of a new driver")
    assert max(world.folders.finished()) < broken_at
    world.heal()
    world.kill_broker()
    check(world)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_hours_are_finished_and_whole_whatever_fails_in_whatever_order(seed: int, world: HourlyJob):
    draw = random.Random(seed)
    for _ in range(12):
        world.await_finished(world.hours.written)
        match draw.choice(["driver", "broker", "partitions", "partitions"]):
            case "driver":
                world.kill_driver()
            case "broker":
                world.kill_broker()
            case _:
                world.break_partitions(*draw.sample(range(PARTITIONS), draw.randint(1, PARTITIONS // 2)))
                world.until(lambda: draw.random() < 0.02, "a while")
                if draw.random() < 0.5:
                    world.kill_driver()
                world.heal()
    check(world)
