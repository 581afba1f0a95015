"""The history of a job: the outcomes of the last triggers, its losses and savepoints, in memory and in an object.

    outcome ──add──► the last `ENTRIES_MAX`, in memory ──now and then, and at the end──► history/<epoch>

Each epoch writes an object of its own, so that a JobMaster that was replaced overwrites nothing. It begins with the
entries of the newest object that it finds, and deletes the older ones. History is for people: if it cannot be read or
written, that is logged and has no other effect.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from holdfast.clock import Clock
from holdfast.errors import CorruptObject, StorageError
from holdfast.formats.history import (
    CheckpointStats,
    LostRows,
    SavepointStats,
    encode_history,
    read_stored,
    stored_epochs,
    with_losses,
)
from holdfast.formats.store_use import StoreUse
from holdfast.ids import Epoch, JobId
from holdfast.printable import logger
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

log = logger(__name__)

ENTRIES_MAX = 100
LOSSES_SHOWN_MAX = 100
"""Newest losses of rows that the history keeps. A higher value makes its object larger."""
SAVEPOINTS_SHOWN_MAX = 20
"""Newest savepoints that the history keeps. A higher value makes its object larger."""
SAVE_EVERY_S = 10.0
"""Least time in seconds between two writes of the history."""


class History:
    """`add` and `is_due` belong to the control thread; `load` and `save` do I/O, on another thread. Thread-safe."""

    def __init__(self, store: ObjectStore, epoch: Epoch, clock: Clock, job: JobId | None = None) -> None:
        self._store = store
        self.epoch = epoch
        self._job = job
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: deque[CheckpointStats] = deque(maxlen=ENTRIES_MAX)
        self._losses: deque[LostRows] = deque(maxlen=LOSSES_SHOWN_MAX)
        self._savepoints: deque[SavepointStats] = deque(maxlen=SAVEPOINTS_SHOWN_MAX)
        self._is_changed = False
        self._next_s = float("-inf")
        self._older: list[str] = []
        self.use: Callable[[], StoreUse | None] = lambda: None
        """Requests of this epoch so far."""

    def load(self, recorded: Iterable[LostRows] = ()) -> None:
        """Continue the history that earlier epochs wrote. `recorded`: losses that the newest record declares; a crash
        may have prevented their entries in the history."""
        self._load()
        recorded = list(recorded)
        if recorded:
            self.add_losses(recorded)

    def _load(self) -> None:
        try:
            self._older = [names.history(epoch) for epoch in stored_epochs(self._store) if epoch != self.epoch]
            found = read_stored(self._store, self._job)
        except (StorageError, CorruptObject) as error:
            log.warning("the history of checkpoints begins anew: %s", error)
            return
        with self._lock:
            self._entries = deque([*found.checkpoints, *self._entries], maxlen=ENTRIES_MAX)
            self._losses = deque([*found.losses, *self._losses], maxlen=LOSSES_SHOWN_MAX)
            self._savepoints = deque([*found.savepoints, *self._savepoints], maxlen=SAVEPOINTS_SHOWN_MAX)

    def entries(self) -> tuple[CheckpointStats, ...]:
        """The entries kept, oldest first, also of earlier epochs."""
        with self._lock:
            return tuple(self._entries)

    def add(self, entry: CheckpointStats) -> None:
        with self._lock:
            self._entries.append(entry)
            self._is_changed = True

    def savepoints(self) -> tuple[SavepointStats, ...]:
        """The last savepoints, oldest first, also those that failed, and those of earlier epochs."""
        with self._lock:
            return tuple(self._savepoints)

    def add_savepoint(self, savepoint: SavepointStats) -> None:
        """Add a savepoint. It is written with the next save, which is due at once."""
        with self._lock:
            self._savepoints.append(savepoint)
            self._is_changed, self._next_s = True, float("-inf")

    def losses(self) -> tuple[LostRows, ...]:
        """The losses, oldest first, also of earlier epochs."""
        with self._lock:
            return tuple(self._losses)

    def add_losses(self, losses: Iterable[LostRows]) -> None:
        """Add losses. They are written with the next save, which is due at once."""
        with self._lock:
            self._losses = deque(with_losses(self._losses, losses), maxlen=LOSSES_SHOWN_MAX)
            self._is_changed, self._next_s = True, float("-inf")

    def acknowledge_losses(self) -> None:
        """Mark all losses as noted by a user."""
        with self._lock:
            noted = [replace(each, acknowledged=True) for each in self._losses]
            self._losses = deque(noted, maxlen=LOSSES_SHOWN_MAX)
            self._is_changed, self._next_s = True, float("-inf")

    def is_due(self) -> bool:
        """True if the history must be saved now; the next True comes only after `SAVE_EVERY_S`."""
        now_s = self._clock.monotonic()
        if not self._is_changed or now_s < self._next_s:
            return False
        self._next_s = now_s + SAVE_EVERY_S
        return True

    def save(self, ended: bool = False) -> None:
        """Write the new entries. If that fails, they are written with the next entries or at the end. `ended`: the
        epoch ends in good order."""
        with self._lock:
            entries, losses, savepoints = list(self._entries), list(self._losses), list(self._savepoints)
            changed, self._is_changed = self._is_changed or ended, False
        if not changed:
            return
        try:
            stored = encode_history(entries, losses, savepoints, self._job, self.epoch, ended, self.use())
            self._store.put(names.history(self.epoch), stored)
            if self._older:
                self._store.delete(self._older)
                self._older = []
        except StorageError as error:
            self._is_changed = True
            log.info("the history of checkpoints could not be written: %s", error)
