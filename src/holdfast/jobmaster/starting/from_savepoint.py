"""A start from a savepoint: `job.start(start_from=<url>, restore_mode=…)`.

    no_claim   a new storage gets copies of the savepoint's objects, and a journal that ends with its record:
               the job then starts as from any storage, under a job id of its own
    claim      the storage from which the savepoint was taken: it goes back to the savepoint's record

The caller decides how objects are copied. With Spark, tasks copy them (`spark.savepoint_copies`), and the driver reads
none. A job without Spark has a single process, which copies them itself.

Invariants
- The savepoint is only read. Every object is checked against its checksum while it is copied.
- A storage begins from a savepoint once. Later starts with the same savepoint go on from their newest checkpoint.
- The record has the number of the savepoint's record, so that the epoch of the start is above all epochs in the names
  of objects.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.errors import CorruptObject, HoldfastError, JobRefused, ObjectNotFound
from holdfast.ids import JobId, JournalNumber
from holdfast.journal import rules
from holdfast.journal.codec import StoredSavepoint
from holdfast.journal.fence import settle
from holdfast.journal.job import read_job
from holdfast.journal.patience import ATTEMPTS_MAX, Patience, back_off
from holdfast.journal.records import CheckpointRecord, Takeover
from holdfast.journal.savepoints import find_savepoint
from holdfast.printable import logger
from holdfast.storage.copying import copy_objects
from holdfast.storage.reach import check_reachable
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

log = logger(__name__)

NO_CLAIM, CLAIM = "no_claim", "claim"


@dataclass(frozen=True)
class OpenedSavepoint:
    """A savepoint from which a job starts."""

    store: ObjectStore
    stored: StoredSavepoint
    mode: str

    @property
    def record(self) -> CheckpointRecord:
        """The savepoint's record in the form for the job's own journal."""
        record, writer = self.stored.record, self.stored.job.job_id
        origins = record.origins if self.mode == CLAIM else list(dict.fromkeys([*record.origins, writer]))
        job = writer if self.mode == CLAIM else None
        return msgspec.structs.replace(
            record, nonce=self.stored.id, started_from=self.stored.id, job=job, origins=origins
        )

    def is_in(self, newest: CheckpointRecord) -> bool:
        """True if the checkpoint is the savepoint's own, or follows from an earlier start from the savepoint."""
        own = self.stored.record
        is_same = (newest.batch, newest.offsets, newest.manifests) == (own.batch, own.offsets, own.manifests)
        return newest.started_from == self.stored.id or (self.mode == CLAIM and is_same)


CopyBack = Callable[[OpenedSavepoint, ObjectStore], None]
"""Function that copies the savepoint's objects into a storage, and may be repeated; objects that are already there do
not change. Raises `StorageError` or `CorruptObject` if an object cannot be copied, or differs from the savepoint's.
"""


def savepoint_of(start_from: int | str | None, mode: str, storage_options: Mapping[str, str]) -> OpenedSavepoint | None:
    """Open the savepoint that a job names; None if it names a number or nothing. Raises as `open_savepoint`."""
    return open_savepoint(start_from, mode, storage_options) if isinstance(start_from, str) else None


def open_savepoint(url: str, mode: str, storage_options: Mapping[str, str]) -> OpenedSavepoint:
    """Open a savepoint for reading. Raises `JobRefused` if there is none that this version reads, `StorageError`."""
    check_reachable(url, storage_options, "start_from")
    try:
        store = RetryingStore(open_store(url, storage_options, make=False, whose="start_from"))
        stored = find_savepoint(store)
    except CorruptObject as error:
        raise JobRefused(
            f"start_from={url!r}: the savepoint cannot be read by this version of Holdfast: {error}. Start from "
            "another savepoint, or with the version that wrote it"
        ) from error
    if stored is None:
        raise JobRefused(
            f"start_from={url!r}: there is no savepoint: the folder has no object 'savepoint', which is written last. "
            "Name the folder that was given to query.savepoint(url)"
        )
    return OpenedSavepoint(store, stored, mode)


def check_storage(
    store: ObjectStore, savepoint: OpenedSavepoint, newest: CheckpointRecord | None, max_parallelism: int | None
) -> None:
    """Check that the job can start on this storage from the savepoint; nothing is written.

    Raises
    ------
    JobRefused
        The storage has checkpoints of its own, or belongs to another job than the savepoint to be claimed.
    """
    stored, where = savepoint.stored, f"start_from={savepoint.store.url!r}"
    if max_parallelism not in (None, stored.job.max_parallelism):
        raise JobRefused(
            f"{where}: the savepoint has max_parallelism={stored.job.max_parallelism}, which stays for the life of the "
            f"state; found max_parallelism={max_parallelism}. Leave it out"
        )
    job_id = _job_id(store)
    if savepoint.mode == CLAIM and job_id != stored.job.job_id:
        belongs = "is empty" if job_id is None else f"belongs to job id {job_id}"
        raise JobRefused(
            f"{where}, restore_mode='claim' continues job id {stored.job.job_id}, but the storage {store.url} "
            f"{belongs}: a second storage with one job id would write output under numbers that the sinks have "
            f"seen. Name the storage from which the savepoint was taken, {stored.storage}, or use "
            "restore_mode='no_claim'"
        )
    if savepoint.mode == CLAIM and newest is None:
        raise JobRefused(f"{where}, restore_mode='claim': the storage {store.url} has lost its checkpoints")
    if savepoint.mode == NO_CLAIM and newest is not None and not savepoint.is_in(newest):
        raise JobRefused(
            f"{where}, restore_mode='no_claim' begins a new job, but the storage {store.url} has checkpoints already. "
            "Name a new storage, or use restore_mode='claim' to take the storage's own job back to the savepoint"
        )


def copy_here(savepoint: OpenedSavepoint, store: ObjectStore) -> None:
    """Copy in this process; for jobs that have no other process. A `CopyBack`."""
    expected = {each.name: each for each in savepoint.stored.objects}
    copy_objects(savepoint.store, store, list(expected), expected=expected)


def begin_from(
    store: ObjectStore, savepoint: OpenedSavepoint, copy_back: CopyBack = copy_here, job: JobId | None = None
) -> None:
    """Fill a new storage with the savepoint: objects first, its record last. May be repeated after an error.

    Raises
    ------
    StorageError, CorruptObject
        An object cannot be copied, or is not as it was when the savepoint was written.
    """
    copy_back(savepoint, store)
    record, number = msgspec.structs.replace(savepoint.record, job=job), JournalNumber(savepoint.stored.number)
    patience = Patience(ATTEMPTS_MAX, back_off)
    takeover = Takeover(record.epoch, savepoint.stored.id, job)
    for place, each in ((JournalNumber(record.epoch), takeover), (number, record)):
        if settle(store, place, each, patience) is rules.PutOutcome.TAKEN:
            raise HoldfastError(f"{store.url}: the journal has a record {place} already; name a new, empty storage")
    log.info("%s: begins from savepoint %s, as record %d", store.url, savepoint.store.url, number)


def number_of(savepoint: OpenedSavepoint) -> JournalNumber:
    return JournalNumber(savepoint.stored.number)


def _job_id(store: ObjectStore) -> str | None:
    try:
        return read_job(store).job_id
    except ObjectNotFound:
        return None
