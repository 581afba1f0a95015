"""The leader's heartbeat: an object that a thread overwrites with a higher count as long as drivers wait.

Without drivers in waiting the leader writes it twice, at its start and at its end, and asks for the object `standby`
every `LOOK_S` seconds: 720 reads an hour. With them it writes it three times within the shortest `takeover_after`:
3,600 writes an hour at 3 s.
"""

import threading
import time
from collections.abc import Callable

from holdfast.errors import CorruptObject, ObjectNotFound, StorageError
from holdfast.formats.leader import LeaderState, StoredBeat, decode_waiting, encode_beat
from holdfast.ids import Epoch, JobId, JournalNumber
from holdfast.leadership.link import LinkServer
from holdfast.ports import Endpoint
from holdfast.printable import logger
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

log = logger(__name__)

LOOK_S = 5.0
"""Seconds between two looks for drivers in waiting. With a higher value, the leader reads less often, and a new driver
in waiting sees the first heartbeat later."""
WAITING_S_MAX = 30.0
"""Seconds without a sign of a driver in waiting after which the leader no longer writes heartbeats for it."""
WAITING_MAX = 16
"""Bound on the drivers in waiting that are remembered; others are noticed at a later look."""
BEATS_IN_SILENCE = 3
"""Number of heartbeats within `takeover_after`. A higher value costs more writes, and better distinguishes a slow store
from a dead leader."""
CLOSE_S_MAX = 5.0
"""Bound in seconds on the wait for a request in flight when the leader ends."""


class KnownStandbys:
    """The drivers in waiting that a leader knows: the last count that it read of each, and when."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float, float]] = {}

    def hear(self, waiting: str, count: int, takeover_after_s: float, now_s: float) -> None:
        """Note the object of a driver in waiting; an unchanged count is no new sign of life."""
        known = self._known.get(waiting)
        if (known is None and len(self._known) < WAITING_MAX) or (known is not None and known[0] != count):
            self._known[waiting] = count, takeover_after_s, now_s

    def interval_s(self, now_s: float) -> float | None:
        """Seconds between two heartbeats; None if no driver waits."""
        self._known = {name: each for name, each in self._known.items() if now_s - each[2] < WAITING_S_MAX}
        shortest_s = min((after_s for _, after_s, _ in self._known.values()), default=None)
        return None if shortest_s is None else shortest_s / BEATS_IN_SILENCE


class Heartbeat:
    """The heartbeat of an epoch, from construction until `close`. `state_at_end` returns how the start ended, and
    `newest_record` its newest record. `session`: see `StoredBeat`."""

    def __init__(
        self, store: ObjectStore, job: JobId, epoch: Epoch, endpoint: Endpoint | None, session: str = ""
    ) -> None:
        self.state_at_end: Callable[[], LeaderState] = lambda: LeaderState.FAILED
        self.newest_record: Callable[[], JournalNumber | None] = lambda: None
        self._store, self._job, self._epoch, self._session = store, job, epoch, session
        self._link = None if endpoint is None else LinkServer(endpoint)
        self._count = 0
        self._standbys = KnownStandbys()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._beat(LeaderState.LEADS)
        self._delete_older()
        looked_s: float | None = None
        while not self._ended.is_set():
            now_s = time.monotonic()
            if self._link is not None:
                self._link.tend()
            if looked_s is None or now_s - looked_s >= LOOK_S:
                looked_s = now_s
                self._look()
            interval_s = self._standbys.interval_s(time.monotonic())
            if interval_s is not None:
                self._beat(LeaderState.LEADS)
            self._ended.wait(LOOK_S if interval_s is None else min(interval_s, LOOK_S))

    def _look(self) -> None:
        """Look for drivers in waiting."""
        name = names.standby()
        try:
            found = decode_waiting(name, self._store.get(name))
        except ObjectNotFound:
            return
        except (StorageError, CorruptObject) as error:
            log.warning("%s cannot be read, so that drivers in waiting may take over: %s", name, error)
            return
        if found.job == self._job:
            self._standbys.hear(found.waiting, found.count, found.takeover_after_s, time.monotonic())

    def _beat(self, state: LeaderState) -> None:
        self._count += 1
        address = "" if self._link is None else self._link.address
        record = self.newest_record() or JournalNumber(0)
        beat = StoredBeat(self._job, self._epoch, self._count, state, address, record, self._session)
        try:
            self._store.put(names.leader(self._epoch), encode_beat(beat))
        except StorageError as error:
            log.debug("heartbeat %d was not written: %s", self._count, error)

    def _delete_older(self) -> None:
        """Delete the heartbeats of earlier epochs."""
        try:
            found = [info.name for info in self._store.list(names.LEADER)]
            parsed = {name: names.parse(name) for name in found}
            beats = {name: each.epoch for name, each in parsed.items() if isinstance(each, names.LeaderName)}
            older = sorted(name for name, epoch in beats.items() if epoch < self._epoch)
            if older:
                self._store.delete(older)
        except StorageError as error:
            log.debug("heartbeats of earlier epochs stay: %s", error)

    def close(self) -> None:
        """Write how the start ended, and then end the connections of drivers in waiting."""
        self._ended.set()
        self._thread.join(CLOSE_S_MAX)
        if not self._thread.is_alive():
            self._beat(self.state_at_end())
        if self._link is not None:
            self._link.close()
