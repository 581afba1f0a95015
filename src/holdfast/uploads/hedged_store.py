"""The JobMaster's uploads: the layer that hedges, retries and measures the puts of logs serves all that it stores.

    gathered objects ─────────────────────────► Puts, each attempt under a name of its own
    committables, objects of sources ─► put ──► Puts, all attempts under the caller's name, which has one content
    records ───────────────────► create ──────► Puts, put if absent: hedged, and after an error never repeated here

Invariants: a put-if-absent that finds an object with the caller's own bytes has succeeded, since another attempt of the
same call stored it; any other error goes to the caller, who reads the object back. A slow attempt at a record may store
it after the record was expired: then the record is deleted again, since it is not needed any more. Reads and deletes go
directly to the store.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial

from holdfast.changelog_config import RetryPolicy
from holdfast.errors import ObjectExists, StorageError
from holdfast.storage.retrying import without_retries
from holdfast.storage.store import ObjectInfo, ObjectStore
from holdfast.uploads.attempts import Losers
from holdfast.uploads.janitor import DeletionQueue
from holdfast.uploads.puts import DELETES, Puts
from holdfast.uploads.scheduling import Scheduler, ThreadScheduler

GATHERED, COMMITTABLES, RECORDS, SOURCES = "gathered", "committables", "record", "source"
"""Lanes, and beginnings of the names of their metrics."""
LOOKS = "look"
"""The lane of calls that read the store beside a checkpoint's objects."""
OBJECTS_MAX = 8
"""Objects of a lane that are stored at once."""
EXPIRED_MAX = 1000
"""Deleted names that are remembered, for attempts that land later."""

_LEFT = Losers(lambda name: None, lambda name: None)
"""Receivers for attempts under the caller's name: superfluous attempts have stored the same bytes, or nothing."""


class _Unsettled(Exception):
    """An error of a put-if-absent, which no attempt may follow."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(str(error))
        self.error = error


class DriverUploads:
    """Attempts, threads and figures of everything that a JobMaster stores.

    Parameters
    ----------
    store
        May retry; its retries of puts are left out.
    """

    def __init__(self, store: ObjectStore, policy: RetryPolicy, scheduler: Scheduler | None = None) -> None:
        threads = OBJECTS_MAX * policy.max_attempts
        lanes = dict.fromkeys((GATHERED, COMMITTABLES, SOURCES), threads)
        self.scheduler = scheduler or ThreadScheduler(lanes | {RECORDS: policy.max_attempts, DELETES: 1, LOOKS: 2})
        self.puts = Puts(policy, self.scheduler, DeletionQueue(store))
        self.single = without_retries(store)
        """The store without retries."""
        self._store = store

    def store(self, lane: str) -> "HedgedStore":
        """Return a view of the store whose puts go through attempts in that lane."""
        return HedgedStore(self._store, self, lane)

    def close(self) -> None:
        """Take no more objects. Returns at once."""
        self.puts.close()
        self.scheduler.close()


class HedgedStore:
    """An `ObjectStore`. A call waits for the outcome, on its own thread."""

    def __init__(self, inner: ObjectStore, uploads: DriverUploads, lane: str) -> None:
        self.url = inner.url
        self.inner = inner
        self._uploads = uploads
        self._lane = lane
        self._deleted: deque[str] = deque(maxlen=EXPIRED_MAX)

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        up, lane = self._uploads, self._lane
        write = partial(up.single.put, data=data)
        up.scheduler.result(up.puts.put(write, lambda: name, len(data), lane, lane, _LEFT))

    def create(self, name: str, data: bytes) -> None:
        up, lane = self._uploads, self._lane
        losers = Losers(self._created_late, lambda name: None)
        created = up.puts.put(partial(self._create, data=data), lambda: name, len(data), lane, lane, losers)
        try:
            up.scheduler.result(created)
        except _Unsettled as unsettled:
            raise unsettled.error from None

    def get(self, name: str) -> bytes:
        return self.inner.get(name)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self.inner.get_range(name, offset, length)

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        return self.inner.list(prefix, after=after)

    def delete(self, names: Sequence[str]) -> None:
        self._deleted.extend(names)
        self.inner.delete(names)

    def _create(self, name: str, data: bytes) -> None:
        try:
            self._uploads.single.create(name, data)
        except ObjectExists as error:
            if not self._is_own(name, data):
                raise _Unsettled(error) from error
        except StorageError as error:
            raise _Unsettled(error) from error

    def _is_own(self, name: str, data: bytes) -> bool:
        try:
            return self._uploads.single.get(name) == data
        except StorageError:
            return False

    def _created_late(self, name: str) -> None:
        """Delete an object that a slow attempt stored after the object had been deleted."""
        if name in self._deleted:
            self.inner.delete([name])
