"""Latency and recovery of six engines on one workload: a running count per key, from a Kafka topic into a Kafka topic.

    python -m benchmarks.peers.over_kafka --json                        # all; each engine installed by its first run
    python -m benchmarks.peers.over_kafka --engines holdfast,flink

A producer writes `--per-s` messages a second, each with its time. A consumer of committed messages takes the time from
then until the key's count came out (`p50_ms`, `p99_ms`), over `--seconds`. Then all processes of the engine are killed
(SIGKILL) and its program is started again at once: `recovery_s` is the time from the kill until the first count that
has a message from after the kill. `exact`: in the end each key's last count is the number of its messages.
Checkpoints, commits or epochs come every 100 ms; Spark SQL's micro-batches follow each other at once.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.count import percentile
from benchmarks.peers import flink
from examples.kafka.broker import Broker, java

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGES = {
    "bytewax": ("bytewax==0.21.1", "confluent-kafka"),
    "pathway": ("pathway==0.33.0",),
    "quix": ("quixstreams==3.28.1",),
}
ENGINES = ("holdfast", "flink", "spark", *PACKAGES)
KEYS = 100
WARMUP_S = 10.0
FIRST_RESULT_S_MAX = 120.0
LAST_RESULTS_S_MAX = 60.0
PAUSE_S = 0.01


class Traffic:
    """The topics of one engine: a producer's thread, and a consumer's thread that takes times."""

    def __init__(self, servers: str, per_s: int) -> None:
        self.sent: Counter[int] = Counter()
        self.counts: dict[int, int] = {}
        self.newest_at = 0
        self._latencies_ms: list[tuple[float, float]] = []
        self._per_s = per_s
        self._sending, self._reading = threading.Event(), threading.Event()
        self._sending.set()
        self._reading.set()
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1})
        settings = {"bootstrap.servers": servers, "group.id": "reader", "isolation.level": "read_committed"}
        self._consumer = Consumer(settings | {"fetch.wait.max.ms": 10, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition("out", 0, 0)])
        self._threads = [threading.Thread(target=each) for each in (self._send, self._read)]
        for each in self._threads:
            each.start()

    def latencies_ms(self, seconds: float) -> list[float]:
        """The latencies of the counts that come from now on, for so long."""
        begun_s = time.monotonic()
        time.sleep(seconds)
        return [latency_ms for came_s, latency_ms in list(self._latencies_ms) if came_s >= begun_s]

    def await_result_of(self, at_us: int) -> float:
        """Wait for a count that has a message from `at_us` or later; return the seconds from then to its coming."""
        deadline_s = time.monotonic() + FIRST_RESULT_S_MAX
        while self.newest_at < at_us:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no result within {FIRST_RESULT_S_MAX:.0f} s")
            time.sleep(PAUSE_S)
        return time.time() - at_us / 1e6

    def is_exact(self) -> bool:
        """End the traffic; tell whether each key's last count becomes the number of its messages."""
        self._sending.clear()
        self._threads[0].join()
        deadline_s = time.monotonic() + LAST_RESULTS_S_MAX
        while self.counts != self.sent and time.monotonic() < deadline_s:
            time.sleep(PAUSE_S)
        return self.counts == self.sent

    def close(self) -> None:
        self._sending.clear()
        self._reading.clear()
        for each in self._threads:
            each.join()
        self._consumer.close()

    def _send(self) -> None:
        draw, begun_s, made = random.Random(7), time.monotonic(), 0
        while self._sending.is_set():
            due = int((time.monotonic() - begun_s) * self._per_s)
            for _ in range(due - made):
                key = draw.randrange(KEYS)
                self.sent[key] += 1
                message = json.dumps({"k": key, "at": time.time_ns() // 1000})
                self._producer.produce("in", message, str(key))
            made = due
            self._producer.poll(0.005)
        self._producer.flush(30)

    def _read(self) -> None:
        while self._reading.is_set():
            for message in self._consumer.consume(1000, timeout=0.01):
                row = json.loads(message.value())
                if row.get("diff", 1) < 0:
                    continue  # Pathway takes the count before back
                self.counts[row["k"]] = row["n"]
                self.newest_at = max(self.newest_at, row["at"])
                self._latencies_ms.append((time.monotonic(), time.time() * 1000 - row["at"] / 1000))


def command(engine: str, servers: str, folder: str) -> list[str]:
    """The command that runs an engine's program. Installs the engine if need be."""
    if engine == "flink":
        flink.install_flink()
        jars = subprocess.run(
            [ROOT / "scripts" / "jars.sh", str((HERE / "flink.xml").relative_to(ROOT))],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.strip()
        class_path = flink.compiled(HERE / "CountOverKafka.java", [f"{jars}/*"])
        opens = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("util", "lang")]
        return [java(), "-Xmx2g", *opens, "-cp", class_path, "CountOverKafka", servers, folder]
    program = [str(HERE / f"{engine}_count.py"), servers, folder]
    if engine == "spark":
        reader = [ROOT / "scripts" / "jars.sh", "examples/kafka/spark_reader.xml"]
        program.append(subprocess.run(reader, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    return [installed(engine) if engine in PACKAGES else sys.executable, *program]


def installed(engine: str) -> str:
    """The interpreter of a virtual environment of the engine's own, kept between runs."""
    python = flink.home() / engine / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[engine]], check=True)
    return str(python)


@contextmanager
def running(arguments: Sequence[str], log: Path) -> Iterator[None]:
    """Run a program; all its processes are killed at the end."""
    with log.open("ab") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out, cwd=ROOT, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measure(engine: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-over-kafka-") as name:
        broker = Broker(Path(name, "kafka")).start()
        try:
            return measured_on(engine, broker.address, Path(name, engine), options)
        finally:
            broker.stop()


def measured_on(engine: str, servers: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    topics = [NewTopic("in", 2, 1), NewTopic("out", 1, 1)]
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics(topics).values():
        made.result(30)
    folder.mkdir()
    arguments, log = command(engine, servers, str(folder)), folder / "log"
    traffic, recoveries = Traffic(servers, options.per_s), []
    try:
        with running(arguments, log):
            traffic.await_result_of(time.time_ns() // 1000)
            time.sleep(WARMUP_S)
            latencies = traffic.latencies_ms(options.seconds)
        for kill in range(options.kills):
            killed_us = time.time_ns() // 1000
            with running(arguments, log):
                recoveries.append(traffic.await_result_of(killed_us))
                time.sleep(WARMUP_S)
                exact = traffic.is_exact() if kill + 1 == options.kills else None
    except TimeoutError as error:
        raise SystemExit(f"{engine}: {error}:\n{log.read_text()[-3000:]}") from None
    finally:
        traffic.close()
    return {
        "engine": engine,
        "p50_ms": round(percentile(latencies, 50)),
        "p99_ms": round(percentile(latencies, 99)),
        "recovery_s": [round(each, 1) for each in recoveries],
        "exact": exact,
    }


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(ENGINES), help="names, separated by commas")
    parser.add_argument("--per-s", type=int, default=500, help="messages a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which latencies are taken")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="only the JSON lines")
    options = parser.parse_args(argv)
    for engine in options.engines.split(","):
        print(json.dumps(measure(engine, options)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
