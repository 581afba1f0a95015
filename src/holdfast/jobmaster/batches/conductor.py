"""The loop around the execution machine: one thread feeds it events and carries out its commands, another does the
work.

    any thread ──post──► queue ──► machine ──commands──► `execute`, on the loop's thread, quickly
                           ▲                               │ work: deploy, plan, run, commit, undo, finish
                           └──────── how it ended ◄── work thread, a single work at a time

The rules are in `execution/`. The loop's thread never waits for a process, so losses and hanging calls are noticed
while a batch runs.
"""

import queue
import threading
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.execution import events as ev
from holdfast.execution.machine import Machine
from holdfast.jobmaster.loops.rule_loop import RuleLoop
from holdfast.observe.event_log import EventLog, ObservedRules
from holdfast.printable import logger

log = logger(__name__)

TICK_S = 0.1
"""Bound in seconds on the delay of the machine's timers; a lower value costs more wake-ups. Losses and answers do not
wait for a tick."""

Workload = Callable[[], ev.Event]


class Interruption:
    """Request to the work in progress to end, which also wakes it from waiting."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self.is_asked = False

    def begin(self) -> None:
        self.is_asked = False

    def ask(self) -> None:
        self.is_asked = True
        self._wake.set()

    def wake(self) -> None:
        """Wake the work thread, because a condition that it waits for may have changed."""
        self._wake.set()

    def nap(self, seconds: float) -> None:
        """Sleep until woken, at most for that time."""
        self._wake.wait(seconds)
        self._wake.clear()

    def nap_until(self, condition: Callable[[], bool], look_every_s: float) -> bool:
        """Wait for the condition. Returns True once it holds, False if the work must end before."""
        while not condition():
            if self.is_asked:
                return False
            self.nap(look_every_s)
        return True


class Conductor:
    """Loop with two threads. It begins with `start` and ends after a command `End`. Facts may come before `start`."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        clock: Clock,
        event_log: EventLog,
    ) -> None:
        self.interruption = Interruption()
        rules = ObservedRules[ev.Event, ev.Command]("execution", machine, event_log)
        self._loop = RuleLoop(f"holdfast-{name}", rules, clock, TICK_S, lambda error: self.post(ev.Failed(error)))
        self._work: queue.SimpleQueue[Workload | None] = queue.SimpleQueue()
        self._work_thread = threading.Thread(target=self._work_off, name=f"holdfast-{name}-work", daemon=True)

    def start(self, execute: Callable[[ev.Command], None]) -> None:
        """Begin; `execute` is called on the loop's thread."""
        self._execute = execute
        self._loop.start(self._carry_out, self._take, lambda now_s: self._loop.handle(ev.Tick(now_s)))
        self._work_thread.start()

    def post(self, event: ev.Event) -> None:
        """Tell the machine a fact. Any thread may call this."""
        self._loop.post(event)

    def begin(self, work: Workload) -> None:
        """Give the work thread a task; the event that the task returns is passed to the machine."""
        self.interruption.begin()
        self._work.put(work)

    def _take(self, event: ev.Event) -> None:
        """Tell the machine the time, then the fact: the machine reads no clock."""
        self._loop.tick()
        self._loop.handle(event)

    def _carry_out(self, command: ev.Command) -> None:
        try:
            self._execute(command)
        finally:
            if isinstance(command, ev.End):
                self._loop.stop()
                self._work.put(None)

    def _work_off(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                self.post(work())
            except Exception as error:
                log.exception("work ended by an error that nobody expected")
                self.post(ev.WorkFailed(error))
