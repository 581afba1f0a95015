"""A real Apache Kafka broker for tests, benchmarks and the demo: a node, KRaft, on a free port, ready in seconds.

    python -m examples.kafka.broker make test-spark      runs a command with HOLDFAST_KAFKA=host:port set
    python -m examples.kafka.broker --quick make …       the same with Java's `QUICK_JAVA`
    python -m examples.kafka.broker                      runs until its input ends (Ctrl-D)

The broker ends with the process that started it, however that ends: a small guard reads from a pipe that only the owner
holds, and kills the broker when the pipe closes. Where HOLDFAST_KAFKA names a broker already, none is started.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "HOLDFAST_KAFKA"
READY_S_MAX = 60.0
"""Seconds within which a broker must answer; a higher value allows for a busier machine."""
JAVA = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto")
QUICK_JAVA = (*JAVA, "-XX:TieredStopAtLevel=1")
"""Options of Java. `QUICK_JAVA` leaves Java's optimising compiler off, which costs a test more time than it saves."""
CLUSTER = "aG9sZGZhc3QtdGVzdHMtMQ"
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions=1
offsets.topic.num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
file.delete.delay.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
log.cleaner.enable=false
metadata.max.idle.interval.ms=0
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class Broker:
    """A broker on data in `folder`. A broker that was stopped or killed starts again on the same port and data.

    `options` are those of Java: `QUICK_JAVA` for tests, `JAVA` where throughput is measured.
    """

    def __init__(self, folder: Path, options: Sequence[str] = JAVA) -> None:
        self.folder = folder
        self._options = options
        self.port = free_port()
        self._controller_port = free_port()
        self._java: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> "Broker":
        """Start the broker and return once it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "server.properties").exists():
            self._format()
        self._java = self._run("kafka.Kafka", str(self.folder / "server.properties"))
        guard = ["sh", "-c", f"read _; kill -9 {self._java.pid} 2>/dev/null"]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        deadline_s = time.monotonic() + READY_S_MAX
        while not self._answers():
            if self._java.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the Kafka broker did not start; its log is {self.folder / 'broker.log'}")
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """Stop the broker at once: its log is made for that, and a new start recovers it."""
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """Stop the broker in order."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        assert self._java is not None
        self._java.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._java is not None
        self._java.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._java is not None and self._guard is not None:
            self._java.send_signal(how)
            self._java.wait()
            assert self._guard.stdin is not None
            self._guard.kill()
            self._guard.wait()
            self._guard.stdin.close()
            self._java = self._guard = None

    def _format(self) -> None:
        data = self.folder / "data"
        settings = SETTINGS.format(port=self.port, controller=self._controller_port, data=data)
        (self.folder / "log4j2.properties").write_text(LOGGING)
        properties = self.folder / "server.properties"
        properties.write_text(settings)
        tool = self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties))
        if tool.wait() != 0:
            properties.unlink()
            raise RuntimeError(f"the Kafka broker's storage was not formatted; the log is {self.folder / 'broker.log'}")

    def _run(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        command = [java(), *self._options, logging, "-cp", f"{jars()}/*", main, *arguments]
        with (self.folder / "broker.log").open("ab") as out:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return bool(AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=5).brokers)
        except (OSError, KafkaException):
            return False


@contextmanager
def kafka(folder: Path | None = None, options: Sequence[str] = JAVA) -> Iterator[str]:
    """Give the address of a broker: of HOLDFAST_KAFKA, or of a new broker that lives as long as the context."""
    if VARIABLE in os.environ:
        yield os.environ[VARIABLE]
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-kafka-") as made:
        broker = Broker(folder or Path(made), options)
        try:
            yield broker.start().address
        finally:
            broker.stop()


def java() -> str:
    home = subprocess.run([ROOT / "scripts" / "find_java.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return f"{home.strip()}/bin/java"


def jars(pom: Path = ROOT / "examples" / "kafka" / "pom.xml") -> str:
    """Get the jars that a project of Maven's names, and return the folder in which they lie."""
    script = [ROOT / "scripts" / "jars.sh", str(pom.relative_to(ROOT))]
    return subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    quick = sys.argv[1:2] == ["--quick"]
    command = sys.argv[2:] if quick else sys.argv[1:]
    with kafka(options=QUICK_JAVA if quick else JAVA) as address:
        if command:
            return subprocess.run(command, env={**os.environ, VARIABLE: address}).returncode
        print(address, flush=True)
        sys.stdin.read()
        return 0


if __name__ == "__main__":
    sys.exit(main())
