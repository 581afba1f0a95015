"""JobMasters that die, or stand still, at a failpoint: in this process, without Spark.

A death makes the store that this JobMaster was given refuse everything, from all of its threads, and unwinds the
thread that met the failpoint; the other threads may still reach sinks, as in the last moment of a process.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from kills_pipelines import Shape, build

import holdfast as hf
from holdfast import failpoints
from holdfast.errors import HoldfastError
from holdfast.query import Query
from holdfast.storage.store import ObjectInfo, ObjectStore, open_store
from holdfast.testing import start
from holdfast.testing.local import LocalCluster

WAIT_S = 60.0


class Died(RuntimeError):
    """Unwinds a thread of a process that is no more. No error of Holdfast's, so that nothing is tried again."""


class MortalStore:
    """The store as a process sees it: after `die` nothing reaches it any more."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self.dead = threading.Event()
        self._inner = inner

    def die(self) -> None:
        self.dead.set()

    def _alive(self) -> ObjectStore:
        if self.dead.is_set():
            raise Died
        return self._inner

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._alive().put(name, data)

    def create(self, name: str, data: bytes) -> None:
        self._alive().create(name, data)

    def get(self, name: str) -> bytes:
        return self._alive().get(name)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._alive().get_range(name, offset, length)

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        return self._alive().list(prefix, after=after)

    def delete(self, names: Sequence[str]) -> None:
        self._alive().delete(names)


class Death:
    """Armed at a failpoint, kills the driver that meets it for the `hit`th time; nobody after that."""

    def __init__(self, store: MortalStore, hit: int = 1) -> None:
        self._store = store
        self._left = hit
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
        if self._left == 0:
            self._store.die()
        if self._store.dead.is_set():
            raise Died


class Pause:
    """Armed at a failpoint, holds the first thread that meets it until `go_on`."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self._go_on = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            if self.held.is_set():
                return
            self.held.set()
        assert self._go_on.wait(WAIT_S), "held for too long"

    def go_on(self) -> None:
        self._go_on.set()


class Driver:
    """A start of the job, on its own view of the storage, in a thread: `start` itself may die or stand still."""

    def __init__(self, shape: Shape, folder: Path, store: ObjectStore | None = None) -> None:
        self.store = MortalStore(store or open_store((folder / "storage").as_uri()))
        self.error: BaseException | None = None
        self._shape = shape
        self._folder = folder
        self._query: Query | None = None
        self._cluster: LocalCluster | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self) -> "Driver":
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            job = build(self._shape, self._folder)
            self._query = start(job, hf.available_now(), store=self.store, on_cluster=self._note_cluster)
            while not self._query.awaitTermination(0.01):
                if self.store.dead.is_set():
                    self._query.stop()
                    raise Died
        except (HoldfastError, Died) as error:
            self.error = error
        finally:
            self._ended.set()

    def _note_cluster(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def kill_task_manager(self, index: int) -> None:
        """Kill a TaskManager as SIGKILL does; do nothing if it is not running."""
        assert self._cluster is not None, "started"
        self._cluster.kill(index)

    def join(self) -> None:
        """Wait until it has ended, whether well or not."""
        assert self._ended.wait(WAIT_S), f"still running: {self._shape}"

    def finish(self) -> None:
        """Wait until the job has run to its end; raise the error that kept it from it."""
        self.join()
        if self.error is not None:
            raise self.error


def die_at(shape: Shape, folder: Path, point: str, hit: int = 1) -> bool:
    """Run a driver that dies at that hit of a failpoint. Whether it did: else it has run to its end."""
    driver = Driver(shape, folder)
    failpoints.arm(point, Death(driver.store, hit))
    driver.start().join()
    failpoints.disarm()
    if driver.store.dead.is_set():
        return True
    if driver.error is not None:
        raise driver.error
    return False
