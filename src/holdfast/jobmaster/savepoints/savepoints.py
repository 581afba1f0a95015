"""Savepoints: a checkpoint copied with all that a restart reads into a folder of its own.

    <url>/savepoint            the record and the list of objects with their checksums, written last
    <url>/manifests/…          copies under the names that they have in the job's storage
         /dstl/… /shared/… /sources/…

    a checkpoint ──► its record is held ──► TaskManagers copy, from store to store ──► `savepoint` is put ──► let go
                                                         └── an error, a time-out ──► what was copied is deleted

All names are relative to the folder, so it can be moved and copied as a whole. A folder without the object `savepoint`
is no savepoint: its writing did not finish. The driver only reads the manifests, to find the names, and writes the
object `savepoint`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

import msgspec

from holdfast import failpoints
from holdfast.checkpoint.holding import LetGo
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StorageError
from holdfast.formats.manifests import load_manifests
from holdfast.ids import JournalNumber, SavepointId
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.checkpoints.found import objects_of
from holdfast.jobmaster.savepoints.copying import Copiers, SpreadCopy
from holdfast.jobmaster.savepoints.progress import SavepointProgress
from holdfast.journal.codec import StoredSavepoint, encode_savepoint
from holdfast.journal.other_storages import refuse_other_storage
from holdfast.journal.records import CheckpointRecord
from holdfast.journal.savepoints import find_savepoint
from holdfast.printable import logger
from holdfast.storage import names
from holdfast.storage.copying import CopiedObject, CopyOrder, copy_objects
from holdfast.storage.counted import counted
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store
from holdfast.storage.urls import refuse_long

log = logger(__name__)


@dataclass(frozen=True)
class Savepoint:
    """A savepoint that was written: the `url` of its folder, the checkpoint in it, its `objects` and their
    `size_bytes`,
    and how long it took."""

    url: str
    checkpoint: int
    """Number of the checkpoint's record in the job's storage."""
    objects: int
    size_bytes: int
    duration_s: float
    """Seconds from the call to the end; they include the checkpoint."""


@dataclass(frozen=True)
class SavepointTarget:
    """The folder of a savepoint to be written, and the options with which processes open it."""

    store: ObjectStore
    url: str
    storage_options: Mapping[str, str]

    def discard(self, written: Sequence[str]) -> None:
        """Delete the objects of a savepoint whose writing failed, so that nobody mistakes them for a savepoint."""
        try:
            self.store.delete(written)
        except StorageError as error:
            log.warning("savepoint %s: its copies could not be deleted, delete the folder: %s", self.store.url, error)
        else:
            log.info("savepoint %s: its copies are deleted, since it was not finished", self.store.url)


def open_target(url: str, storage_options: Mapping[str, str]) -> SavepointTarget:
    """Open the folder of a savepoint to be written. Raises `HoldfastError` if something is there already."""
    store = RetryingStore(open_store(url, storage_options, whose="savepoint"))
    if find_savepoint(store) is not None:
        raise HoldfastError(f"savepoint {store.url}: there is a savepoint already; name another folder")
    if store.list(names.JOURNAL):
        raise HoldfastError(
            f"savepoint {store.url}: this is the storage of a job; name a folder of the savepoint's own"
        )
    refuse_other_storage(store)
    return SavepointTarget(store, url, storage_options)


class SavepointWriter:
    """Takes savepoints of a running query. Thread-safe.

    `copiers`: groups of processes that can copy, in order of preference; the first group that is not empty copies. If
    all are empty, the job has no state, and the driver copies the few objects of sources.
    """

    def __init__(
        self, job: StartedJob, control: Control, copiers: list[Copiers], clock: Clock, ended: Callable[[], bool]
    ) -> None:
        self._job = job
        self._control = control
        self._copiers = next((each for each in copiers if each.count), None)
        self._clock = clock
        self._ended = ended
        self._under_way: dict[str, SavepointProgress] = {}
        self._discards: dict[str, Future[None]] = {}
        """Deletions of unfinished copies, by folder; kept once no process writes there any more."""

    @property
    def under_way(self) -> tuple[str, ...]:
        """Progress of the savepoints that are being written, in words."""
        return tuple(str(each) for each in list(self._under_way.values()))

    def _opened(self, url: str, storage_options: Mapping[str, str]) -> SavepointTarget:
        program = self._job.program
        refuse_long(url, names.longest(program.sources, program.all_sinks), "savepoint")
        target = open_target(url, storage_options)
        return replace(target, store=counted(target.store, self._job.store))

    def write(self, url: str, storage_options: Mapping[str, str], timeout_s: float | None = None) -> Savepoint:
        """Take a checkpoint, and copy it while it is held. Raises as `Query.savepoint` does."""
        target = self._opened(url, storage_options)
        with self._noted(target, timeout_s) as progress:
            progress.await_(self._control.request_savepoint())
            return self._write_newest(target, progress)

    def write_at_end(
        self, url: str, storage_options: Mapping[str, str], stop: Callable[[], None], timeout_s: float | None = None
    ) -> Savepoint:
        """Plan no further batch, publish everything, copy the last checkpoint, and stop.

        The method waits for the batch under way. If that batch were committed after the checkpoint, its output could be
        published here, and again by a job that begins from the savepoint. After an error, the query plans batches
        again.
        """
        target = self._opened(url, storage_options)
        with self._noted(target, timeout_s) as progress:
            reason = f"savepoint {target.store.url}, call {uuid4().hex}"
            standstill = self._control.pause_planning(reason)
            try:
                progress.await_(standstill)
                progress.await_(self._control.request_savepoint())
                progress.await_(self._control.await_publication())
                written = self._write_newest(target, progress)
            except BaseException:
                self._control.resume_planning(reason)
                raise
        stop()
        return written

    def _write_newest(self, target: SavepointTarget, progress: SavepointProgress) -> Savepoint:
        hold = self._control.hold_newest()
        try:
            number = progress.await_(hold)
            if number is None:
                raise HoldfastError(
                    f"savepoint {target.url}: nothing has been processed yet, so there is nothing to copy"
                )
            record = self._control.record(number)
            assert record is not None, "a record that is held is in the journal"
            return self._write(target, number, record, progress)
        finally:
            hold.add_done_callback(self._let_go)

    def _let_go(self, hold: "Future[JournalNumber | None]") -> None:
        if hold.exception() is None and (number := hold.result()) is not None:
            self._control.post(LetGo(number))

    def _write(
        self, target: SavepointTarget, number: JournalNumber, record: CheckpointRecord, progress: SavepointProgress
    ) -> Savepoint:
        """Copy a checkpoint that is held meanwhile. The last put makes the folder a savepoint."""
        wanted = sorted(objects_of(partial(load_manifests, self._job.store), record))
        progress.begin_copies(number, len(wanted))
        objects = self._copy(target, wanted, progress)
        plain = msgspec.structs.replace(record, groups={}, retains=[], number=number)
        stored = StoredSavepoint(
            SavepointId(uuid4().hex), self._job.stored, self._job.store.url, number, plain, objects
        )
        failpoints.hit("jobmaster.savepoint.before")
        with _discarded_after_an_error(target, [names.savepoint(), *wanted]):
            target.store.put(names.savepoint(), encode_savepoint(stored))
        size_bytes = sum(each.size for each in objects)
        written = Savepoint(target.store.url, number, len(objects), size_bytes, progress.duration_s)
        log.info(
            "savepoint %s: checkpoint %d, %d objects, %d bytes, in %.1f s",
            written.url, number, written.objects, written.size_bytes, written.duration_s,
        )  # fmt: skip
        return written

    def _copy(self, target: SavepointTarget, wanted: list[str], progress: SavepointProgress) -> list[CopiedObject]:
        if self._copiers is None:
            with _discarded_after_an_error(target, wanted):
                return copy_objects(self._job.store, target.store, wanted, progress.copied_in_time)
        order = CopyOrder(target.url, dict(target.storage_options), wanted)
        discarded: Future[None] = Future()

        def discard() -> None:
            try:
                target.discard(wanted)
            finally:
                discarded.set_result(None)

        copy = SpreadCopy(self._copiers, order, self._ended, progress.copied, discard)
        self._discards[target.store.url] = discarded
        try:
            copies = copy.run(progress.left_s)
        except TimeoutError:
            raise progress.late() from None
        del self._discards[target.store.url]
        return copies

    @contextmanager
    def _noted(self, target: SavepointTarget, timeout_s: float | None) -> Iterator[SavepointProgress]:
        """Show the savepoint while it is being written, and note its outcome in the history."""
        url = target.store.url
        progress = SavepointProgress(url, self._job.epoch, self._clock, timeout_s)
        if self._under_way.setdefault(url, progress) is not progress:
            raise HoldfastError(f"savepoint {url}: another call is writing a savepoint there; name another folder")
        try:
            if (before := self._discards.get(url)) is not None:
                progress.await_(before)
            yield progress
        except (HoldfastError, TimeoutError) as error:
            self._control.history.add_savepoint(progress.failed(error))
            raise
        else:
            self._control.history.add_savepoint(progress.completed())
        finally:
            del self._under_way[url]


@contextmanager
def _discarded_after_an_error(target: SavepointTarget, written: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        target.discard(written)
        raise
