"""The object `<storage>/job`, which is created once by put-if-absent, and read by every start."""

from uuid import uuid4

from holdfast.errors import CorruptObject, JobRefused, ObjectNotFound, StorageError
from holdfast.ids import JobId
from holdfast.journal.codec import StoredJob, decode_job, encode_job
from holdfast.journal.fence import journal_numbers
from holdfast.journal.other_storages import refuse_other_storage
from holdfast.journal.patience import ATTEMPTS_MAX, Patience, back_off
from holdfast.journal.records import CheckpointRecord
from holdfast.journal.rules import Wait
from holdfast.storage import names
from holdfast.storage.reach import check_put_if_absent
from holdfast.storage.store import ObjectStore

LAYOUT_VERSION = 1


def open_job(
    store: ObjectStore,
    max_parallelism: int,
    *,
    explicit: bool = False,
    name: str = "",
    attempts_max: int = ATTEMPTS_MAX,
    wait: Wait = back_off,
) -> StoredJob:
    """Read the job that the storage belongs to, or create it with `max_parallelism` in a new storage.

    If several JobMasters start at once, exactly one creates the job, and all return the same job. A stored
    `max_parallelism` never changes. With `explicit` (the user has set it) a different value is refused. A different
    `name` is refused too, if both are set.

    Raises
    ------
    JobRefused
        The storage contains something else, objects of a job whose own storage lies elsewhere, an unknown layout, a
        journal without a job, another job, or another max_parallelism; or the store ignores the condition of
        put-if-absent.
    StorageError
        The store did not answer `attempts_max` times.
    """
    patience = Patience(attempts_max, wait)
    wanted = StoredJob(JobId(uuid4().hex), LAYOUT_VERSION, max_parallelism, name)
    while True:
        try:
            job = _checked(store, _read_or_create(store, wanted), wanted, explicit)
            check_put_if_absent(store, names.job(), store.get(names.job()))
            return job
        except StorageError as error:
            patience.spend(f"{store.url}: the job's object could be neither read nor created", error)


def read_job(store: ObjectStore) -> StoredJob:
    """Read the stored job. Raises `ObjectNotFound` if there is none, `CorruptObject`, `StorageError`."""
    return decode_job(names.job(), store.get(names.job()))


def is_job(store: ObjectStore) -> bool:
    """True if the storage contains the object `job` or a journal, damaged or not."""
    if journal_numbers(store):
        return True
    try:
        store.get(names.job())
    except ObjectNotFound:
        return False
    return True


def check_job(url: str, job: StoredJob, record: CheckpointRecord | None) -> None:
    """Check that a record in a storage's journal was written by the storage's own job. Raises `CorruptObject`."""
    if record is not None:
        number = "a record" if record.number is None else names.journal(record.number)
        names.check_writer(f"{url}: {number}", record.job, [job.job_id])


def _read_or_create(store: ObjectStore, wanted: StoredJob) -> StoredJob:
    try:
        return _read(store)
    except ObjectNotFound:
        if journal_numbers(store):
            raise JobRefused(
                f"{store.url}: there is a journal, but the object 'job' is missing: restore it from a copy, "
                "or use an empty folder"
            ) from None
        refuse_other_storage(store)
    store.create(names.job(), encode_job(wanted))
    return wanted


def _read(store: ObjectStore) -> StoredJob:
    try:
        return read_job(store)
    except CorruptObject as error:
        raise JobRefused(
            f"{store.url}: the storage does not belong to a job this version of Holdfast can read: {error}; "
            "expected an empty folder or a job's own"
        ) from error


def _checked(store: ObjectStore, job: StoredJob, wanted: StoredJob, explicit: bool) -> StoredJob:
    if job.layout_version != LAYOUT_VERSION:
        raise JobRefused(
            f"{store.url}: the storage has layout version {job.layout_version}, expected {LAYOUT_VERSION}: "
            "use the version of Holdfast that wrote it"
        )
    if job.name and wanted.name and job.name != wanted.name:
        raise JobRefused(
            f"{store.url}: the storage belongs to job {job.name!r}, this is job {wanted.name!r}: give job "
            f"{wanted.name!r} a folder of its own; or, if it is the same job, keep name={job.name!r}: a storage never "
            "changes the name of its job"
        )
    if explicit and job.max_parallelism != wanted.max_parallelism:
        raise JobRefused(
            f"{store.url}: max_parallelism is {job.max_parallelism} for the life of this storage, found a job with "
            f"{wanted.max_parallelism}: set max_parallelism={job.max_parallelism} or use another storage"
        )
    return job
