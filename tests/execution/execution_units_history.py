"""Random histories of senders and the units that are given to them: invariants are asserted at each step."""

import random

from holdfast.execution.unit_events import (
    AcceptOutcome,
    AnswerEnded,
    AskForSplit,
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
    UnitFailed,
    UnitReported,
    UnitsTick,
)
from holdfast.execution.units import Units
from holdfast.ids import ProcessId, Role

LEVELS = 3
STEPS_MAX = 3000
"""Steps of a level. No history of sound rules takes a tenth of it."""


def sender(number: int, incarnation: int | None = None) -> ProcessId:
    return ProcessId(Role.SENDER, number, number + 1 if incarnation is None else incarnation)


class History:
    """Senders that start, answer and die by a seed; they answer also for orders of levels that were left."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.units = Units(3)
        self.alive: dict[int, ProcessId] = {}
        self.incarnations = 0
        self.orders: list[tuple[Give, list[int], int]] = []
        self.level = 0
        self.isolated: frozenset[int] = frozenset()
        self.counted: list[int] = []
        self.given_up: list[ProcessId] = []
        self.leaving: list[ProcessId] = []
        self.asked: list[AskForSplit] = []
        self.blamed: list[int] = []
        """Units that failed with their sender."""
        self.now_s = 0.0
        self.over = self.failed = False

    def tell(self, event: Event) -> None:
        for command in self.units.handle(event):
            if isinstance(command, AskForSplit):
                self.asked.append(command)
            elif isinstance(command, UnitFailed):
                assert not isinstance(event, SendersWanted), "a unit fails since a slot is needed"
                assert command.unit in self.isolated, "a unit that is not isolated fails alone"
                self.blamed.append(command.unit)
            if isinstance(command, RunInSpark):
                assert not self.alive or self.given_up, "units go to Spark although a sender could take them"
                self.counted += command.units
            elif isinstance(command, Give):
                assert command.sender not in self.leaving, "an order for a sender that is to go"
                assert command.sender in self.alive.values(), "an order for a sender that is gone"
                assert command.sender.number in self.units.wanted, "an order for a sender that is not wanted"
                self.orders.append((command, list(command.units), self.level))
            elif isinstance(command, GiveUp):
                self.given_up.append(command.sender)
            elif isinstance(command, AcceptOutcome):
                self.counted.append(command.unit)
            self.failed |= isinstance(command, LevelFailed)
            self.over |= isinstance(command, LevelDone | LevelFailed)

    def step(self) -> None:
        # A sender that is not wanted was started before fewer were wanted.
        wanted = range(4) if self.rng.random() < 0.05 else sorted(self.units.wanted)
        missing = [number for number in wanted if number not in self.alive]
        if self.rng.random() < 0.02:
            self.tell(SendersWanted(self.rng.randint(1, 3)))
        elif self.alive and self.rng.random() < 0.03:
            self.leaving.append(self.rng.choice(list(self.alive.values())))
            self.tell(SenderLeaves(self.leaving[-1], "its executor is to go"))
        elif missing and self.rng.random() < 0.5:
            self.incarnations += 1
            started = self.alive[missing[-1]] = sender(missing[-1], self.incarnations)
            self.tell(SenderServes(started))
        elif self.given_up:
            gone = self.given_up.pop()
            if self.alive.get(gone.number) == gone:
                del self.alive[gone.number]
            self.tell(SenderEnded(gone, "given up"))
        elif self.alive and self.rng.random() < 0.15:
            self.tell(SenderEnded(self.alive.pop(self.rng.choice(list(self.alive))), "killed"))
        elif self.asked and self.rng.random() < 0.5:
            asked = self.asked.pop(0)
            self.tell(SplitTold(asked.sender, asked.attempt, asked.unit, "3"))
        elif self.rng.random() < 0.2:
            self.now_s += self.rng.random()
            self.tell(UnitsTick(self.now_s))
        elif self.orders:
            self.report(*self.rng.choice(self.orders))

    def report(self, order: Give, left: list[int], level: int) -> None:
        """The next unit of an order; now and then a unit reported already. In the end, the end of the answer."""
        unit = left.pop(0) if left and self.rng.random() < 0.7 else self.rng.choice(order.units)
        before = len(self.counted)
        self.tell(UnitReported(order.sender, order.attempt, unit))
        if len(self.counted) > before:
            assert self.alive.get(order.sender.number) == order.sender, "the report of a sender that is gone counts"
            assert level == self.level, "a report about an earlier level counts"
        if not left and self.rng.random() < 0.5:
            self.tell(AnswerEnded(order.sender, order.attempt))


def run_history(seed: int) -> None:
    """Several levels by a seed, some of them left early."""
    history = History(seed)
    for history.level in range(LEVELS):
        level = tuple(range(history.rng.randint(1, 8)))
        history.counted, history.blamed, history.over, history.failed = [], [], False, False
        history.isolated = frozenset(unit for unit in level if history.rng.random() < 0.5)
        history.tell(LevelBegun(level, history.isolated, unit_s_max=1.0))
        leaves_early = history.rng.random() < 0.3
        steps = 0
        while not history.over and not (leaves_early and history.counted):
            history.step()
            steps += 1
            assert steps < STEPS_MAX, "units are given to nobody"
        history.tell(LevelLeft(history.now_s))
        ended = [*history.counted, *history.blamed]
        assert len(ended) == len(set(ended)), "a unit counts twice"
        assert history.failed or leaves_early or sorted(ended) == list(level)
