"""A driver in waiting: carries out the commands of `rules`, looks at the leader repeatedly, and announces that it
waits."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from holdfast.clock import Clock
from holdfast.errors import CorruptObject, ObjectNotFound, StorageError
from holdfast.formats.leader import StoredWaiting, decode_beat, encode_waiting
from holdfast.ids import Epoch, JobId, JournalNumber
from holdfast.journal.fence import newest_epoch
from holdfast.leadership import rules
from holdfast.leadership.heartbeat import LOOK_S, WAITING_S_MAX
from holdfast.leadership.link import LeaderLink, NobodyListens, connect
from holdfast.leadership.rules import Command, StandbyPhase, StandbyRules
from holdfast.printable import logger
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

log = logger(__name__)

FIRST_BEAT_S_MAX = 2 * LOOK_S + 5.0
"""Seconds that a leader has to notice a driver in waiting. With a higher value, a takeover from a leader that died
before the driver in waiting came is later; with a lower value, drivers take over from leaders whose store is slow."""
ANNOUNCE_S = WAITING_S_MAX / 3
"""Seconds between two announcements to the leader that this driver waits: 360 writes an hour."""
LOOKS_IN_SILENCE = 6
"""Number of looks at the heartbeat within `takeover_after`: 7,200 reads an hour at 3 s."""
CONNECT_AGAIN_S = 10.0
"""Seconds between two attempts to connect to a leader that cannot be reached."""


@dataclass(frozen=True)
class Waiting:
    """Settings of a driver in waiting."""

    job: JobId
    takeover_after_s: float
    promote: bool


class Watcher:
    """Watches a job's leader until this driver leads or must end. `claim(epoch)` takes over from that epoch; False:
    another driver was faster, or the leader is alive."""

    def __init__(self, store: ObjectStore, waiting: Waiting, clock: Clock, claim: Callable[[Epoch], bool]) -> None:
        self.rules = StandbyRules(waiting.takeover_after_s, FIRST_BEAT_S_MAX, waiting.promote)
        self._store, self._waiting, self._clock, self._claim = store, waiting, clock, claim
        self._name, self._said, self._said_s = uuid4().hex, 0, -ANNOUNCE_S
        self._stopped = threading.Event()
        self._link: LeaderLink | None = None
        self._address = ""
        self._record = JournalNumber(0)
        self._connected_s = -CONNECT_AGAIN_S

    def run(self) -> bool:
        """Block until this driver leads (True), the leader ended in order, or `stop` was called. Raises what `claim`
        raises, and `CorruptObject`."""
        try:
            self._carry_out(rules.Began(self._clock.monotonic()))
            while self.rules.phase is StandbyPhase.WATCHING and not self._stopped.is_set():
                self._announce()
                self._carry_out(self._look())
                self._pause(self._waiting.takeover_after_s / LOOKS_IN_SILENCE)
            return self.rules.phase is StandbyPhase.LEADING
        finally:
            self._drop_link()

    def stop(self) -> None:
        """Have `run` return soon; a takeover under way is finished first."""
        self._stopped.set()

    @property
    def record(self) -> JournalNumber:
        """The number of the leader's newest record, by its heartbeat; 0 if unknown."""
        return self._record

    def status(self) -> dict[str, Any]:
        """The watched leader: its last count, the silence since then, and the way in which the leader is reached."""
        watched, heard_s = self.rules, self._clock.monotonic() - self.rules.heard_s
        return {
            "leaderEpoch": watched.epoch,
            "leaderBeats": watched.count,
            "checkpoint": self._record,
            "silentSeconds": round(max(0.0, heard_s), 3),
            "takesOverAfterSeconds": watched.silence_s_max,
            "isConnected": self._link is not None,
        }

    def _carry_out(self, event: rules.Event) -> None:
        """Handle an event, and the events that follow from its commands."""
        commands = self.rules.handle(event)
        while commands and not self._stopped.is_set():
            command, *later = commands
            commands = later + self.rules.handle(found) if (found := self._done(command)) is not None else later

    def _done(self, command: Command) -> rules.Event | None:
        match command:
            case Command.READ_JOURNAL:
                return self._read_journal()
            case Command.LOOK:
                return self._look()
            case Command.CLAIM:
                return self._take_over()
            case Command.END:
                return None

    def _read_journal(self) -> rules.Event:
        try:
            epoch = newest_epoch(self._store)
        except StorageError as error:
            log.warning("the journal could not be read while this driver waits: %s", error)
            return rules.LookFailed(self._clock.monotonic())
        return rules.JournalRead(self._clock.monotonic(), epoch)

    def _look(self) -> rules.Event:
        epoch = self.rules.epoch
        if epoch is None:
            return self._read_journal()
        asked_s, name = self._clock.monotonic(), names.leader(epoch)
        try:
            beat = decode_beat(name, self._store.get(name))
            names.check_writer(name, beat.job, [self._waiting.job])
        except ObjectNotFound:
            return rules.Looked(asked_s, self._clock.monotonic(), None)
        except (StorageError, CorruptObject) as error:
            log.warning("%s cannot be read while this driver waits: %s", name, error)
            return rules.LookFailed(self._clock.monotonic())
        if beat.address != self._address:
            self._drop_link()
            self._address, self._connected_s = beat.address, -CONNECT_AGAIN_S
        self._record = beat.record
        return rules.Looked(asked_s, self._clock.monotonic(), beat.count, beat.state)

    def _take_over(self) -> rules.Event:
        assert self.rules.epoch is not None
        log.info("takes over from %s", self.rules.why)
        won = self._claim(self.rules.epoch)
        return rules.ClaimEnded(self._clock.monotonic(), won)

    def _pause(self, seconds: float) -> None:
        """Wait for the next look, or for the end of the connection to the leader."""
        if self.rules.phase is not StandbyPhase.WATCHING:
            return
        if self._link is None and self._connect_again():
            self._carry_out(rules.LinkLost(self._clock.monotonic()))
        elif self._link is None:
            self._stopped.wait(seconds)
        elif self._link.wait_for_end(seconds):
            self._drop_link()
            self._connected_s = -CONNECT_AGAIN_S

    def _connect_again(self) -> bool:
        """Connect to the leader, if it is time. Returns True if its machine answers that no process listens there."""
        now_s = self._clock.monotonic()
        if not self._address or now_s - self._connected_s < CONNECT_AGAIN_S:
            return False
        self._connected_s = now_s
        try:
            self._link = connect(self._address)
        except NobodyListens:
            return True
        return False

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _announce(self) -> None:
        """Announce to the leader, now and then, that this driver waits."""
        now_s = self._clock.monotonic()
        if now_s - self._said_s < ANNOUNCE_S:
            return
        self._said, self._said_s = self._said + 1, now_s
        word = StoredWaiting(self._waiting.job, self._name, self._said, self._waiting.takeover_after_s)
        try:
            self._store.put(names.standby(), encode_waiting(word))
        except StorageError as error:
            log.warning("%s could not be written, so that the leader may not beat: %s", names.standby(), error)
