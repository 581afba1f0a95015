"""Drivers of one job around the real rules, in manual time: a journal of epochs, heartbeats, pauses and deaths.

Each driver is a generator that stops after each request; between two steps it may be paused for a while, or die. The
store refuses a put whose number was taken since the listing, as the journal does, and may not answer for a while.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.formats.leader import LeaderState
from holdfast.ids import Epoch
from holdfast.leadership import rules
from holdfast.leadership.rules import Command, StandbyPhase, StandbyRules

TAKEOVER_AFTER_S, FIRST_BEAT_S, BEAT_S, LOOK_S, NOTICE_S = 3.0, 15.0, 1.0, 0.5, 5.0
STEP_S = 0.02
RECORD_S = 2.0


@dataclass
class Store:
    """The journal's highest number and newest epoch, and the heartbeats."""

    number: int = 0
    epoch: int = 0
    beats: dict[int, tuple[int, LeaderState]] = field(default_factory=dict)
    answers: bool = True


@dataclass
class Takeover:
    """A takeover: from which epoch, and for how long its leader had not beaten, if it was alive and well."""

    at_s: float
    epoch: int
    of: int


class Driver:
    """A driver, in waiting first."""

    def __init__(self, world: "World", name: int) -> None:
        self.world, self.name = world, name
        self.rules: StandbyRules = world.make_rules()
        self.until_s = 0.0
        """When it goes on."""
        self.alive = True
        self.paused_s = 0.0
        """When its last pause ended."""
        self.leads: int | None = None
        self.steps = self.run()

    def run(self) -> Iterator[float]:
        yield from self.carry_out(rules.Began(self.world.now_s))
        while self.rules.phase is StandbyPhase.WATCHING:
            yield LOOK_S
            yield from self.carry_out((yield from self.look()))
        if self.rules.phase is StandbyPhase.LEADING:
            yield from self.lead()

    def carry_out(self, event: rules.Event) -> Iterator[float]:
        commands = self.rules.handle(event)
        while commands:
            command, *commands = commands
            yield STEP_S
            if command is Command.CLAIM:
                event = yield from self.claim()
            elif command is not Command.END:
                event = (yield from self.look()) if command is Command.LOOK else self.read_journal()
            commands += self.rules.handle(event) if command is not Command.END else []

    def read_journal(self) -> rules.Event:
        store, now_s = self.world.store, self.world.now_s
        return rules.JournalRead(now_s, Epoch(store.epoch)) if store.answers else rules.LookFailed(now_s)

    def look(self) -> Iterator[float]:
        asked_s, store = self.world.now_s, self.world.store
        found = store.beats.get(self.rules.epoch)
        if not store.answers:
            return rules.LookFailed(self.world.now_s)
        yield STEP_S
        if found is None:
            return rules.Looked(asked_s, self.world.now_s, None)
        return rules.Looked(asked_s, self.world.now_s, *found)

    def claim(self) -> Iterator[float]:
        store, watched = self.world.store, self.rules.epoch
        number, epoch = store.number, store.epoch
        yield STEP_S
        won = store.answers and epoch == watched and store.number == number
        if won:
            store.number = store.epoch = number + 1
            self.leads = store.epoch
            self.world.takeovers.append(Takeover(self.world.now_s, store.epoch, epoch))
        yield STEP_S
        return rules.ClaimEnded(self.world.now_s, won)

    def lead(self) -> Iterator[float]:
        """Beat and record, until another epoch's record is found."""
        store, count, recorded_s = self.world.store, 0, self.world.now_s
        while store.epoch == self.leads or self.world.now_s < recorded_s + RECORD_S:
            count += 1
            if store.answers:
                store.beats[self.leads] = count, LeaderState.LEADS
                self.world.beaten_s[self.leads] = self.world.now_s
                if self.world.now_s >= recorded_s + RECORD_S and store.epoch == self.leads:
                    store.number, recorded_s = store.number + 1, self.world.now_s
            yield NOTICE_S if count == 1 else BEAT_S
        store.beats[self.leads] = count + 1, LeaderState.FAILED


class World:
    """Drivers and their store; `run` checks the invariants after each step."""

    def __init__(self, seed: int, drivers: int = 3) -> None:
        self.random = random.Random(seed)
        self.store, self.now_s = Store(), 0.0
        self.takeovers: list[Takeover] = []
        self.beaten_s: dict[int, float] = {}
        self.names = iter(range(1_000))
        self.calm_since_s = 0.0
        self.drivers = [Driver(self, next(self.names)) for _ in range(drivers)]

    def make_rules(self) -> StandbyRules:
        return StandbyRules(TAKEOVER_AFTER_S, FIRST_BEAT_S, promote=True)

    def step(self) -> None:
        """Have the driver whose turn is next take a step."""
        alive = [each for each in self.drivers if each.alive]
        turn = min(alive, key=lambda each: (each.until_s, self.random.random()))
        self.now_s = max(self.now_s, turn.until_s)
        seen = len(self.takeovers)
        try:
            turn.until_s = self.now_s + next(turn.steps) * self.random.uniform(0.5, 1.2)
        except StopIteration:
            self.replace(turn)
        for takeover in self.takeovers[seen:]:
            self.check(takeover)

    def replace(self, driver: Driver) -> None:
        """A driver that has ended is started again, in waiting."""
        driver.alive = False
        self.drivers = [each for each in self.drivers if each.alive]
        fresh = Driver(self, next(self.names))
        fresh.until_s = self.now_s + self.random.uniform(0, 2)
        self.drivers.append(fresh)

    def disturb(self) -> None:
        """Pause or kill a driver, or let the store not answer for a while."""
        chance, driver = self.random.random(), self.random.choice(self.drivers)
        self.calm_since_s = self.now_s
        if chance < 0.4:
            driver.until_s = max(driver.until_s, self.now_s) + self.random.uniform(0.1, 12)
            driver.paused_s = driver.until_s
        elif chance < 0.8:
            self.replace(driver)
        else:
            self.store.answers = not self.store.answers

    def check(self, takeover: Takeover) -> None:
        """A leader that lives, is not paused, and reaches the store is left alone."""
        for each in self.drivers:
            well = each.alive and each.leads == takeover.of and each.rules.phase is StandbyPhase.LEADING
            rested = self.now_s - max(each.paused_s, self.calm_since_s) > FIRST_BEAT_S + NOTICE_S
            assert not (well and rested), f"{self.now_s:.2f} s: epoch {takeover.of} was well"

    def run(self, disturbances: int, calm_s: float) -> None:
        for _ in range(disturbances):
            end_s = self.now_s + self.random.uniform(0, 25)
            while self.now_s < end_s:
                self.step()
            self.disturb()
        self.store.answers = True
        self.calm_since_s = self.now_s
        end_s = max(self.now_s, *(each.until_s for each in self.drivers)) + calm_s
        while self.now_s < end_s:
            self.step()

    def leaders(self) -> list[Driver]:
        """The drivers that lead, by the journal."""
        return [each for each in self.drivers if each.alive and each.leads == self.store.epoch]
