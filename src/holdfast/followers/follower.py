"""A follower: some subtasks with their state at a completed checkpoint, advanced as further checkpoints complete.

    Follower(subtasks).follow(n, handles of n) ─► n      restores
                      .follow(n+1, handles of n+1) ─► n+1      applies the new pieces of log
                      .take()      the subtasks, for a caller who continues with them

It lags behind the owner by a checkpoint, writes nothing, and is known only to its caller. The caller chooses the
checkpoints, and makes sure that their objects stay until they are read. If an object is missing or damaged, the error
names it. The next call continues from the existing state, or starts anew if the new log does not continue from that
state.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from holdfast.clock import Clock, SystemClock
from holdfast.followers.subtask import FollowedTable, SubtaskFollower
from holdfast.formats.handles import TableHandle
from holdfast.graph.program import Program
from holdfast.ids import JournalNumber
from holdfast.protocol.taskmanager import BaseCheckpoint, SubtaskDeployment
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.local import LocalCopies
from holdfast.recovery.spans import StoredRange, bounds_of, shared_objects
from holdfast.state.backends import tables_of
from holdfast.state.rocksdb_memory import ALONE_BYTES, RocksDBMemory
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore

AT_ONCE_MAX = 4
"""Number of subtasks that are restored side by side. With a higher value, the first restore takes more of the machine
on which TaskManagers run."""


@dataclass(frozen=True)
class Followed:
    """Progress of a follower: the checkpoint whose state its tables have, and the cost so far."""

    number: JournalNumber | None = None
    """The number of the newest record whose checkpoint all tables have reached; None: none yet."""
    bytes_read: int = 0
    """Bytes read by all calls."""
    last_s: float = 0.0
    """Duration of the last call."""
    made_anew: int = 0
    """Number of complete restores of subtasks, including the first of each."""


class Follower:
    """A single thread calls `follow`, `take` and `close`; any thread may read `followed`.

    Parameters
    ----------
    subtasks
        The subtasks to follow; handles in them are not used.
    memory
        The memory that all tables in RocksDB share, also with other followers. None: memory of its own.
    copies
        Local copies of objects: they are read in place of the store, and new ones are kept. None: no copies.
    """

    def __init__(
        self,
        program: Program,
        subtasks: Sequence[SubtaskDeployment],
        max_parallelism: int,
        store: ObjectStore,
        memory: RocksDBMemory | None = None,
        local_dir: str | None = None,
        copies: LocalCopies | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.program = program
        self._store = RetryingStore(store)
        self._copies = copies
        self._clock = clock or SystemClock()
        new_table = tables_of(program.state, local_dir, memory or RocksDBMemory(ALONE_BYTES, len(subtasks)))
        self._subtasks = [SubtaskFollower(program, each, max_parallelism, new_table, local_dir) for each in subtasks]
        self._groups = (
            min((each.key_group_start for each in subtasks), default=0),
            max((each.key_group_stop for each in subtasks), default=0),
        )
        self._ended = threading.Event()
        self.followed = Followed()
        self.objects: frozenset[str] = frozenset()
        """Names of the objects that the last followed checkpoint has for these subtasks."""

    @property
    def memory_bytes(self) -> int:
        """Memory that the tables take."""
        return sum(each.memory_bytes for each in self._subtasks)

    def needed(self, handles: Sequence[TableHandle]) -> list[str]:
        """Names of the objects that `follow` would read now to reach the checkpoint of these handles."""
        ranges = [range_ for each in self._subtasks for range_ in each.ranges(each.select(handles))]
        return list(dict.fromkeys(each.object for each in ranges))

    def follow(
        self, number: JournalNumber, handles: Sequence[TableHandle], base: BaseCheckpoint | None = None
    ) -> JournalNumber | None:
        """Advance the subtasks to the checkpoint of record `number`, given the handles of all its tables. Returns the
        number of the record whose state all tables have now: `number`, unless `end` was called meanwhile.

        Raises
        ------
        StorageError, CorruptObject
            An object is missing or damaged; the error names table and object. Call again with a newer checkpoint.
        JobRefused
            A stored column has another type than declared.
        """
        if self.followed.number == number:
            return number
        begun_s = self._clock.monotonic()
        chosen = [each.select(handles) for each in self._subtasks]
        own = [handle for each in chosen for handle in each]
        shared = shared_objects(own, bounds_of(handles), *self._groups)
        with ObjectCache(self._store, copies=self._copies, shared=shared) as fetch:
            ranges: list[StoredRange] = []
            for each, restore in zip(self._subtasks, chosen, strict=True):
                ranges += each.ranges(restore)
            fetch.expect(ranges)
            workers = min(AT_ONCE_MAX, max(1, len(self._subtasks)))
            with ThreadPoolExecutor(workers, thread_name_prefix="holdfast-follow") as pool:
                done = [
                    pool.submit(self._follow, each, restore, fetch, base)
                    for each, restore in zip(self._subtasks, chosen, strict=True)
                ]
            reached = [future.result() for future in done]
            self.followed = replace(
                self.followed,
                number=number if all(reached) else self.followed.number,
                bytes_read=self.followed.bytes_read + fetch.fetched.bytes_from_store,
                last_s=self._clock.monotonic() - begun_s,
                made_anew=sum(each.made for each in self._subtasks),
            )
        self.objects = frozenset(name for handle in own for name in handle.objects())
        return self.followed.number

    def _follow(
        self, subtask: SubtaskFollower, handles: list[TableHandle], fetch: ObjectCache, base: BaseCheckpoint | None
    ) -> bool:
        if self._ended.is_set():
            return False
        subtask.follow(handles, fetch, base=base)
        return True

    def tables(self, handles: Sequence[TableHandle]) -> list[FollowedTable]:
        """Return the followed tables that owners store, each with its handle in the checkpoint of these handles."""
        return [table for each in self._subtasks for table in each.tables(each.select(handles))]

    def end(self) -> None:
        """Begin no further subtask: `follow` returns soon. Any thread may call this."""
        self._ended.set()

    def take(self) -> dict[tuple[str, int], SubtaskFollower]:
        """Hand over the subtasks, by operator and number. The caller continues with them, and closes them."""
        taken, self._subtasks = self._subtasks, []
        return {(each.subtask.operator, each.subtask.subtask): each for each in taken}

    def close(self) -> None:
        """Close the subtasks that were not taken."""
        self.end()
        for each in self._subtasks:
            each.close()
