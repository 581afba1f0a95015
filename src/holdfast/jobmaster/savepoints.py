"""Savepoints: a checkpoint copied with all that a restart reads into a folder of its own.

    <url>/savepoint            the record and the list of objects with their checksums, written last
    <url>/manifests/…          copies under the names that they have in the job's storage
         /dstl/… /shared/… /sources/…

All names are relative to the folder, so it can be moved and copied as a whole. A folder without the object `savepoint`
is no savepoint: its writing did not end. The driver copies from store to store, a few objects at a time.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from holdfast.errors import HoldfastError
from holdfast.jobmaster.found import objects_of
from holdfast.journal.codec import StoredJob, StoredSavepoint, encode_savepoint
from holdfast.journal.records import CheckpointRecord
from holdfast.journal.savepoints import find_savepoint
from holdfast.storage import names
from holdfast.storage.copying import copy_objects
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

log = logging.getLogger(__name__)

PROGRESS_S = 5.0
"""Seconds between two lines about a copy's progress. Lower values write more lines."""


@dataclass(frozen=True)
class Savepoint:
    """A savepoint that was written: its folder, the checkpoint in it, and its size."""

    url: str
    checkpoint: int
    """Number of the checkpoint's record in the job's storage."""
    objects: int
    size_bytes: int


def open_target(url: str, storage_options: Mapping[str, str]) -> ObjectStore:
    """Open the folder of a savepoint to be written. Raises `HoldfastError` if something is there already."""
    target = RetryingStore(open_store(url, storage_options))
    if find_savepoint(target) is not None:
        raise HoldfastError(f"savepoint {target.url}: there is a savepoint already; name another folder")
    if target.list(names.JOURNAL):
        raise HoldfastError(
            f"savepoint {target.url}: this is the storage of a job; name a folder of the savepoint's own"
        )
    return target


def write_savepoint(
    source: ObjectStore, target: ObjectStore, job: StoredJob, number: int, record: CheckpointRecord
) -> Savepoint:
    """Copy a checkpoint that nobody deletes meanwhile.

    Raises
    ------
    StorageError
        An object cannot be read or written. The folder is not a savepoint then.
    """
    wanted = sorted(objects_of(source, record))
    progress = _Progress(target.url, len(wanted))
    objects = copy_objects(source, target, wanted, progress)
    plain = msgspec.structs.replace(record, groups={}, retains=[])
    stored = StoredSavepoint(uuid4().hex, job, source.url, number, plain, objects)
    target.put(names.savepoint(), encode_savepoint(stored))
    written = Savepoint(target.url, number, len(objects), sum(each.size for each in objects))
    log.info(
        "savepoint %s: checkpoint %d, %d objects, %d bytes", written.url, number, written.objects, written.size_bytes
    )
    return written


class _Progress:
    """Lines in the log about a copy that takes long."""

    def __init__(self, url: str, total: int) -> None:
        self._url = url
        self._total = total
        self._said_s = time.monotonic()

    def __call__(self, objects: int, size_bytes: int) -> None:
        if time.monotonic() - self._said_s >= PROGRESS_S:
            self._said_s = time.monotonic()
            log.info("savepoint %s: %d of %d objects, %d bytes", self._url, objects, self._total, size_bytes)
