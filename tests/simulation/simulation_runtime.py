"""Threads without threads: fibers of simulated processes, singly, in an order and a time that a seed fixes.

    hub ──picks a fiber by the seed──► fiber ──blocks, or is preempted──► hub ──nobody can go on──► the clock jumps

Invariants: a single fiber runs at a time, and only its calls to this file let another run; time passes only while
nobody can run. A process that was killed never runs again, in the middle of its work, without any clean-up: its
requests to others may still happen. This file does not know its users (`simulation_threads` makes threads of it).
"""

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

STEPS_MAX = 500_000
"""Bound on steps between two events of the test: a run with more steps goes round in circles without time passing."""


class Stalled(AssertionError):
    """Nobody can go on, or an awaited event does not come."""


class Fiber:
    """A thread of a simulated process."""

    __slots__ = ("done", "greenlet", "joining", "name", "process", "token", "waiting", "woken")

    def __init__(self, process: "Process", name: str) -> None:
        self.process = process
        self.name = name
        self.greenlet: Any = None
        self.waiting = False
        self.woken = False
        self.token = 0
        self.done = False
        self.joining: list[tuple[Fiber, int]] = []


class Process:
    """A process, which is killed, or stands still, as a whole."""

    def __init__(self, runtime: "Runtime", name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.deaf = False
        """Takes no more calls."""
        self.fibers: dict[Fiber, None] = {}
        self.held: dict[int, Callable[[], object]] = {}
        """How what it has locked, or open, on its machine comes to its end."""
        self.on_death: list[Callable[[], None]] = []
        self._runtime = runtime
        self._standing: list[Fiber] = []

    def kill(self) -> None:
        """SIGKILL; does not return where the caller is in this process."""
        if self.alive:
            self.alive = False
            self._runtime.note("killed", self.name)
            self.let_go()
            for call in self.on_death:
                self._runtime.later(0.0, call)
        if self._runtime.current is not None and self._runtime.current.process is self:
            self._runtime.leave()

    def let_go(self) -> None:
        """Let go of everything, as at the process's end."""
        held, self.held = self.held, {}
        for end in held.values():
            end()

    def pause(self) -> None:
        """SIGSTOP; events due meanwhile come all at once when it goes on."""
        self.paused = True
        self._runtime.note("paused", self.name)
        fiber = self._runtime.current
        if fiber is not None and fiber.process is self:
            self._standing.append(fiber)
            self._runtime.leave()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self._runtime.note("resumed", self.name)
            self._runtime.ready.extend(self._standing)
            self._standing = []

    def stands(self, fiber: Fiber) -> bool:
        """True if that fiber must not run now; a fiber of a paused process is kept for later."""
        if self.paused and self.alive:
            self._standing.append(fiber)
        return self.paused or not self.alive


class Runtime:
    """A simulated machine room. `preemption`: how often a fiber that takes a lock lets another go first."""

    def __init__(self, seed: int, preemption: float = 0.0) -> None:
        self.now_s = 0.0
        self.current: Fiber | None = None
        self.ready: list[Fiber] = []
        self.trace: list[str] = []
        self.closing = False
        self.errors: list[BaseException] = []
        self._rng = random.Random(seed)
        self._preemption = preemption
        self._until_preempted = self._next_preemption()
        self._timers: list[tuple[float, int, Callable[[], None] | Fiber, int]] = []
        self._numbers = itertools.count()
        self._processes: list[Process] = []
        self._hub: Any = getcurrent()
        self.thread = threading.get_ident()
        """The real thread in which all of it runs."""

    # --- processes and fibers -----------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        made = Process(self, name)
        self._processes.append(made)
        return made

    def spawn(self, call: Callable[[], Any], name: str, process: Process | None = None) -> Fiber:
        """A new fiber, of the caller's process where none is given. An error it ends with fails the simulation."""
        if process is None:
            assert self.current is not None, f"{name}: started outside of every process"
            process = self.current.process
        fiber = Fiber(process, name)
        fiber.greenlet = greenlet(lambda: self._body(fiber, call), self._hub)
        process.fibers[fiber] = None
        self.ready.append(fiber)
        return fiber

    def _body(self, fiber: Fiber, call: Callable[[], Any]) -> None:
        try:
            call()
        except GreenletExit:
            pass
        except BaseException as error:
            if not self.closing:
                self.note("died of", f"{fiber.name}: {type(error).__name__}: {error}")
                self.errors.append(error)
        fiber.done = True
        fiber.process.fibers.pop(fiber, None)
        for waiter in fiber.joining:
            self.wake(waiter)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def waiter(self) -> tuple[Fiber, int]:
        """Make the token with which `wake` ends the caller's next `block`, and no later block."""
        assert self.current is not None, "waits outside of every process"
        return self.current, self.current.token + 1

    def block(self, timeout_s: float | None = None) -> bool:
        """Block until somebody calls `wake` with the `waiter` made before, or the time is over. True if woken."""
        fiber = self.current
        assert fiber is not None, "waits outside of every process"
        fiber.token += 1
        fiber.waiting = True
        fiber.woken = False
        if timeout_s is not None:
            due_s = self.now_s + max(0.0, timeout_s)
            heapq.heappush(self._timers, (due_s, next(self._numbers), fiber, fiber.token))
        self.leave()
        return fiber.woken

    def wake(self, waiter: tuple[Fiber, int]) -> bool:
        """False where it waits for that no more."""
        fiber, token = waiter
        if not fiber.waiting or fiber.token != token:
            return False
        fiber.waiting = False
        fiber.woken = True
        self.ready.append(fiber)
        return True

    def sleep(self, seconds: float) -> None:
        self.block(seconds)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Have the hub make a call that does not block, whatever becomes of the caller."""
        heapq.heappush(self._timers, (self.now_s + seconds, next(self._numbers), call, 0))

    def give_way(self, always: bool = False) -> None:
        """Now and then, let others run: called where real threads could be switched."""
        self._until_preempted -= 1
        if (always or self._until_preempted <= 0) and self.current is not None:
            self._until_preempted = self._next_preemption()
            self.ready.append(self.current)
            self.leave()

    def _next_preemption(self) -> float:
        return 1 + self._rng.expovariate(self._preemption) if self._preemption else float("inf")

    def leave(self) -> None:
        """Back to the hub; returns when somebody made the caller ready again."""
        if self.closing:
            raise GreenletExit
        self._hub.switch()
        if self.closing:
            raise GreenletExit

    # --- the hub ------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], object], limit_s: float, what: str) -> None:
        """Let everything go on until a condition holds. Raises `Stalled` after `limit_s` simulated seconds."""
        deadline_s = self.now_s + limit_s
        for _ in range(STEPS_MAX):
            if self.errors:
                raise self.errors[0]
            if until():
                return
            if self.ready:
                self._step()
            elif self._timers and self._timers[0][0] <= deadline_s:
                self._fire()
            else:
                self.now_s = max(self.now_s, deadline_s)
                raise Stalled(f"waited in vain for {what}; running: {self._census()}")
        raise Stalled(f"{STEPS_MAX} steps without {what}")

    def _step(self) -> None:
        ready = self.ready
        index = self._rng.randrange(len(ready)) if len(ready) > 1 else 0
        ready[index], ready[-1] = ready[-1], ready[index]
        fiber = ready.pop()
        if (not fiber.process.alive or fiber.process.paused) and fiber.process.stands(fiber):
            return
        self.current = fiber
        fiber.greenlet.switch()
        self.current = None

    def _fire(self) -> None:
        due_s, _, what, token = heapq.heappop(self._timers)
        self.now_s = max(self.now_s, due_s)
        if not isinstance(what, Fiber):
            what()
        elif what.waiting and what.token == token:
            what.waiting = False
            self.ready.append(what)

    def _census(self) -> list[str]:
        return [
            f"{process.name}{' (paused)' if process.paused else ''}: {', '.join(each.name for each in process.fibers)}"
            for process in self._processes
            if process.alive and process.fibers
        ]

    def close(self) -> None:
        """Unwind every fiber that is left; nothing they still do has an effect outside of memory."""
        self.closing = True
        for process in self._processes:
            process.let_go()
            for fiber in list(process.fibers):
                self.current = fiber
                fiber.greenlet.throw(GreenletExit)
        self.current = None
        self._timers.clear()

    def note(self, what: str, about: str = "", of: str | None = None) -> None:
        """Write a line of the trace; `of` names its process, if that is not the running process."""
        process = of or ("-" if self.current is None else self.current.process.name)
        self.trace.append(f"{self.now_s:10.4f} {process:<8} {what} {about}")
