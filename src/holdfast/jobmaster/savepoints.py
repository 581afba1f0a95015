"""Savepoints: a checkpoint copied with all that a restart reads into a folder of its own.

    <url>/savepoint            the record and the list of objects with their checksums, written last
    <url>/manifests/…          copies under the names that they have in the job's storage
         /dstl/… /shared/… /sources/…

    a checkpoint ──► its record is held ──► TaskManagers copy, from store to store ──► `savepoint` is put ──► let go

All names are relative to the folder, so it can be moved and copied as a whole. A folder without the object `savepoint`
is no savepoint: its writing did not end. The driver reads manifests, to find the names, and writes `savepoint`.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from holdfast import failpoints
from holdfast.checkpoint.holding import LetGo
from holdfast.errors import HoldfastError
from holdfast.ids import JournalNumber
from holdfast.jobmaster.control import Control
from holdfast.jobmaster.copying import Copiers, SpreadCopy
from holdfast.jobmaster.deployer import StartedJob
from holdfast.jobmaster.found import objects_of
from holdfast.journal.codec import StoredSavepoint, encode_savepoint
from holdfast.journal.records import CheckpointRecord
from holdfast.journal.savepoints import find_savepoint
from holdfast.storage import names
from holdfast.storage.copying import CopiedObject, CopyOrder, copy_objects
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

log = logging.getLogger(__name__)

PROGRESS_S = 5.0
"""Seconds between two lines about a copy's progress. Lower values write more lines."""
BEFORE_SAVEPOINT = "the savepoint at the end"
PUBLISHED_POLL_S = 0.02


@dataclass(frozen=True)
class Savepoint:
    """A savepoint that was written: its folder, the checkpoint in it, and its size."""

    url: str
    checkpoint: int
    """Number of the checkpoint's record in the job's storage."""
    objects: int
    size_bytes: int


@dataclass(frozen=True)
class SavepointTarget:
    """The folder of a savepoint to be written, and the options with which processes open it."""

    store: ObjectStore
    url: str
    storage_options: Mapping[str, str]


def open_target(url: str, storage_options: Mapping[str, str]) -> SavepointTarget:
    """Open the folder of a savepoint to be written. Raises `HoldfastError` if something is there already."""
    store = RetryingStore(open_store(url, storage_options))
    if find_savepoint(store) is not None:
        raise HoldfastError(f"savepoint {store.url}: there is a savepoint already; name another folder")
    if store.list(names.JOURNAL):
        raise HoldfastError(
            f"savepoint {store.url}: this is the storage of a job; name a folder of the savepoint's own"
        )
    return SavepointTarget(store, url, storage_options)


class SavepointWriter:
    """Takes savepoints of a running query. Thread-safe.

    `copiers`: the processes that copy, in order of preference; the first that has any is used. Where none has, the job
    has no state, and the driver copies the few objects of sources.
    """

    def __init__(self, job: StartedJob, control: Control, copiers: list[Copiers], ended: Callable[[], bool]) -> None:
        self._job = job
        self._control = control
        self._copiers = next((each for each in copiers if each.count), None)
        self._ended = ended
        self._under_way: dict[str, CopyProgress] = {}

    @property
    def under_way(self) -> tuple[str, ...]:
        """Progress of the savepoints that are being written, in words."""
        return tuple(str(each) for each in list(self._under_way.values()))

    def write(self, url: str, storage_options: Mapping[str, str]) -> Savepoint:
        """Take a checkpoint, and copy it while it is held. Raises as `Query.savepoint` does."""
        target = open_target(url, storage_options)
        self._control.request_savepoint().result()
        return self._write_newest(target)

    def write_at_end(self, url: str, storage_options: Mapping[str, str], stop: Callable[[], None]) -> Savepoint:
        """Plan no further batch, publish everything, copy the last checkpoint, and stop.

        After an error the query plans batches again, as if nobody had asked.
        """
        target = open_target(url, storage_options)
        self._control.pause_planning(BEFORE_SAVEPOINT)
        try:
            self._settle()
            written = self._write_newest(target)
        except BaseException:
            self._control.pause_planning(BEFORE_SAVEPOINT, paused=False)
            raise
        stop()
        return written

    def _settle(self) -> None:
        """Wait until the newest checkpoint covers everything committed, and everything is published."""
        before, number = None, self._control.request_savepoint().result()
        while number != before:
            while not self._ended() and not self._control.published():
                time.sleep(PUBLISHED_POLL_S)
            before, number = number, self._control.request_savepoint().result()

    def _write_newest(self, target: SavepointTarget) -> Savepoint:
        number = self._control.hold_newest().result()
        if number is None:
            raise HoldfastError(f"savepoint {target.url}: nothing has been processed yet, so there is nothing to copy")
        try:
            record = self._control.record(number)
            assert record is not None, "a record that is held is in the journal"
            return self._write(target, number, record)
        finally:
            self._control.post(LetGo(number))

    def _write(self, target: SavepointTarget, number: JournalNumber, record: CheckpointRecord) -> Savepoint:
        """Copy a checkpoint that nobody deletes meanwhile. Without the last put the folder is not a savepoint."""
        wanted = sorted(objects_of(self._job.store, record))
        with self._shown(target, len(wanted)) as progress:
            objects = self._copy(target, wanted, progress)
        plain = msgspec.structs.replace(record, groups={}, retains=[])
        stored = StoredSavepoint(uuid4().hex, self._job.stored, self._job.store.url, number, plain, objects)
        failpoints.hit("jobmaster.savepoint.before")
        target.store.put(names.savepoint(), encode_savepoint(stored))
        written = Savepoint(target.store.url, number, len(objects), sum(each.size for each in objects))
        log.info(
            "savepoint %s: checkpoint %d, %d objects, %d bytes",
            written.url, number, written.objects, written.size_bytes,
        )  # fmt: skip
        return written

    def _copy(self, target: SavepointTarget, wanted: list[str], progress: "CopyProgress") -> list[CopiedObject]:
        if self._copiers is None:
            return copy_objects(self._job.store, target.store, wanted, progress)
        order = CopyOrder(target.url, dict(target.storage_options), wanted)
        return SpreadCopy(self._copiers, order, self._ended, progress).run()

    @contextmanager
    def _shown(self, target: SavepointTarget, total: int) -> Iterator["CopyProgress"]:
        progress = self._under_way[target.url] = CopyProgress(target.store.url, total)
        try:
            yield progress
        finally:
            del self._under_way[target.url]


class CopyProgress:
    """The progress of a copy: lines in the log now and then, and words for people who look at the query."""

    def __init__(self, url: str, total: int) -> None:
        self._url = url
        self._total = total
        self._objects = self._size_bytes = 0
        self._said_s = time.monotonic()

    def __call__(self, objects: int, size_bytes: int) -> None:
        self._objects, self._size_bytes = objects, size_bytes
        if time.monotonic() - self._said_s >= PROGRESS_S:
            self._said_s = time.monotonic()
            log.info("%s", self)

    def __str__(self) -> str:
        return f"savepoint {self._url}: {self._objects} of {self._total} objects, {self._size_bytes} bytes are copied"
