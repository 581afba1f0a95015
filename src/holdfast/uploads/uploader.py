"""The uploader: the way of logs and materializations into the store. Each TaskManager has one, which all its tables
share.

    writer ─persist─► Packer ─object─► Puts ─stored or failed─► Ownership.hold, the futures of the requests
                      gathers, packs   attempts                       │
                      (lane "encode")  (lane "upload")                └─ released by its last user: deleted
                                └─last of a cut─► Carried: stored in one object with the manifest (`put_part`), or
                                                  small enough to travel, and the JobMaster's to store

Invariants: an object is written once, each attempt under its own name. An object that no acknowledgement names is
deleted when its last user releases it. Deletes and puts run on their own threads, never under a lock. Above the bound
in flight, encoding waits, and `available` makes the makers of changes wait. The uploader does not know cuts, SQNs and
truncation (`writer`), nor snapshots (`materialize/`). Its store must not retry, because `Puts` does.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast import failpoints
from holdfast.changelog_config import DEFAULTS, RetryPolicy
from holdfast.errors import CheckpointFailed, ObjectNotFound, StorageError
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import OBJECT_HEADER, LogId
from holdfast.ids import CheckpointId, Epoch, Incarnation
from holdfast.metrics import Histogram
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.uploads.carried import Carried, PlacedLog
from holdfast.uploads.gathering import Gathering
from holdfast.uploads.in_flight import InFlight
from holdfast.uploads.janitor import DeletionQueue
from holdfast.uploads.ownership import Ownership
from holdfast.uploads.packer import ENCODERS_MAX, ENCODING, Packer
from holdfast.uploads.packing import PackedObject, PersistRequest
from holdfast.uploads.precedence import Precedence
from holdfast.uploads.puts import DELETES, Puts, Repeats
from holdfast.uploads.scheduling import Scheduler, ThreadScheduler, report_failure
from holdfast.uploads.target_size import TargetSize

T = TypeVar("T")

LOGS, SHARED, READING, MATERIALIZING, MERGING = "upload", "shared", "read", "materialize", "merge"
"""Lanes: attempts to store objects of logs and manifests, attempts to store materialized and merged objects, reads of
stored pieces, materializations, merges of logs."""
MATERIALIZATIONS, MERGES = "materialization", "merge"
"""Prefixes of the metrics that measure the objects of materialized tables, and those of merged logs."""
READS_MAX = 4
"""Stored pieces that are read at once. A higher value makes merges shorter, and takes more from the checkpoints beside
them."""
UPLOADS_MAX = 12
"""Objects of logs that are uploaded at once: the default bound in flight holds this number of full-size objects."""
COPIED_BYTES_MAX = 16 * 1024 * 1024
"""Greatest end of this process's logs in a gathered object at which a local copy of them is kept. A higher value writes
more empty bytes to the disk, and reads less from the store."""
COLLECT_DIVISOR = 2
"""Divisor of the bound of bytes in flight for the changes that wait in tables. A higher value leaves less to a cut, and
stores rows that many batches change more often."""
SOON_DIVISOR = 4
"""Divisor of the bytes that a log may have pending if a checkpoint comes soon. With 10 MB a second, the checkpoint then
has 1 or 2 MB to encode and store instead of up to 5, at the cost of 1 or 2 more requests. A higher value leaves fewer
bytes for the checkpoint and makes more requests."""


class Copies(Protocol):
    """Local copies of stored objects (`recovery.local`), told of each object that was stored. Thread-safe."""

    def keep(self, name: str, data: bytes | memoryview, file: Path | None = None) -> None:
        """Keep a copy of an object that was stored under that name. Never raises: a copy is a convenience.

        `file`, if given, holds the end of `data` and will not change, so that it can be linked.
        """
        ...


class Uploader:
    """Stores the logs and materialized parts of an incarnation of a TaskManager.

    Parameters
    ----------
    store
        A store without retries of its own (no `RetryingStore`).
    persist_delay_s, persist_bytes_max
        Bounds, in seconds and in bytes, on the wait of requests for other requests in the same object.
    object_bytes_max
        Bound on the bytes of a changelog object; only the changes of a single key group can be larger.
    adjust_object_size
        True: objects that a checkpoint waits for are split at a smaller size where the store's answers say so.
    in_flight_bytes_max
        Bytes that wait to be encoded or stored, above which `available` is not done.
    preempt_bytes_max
        Bytes that a log may have pending before it asks to store them without waiting for a cut; a quarter of that if a
        cut comes soon.
    gathered_bytes_max
        Bytes of small objects of logs that acknowledgements carry, instead of being stored by this process; 0: none.
    awaited_bytes_max
        Bytes of a cut's logs that wait for its manifest, to be stored in one object with it; 0: none.
    uploads_max
        Objects of logs that are stored at once.
    materializations_max
        Calls that `in_background` runs at once.
    janitor
        Deletes objects of the same store; shared by the deployments of a TaskManager, so that a delete which failed in
        a deployment is repeated in the next deployment.
    copies
        Gets each object that was stored.
    """

    def __init__(
        self,
        store: ObjectStore,
        epoch: Epoch,
        incarnation: Incarnation,
        *,
        persist_delay_s: float = DEFAULTS.persist_delay_s,
        persist_bytes_max: int = DEFAULTS.persist_bytes_max,
        object_bytes_max: int = DEFAULTS.object_bytes_max,
        adjust_object_size: bool = False,
        in_flight_bytes_max: int = DEFAULTS.in_flight_bytes_max,
        preempt_bytes_max: int = DEFAULTS.preempt_bytes_max,
        gathered_bytes_max: int = 0,
        awaited_bytes_max: int = 0,
        uploads_max: int = UPLOADS_MAX,
        materializations_max: int = 1,
        retries: RetryPolicy | None = None,
        janitor: DeletionQueue | None = None,
        copies: Copies | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._preempt_bytes_max = preempt_bytes_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._waiting_bytes = 0
        """Bytes of changes that wait in the tables of all logs."""
        self._store = store
        self._new_log_object = partial(names.changelog_object, epoch, incarnation)
        self._new_shared_object = partial(names.shared_object, epoch, incarnation)
        self.carried = Carried(gathered_bytes_max, awaited_bytes_max)
        policy = retries or RetryPolicy()
        self._retries = policy
        self._scheduler = scheduler or _threads(uploads_max, materializations_max, policy.max_attempts)
        self._janitor = janitor or DeletionQueue(store)
        self._puts = Puts(policy, self._scheduler, self._janitor)
        self._ownership = Ownership(self.discard)
        self._copies = copies
        self._precedence = Precedence(self._scheduler)
        self._lock = threading.Lock()
        self._in_flight = InFlight(in_flight_bytes_max, object_bytes_max, uploads_max, self._scheduler.monotonic)
        self._adjusts = adjust_object_size
        self._target = TargetSize(object_bytes_max, uploads_max)
        gathering: Gathering[LogId, PersistRequest] = Gathering(persist_delay_s, persist_bytes_max)
        self._packer = Packer(
            gathering, self._in_flight, self._split_at, self._scheduler, self._upload, self._ownership.release
        )
        self._closed = False
        self._counters: Counter[str] = Counter()
        self._batch_sizes = Histogram()

    def register(self, log: LogId) -> None:
        """Register a log: from now on the requests of a cut wait for it too."""
        self._packer.register(log)

    def unregister(self, log: LogId) -> None:
        """Let no request wait for this log any more."""
        self._packer.unregister(log)

    def persist(self, log: LogId, request: PersistRequest | None) -> None:
        """Ask for a request to be stored; None says that the log has asked and has nothing new. Does no I/O."""
        if not self._packer.ask(log, request) and request is not None:
            error = CheckpointFailed(f"log {log}: its TaskManager is closing, nothing more is stored")
            request.failed(error, self._ownership.release)

    @property
    def preempt_bytes_max(self) -> int:
        """Bytes that a log may have pending before they are uploaded ahead of a cut; fewer if a cut comes soon.

        So a checkpoint has to store only the last moments, and not everything since an object was last full.
        """
        return self._preempt_bytes_max // SOON_DIVISOR if self._precedence.soon() else self._preempt_bytes_max

    def wait_in_tables(self, more_bytes: int) -> None:
        """Note that so many more bytes of changes (or fewer, below 0) wait in a log's table."""
        with self._lock:
            self._waiting_bytes += more_bytes

    @property
    def collect_bytes_max(self) -> int:
        """Bytes of changes that may wait in a log's table: any, until those of all logs are too many for a cut.

        Then a log that has more than its share collects its changes, so that no batch has to wait for a cut.
        """
        together_max = self._in_flight_bytes_max // COLLECT_DIVISOR
        with self._lock:
            if self._waiting_bytes <= together_max:
                return together_max
        return together_max // max(1, self._packer.logs)

    def before_encoding(self, call: Callable[[], None]) -> None:
        """Run a call in the lane that encodes; returns at once."""
        self._scheduler.submit(ENCODING, call).add_done_callback(report_failure)

    def precede(self, checkpoint: Future[Any]) -> None:
        """Note that a checkpoint begins, whose part here ends with this future. Materialized parts and copies wait for
        it."""
        self._precedence.begun(checkpoint)

    def available(self) -> "Future[None]":
        """Return a future that is done while there is room for more changes, and after `close`. Makers of changes wait
        for it."""
        return self._in_flight.available()

    def wait_until_available(self) -> None:
        """Wait until `available` is done: back-pressure. No thread of this uploader may call it."""
        self._scheduler.result(self.available())

    def wait_for_checkpoints(self, size_bytes: int) -> None:
        """Return once a materialized part of that size may be made and stored without holding up a checkpoint.

        It never waits for long. Of this uploader's threads, only those of `in_background` may call it.
        """
        self._scheduler.result(self._precedence.free(size_bytes))

    def put_shared(self, data: bytes | memoryview, file: Path | None = None) -> str:
        """Store a materialized object, and wait for it; returns its name. The object has a single user.

        Logs have precedence over materialized objects: the call waits as long as logs wait. `file`, if given, holds the
        end of `data` and will not change.

        Raises
        ------
        StorageError
            All attempts failed.
        CheckpointFailed
            The TaskManager is closing.
        """
        return self._put_aside(self._new_shared_object, MATERIALIZATIONS, data, file)

    def put_merged(self, data: bytes) -> str:
        """Store an object of a log whose changes are stored already, as `put_shared` stores a materialized one."""
        return self._put_aside(self._new_log_object, MERGES, data)

    def read(self, pieces: Sequence[LogPiece]) -> list[bytes]:
        """Return the bytes of stored pieces of this process's logs. Of this uploader's threads, only those of
        `in_background` may call it.

        Raises
        ------
        ObjectNotFound
            An object is not there.
        StorageError
            All attempts to read a piece failed.
        """
        found: dict[int, bytes] = {}
        for attempts_left in reversed(range(self._retries.max_attempts)):
            missing = [number for number in range(len(pieces)) if number not in found]
            reads = [self._scheduler.submit(READING, partial(self._read, pieces[number])) for number in missing]
            for number, read in zip(missing, reads, strict=True):
                try:
                    found[number] = self._scheduler.result(read)
                except StorageError as error:
                    if not attempts_left or isinstance(error, ObjectNotFound):
                        raise
            if len(found) == len(pieces):
                break
            paused: Future[None] = Future()
            self._scheduler.call_later(self._retries.next_attempt_delay_s, partial(paused.set_result, None))
            self._scheduler.result(paused)
        return [found[number] for number in range(len(pieces))]

    def _read(self, piece: LogPiece) -> bytes:
        found = self.carried.find(piece.object)
        if isinstance(found, bytes):
            return found[piece.offset : piece.offset + piece.length]
        name, start = found
        return self._store.get_range(name, start + piece.offset, piece.length)

    def _put_aside(
        self, new_name: Callable[[], str], of: str, data: bytes | memoryview, file: Path | None = None
    ) -> str:
        self.wait_until_available()
        with self._lock:
            if self._closed:
                raise CheckpointFailed("a part of a table is not stored: its TaskManager is closing")
        failpoints.hit("materialize.upload.before")
        write = partial(self._store.put, data=data)
        stored = self._puts.put(write, new_name, len(data), SHARED, of)
        name = self._scheduler.result(stored)
        self._ownership.hold(name)
        if self._copies is not None:
            self._copies.keep(name, data, file)
        return name

    def put_part(self, data: bytes) -> str:
        """Store logs and the manifest behind them as one object, and wait for it; returns the object's name.

        The caller either acknowledges it or calls `discard`. Raises `StorageError` if all attempts failed.
        """
        name = self._scheduler.result(self._put_log(data))
        if self._copies is not None:
            self._keep_copy(self._copies, name, data)
        self._puts.sweep()
        return name

    def completed(self, checkpoint_id: CheckpointId, manifest: str) -> None:
        """Note that a checkpoint completed, and the reference to its manifest if that travelled."""
        self._keep_copies(self.carried.completed(checkpoint_id, manifest))

    def retain(self, objects: Iterable[str]) -> None:
        """Add a user of each object; every user calls `release` in the end."""
        self._ownership.retain(objects)

    def in_background(self, call: Callable[[], T], lane: str = MATERIALIZING) -> Future[T]:
        """Run a materialization, or a merge of a log (`MERGING`), which does not wait for long materializations. Only
        few run at a time in a TaskManager, so that logs can be uploaded meanwhile."""
        return self._scheduler.submit(lane, call)

    def acknowledge(self, objects: Iterable[str]) -> None:
        """Note objects that an acknowledgement will name: from now on only the JobMaster may delete them."""
        self._ownership.acknowledge(objects)

    def take_repeats(self, objects: Iterable[str]) -> dict[str, Repeats]:
        """Take out the retries and hedges of these objects. The first caller that names an object gets them."""
        return self._puts.take_repeats(objects)

    def release(self, objects: Iterable[str]) -> None:
        """Remove a user of each object. Objects without users that no acknowledgement named are deleted."""
        self._ownership.release(objects)

    def discard(self, objects: Sequence[str]) -> None:
        """Delete objects that may have been stored and whose names no other part knows; returns at once."""
        stored = self.carried.forget(objects)
        if stored:
            self._puts.discard(stored)

    def in_use(self) -> set[str]:
        """Return the names of the objects that this uploader stored and that have users."""
        return set(self.carried.in_store(self._ownership.in_use()))

    def count(self, **counters: int) -> None:
        """Add to the counters that `metrics` gives."""
        with self._lock:
            self._counters.update(counters)

    def metrics(self) -> dict[str, float]:
        """Counters and histograms since the start, and current gauges, by the names of `holdfast.metrics`."""
        with self._lock:
            values: dict[str, float] = dict(self._counters) | {"uploadTargetSize": float(self._target.size_bytes)}
        batch_sizes = self._batch_sizes.values("uploadBatchSizes")
        return values | self._in_flight.metrics() | self._puts.metrics() | batch_sizes

    def close(self, *, discard: bool = True) -> None:
        """Take no more requests; those that wait fail. Returns at once.

        Uploads under way end by themselves, and late arrivals are deleted. Objects that were never acknowledged are
        deleted once their writers close. With `discard=False` (the JobMaster is gone) nothing is deleted any more.
        """
        if not discard:
            self._ownership.abandon()
            self._janitor.abandon()
        with self._lock:
            self._closed = True
        waiting = self._packer.close()
        self._in_flight.close()
        for request in waiting:
            error = CheckpointFailed(f"log {request.log}: its TaskManager closed first")
            request.failed(error, self._ownership.release)
        self._puts.close()
        self._scheduler.close()

    def _split_at(self, requests: Sequence[PersistRequest]) -> int:
        """Return the bytes at which the objects of these requests are split.

        Parts beside each other help only a checkpoint that waits for them.
        """
        with self._lock:
            if not any(request.is_of_cut for request in requests):
                return self._target.bytes_max
            return self._target.split_at(sum(request.size_bytes for request in requests))

    def _upload(self, packed: PackedObject) -> None:
        self._batch_sizes.add(len(packed.pieces))
        data = packed.take_data()
        carried = self.carried.add(data, packed.awaited)
        if carried is not None:
            self._ownership.hold(carried, len(packed.pieces))
            packed.stored(carried, self._ownership.release)
            self._in_flight.ended(packed.length)
            return
        self._put_log(data).add_done_callback(partial(self._uploaded, packed, data))

    def _put_log(self, data: bytes) -> Future[str]:
        def write(name: str) -> None:
            failpoints.hit("changelog.upload.before")
            self._store.put(name, data)
            failpoints.hit("changelog.upload.after")

        stored = self._puts.put(write, self._new_log_object, len(data), LOGS)
        if self._adjusts:
            stored.add_done_callback(partial(self._learn, len(data), self._scheduler.monotonic()))
        return stored

    def _learn(self, size_bytes: int, begun_s: float, stored: Future[str]) -> None:
        """Let the target size learn from an object that was stored."""
        if stored.exception() is None:
            with self._lock:
                self._target.stored(size_bytes, self._scheduler.monotonic() - begun_s)

    def _uploaded(self, packed: PackedObject, data: bytes, stored: Future[str]) -> None:
        error = stored.exception()
        if error is None:
            self._ownership.hold(stored.result(), len(packed.pieces))
            packed.stored(stored.result(), self._ownership.release)
        else:
            packed.failed(error, self._ownership.release)
        self._in_flight.ended(packed.length)
        self._packer.go_on()
        if error is None and self._copies is not None:
            self._keep_copy(self._copies, stored.result(), data)
        self._puts.sweep()

    def _keep_copies(self, logs: Sequence[PlacedLog]) -> None:
        """Keep a local copy of this process's logs in a gathered object, with empty bytes in place of the parts of
        others. A reader of those parts finds the copy damaged there, and reads the store.
        """
        end = max((each.offset + len(each.data) for each in logs), default=0)
        if self._copies is None or not 0 < end <= COPIED_BYTES_MAX:
            return
        data = bytearray(OBJECT_HEADER.ljust(end, b"\0"))
        for each in logs:
            data[each.offset : each.offset + len(each.data)] = each.data
        self._keep_copy(self._copies, logs[0].object, bytes(data))

    def _keep_copy(self, copies: Copies, name: str, data: bytes) -> None:
        """Keep a local copy of an object, not beside the manifest and the record of the checkpoint that waits for it.

        The copy is written in the lane of uploads, so that uploads wait for a disk that is slower than the store.
        """

        def keep(_: Future[None]) -> None:
            self._scheduler.submit(LOGS, partial(copies.keep, name, data)).add_done_callback(report_failure)

        self._precedence.free(len(data)).add_done_callback(keep)


def _threads(uploads_max: int, materializations_max: int, attempts_max: int) -> Scheduler:
    """Make a thread for each attempt of an upload, so that no attempt waits for the slow attempt that it should
    overtake. A merge stores an object beside those of materializations."""
    return ThreadScheduler(
        {
            ENCODING: ENCODERS_MAX,
            LOGS: uploads_max * attempts_max,
            SHARED: (materializations_max + 1) * attempts_max,
            READING: READS_MAX,
            DELETES: 1,
            MATERIALIZING: materializations_max,
            MERGING: 1,
        }
    )
