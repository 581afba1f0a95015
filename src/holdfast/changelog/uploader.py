"""The DSTL's way to the store: one for each TaskManager, shared by all its logs and materializations.

    writer ─persist─► Gathering ─► dispatcher thread: merge, encode, pack ─► upload threads ─► the request's future

Invariants: an object holds the pieces of one gathering and is written once, each attempt under its own name;
what no acknowledgement names is deleted when its last user lets go; deletes and puts happen on the upload
threads, never under a lock. It does not know cuts, SQNs or truncation (`writer`), nor what a snapshot is
(`materialize/`). Takes a store that does not retry: this is the layer that does.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from holdfast import failpoints
from holdfast.changelog.attempts import RetryPolicy, put_with_attempts
from holdfast.changelog.format import OBJECT_BYTES_MAX, LogId
from holdfast.changelog.gathering import Gathering
from holdfast.changelog.in_flight import InFlight
from holdfast.changelog.janitor import Janitor
from holdfast.changelog.ownership import Ownership
from holdfast.changelog.packing import PackedObject, PersistRequest, pack
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CheckpointFailed
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

T = TypeVar("T")


class Uploader:
    """Stores the logs and materialized parts of one incarnation of a TaskManager.

    Parameters
    ----------
    store
        Without retries of its own (no `RetryingStore`).
    persist_delay_s, persist_bytes_max
        How long, and up to what size, requests wait for others to share an object with.
    object_bytes_max
        Changelog objects are split there; only a single key group's changes can be larger.
    in_flight_bytes_max
        Encoded bytes that wait for the store; past it, encoding waits.
    janitor
        Of the same store; shared by the deployments of a TaskManager, so that a delete which failed in one is
        repeated in the next.
    """

    def __init__(
        self,
        store: ObjectStore,
        epoch: int,
        incarnation: int,
        *,
        persist_delay_s: float = 0.01,
        persist_bytes_max: int = 10 * 1000 * 1000,
        object_bytes_max: int = OBJECT_BYTES_MAX,
        in_flight_bytes_max: int = 100 * 1000 * 1000,
        upload_threads: int = 4,
        retries: RetryPolicy | None = None,
        janitor: Janitor | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._incarnation = incarnation
        self._object_bytes_max = object_bytes_max
        self._retries = retries or RetryPolicy()
        self._clock = clock or SystemClock()
        self._ownership = Ownership()
        self._janitor = janitor or Janitor(store)
        self._in_flight = InFlight(in_flight_bytes_max)
        self._gathering: Gathering[LogId, PersistRequest] = Gathering(persist_delay_s, persist_bytes_max)
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._logs: set[LogId] = set()
        self._counters: Counter[str] = Counter()
        self._dispatcher: threading.Thread | None = None
        self._uploads = ThreadPoolExecutor(upload_threads, thread_name_prefix="holdfast-upload")
        self._background = ThreadPoolExecutor(1, thread_name_prefix="holdfast-materialize")

    def register(self, log: LogId) -> None:
        """From now on a cut's requests wait for this log too."""
        with self._changed:
            if log in self._logs:
                raise ValueError(f"log {log} is registered already: a table has one writer")
            self._logs.add(log)

    def unregister(self, log: LogId) -> None:
        with self._changed:
            self._logs.discard(log)
            self._changed.notify_all()

    def persist(self, log: LogId, request: PersistRequest | None) -> None:
        """Ask for a request to be stored; None says that the log has asked and has nothing new. Does no I/O."""
        with self._changed:
            refused = request if self._closed.is_set() else None
            if refused is None:
                self._gathering.ask(log, self._clock.monotonic(), request, request.size_bytes if request else 0)
                self._start_dispatcher()
                self._changed.notify_all()
        if refused is not None:
            refused.failed(
                CheckpointFailed(f"log {log}: its TaskManager is closing, nothing more is stored"), self.release
            )

    def put_shared(self, data: bytes) -> str:
        """Store a materialized object, now, on this thread; returns its name, with one user.

        Raises
        ------
        StorageError
            All attempts failed.
        """
        failpoints.hit("materialize.upload.before")
        name = self._put(lambda: names.shared_object(self._epoch, self._incarnation), data)
        self._ownership.hold(name)
        return name

    def retain(self, objects: Iterable[str]) -> None:
        """One more user of each, which lets go of it by `release` as the others do."""
        self._ownership.retain(objects)

    def in_background(self, call: Callable[[], T]) -> Future[T]:
        """Run a materialization; one at a time in a TaskManager, so that they leave the logs their share."""
        return self._background.submit(call)

    def acknowledge(self, objects: Iterable[str]) -> None:
        """An acknowledgement that will be sent names these: only the JobMaster may delete them from now on."""
        self._ownership.acknowledge(objects)

    def release(self, objects: Iterable[str]) -> None:
        """One user of each is done with it. Those that nobody uses, and no acknowledgement named, are deleted."""
        unwanted = self._ownership.release(objects)
        if unwanted:
            self.discard(unwanted)

    def discard(self, objects: Sequence[str]) -> None:
        """Delete objects that may have been stored and that nobody was told of; returns at once."""
        self._janitor.discard(objects)
        self._on_upload_thread(self._janitor.sweep)

    def count(self, **counters: int) -> None:
        """Add to the counters that `metrics` gives."""
        with self._changed:
            self._counters.update(counters)

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and what waits now."""
        with self._changed:
            counters: dict[str, float] = dict(self._counters)
        return counters | {"uploadQueueSize": self._in_flight.bytes, "queuedDeletes": self._janitor.queued()}

    def close(self, *, discard: bool = True) -> None:
        """Take no more requests; those that wait fail. Returns at once.

        Uploads under way end by themselves; what arrives late is deleted, as is all that was never acknowledged
        once its writers close. With `discard=False` (the JobMaster is gone) nothing is deleted any more.
        """
        if not discard:
            self._ownership.abandon()
            self._janitor.abandon()
        with self._changed:
            self._closed.set()
            waiting = self._gathering.take()
            self._changed.notify_all()
        for request in waiting:
            request.failed(CheckpointFailed(f"log {request.log}: its TaskManager closed first"), self.release)
        self._uploads.shutdown(wait=False)
        self._background.shutdown(wait=False)

    def _start_dispatcher(self) -> None:
        if self._dispatcher is None:
            self._dispatcher = threading.Thread(target=self._dispatch, name="holdfast-dstl", daemon=True)
            self._dispatcher.start()

    def _dispatch(self) -> None:
        while not self._closed.is_set():
            requests = self._next_requests()
            for packed in pack(requests, self._object_bytes_max, self.release):
                self._in_flight.acquire(packed.length)
                self._on_upload_thread(partial(self._upload, packed))

    def _next_requests(self) -> Sequence[PersistRequest]:
        with self._changed:
            while not self._closed.is_set():
                due_s = self._gathering.due_in_s(self._clock.monotonic(), self._logs)
                if due_s == 0:
                    break
                self._changed.wait(due_s)
            return self._gathering.take()

    def _upload(self, packed: PackedObject) -> None:
        try:
            failpoints.hit("changelog.upload.before")
            name = self._put(lambda: names.changelog_object(self._epoch, self._incarnation), packed.data())
            failpoints.hit("changelog.upload.after")
        except Exception as error:
            for request in packed.pieces:
                request.failed(error, self.release)
            return
        finally:
            self._in_flight.release(packed.length)
        self._ownership.hold(name, len(packed.pieces))
        for request in packed.pieces:
            request.arrived(packed.pieces_of(request, name), self.release)
        self._janitor.sweep()

    def _put(self, new_name: Callable[[], str], data: bytes) -> str:
        self.count(numberOfUploadRequests=1)
        try:
            name, attempts = put_with_attempts(
                self._store, new_name, data, self._retries, self._closed.wait, lambda lost: self.discard([lost])
            )
        except Exception:
            self.count(numberOfUploadFailures=1)
            raise
        self.count(uploadSizes=len(data), totalAttemptsPerUpload=attempts)
        return name

    def _on_upload_thread(self, call: Callable[[], None]) -> None:
        try:
            self._uploads.submit(call)
        except RuntimeError:
            # Shut down: this is the end of the last work there was, which may well wait for a delete.
            call()
