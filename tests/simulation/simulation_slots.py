"""Jobs on executors with a few slots each, some of which go: after a notice or without, for good or until others come.

Spark gives slots in the order of requests: a process or task waits until it has one. The rules of the job must see to
it that no TaskManager and no unit waits for long where there are enough slots.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from simulation_invariants import require
from simulation_runtime import Process, Runtime
from simulation_settings import Event, Life, Settings, draw

from holdfast.spark.claims import SHARED

if TYPE_CHECKING:
    from simulation_world import Started, World

WARNINGS_S = (0.0, 0.5, 3.0, 20.0)
"""Seconds between a notice and the end of an executor; 0: there is no notice."""
COMES_AGAIN = 0.2
"""How often another executor comes though there are enough slots for TaskManagers and units."""
WAIT_S_MAX = 120.0
"""Bound on the time for which a TaskManager or unit waits for a slot. A JobMaster may stand still for a minute."""
UNLIMITED_S = 1e6
"""Limit on calls: a batch that stands still is not run again, so that it shows."""
WITHOUT = ("hang", "storm", "rescale")
"""Events that need limits on calls, use up the budget of losses, or need other slots."""

Go = Callable[[int], None]
"""Takes the number of the executor whose slot was given."""


@dataclass(frozen=True)
class LifeInSlots(Life):
    """A start of the job in a number of slots. `slots`: of each executor."""

    slots: int = 2


def shrinking(seed: int) -> Settings:
    """The same as `draw`, with senders that stay, on executors that go."""
    rng = random.Random(f"slots of {seed}")
    drawn = draw(seed)
    return replace(drawn, lives=tuple(_in_slots(rng, life) for life in drawn.lives), rows_over_s=30.0)


def _in_slots(rng: random.Random, life: Life) -> Life:
    events = [each for each in life.events if each.action not in WITHOUT]
    events += [Event(rng.randint(20, 200), "executor") for _ in range(rng.choice([1, 2, 4]))]
    given = {each.name: getattr(life, each.name) for each in fields(life)}
    given |= {
        "senders": rng.choice([2, 3, 4]),
        "call_timeout_s": UNLIMITED_S,
        "losses_max": 100,
        "restarts_max": 100,
        "events": tuple(sorted(events, key=lambda event: event.hit)),
    }
    needed = life.task_managers + life.standby + SHARED
    return LifeInSlots(**given, slots=rng.choice([needed, needed, 2, 4]))


class ExecutorSlots:
    """The slots of executors. `needed`: slots of TaskManagers, and one for units. Senders come together on the last
    executor, so that its end takes many of them."""

    def __init__(self, runtime: Runtime, each: int, needed: int, senders: int) -> None:
        self._runtime = runtime
        self._each, self._needed = each, needed
        self._free: dict[int, int] = {}
        self._holders: dict[int, set[Process]] = {}
        self._queue: deque[tuple[Go, bool, float]] = deque()
        self._enough_s = 0.0
        """Time since when there are as many slots as are needed."""
        while self.total < needed + senders:
            self.add()

    @property
    def total(self) -> int:
        return self._each * len(self._free)

    @property
    def is_enough(self) -> bool:
        return self.total >= self._needed

    def add(self) -> None:
        """Have another executor."""
        was_enough = self.is_enough
        number = len(self._holders)
        self._free[number], self._holders[number] = self._each, set()
        if not was_enough:
            self._enough_s = self._runtime.now_s
        self._give()

    def remove(self, rng: random.Random) -> list[Process]:
        """Give no more slots of an executor; return its processes."""
        number = rng.choice(sorted(self._free))
        del self._free[number]
        return sorted(self._holders[number], key=lambda process: process.name)

    def ask(self, go: Go, is_urgent: bool) -> None:
        """Call `go` once there is a slot. `is_urgent`: it must not wait for long where there are enough slots."""
        self._queue.append((go, is_urgent, self._runtime.now_s))
        self._give()

    def withdraw(self, go: Go) -> bool:
        """Ask no more; return False if the slot was given."""
        found = [each for each in self._queue if each[0] is go]
        self._queue = deque(each for each in self._queue if each[0] is not go)
        return bool(found)

    def hold(self, executor: int, process: Process) -> None:
        """Let a process hold the slot that was given, until it dies."""
        if executor not in self._free:
            self._runtime.later(0.0, process.kill)
        self._holders[executor].add(process)
        process.on_death.append(lambda: self.release(executor, process))

    def release(self, executor: int, process: Process | None = None) -> None:
        """Take a slot back from a process; None: nothing has begun in it."""
        if process is not None:
            if process not in self._holders[executor]:
                return
            self._holders[executor].remove(process)
        if executor in self._free:
            self._free[executor] += 1
            self._give()

    def _give(self) -> None:
        while self._queue and (free := [each for each, count in self._free.items() if count]):
            go, is_urgent, asked_s = self._queue.popleft()
            executor = free[0] if is_urgent else free[-1]
            self._free[executor] -= 1
            waited_s = self._runtime.now_s - max(asked_s, self._enough_s)
            require(not is_urgent or waited_s < WAIT_S_MAX, f"a slot was awaited for {waited_s:.0f} s")
            go(executor)


def lose_executor(world: "World", started: "Started") -> None:
    """Take an executor away, as the seed draws it."""
    cluster, rng = started.cluster, world.rng
    if cluster is None or cluster.slots is None or not cluster.slots.total:
        return
    slots, warning_s = cluster.slots, rng.choice(WARNINGS_S)
    processes = slots.remove(rng)
    world.runtime.note("executor", f"goes in {warning_s:g} s: {', '.join(each.name for each in processes)}")
    world.notices += warning_s > 0
    for hosted in list(cluster.hosted.values()):
        if warning_s and hosted.process in processes:
            hosted.start.leaving(hosted.start.process, "its executor is to go")
    for process in processes:
        world.runtime.later(warning_s, process.kill)
    if not slots.is_enough or rng.random() < COMES_AGAIN:
        world.runtime.later(rng.uniform(0.5, 40.0), slots.add)
