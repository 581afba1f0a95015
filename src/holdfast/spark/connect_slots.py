"""Slots of a Spark Connect server's application. Connect does not report them, so waiting tasks are counted.

    program: listens ◄── a word ── task ── task ── task      tasks that have no slot wait in Spark's queue
             closes  ────────────► all end by themselves; tasks that come later find nobody, and end at once

No running task is interrupted. The count also shows that executors reach the program, as all processes must. While
processes are running, the count is repeated in the background, and more often while a process waits long for its slot.
Spark gives slots in the order of requests: if a waiting task runs, the processes started before it have their slots.
If no waiting task runs, a process that has not registered for long is taken for one without a slot; a sender only after
a longer time than a TaskManager, since senders would end for it, and perhaps Python merely starts slowly.
Under dynamic allocation Spark starts an executor for each task that waits, so tasks wait only for slots that a job asks
for, and nothing is counted beyond these. There a process that has not registered for long has no slot, until tasks that
were asked for run.
"""

import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from holdfast.errors import JobRefused
from holdfast.ids import Role
from holdfast.ports import Endpoint, PortRange, bare, listening
from holdfast.printable import logger
from holdfast.spark.host import SparkHost, SparkJob, TaskBody
from holdfast.spark.probe import wrong_python

log = logger(__name__)

TASKS_FIRST, TASKS_MAX = 16, 1024
"""Tasks of the first count, and the most slots that are counted. If all tasks run, four times as many are tried."""
FIRST_S_MAX, FIRST_BESIDE_S_MAX = 60.0, 10.0
"""Bounds in seconds on the wait for the first task: executors may have to be started for it; beside processes that
serve, there are executors. With a lower value of the second, slots on a busy machine are missed."""
SETTLE_S = 1.5
"""Seconds without another task after which a count ends. A higher value finds executors that start slowly."""
CONNECT_S_MAX = 5.0
HELD_S_MAX = 300.0
"""Bound in seconds on the time of a waiting task, if the program died without closing its connections."""
AGE_S_MAX, AGE_STAYING_S_MAX = 5.0, 30.0
"""Seconds for which a count is valid: while no process is running or one waits for a slot, and while all have one."""
ASKED_S_MAX = 20.0
"""Bound in seconds on the time for which tasks wait for executors that a running query misses. Meanwhile they hold
free slots, which its short Spark jobs may need."""
LOOK_S = 0.1
WAITING_S_MAX = {Role.TASK_MANAGER: 5.0, Role.SENDER: 30.0}
"""Seconds after which a process that has not registered is taken for one that waits for a slot. A higher value delays
the answer that a slot is missing; a lower value ends senders while Python starts."""
COUNTING = "holdfast-slots"
"""Beginning of the groups of waiting tasks."""


class Staying:
    """The processes of an application that this program hosts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked_s: dict[str, float] = {}
        self._late_s: dict[str, float] = {}
        """The time from which each process is taken for one that waits for a slot, if it has not registered by then."""
        self._registered: set[str] = set()
        self._short = 0

    @contextmanager
    def stays(self, group: str, role: Role) -> Iterator[None]:
        with self._lock:
            self._asked_s[group] = now_s = time.monotonic()
            self._late_s[group] = now_s + WAITING_S_MAX[role]
        try:
            yield
        finally:
            with self._lock:
                del self._asked_s[group], self._late_s[group]
                self._registered.discard(group)

    @contextmanager
    def runs(self, group: str) -> Iterator[None]:
        """Note a short Spark job that is to run inside the context."""
        tasks = 0 if group.startswith(COUNTING) else 1
        with self._lock:
            self._short += tasks
        try:
            yield
        finally:
            with self._lock:
                self._short -= tasks

    @property
    def has_short_jobs(self) -> bool:
        return self._short > 0

    def registered(self, group: str) -> None:
        with self._lock:
            if group in self._asked_s:
                self._registered.add(group)

    def counts(self) -> tuple[int, int, bool]:
        """Return the numbers of processes and of registered processes, and whether one of the others waits for a
        slot."""
        with self._lock:
            waits = len(self._registered.union(self._not_late())) < len(self._asked_s)
            return len(self._asked_s), len(self._registered), waits

    def in_slots(self, free: int, begun_s: float) -> int:
        """Return the number of slots: those of `free` tasks, the first of which ran at that time, and those of
        processes. A process that was asked for in the moment before may be counted without a slot, and if no task runs,
        one that may only be starting; otherwise one with a slot might not be counted, and senders would end for it."""
        with self._lock:
            before = [group for group, at_s in self._asked_s.items() if at_s < begun_s]
            return free + len(self._registered.union(before if free else self._not_late()))

    def _not_late(self) -> list[str]:
        now_s = time.monotonic()
        return [group for group, at_s in self._late_s.items() if now_s <= at_s]


_APPLICATIONS: defaultdict[str, Staying] = defaultdict(Staying)


def staying_in(application: str) -> Staying:
    """Return the long-running processes in a Spark application, by its id."""
    return _APPLICATIONS[application]


class CountedSlots:
    """The slots of a host's application. Thread-safe."""

    def __init__(self, host: SparkHost, staying: Staying, ports: PortRange, on_demand: bool = False) -> None:
        self._host = host
        self._ports = ports
        self._on_demand = on_demand
        """True under dynamic allocation."""
        self._staying = staying
        self._lock = threading.Lock()
        self._found: int | None = None
        self._found_s = 0.0
        self._asked: WaitingTasks | None = None
        self._asks = threading.Lock()
        self._asked_beside = 0
        """The slots that are asked for beside a query; 0: none."""

    def number(self) -> int:
        """Return the number of slots.

        Raises
        ------
        JobRefused
            Tasks run, and do not reach the program. Beside a query such tasks only bring no slots.
        """
        processes, registered, waits = self._staying.counts()
        asked = self._asked
        if asked is not None:
            if not self._asked_beside:
                asked.check()
            return max(self._running(), self._found or 0)
        if self._on_demand:
            self._found = self._running() if waits else max(registered, self._found or 0)
            return self._found
        if not processes or self._found is None:
            self._count(AGE_S_MAX)
            return self._found or 0
        age_s_max = AGE_S_MAX if waits else AGE_STAYING_S_MAX
        if self._is_old(age_s_max) and not self._lock.locked():
            threading.Thread(target=self._count_behind, args=(age_s_max,), name="holdfast-slots", daemon=True).start()
        return self._found

    @contextmanager
    def asking(self, slots: int) -> Iterator[None]:
        """Have tasks wait inside the context until there are so many slots, so that Spark starts executors for them.

        `number()` counts those that have a slot.
        """
        with self._lock:
            tasks = max(1, slots - self._staying.counts()[0])
            try:
                with _given_to(self._host, self._ports, tasks) as self._asked, self._asked.taking():
                    yield
                    # Processes may have started meanwhile: they are counted with the tasks that run beside them.
                    self._found, self._found_s = self._running(), time.monotonic()
            finally:
                self._asked = None

    def ask_beside(self, slots: int) -> None:
        """Ask for executors in the background, until there are so many slots, or for `ASKED_S_MAX` seconds."""
        with self._asks:
            is_first = not self._asked_beside
            self._asked_beside = max(self._asked_beside, slots)
        if is_first:
            threading.Thread(target=self._ask, name="holdfast-ask", daemon=True).start()

    def _ask(self) -> None:
        slots = 0
        while slots := self._larger_request(slots):
            try:
                self._ask_once(slots)
            except Exception as error:
                log.info("executors were not asked for: %s", error)

    def _larger_request(self, slots: int) -> int:
        with self._asks:
            if self._asked_beside <= slots:
                self._asked_beside = 0
            return self._asked_beside

    def _ask_once(self, slots: int) -> None:
        with self.asking(slots):
            begun_s = time.monotonic()
            while self._running() < slots == self._asked_beside and time.monotonic() - begun_s < ASKED_S_MAX:
                if self._host.has_ended():
                    return
                time.sleep(LOOK_S)

    def _running(self) -> int:
        """Return the number of slots of processes, and of tasks that wait in slots of their own."""
        asked = self._asked
        return self._staying.in_slots(0, 0.0) if asked is None else self._staying.in_slots(asked.count, asked.begun_s)

    def _is_old(self, age_s_max: float) -> bool:
        return self._found is None or time.monotonic() - self._found_s > age_s_max

    def _count_behind(self, age_s_max: float) -> None:
        try:
            self._count(age_s_max)
        except Exception as error:
            log.info("slots were not counted: %s", error)

    def _count(self, age_s_max: float) -> None:
        with self._lock:
            if not self._is_old(age_s_max):
                return
            first_s_max = FIRST_BESIDE_S_MAX if self._staying.counts()[1] else FIRST_S_MAX
            is_beside = self._staying.has_short_jobs
            tasks, free, begun_s = 0, 0, 0.0
            while free == tasks < TASKS_MAX:
                tasks = min(4 * tasks, TASKS_MAX) or TASKS_FIRST
                free, begun_s = _at_once(self._host, self._ports, tasks, first_s_max)
            found, (_, _, waits) = self._staying.in_slots(free, begun_s), self._staying.counts()
            if is_beside or self._staying.has_short_jobs if free else not waits:
                found = max(found, self._found or 0)  # short Spark jobs may have the others
            self._found, self._found_s = found, time.monotonic()


def _at_once(host: SparkHost, ports: PortRange, tasks: int, first_s_max: float) -> tuple[int, float]:
    """Start `tasks` waiting tasks; return how many of them run at once, and when the first one ran."""
    with _given_to(host, ports, tasks) as given:
        asked_s = time.monotonic()
        first_s = newest_s = 0.0
        while given.count < tasks and not given.answers.done():
            now_s = time.monotonic()
            if given.take():
                newest_s, first_s = now_s, first_s or now_s
            elif now_s - (newest_s or asked_s) > (max(SETTLE_S, (first_s - asked_s) / 2) if first_s else first_s_max):
                break
    return given.count, given.begun_s


@contextmanager
def _given_to(host: SparkHost, ports: PortRange, tasks: int) -> "Iterator[WaitingTasks]":
    """Give Spark so many waiting tasks, which end with the context. Raises `JobRefused` if none reaches the program."""
    with WaitingTasks(Endpoint(host.address(), host.bind_address(), ports)) as given:
        job = SparkJob(f"{COUNTING}-{given.word.hex()[:8]}", f"holdfast: counts up to {tasks} slots")
        given.answers = _run_beside(host, job, tasks, waiting(given.address, given.word))
        yield given
    if not given.count and not given.answers.done():  # no task runs that an interrupt could disturb
        host.cancel(job.group)
    else:
        given.answers.result(CONNECT_S_MAX + HELD_S_MAX)
        given.check()


def _run_beside(host: SparkHost, job: SparkJob, tasks: int, body: TaskBody) -> "Future[list[bytes]]":
    answers: Future[list[bytes]] = Future()

    def run() -> None:
        try:
            with host.described(job):
                answers.set_result(host.run([b""] * tasks, body))
        except BaseException as error:
            if text := wrong_python(str(error)):
                refused = JobRefused(text)
                refused.__cause__ = error
                error = refused
            answers.set_exception(error)

    threading.Thread(target=run, name="holdfast-waiting-tasks", daemon=True).start()
    return answers


def waiting(address: tuple[str, int], word: bytes) -> TaskBody:
    """Make the body of a task that waits until the program closes its connection. The body is sent by value."""
    connect_s_max, held_s_max = CONNECT_S_MAX, HELD_S_MAX

    def wait(_: bytes) -> list[bytes]:
        import socket

        try:
            connection = socket.create_connection(address, connect_s_max)
        except OSError as error:
            return [str(error).encode()]
        with connection:
            connection.settimeout(held_s_max)
            try:
                connection.sendall(word)
                connection.recv(1)
            except OSError:
                pass  # the program has finished counting, or has ended, so the task may end too
        return []

    return wait


class WaitingTasks:
    """Holds the connections of tasks that sent the word, until it is closed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._server = listening(endpoint, "the count of slots", TASKS_MAX)
        self.address: tuple[str, int] = (bare(endpoint.host), self._server.getsockname()[1])
        """The host and port at which tasks reach the program."""
        self.word = uuid.uuid4().bytes
        self.begun_s = float("inf")
        """Time at which the first task ran."""
        self._held: list[socket.socket] = []
        self.answers: Future[list[bytes]] = Future()
        """The answers of tasks that ended, which are errors of their connections."""

    @property
    def count(self) -> int:
        return len(self._held)

    def check(self) -> None:
        """Raise `JobRefused` if tasks ran, and none reached the program."""
        unreached = self.answers.result() if self.answers.done() and not self.count else []
        if unreached:
            raise JobRefused(
                f"tasks on Spark's executors do not reach this program at {self.address[0]} "
                f"({unreached[0].decode(errors='replace')}). A job on Spark Connect is led by the program, and its "
                "processes call it: run it on a machine that the executors reach, for instance in the cluster's own "
                "network"
            )

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Take connections on a thread inside the context."""
        ended = threading.Event()

        def take() -> None:
            while not ended.is_set():
                self.take()

        thread = threading.Thread(target=take, name="holdfast-waiting-tasks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def take(self, seconds: float = 0.1) -> bool:
        """Wait for a connection; True if a task has come."""
        self._server.settimeout(seconds)
        try:
            connection, _ = self._server.accept()
            connection.settimeout(CONNECT_S_MAX)
            if connection.recv(len(self.word), socket.MSG_WAITALL) == self.word:
                self.begun_s = min(self.begun_s, time.monotonic())
                self._held.append(connection)
                return True
            connection.close()
        except OSError:
            pass  # no task connected in time, or a stranger did: no slot is counted
        return False

    def __enter__(self) -> "WaitingTasks":
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self._server, *self._held]:
            each.close()
