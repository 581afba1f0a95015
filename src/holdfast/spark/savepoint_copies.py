"""Copies of a savepoint's objects into the storage of a job that starts, by short Spark tasks.

    savepoint ─► portions ─► a task each, on any executor: read, check the checksum, write ─► the record is put

The bytes do not pass through the driver. Spark runs the tasks before the job's TaskManagers are placed, while all slots
are free. If an executor ends, Spark runs its task again from the beginning of the portion. Objects are written in a
single step, so a second copy changes nothing. This module does not own the journal, which begins with the savepoint's
record once all objects are copied (`jobmaster.starting.from_savepoint`).
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast.errors import HoldfastError
from holdfast.failure import Failure, failure_of
from holdfast.jobmaster.starting.from_savepoint import OpenedSavepoint
from holdfast.journal.other_storages import open_job_store
from holdfast.printable import logger
from holdfast.spark.host import SparkHost, SparkJob
from holdfast.storage.copying import CopiedObject, copy_objects
from holdfast.storage.counted import Requests, counted, note, untold
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

log = logger(__name__)

PORTION_BYTES_MAX = 256 << 20
"""Bytes that a task copies, unless a single object is larger. Higher values save tasks, but more has to be copied again
if an executor ends."""
PORTION_OBJECTS_MAX = 256
"""Objects that a task copies. Higher values save tasks, but more has to be copied again if an executor ends."""

CopyPortion = list[CopiedObject]


class CopyAnswer(msgspec.Struct, frozen=True):
    """The requests that a task made, and its error if it has one. A task returns that, since Spark would retry a task
    that raises."""

    requests: Requests
    failure: Failure | None


class CopyPortions:
    """The body of a task that copies an encoded portion, and returns a `CopyAnswer`."""

    def __init__(self, source: str, target: str, storage_options: Mapping[str, str]) -> None:
        self._source = source
        self._target = target
        self._storage_options = dict(storage_options)

    def __call__(self, portion: bytes) -> Iterator[bytes]:
        expected = {each.name: each for each in msgspec.msgpack.decode(portion, type=CopyPortion)}
        requests: Requests = {}
        failure = None
        try:
            target = counted(RetryingStore(open_job_store(self._target, self._storage_options)))
            source = counted(RetryingStore(open_store(self._source, self._storage_options, make=False)), target)
            try:
                copy_objects(source, target, list(expected), expected=expected)
            finally:
                requests = untold(target)
        except HoldfastError as error:
            failure = failure_of(error)
        yield msgspec.msgpack.encode(CopyAnswer(requests, failure))


def copy_on_executors(
    host: SparkHost,
    source: str,
    target: str,
    storage_options: Mapping[str, str],
    savepoint: OpenedSavepoint,
    store: ObjectStore,
) -> None:
    """Copy the savepoint's objects into `store`. A caller may repeat this after an error.

    `source` and `target` are the URLs of the savepoint and of `store`. Tasks open both with the options of `store`.

    Raises
    ------
    StorageError, CorruptObject
        An object cannot be copied, or has changed since the savepoint was written.
    HoldfastError
        Spark could not run the tasks.
    """
    objects = savepoint.stored.objects
    portions = [msgspec.msgpack.encode(each) for each in portions_of(objects)]
    size_bytes = sum(each.size for each in objects)
    done = f"copies {len(objects)} objects, {size_bytes} bytes, of savepoint {savepoint.store.url}"
    log.info("%s: %s in %d Spark tasks", store.url, done, len(portions))
    body = CopyPortions(source, target, storage_options)
    try:
        with host.described(SparkJob("holdfast-savepoint", f"holdfast: {done}")):
            answers = host.run(portions, body) if portions else []
    except Exception as error:
        raise HoldfastError(f"{store.url}: Spark could not run the tasks that {done}: {error}") from error
    found = [msgspec.msgpack.decode(each, type=CopyAnswer) for each in answers]
    for answer in found:
        note(store, answer.requests)
    for answer in found:
        if answer.failure is not None:
            raise answer.failure.error()


def portions_of(objects: Iterable[CopiedObject]) -> Iterator[CopyPortion]:
    """Divide objects into portions within both limits. A portion may be larger only if it has a single object."""
    portion: CopyPortion = []
    size_bytes = 0
    for each in objects:
        if portion and (size_bytes + each.size > PORTION_BYTES_MAX or len(portion) == PORTION_OBJECTS_MAX):
            yield portion
            portion, size_bytes = [], 0
        portion.append(each)
        size_bytes += each.size
    if portion:
        yield portion
