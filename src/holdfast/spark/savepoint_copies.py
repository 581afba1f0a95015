"""Copies of a savepoint's objects into the storage of a job that starts, by short Spark tasks.

    savepoint ─► portions ─► a task each, on any executor: read, compare with the checksum, write ─► the record is put

The bytes do not pass through the driver. Spark runs the tasks before the job's TaskManagers are placed, while all slots
are free. A task that ends with its executor is tried again by Spark, from the beginning of its portion: objects are
written whole, so a second copy changes nothing. Does not own: the journal, which begins with the savepoint's record
once everything is copied (`jobmaster.starting.from_savepoint`).
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.jobmaster.starting.from_savepoint import OpenedSavepoint
from holdfast.printable import logger
from holdfast.spark.host import SparkHost, SparkJob
from holdfast.storage.copying import CopiedObject, copy_objects
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

log = logger(__name__)

PORTION_BYTES_MAX = 256 << 20
"""Bytes that a task copies, if it copies more than a single object. Higher values save tasks, and copy more again if an
executor ends."""
PORTION_OBJECTS_MAX = 256
"""Objects that a task copies. Higher values save tasks, and copy more again if an executor ends."""

CopyPortion = list[CopiedObject]


class CopyFailure(msgspec.Struct, frozen=True):
    """An error of a task, by the name of its class. It is an answer, since Spark would try a task that raises again."""

    error: str
    message: str


class CopyPortions:
    """Body of tasks that copy an encoded portion each. A task answers nothing, or the failure that ended it."""

    def __init__(self, source: str, target: str, storage_options: Mapping[str, str]) -> None:
        self._source = source
        self._target = target
        self._storage_options = dict(storage_options)

    def __call__(self, portion: bytes) -> Iterator[bytes]:
        expected = {each.name: each for each in msgspec.msgpack.decode(portion, type=CopyPortion)}
        try:
            source = RetryingStore(open_store(self._source, self._storage_options, make=False))
            target = RetryingStore(open_store(self._target, self._storage_options))
            copy_objects(source, target, list(expected), expected=expected)
        except HoldfastError as error:
            yield msgspec.msgpack.encode(CopyFailure(type(error).__name__, str(error)))


def copy_on_executors(
    host: SparkHost,
    source: str,
    target: str,
    storage_options: Mapping[str, str],
    savepoint: OpenedSavepoint,
    store: ObjectStore,
) -> None:
    """Copy the savepoint's objects into `store`. May be repeated after an error.

    `source` and `target`: the URLs of the savepoint and of `store`, with whose options tasks open them.

    Raises
    ------
    StorageError, CorruptObject
        An object cannot be copied, or is not as it was when the savepoint was written.
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
            failures = host.run(portions, body) if portions else []
    except Exception as error:
        raise HoldfastError(f"{store.url}: Spark could not run the tasks that {done}: {error}") from error
    for each in failures:
        failure = msgspec.msgpack.decode(each, type=CopyFailure)
        raise getattr(errors, failure.error)(failure.message)


def portions_of(objects: Iterable[CopiedObject]) -> Iterator[CopyPortion]:
    """Divide objects into the portions of tasks, within both limits; only an object that is alone may be larger."""
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
