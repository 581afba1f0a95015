"""Assignment of a level's units to long-running senders: pure rules, `Units.handle(event) -> list[Command]`.

    unit:    waiting ──Give──► given to a sender under an attempt ────UnitReported──► counted
                ▲                          │
                └──── its sender is lost ──┘

    sender:  free ──Give──► busy ──all of its units are reported──► free
                              │
                              ├─ the level was left: Cancel ──AnswerEnded──► free
                              ├─ takes too long for a unit: AskForSplit ──SplitTold──► gone
                              ├─ leaves: gone as soon as it is free
                              └─ lost; the answer broke off; still busy CANCEL_S_MAX after the Cancel: gone

Invariants
- A unit of a level counts once: by the report of the sender that it was last given to, under the attempt of that order.
  A report of a sender that was given up, of an earlier attempt or of a level that was left changes nothing.
- A sender has a single order at a time, and runs its units in order. If the sender is lost, its first unreported unit
  is suspected; a unit that was suspected `UNIT_LOSSES_MAX` times fails the level.
- Units wait for a sender as long as one is expected. Otherwise they run as a short Spark job (`RunInSpark`), also while
  senders that left are being replaced.
- An isolated unit fails at once when it is suspected (`UnitFailed`), and never fails the level. It is an order of its
  own: if its report dies with its sender, it must not be blamed for a later unit that ended the sender.
- A sender that does not report a unit in time is asked for its split, then ended: the unit is suspected.

This module does not decide what a unit's outcome means for the batch: a failed unit is reported like any other. It
makes no calls to senders, and does not know where they run.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from holdfast.execution.unit_events import (
    AcceptOutcome,
    AnswerBroke,
    AnswerEnded,
    AskForSplit,
    CancelOrder,
    Command,
    Event,
    Give,
    GiveUp,
    LevelBegun,
    LevelDone,
    LevelFailed,
    LevelLeft,
    RunInSpark,
    SenderEnded,
    SenderLeaves,
    SenderServes,
    SendersWanted,
    SplitTold,
    StartSenders,
    UnitFailed,
    UnitReported,
    UnitsTick,
)
from holdfast.ids import ProcessId

UNIT_LOSSES_MAX = 3
"""Number of senders lost at work on the same unit at which the level fails."""
STARTS_MAX = 3
"""Number of senders in a row that end before they serve, after which no more are started."""
CANCEL_S_MAX = 5.0
"""Seconds that a sender may take to end a cancelled order. A higher value waits longer for a user's function in the
middle of its work; a lower value ends more processes, each of which takes about a second to start again."""


@dataclass(slots=True)
class _Sender:
    attempt: int = 0
    """The attempt of the sender's last order."""
    units: deque[int] = field(default_factory=deque)
    """Units of the order that the sender has not reported."""
    unit_s: float | None = None
    """Time of the first tick after the sender began its current unit; None: no tick has come since."""
    is_asked: bool = False
    """True if it was asked for the split at which it hangs."""

    def next_unit(self) -> None:
        self.unit_s, self.is_asked = None, False


@dataclass(slots=True)
class _Level:
    waiting: deque[int]
    missing: set[int]
    isolated: frozenset[int]
    unit_s_max: float
    losses: dict[int, int] = field(default_factory=dict)


class Units:
    """The rules during a start of a job. `count`: the number of long-running senders."""

    def __init__(self, count: int) -> None:
        self.wanted = frozenset(range(count))
        """Numbers of the senders that are to stay."""
        self._senders: dict[ProcessId, _Sender] = {}
        self._left: dict[ProcessId, float] = {}
        """Senders that still work on a cancelled order, and the time since when it is cancelled."""
        self._given_up: set[ProcessId] = set()
        self._leaving: dict[ProcessId, str] = {}
        self._replaced: set[int] = set()
        """Numbers of wanted senders that left and do not serve again yet."""
        self._level: _Level | None = None
        self._attempts = 0
        self._failed_starts = 0
        self._rules: dict[type[Event], Callable[..., Iterable[Command]]] = {
            SenderServes: self._on_serves,
            SenderEnded: self._on_lost,
            SenderLeaves: self._on_leaves,
            SendersWanted: self._on_wanted,
            LevelBegun: self._on_begun,
            LevelLeft: self._on_left,
            UnitReported: self._on_reported,
            AnswerEnded: self._on_ended,
            AnswerBroke: self._on_broke,
            SplitTold: self._on_split_told,
            UnitsTick: self._on_tick,
        }

    def handle(self, event: Event) -> list[Command]:
        """Handle an event. An event that comes late, twice or unasked changes nothing. Raises `AssertionError` if a
        level begins before its predecessor was left."""
        return list(self._rules[type(event)](event))

    @property
    def count(self) -> int:
        """Number of senders that are to stay."""
        return len(self.wanted)

    @property
    def serving(self) -> int:
        """Number of senders that can take units, now or when they are free again."""
        return len(self._senders)

    @property
    def at_work(self) -> tuple[ProcessId, ...]:
        """The senders that have not reported a unit of the level."""
        return tuple(sorted(process for process, each in self._senders.items() if each.units))

    # --- senders ------------------------------------------------------------------------------------------------------

    def _on_serves(self, event: SenderServes) -> Iterable[Command]:
        self._failed_starts = 0
        self._replaced.discard(event.sender.number)
        self._senders[event.sender] = _Sender()
        return self._end_superfluous()

    def _on_lost(self, event: SenderEnded) -> Iterable[Command]:
        if event.sender in self._given_up:
            self._given_up.discard(event.sender)
            return
        if event.sender not in self._senders and event.sender.number in self.wanted:
            self._failed_starts += 1
            if self._failed_starts >= STARTS_MAX:
                yield self._want(len(self._senders))
        yield from self._without(event.sender, event.reason)
        yield from self._give()

    def _on_leaves(self, event: SenderLeaves) -> Iterable[Command]:
        if event.sender in self._senders:
            self._leaving[event.sender] = event.reason
            yield from self._let_go()

    def _let_go(self) -> Iterable[Command]:
        """Give up the leaving senders that have no order."""
        for process in [each for each in self._leaving if self._is_free(each)]:
            if process.number in self.wanted:
                self._replaced.add(process.number)
            yield from self._give_up(process, self._leaving[process])
            yield from self._give()

    def _on_wanted(self, event: SendersWanted) -> Iterable[Command]:
        if event.count < self.count or (event.count > self.count and self._failed_starts < STARTS_MAX):
            yield self._want(event.count)
        yield from self._end_superfluous()

    def _want(self, count: int) -> StartSenders:
        """Choose the senders that are to stay: those that serve come first, since a start takes time."""
        staying = sorted(each.number for each in self._senders if each not in self._leaving)
        numbers = dict.fromkeys([*staying, *sorted(self.wanted), *range(count)])
        self.wanted = frozenset(islice(numbers, count))
        self._replaced &= self.wanted
        return StartSenders(self.wanted)

    def _end_superfluous(self) -> Iterable[Command]:
        """Give up senders that are not to stay, also those that serve only now: others need their slots.

        The slot of a leaving sender is of no use to others, so it finishes its order first.
        """
        superfluous = [each for each in self._senders if each.number not in self.wanted]
        for sender in [each for each in superfluous if each not in self._leaving]:
            yield from self._give_up(sender, "fewer senders are to stay", blames_unit=False)
        yield from self._give()

    def _on_tick(self, event: UnitsTick) -> Iterable[Command]:
        for process, left_s in list(self._left.items()):
            if left_s < event.now_s - CANCEL_S_MAX:
                yield from self._give_up(process, f"it goes on with cancelled units for more than {CANCEL_S_MAX:.0f} s")
        if self._level is not None and self._level.unit_s_max < math.inf:
            for process, sender in list(self._senders.items()):
                if sender.units:
                    yield from self._watch(process, sender, self._level.unit_s_max, event.now_s)

    def _watch(self, process: ProcessId, sender: _Sender, unit_s_max: float, now_s: float) -> Iterable[Command]:
        """Ask a sender that takes too long for a unit at which split it hangs."""
        if sender.unit_s is None:
            sender.unit_s = now_s
        elif now_s - sender.unit_s > unit_s_max and not sender.is_asked:
            sender.is_asked = True
            yield AskForSplit(process, sender.attempt, sender.units[0])

    def _on_split_told(self, event: SplitTold) -> Iterable[Command]:
        sender, level = self._order(event), self._level
        if sender is None or level is None or not sender.is_asked:
            return
        if not sender.units or sender.units[0] != event.unit:
            return  # The level was left meanwhile, or the unit reported.
        reason = f"{event.sender.name} took longer than {level.unit_s_max:g} s (unit_timeout)"
        isolated = event.unit in level.isolated
        if isolated:
            yield from self._fail(event.sender, sender.units.popleft(), reason, event.split)
        yield from self._give_up(event.sender, reason, blames_unit=not isolated)
        yield from self._give()

    def _fail(self, process: ProcessId, unit: int, reason: str, split: str | None = None) -> Iterable[Command]:
        """Count a unit as failed."""
        assert self._level is not None
        self._level.missing.discard(unit)
        yield UnitFailed(process, unit, reason, split)
        if not self._level.missing:
            yield LevelDone()

    def _give_up(self, process: ProcessId, reason: str, blames_unit: bool = True) -> Iterable[Command]:
        self._given_up.add(process)
        yield GiveUp(process, reason)
        yield from self._without(process, reason, blames_unit)

    def _without(self, process: ProcessId, reason: str, blames_unit: bool = True) -> Iterable[Command]:
        """Remove a lost sender: its units wait for another sender, and the unit that it was working on is suspected."""
        sender = self._senders.pop(process, None)
        self._leaving.pop(process, None)
        is_left = self._left.pop(process, None) is not None
        level = self._level
        if sender is None or level is None or is_left or not sender.units:
            return
        if not blames_unit:
            level.waiting.extend(sender.units)
            return
        suspect = sender.units[0]
        if suspect in level.isolated:
            yield from self._fail(process, sender.units.popleft(), reason)
            level.waiting.extend(sender.units)
            return
        losses = level.losses[suspect] = level.losses.get(suspect, 0) + 1
        level.waiting.extend(sender.units)
        if losses >= UNIT_LOSSES_MAX:
            yield LevelFailed(f"unit {suspect} was being worked on by {losses} senders that ended; last: {reason}")

    # --- levels -------------------------------------------------------------------------------------------------------

    def _on_begun(self, event: LevelBegun) -> Iterable[Command]:
        assert self._level is None, "a level begins before its predecessor was left"
        self._level = _Level(deque(event.units), set(event.units), event.isolated, event.unit_s_max)
        return self._give()

    def _on_left(self, event: LevelLeft) -> Iterable[Command]:
        self._level = None
        for process, sender in self._senders.items():
            if sender.units:
                sender.units.clear()
                self._left[process] = event.now_s
                yield CancelOrder(process, sender.attempt)

    def _on_reported(self, event: UnitReported) -> Iterable[Command]:
        sender, level = self._order(event), self._level
        if sender is None:
            return
        if level is not None and event.unit in sender.units:
            sender.units.remove(event.unit)
            sender.next_unit()
            level.missing.discard(event.unit)
            yield AcceptOutcome(event.unit)
            if not level.missing:
                yield LevelDone()
        if event.is_last:
            yield from self._on_ended(event)
        else:
            yield from self._give()

    def _on_ended(self, event: AnswerEnded | UnitReported) -> Iterable[Command]:
        sender = self._order(event)
        if sender is None:
            return
        if sender.units:
            yield from self._give_up(event.sender, f"it did not report unit {sender.units[0]}")
        self._left.pop(event.sender, None)
        yield from self._let_go()
        yield from self._give()

    def _on_broke(self, event: AnswerBroke) -> Iterable[Command]:
        if self._order(event) is not None:
            yield from self._give_up(event.sender, event.reason)
            yield from self._give()

    def _order(self, event: UnitReported | AnswerEnded | AnswerBroke | SplitTold) -> _Sender | None:
        """Return the sender of an event, if the event is about the sender's last order."""
        sender = self._senders.get(event.sender)
        return sender if sender is not None and sender.attempt == event.attempt else None

    def _is_free(self, process: ProcessId) -> bool:
        return not self._senders[process].units and process not in self._left

    def _give(self) -> Iterable[Command]:
        """Divide the waiting units among the n free senders; each gets every n-th unit, or a single isolated unit."""
        level = self._level
        if level is None or not level.waiting:
            return
        if not self._senders and (self._replaced or not self.count):
            yield RunInSpark(tuple(sorted(level.waiting)))
            level.missing.difference_update(level.waiting)
            level.waiting.clear()
            if not level.missing:
                yield LevelDone()
            return
        free = sorted(each for each in self._senders if self._is_free(each) and each not in self._leaving)
        if not free:
            return
        units = sorted(level.waiting)
        level.waiting.clear()
        step = min(len(free), len(units))
        for index, process in enumerate(free[:step]):
            self._attempts += 1
            given = self._order_of(units[index::step], level)
            sender = self._senders[process]
            sender.attempt = self._attempts
            sender.units.extend(given)
            sender.next_unit()
            yield Give(process, self._attempts, given)

    @staticmethod
    def _order_of(units: list[int], level: _Level) -> tuple[int, ...]:
        """Return the next order out of `units`, and put the others back to wait."""
        if units[0] in level.isolated:
            given, others = units[:1], units[1:]
        else:
            given = [unit for unit in units if unit not in level.isolated]
            others = [unit for unit in units if unit in level.isolated]
        level.waiting.extend(others)
        return tuple(given)
