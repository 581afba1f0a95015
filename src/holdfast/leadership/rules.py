"""The rules by which a driver in waiting takes over: facts in, commands out. Pure: no I/O, no clock, no thread.

    Began ─► READ_JOURNAL ─► epoch ─► LOOK, again and again ─► silent, ended or link lost ─► READ_JOURNAL
                               ▲                                                                │ the same epoch
                               ├──────────────── another epoch: watch that leader ◄─────────────┤
                               └──────────────── ClaimEnded: another driver was faster ◄──── CLAIM ─► won: LEADING

- Silence is measured with this machine's monotonic clock, from the end of a look that saw a new count to the beginning
  of a look that sees the same count. Time in which the store did not answer does not count as silence.
- A leader beats only while drivers wait. Until a second count of its epoch was seen, it has `first_beat_s` for that.
- A state other than `leads` that is there at the first look is an end of the past: there is no leader.
"""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.formats.leader import LeaderState
from holdfast.ids import Epoch

NO_LEADER = Epoch(0)


@dataclass(frozen=True)
class Began:
    """The driver begins to wait."""

    now_s: float


@dataclass(frozen=True)
class JournalRead:
    """The newest epoch of the journal was read; 0: there was no leader yet."""

    now_s: float
    epoch: Epoch


@dataclass(frozen=True)
class Looked:
    """A look at the heartbeat of the watched epoch: the content that a read begun at `asked_s` found; None: there is
    none."""

    asked_s: float
    now_s: float
    count: int | None
    state: LeaderState = LeaderState.LEADS


@dataclass(frozen=True)
class LookFailed:
    """The store did not answer."""

    now_s: float


@dataclass(frozen=True)
class LinkLost:
    """The connection to the leader ended, and no process listens at its address any more."""

    now_s: float


@dataclass(frozen=True)
class ClaimEnded:
    """The attempt to take over has ended; False: another driver leads, or the leader wrote a record meanwhile."""

    now_s: float
    won: bool


Event = Began | JournalRead | Looked | LookFailed | LinkLost | ClaimEnded


class Command(StrEnum):
    """Order to the watcher, which carries it out at once. In the phase `WATCHING`, the watcher also looks on its
    own."""

    READ_JOURNAL = "read journal"
    LOOK = "look"
    CLAIM = "claim"
    END = "end"


class StandbyPhase(StrEnum):
    """The phase of a driver in waiting."""

    WATCHING = "watching"
    CLAIMING = "claiming"
    LEADING = "leading"
    ENDED = "ended"


class StandbyRules:
    """State of a driver in waiting; `handle` alone changes it.

    `first_beat_s`: time that a leader has from the first look to its first heartbeat. `promote`: take over from a
    leader that was stopped in order, instead of ending.
    """

    def __init__(self, takeover_after_s: float, first_beat_s: float, promote: bool) -> None:
        self.phase = StandbyPhase.WATCHING
        self.epoch: Epoch | None = None
        """The epoch that is watched; None before the first read of the journal."""
        self.count: int | None = None
        """The leader's last count."""
        self.heard_s = 0.0
        """Time of the last sign of life of the leader."""
        self.why = ""
        """The reason why the driver takes over, or has ended."""
        self._takeover_after_s = takeover_after_s
        self._first_beat_s = max(first_beat_s, takeover_after_s)
        self._promote = promote
        self._beats = False
        self._suspects = False
        self._link_lost = False

    @property
    def silence_s_max(self) -> float:
        """Silence after which the driver takes over."""
        return self._takeover_after_s if self._beats else self._first_beat_s

    def handle(self, event: Event) -> list[Command]:
        """Handle a fact; return the commands to carry out."""
        if self.phase in (StandbyPhase.LEADING, StandbyPhase.ENDED):
            return []
        match event:
            case Began():
                self.heard_s = event.now_s
                return [Command.READ_JOURNAL]
            case JournalRead():
                return self._on_journal(event)
            case Looked():
                return self._on_look(event)
            case LookFailed():
                self.heard_s = event.now_s
                return []
            case LinkLost():
                self._link_lost = True
                return [Command.LOOK]
            case ClaimEnded():
                return self._on_claim_ended(event)

    def _on_journal(self, event: JournalRead) -> list[Command]:
        if event.epoch != self.epoch:
            self.epoch, self.count, self.heard_s = event.epoch, None, event.now_s
            self._beats = self._suspects = self._link_lost = False
            if event.epoch != NO_LEADER:
                return [Command.LOOK]
            self._suspects, self.why = True, "nobody leads"
        if not self._suspects:
            return []
        self.phase = StandbyPhase.CLAIMING
        return [Command.CLAIM]

    def _on_look(self, event: Looked) -> list[Command]:
        if self.phase is not StandbyPhase.WATCHING:
            return []
        is_first = self.count is None
        if event.count is not None and event.count != self.count:
            self._beats = not is_first
            self.count, self.heard_s = event.count, event.now_s
        if event.count is not None and event.state is not LeaderState.LEADS:
            return self._on_end(event.state, was_there=is_first)
        if self._link_lost:
            return self._suspect("its process has ended")
        silent_s = event.asked_s - self.heard_s
        if silent_s >= self.silence_s_max:
            return self._suspect(f"it was silent for {silent_s:.1f} s")
        return []

    def _on_end(self, state: LeaderState, was_there: bool) -> list[Command]:
        ends = state is LeaderState.COMPLETE or (state is LeaderState.STOPPED and not self._promote)
        if not ends or was_there:
            return self._suspect(f"it has ended: {state.value}")
        self.phase, self.why = StandbyPhase.ENDED, f"the leader has ended: {state.value}"
        return [Command.END]

    def _suspect(self, why: str) -> list[Command]:
        self._suspects, self.why = True, f"the leader, epoch {self.epoch}: {why}"
        return [Command.READ_JOURNAL]

    def _on_claim_ended(self, event: ClaimEnded) -> list[Command]:
        self._suspects = self._link_lost = False
        self.heard_s = event.now_s
        if event.won:
            self.phase = StandbyPhase.LEADING
            return []
        self.phase = StandbyPhase.WATCHING
        return [Command.READ_JOURNAL]
