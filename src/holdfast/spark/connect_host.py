"""Spark Connect as the host: a client of a Spark application that runs elsewhere, without a SparkContext.

A task is a row of `range(n, numPartitions=n).mapInArrow(…)`, and a group of jobs is a tag. Connect reports neither
executors nor failed tasks. So slots are counted by waiting tasks (`connect_slots`), processes report themselves why
they end (`staying`), and each start probes the executors. Invariant: a registered process is asked to end before its
tag is interrupted, because an interrupt may reach the daemon of all Python workers of an executor.
"""

import re
import socket
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.errors import JobRefused
from holdfast.ports import ANY, PortRange
from holdfast.printable import logger
from holdfast.sources.spark_stream.epoch_calls import EpochCalls
from holdfast.spark.connect_epochs import CallsFromServer
from holdfast.spark.connect_plans import check_texts, check_uncached
from holdfast.spark.connect_retries import end_soon, is_away, notice_soon
from holdfast.spark.connect_shipping import Inline, SessionFile, nth
from holdfast.spark.connect_slots import CountedSlots, staying_in
from holdfast.spark.host import Shipped, SparkJob, TaskBody
from holdfast.spark.session_mail import same_session
from holdfast.spark.slots import dynamic

log = logger(__name__)

INLINE_BYTES_MAX = 1 << 20
"""Most bytes that are sent inside each task's function. More bytes become a file of the session (an artifact)."""
INTERRUPT_S = 5.0
"""Seconds that a cancelled task has to end on its own. A higher value blocks slots longer."""
LOOK_S = 2.0
"""Seconds between two looks at the session, which also keep the server from closing it."""
KEEP_S = 60.0
"""Seconds between two requests to the user's session, so that the server does not close it after an hour without any:
transforms and DataFrames are declared there."""
STREAM = 7_203_115_000_000
"""The first number of the range from which a transform's stream is made. A user's own range begins at another one."""
STREAM_ROWS = 1 << 16
"""The number of rows in that range, which are never read. It gives the stream a size, by which Spark chooses the table
that a join broadcasts."""
RESULT = StructType([StructField("result", BinaryType())])


class ConnectHost:
    """Implements `host.SparkHost`."""

    def __init__(self, spark: Any, ports: PortRange = ANY, beside_driver: bool = False) -> None:
        self.session = spark
        self._beside_driver = beside_driver
        """True if this process runs beside Spark's driver, on its machine."""
        self._own = _cloned(spark)
        """The session in which everything runs. DataFrames are declared in the user's session, since Connect cannot
        join DataFrames of different sessions."""
        notice_soon(self._own)
        end_soon(spark)
        self._users = same_session(spark, spark.session_id)
        """The user's session through a client of our own, whose calls end soon if the server is gone."""
        notice_soon(self._users)
        self._own.conf.set("spark.sql.adaptive.enabled", "false")
        self._own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "262144")
        self._ports = ports
        self._known: dict[str, str | None] = {}
        self.application = self.setting("spark.app.id") or self._own.client.host
        self.master = self.setting("spark.master") or ""
        self._begun: set[str] = set()
        self._running: Counter[str] = Counter()
        """The threads whose operations have a tag now."""
        self._this = threading.local()
        self._closed, self._lost = threading.Event(), threading.Event()
        """Set by `close`; set once the server does not know the session, or does not answer."""
        self._staying = staying_in(self.application)
        self._slots = CountedSlots(self, self._staying, ports, on_demand=dynamic(self))
        threading.Thread(target=self._look, name="holdfast-connect-session", daemon=True).start()

    def _look(self) -> None:
        kept_s, keeps = time.monotonic(), True
        while not self._closed.wait(LOOK_S):
            try:
                self._own.conf.get("spark.app.id", None)
            except Exception as error:
                if not self._closed.is_set():
                    log.warning("the Spark Connect session has ended: %s", str(error)[:500])
                    self._lost.set()
                return
            if keeps and time.monotonic() - kept_s >= KEEP_S:
                kept_s, keeps = time.monotonic(), self._keep_users_session()

    def _keep_users_session(self) -> bool:
        """Return False if the session has ended. The next look at our own session notices a server that is away."""
        try:
            self._users.conf.get("spark.app.id", None)
        except Exception as error:
            if is_away(error):
                return True
            if not self.has_ended():
                log.warning("the session in which the job's DataFrames are declared has ended: %s", str(error)[:500])
            return False
        return True

    def setting(self, name: str) -> str | None:
        if name not in self._known:
            self._known[name] = self._own.conf.get(name, None)
        return self._known[name]

    def address(self) -> str:
        """Return the address of this machine in the network of the server; beside Spark's driver, the driver's own."""
        if self._beside_driver and (known := self.setting("spark.driver.host")):
            return known
        family, _, _, _, server = socket.getaddrinfo(self._own.client.host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(server)
            return str(probe.getsockname()[0])

    def bind_address(self) -> str:
        return (self.setting("spark.driver.bindAddress") or "") if self._beside_driver else ""

    def has_ended(self) -> bool:
        return self._lost.is_set() or bool(self.session.is_stopped) or bool(self._own.is_stopped)

    def slots(self) -> int:
        threads = re.fullmatch(r"local\[(\d+)(?:,\s*\d+)?\]", self.master)
        return int(threads[1]) if threads else self._slots.number()

    def executors(self) -> frozenset[str] | None:
        return None

    def asking(self, slots: int, seconds: float) -> AbstractContextManager[None]:
        return self._slots.asking(slots)

    def ask_for(self, slots: int) -> None:
        self._slots.ask_beside(slots)

    def ship(self, data: bytes) -> Shipped:
        if len(data) <= INLINE_BYTES_MAX:
            return Inline(data)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"holdfast-{uuid.uuid4().hex}")
            path.write_bytes(data)
            self._own.addArtifacts(str(path), file=True)
            return SessionFile(path.name)

    @contextmanager
    def described(self, job: SparkJob) -> Iterator[None]:
        """Tag the operations of this thread; Connect has no descriptions."""
        tag, before = _tag(job.group), getattr(self._this, "job", None)
        self._own.addTag(tag)
        self._this.job = job
        self._running[tag] += 1
        try:
            with self._staying.runs(job.group) if job.stays is None else nullcontext():
                yield
        finally:
            self._running[tag] -= 1
            self._this.job = before
            self._own.removeTag(tag)

    def run(self, tasks: Sequence[bytes], body: TaskBody) -> list[bytes]:
        job = getattr(self._this, "job", None)
        if job is not None:
            self._begun.add(job.group)
        if job is None or job.stays is None:
            return self._run(tasks, body)
        with self._staying.stays(job.group, job.stays):
            return self._run(tasks, body)

    def _run(self, tasks: Sequence[bytes], body: TaskBody) -> list[bytes]:
        given, count = list(tasks), len(tasks)
        large = None
        if sum(map(len, given)) > INLINE_BYTES_MAX:
            given, large = [], self.ship(msgspec.msgpack.encode(given))

        def each(batches: Iterator[Any]) -> Iterator[Any]:  # travels by value: the probe runs without Holdfast
            import pyarrow as pa

            # Spark ends a worker that leaves input unread, so all input is read first.
            for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
                task = given[number] if large is None else nth(large.value, number)
                for made in body(task):
                    yield pa.record_batch([pa.array([made], pa.binary())], names=["result"])

        rows = self._own.range(0, count, 1, count).mapInArrow(each, RESULT)
        return [bytes(row[0]) for row in rows.collect()] if count else []

    def has_begun(self, group: str) -> bool:
        return group in self._begun

    def registered(self, group: str) -> None:
        self._staying.registered(group)

    def failure(self, group: str) -> str | None:
        return None

    def cancel(self, group: str) -> None:
        """Interrupt the group's tasks after `INTERRUPT_S` seconds, if they have not ended on their own.

        Connect interrupts the threads of tasks. If the Python worker of a task is just being started, the executor then
        restarts the daemon of all its workers, which ends the long-running processes there (in 3 of 51 trials). All
        TaskManagers refuse a cancelled run, and processes are asked to end, so most tasks end before the interrupt.
        """
        if self._running[_tag(group)]:
            timer = threading.Timer(INTERRUPT_S, self._interrupt, (_tag(group),))
            timer.daemon = True
            timer.start()

    def _interrupt(self, tag: str) -> None:
        if not self._running[tag] or self.has_ended():
            return
        try:
            self._own.interruptTag(tag)
        except Exception as error:
            log.warning("the Spark jobs with the tag %s could not be interrupted: %s", tag, error)

    def lanes(self, count: int) -> Any:
        """Spark knows the size of this DataFrame, half a megabyte for any number of lanes. So an inner join with a
        larger table needs `broadcast(…)`."""
        return self.session.range(STREAM, STREAM + STREAM_ROWS, 1, count)

    def own(self, rows: Any) -> Any:
        from pyspark.sql.connect.dataframe import DataFrame

        return DataFrame(rows._plan, self._own)

    def check_transform(self, name: str, stream: Any, rows: Any) -> None:
        check_texts(name, self.own(rows), STREAM)
        check_uncached(name, rows, STREAM)

    def epoch_calls(self) -> EpochCalls:
        return CallsFromServer(self.own, self.address(), self._ports)

    def close(self) -> None:
        """End the job's session on the server, and everything that still runs in it."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            if not self.has_ended():
                self._own.client.release_session()
            self._own.client.close()
            self._users.client.close()
        except Exception as error:
            log.debug("the Spark Connect session of the job was not released: %s", error)


def _tag(group: str) -> str:
    return group.replace(",", "-")


def _cloned(spark: Any) -> Any:
    spark.conf.get("spark.app.id", None)  # the server creates a new session at its first call
    try:
        return spark.cloneSession()
    except Exception as error:
        raise JobRefused(
            f"the Spark Connect server does not clone the session, which Holdfast needs (Spark 4.2 or newer there): "
            f"{str(error)[:500]}"
        ) from error
