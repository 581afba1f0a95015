"""Copies of objects from one store to another, under the same names, by a few threads.

A thread holds a single object at a time, so at most `COPIES_MAX` objects are in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import msgspec

from holdfast.errors import CorruptObject
from holdfast.storage.checksum import crc32
from holdfast.storage.counted import counted
from holdfast.storage.retrying import RetryingStore, without_retries
from holdfast.storage.store import ObjectStore, open_store

COPIES_MAX = 4


class CopiedObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object that was copied under its own name, with the size and checksum of the copied bytes."""

    name: str
    size: int
    crc32: int


class CopyOrder(msgspec.Struct, frozen=True):
    """An order to copy objects from the job's storage, under the same names, to the store at `target`."""

    target: str
    storage_options: dict[str, str]
    names: list[str]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(target={self.target!r}, {len(self.names)} objects)"


def carry_out(source: ObjectStore, order: CopyOrder) -> list[CopiedObject]:
    """Copy the objects of an order. Requests to both stores are retried, and counted with those of `source`. Raises the
    errors of `copy_objects`."""
    target = RetryingStore(open_store(order.target, order.storage_options))
    return copy_objects(RetryingStore(without_retries(source)), counted(target, source), order.names)


def copy_objects(
    source: ObjectStore,
    target: ObjectStore,
    names: Sequence[str],
    progress: Callable[[int, int], None] = lambda objects, size: None,
    expected: Mapping[str, CopiedObject] | None = None,
) -> list[CopiedObject]:
    """Copy objects; return their sizes and checksums, in the order of `names`.

    `progress` is called with the number of objects and of bytes copied so far. `expected` has the size and checksum
    that each object must have.

    Raises
    ------
    StorageError
        An object cannot be read or written. Objects that were copied before stay.
    CorruptObject
        An object is not as expected; it was not written.
    """
    copies: dict[str, CopiedObject] = {}
    with ThreadPoolExecutor(COPIES_MAX, thread_name_prefix="holdfast-copies") as threads:
        copying = [threads.submit(_copy, source, target, name, expected) for name in names]
        try:
            for done in as_completed(copying):
                copy = done.result()
                copies[copy.name] = copy
                progress(len(copies), sum(each.size for each in copies.values()))
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    return [copies[name] for name in names]


def _copy(
    source: ObjectStore, target: ObjectStore, name: str, expected: Mapping[str, CopiedObject] | None
) -> CopiedObject:
    data = source.get(name)
    copy = CopiedObject(name, len(data), crc32(data))
    if expected is not None and expected[name] != copy:
        wanted = expected[name]
        raise CorruptObject(
            f"{source.url}/{name}: {copy.size} bytes with CRC {copy.crc32:08x}, expected {wanted.size} bytes with CRC "
            f"{wanted.crc32:08x}"
        )
    target.put(name, data)
    return copy
