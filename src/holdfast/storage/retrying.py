"""Retries of single requests to the store: a few quick ones, for errors that last less than a second.

Only requests that can be repeated without harm are retried: reads, listings, deletes, and puts, since a name is never
used for two contents. `create` is never retried: its caller (`journal/`) finds out the outcome. The changelog's
uploader and the JobMaster's puts of a checkpoint's objects have their own retry policies, and use the store without
this layer. Above this layer, complete steps are repeated: a record by `journal/patience`, publication and deletions by
the coordinator, batches and restores by the execution machine.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.back_off import doubled_s
from holdfast.errors import ObjectExists, ObjectNotFound, StorageError
from holdfast.storage.store import ObjectInfo, ObjectStore

T = TypeVar("T")


class RetryingStore:
    """Repeats requests that failed with an I/O error, up to `attempts_max` attempts in all.

    It waits `first_delay_s` after the first failure, and then twice as long each time, minus a random part of up to a
    half. The last error is raised unchanged. `ObjectNotFound` is an answer, not a failure.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        attempts_max: int = 4,
        first_delay_s: float = 0.1,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if attempts_max < 1:
            raise ValueError(f"attempts_max is at least 1, not {attempts_max}")
        self.url = inner.url
        self._inner = inner
        self._attempts_max = attempts_max
        self._first_delay_s = first_delay_s
        self._wait = wait

    @property
    def inner(self) -> ObjectStore:
        """Return the same store without retries."""
        return self._inner

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._retry(lambda: self._inner.put(name, data))

    def create(self, name: str, data: bytes) -> None:
        self._inner.create(name, data)

    def get(self, name: str) -> bytes:
        return self._retry(lambda: self._inner.get(name))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._retry(lambda: self._inner.get_range(name, offset, length))

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        return self._retry(lambda: self._inner.list(prefix, after=after))

    def delete(self, names: Sequence[str]) -> None:
        self._retry(lambda: self._inner.delete(names))

    def _retry(self, call: Callable[[], T]) -> T:
        for attempt in range(1, self._attempts_max):
            try:
                return call()
            except (ObjectNotFound, ObjectExists):
                raise
            except StorageError:
                self._wait(doubled_s(self._first_delay_s, attempt) * random.uniform(0.5, 1.0))
        return call()


def without_retries(store: ObjectStore) -> ObjectStore:
    """Return the same store without retries, for a layer that retries on its own."""
    return store.inner if isinstance(store, RetryingStore) else store
