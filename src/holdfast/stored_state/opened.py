"""Opens a retained checkpoint of a job's storage for reading. It takes over no job and writes nothing.

    journal ──► the record of the wanted number ──► manifests ──► handles of every operator's tables

A running job subsumes checkpoints that it does not retain, and deletes their objects afterwards. A reader pins nothing,
because a pin would be an object that the job has to look for before each deletion. A reader that finds an object
missing looks at the journal again: if the record is gone too, the error says so, and names the remedy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import HoldfastError, ObjectNotFound
from holdfast.formats.handles import TableHandle
from holdfast.formats.manifests import load_manifests
from holdfast.journal.fence import list_journal, read_record
from holdfast.journal.job import is_job
from holdfast.journal.other_storages import open_job_store, refuse_other_storage
from holdfast.journal.records import CheckpointRecord
from holdfast.journal.savepoints import find_savepoint
from holdfast.storage.lost import lost
from holdfast.storage.reach import check_reachable
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore

LATEST = "latest"

Found = TypeVar("Found")


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint of a storage: its number in the journal, its record, and the handles of all tables."""

    store: ObjectStore
    number: int
    record: CheckpointRecord
    handles: tuple[TableHandle, ...]


def open_storage(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Open a job's storage for reading. Raises `StorageError`, or `HoldfastError` where there is no job."""
    given = dict(options or {})
    check_reachable(url, given)
    store = RetryingStore(open_job_store(url, given, make=False))
    if not is_job(store) and find_savepoint(store) is None:
        refuse_other_storage(store)
        raise HoldfastError(
            f"{store.url}: this is not the storage of a job, nor a savepoint: it has neither an object `job` nor a "
            "journal, nor an object `savepoint`. Name the folder that was given as Job(storage=…)"
        )
    return store


def retained(store: ObjectStore) -> dict[int, CheckpointRecord]:
    """Read the records of the checkpoints that a storage retains, or of a savepoint, by number, oldest first."""
    found: dict[int, CheckpointRecord] = {}
    numbers = sorted(list_journal(store).numbers)
    if not numbers and (savepoint := find_savepoint(store)) is not None:
        return {savepoint.number: savepoint.record}
    for number in numbers:
        try:
            record = read_record(store, number)
        except ObjectNotFound:
            continue  # it expired after the listing
        if isinstance(record, CheckpointRecord):
            found[number] = record
    return found


def open_checkpoint(store: ObjectStore, checkpoint: int | str = LATEST) -> OpenedCheckpoint:
    """Open a checkpoint by its number, or the newest checkpoint.

    Raises
    ------
    HoldfastError
        The storage does not retain that checkpoint, or retains none at all; the message lists those it retains.
    StorageError, CorruptObject
        An object cannot be read.
    """
    records = retained(store)
    if not records:
        raise HoldfastError(f"{store.url}: no checkpoint has completed yet, so there is no state to read")
    number = max(records) if checkpoint == LATEST else checkpoint
    if number not in records:
        there = ", ".join(map(str, records))
        raise HoldfastError(
            f"{store.url}: there is no checkpoint {number!r}; the storage retains {there}. Name a retained number, or "
            f"{LATEST!r}; a job keeps more of them with CheckpointConfig(retained=…)"
        )
    assert isinstance(number, int)
    record = records[number]

    def load() -> tuple[TableHandle, ...]:
        manifests = load_manifests(store, record.manifests, record.writers())
        return tuple(handle for manifest in manifests for handle in manifest.tables)

    return OpenedCheckpoint(store, number, record, while_retained(store, number, load))


def while_retained(store: ObjectStore, number: int, read: Callable[[], Found]) -> Found:
    """Read a part of a checkpoint. If an object is gone because the running job let go of the checkpoint, say so."""
    try:
        return read()
    except ObjectNotFound as error:
        if number in retained(store):
            raise lost(f"checkpoint {number} cannot be read", error) from error
        raise HoldfastError(
            f"{store.url}: the running job let go of checkpoint {number} while it was read. Reading writes nothing "
            "into the storage of a job, so it cannot pin a checkpoint. Read again; or make the job keep checkpoints "
            "for longer with CheckpointConfig(retained=…); or take query.savepoint(url), which the job never "
            "deletes, and read that"
        ) from error
