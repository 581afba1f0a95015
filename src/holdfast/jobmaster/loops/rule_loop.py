"""The loop around pure rules: a thread passes them each fact, in order, and carries out the commands that they return.

    any thread ──post──► queue ──► rules ──commands──► `execute`, on the loop's thread, quickly
    clock ──────tick────►  ▲                               │
                           └────── outcomes, as facts ◄────┘

Facts may come before `start`: they wait in the queue. The loop survives errors of its steps; `failed` takes each error.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

from holdfast.clock import Clock
from holdfast.observe.event_log import CommandT, EventT, ObservedRules
from holdfast.printable import logger

log = logger(__name__)

RESTING_AFTER_S = 1.0
"""Seconds without a fact after which a loop is at rest: by then its timers are all far from due, or bound long
waits."""
RESTING_TICK_S = 0.3
"""Bound in seconds on the delay of a resting loop's timers. A lower value costs a quiet job more wake-ups; facts wake a
loop at once in any case."""
DUE_S_MIN = 0.01
"""Least wait in seconds for a timer that the rules name, since the timer's clock may be paused."""
CLOSE_S_MAX = 10.0
"""Bound in seconds on the wait for the step under way when the loop ends."""


def tick_s(usual_s: float, since_s: float) -> float:
    """Return how long a loop waits for a fact before it looks at its timers, `since_s` after the last fact."""
    return usual_s if since_s < RESTING_AFTER_S else max(usual_s, RESTING_TICK_S)


class RuleLoop(Generic[EventT, CommandT]):
    """A thread that runs rules. `usual_tick_s` bounds the delay of their timers while facts come."""

    def __init__(
        self,
        name: str,
        rules: ObservedRules[EventT, CommandT],
        clock: Clock,
        usual_tick_s: float,
        failed: Callable[[Exception], None],
    ) -> None:
        self._rules = rules
        self._failed = failed
        self._clock = clock
        self._usual_tick_s = usual_tick_s
        self._facts: queue.SimpleQueue[EventT | Callable[[], None] | None] = queue.SimpleQueue()
        self._is_over = False
        self._ticked_s = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # --- from any thread ----------------------------------------------------------------------------------------------

    def post(self, event: EventT) -> None:
        """Tell the rules a fact."""
        self._facts.put(event)

    def call(self, step: Callable[[], None]) -> None:
        """Have a step done on the loop's thread, in the order of facts."""
        self._facts.put(step)

    @property
    def is_idle(self) -> bool:
        """True if no fact waits."""
        return self._facts.empty()

    def start(
        self,
        execute: Callable[[CommandT], None],
        take: Callable[[EventT], None],
        tick: Callable[[float], None],
        due_in_s: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        """Begin. The loop's thread calls `take` with each fact, and `tick` with the monotonic time now and then; both
        call `handle`. `due_in_s` returns the time until the next timer that goes by the wall clock.
        """
        self._execute, self._take, self._on_tick, self._due_in_s = execute, take, tick, due_in_s
        self._thread.start()

    def stop(self) -> None:
        """Take no further fact; the step under way ends by itself."""
        self._is_over = True
        self._facts.put(None)

    def close(self) -> bool:
        """End the loop. Returns True if it had begun and has ended, so that no step is under way any more."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S_MAX)
        return self.has_begun and not self._thread.is_alive()

    @property
    def has_begun(self) -> bool:
        return self._thread.ident is not None

    def guarded(self, step: Callable[[], None]) -> None:
        """Do a step; its thread survives an error of the step."""
        try:
            step()
        except Exception as error:
            log.exception("%s: a step failed", self._thread.name)
            self._failed(error)

    # --- on the loop's thread -----------------------------------------------------------------------------------------

    def handle(self, event: EventT) -> None:
        """Tell the rules a fact, and carry out the commands that follow."""
        commands: Sequence[CommandT] = self._rules.handle(event)
        for command in commands:
            self.guarded(partial(self._execute, command))

    def tick(self) -> None:
        """Have the rules look at the time."""
        self._ticked_s = self._clock.monotonic()
        self.guarded(partial(self._on_tick, self._ticked_s))

    def _run(self) -> None:
        fact_s = self._clock.monotonic()
        while not self._is_over:
            pause_s = self._pause_s(fact_s)
            try:
                fact = self._facts.get(timeout=pause_s)
            except queue.Empty:
                self.tick()
                continue
            if fact is None:
                return
            self.guarded(fact if callable(fact) else partial(self._take, fact))
            fact_s = self._clock.monotonic()
            if fact_s - self._ticked_s >= pause_s:
                self.tick()

    def _pause_s(self, fact_s: float) -> float:
        """Time until the rules look at the clock again, unless a fact comes before."""
        usual_s = tick_s(self._usual_tick_s, self._clock.monotonic() - fact_s)
        return min(usual_s, max(DUE_S_MIN, self._due_in_s()))
