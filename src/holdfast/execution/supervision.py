"""Supervision of processes: starts those that are missing, ends those that hang, counts those that were lost.

It notices and reports losses; the machine decides their meaning for the job.

A lost executor takes all its processes with it, and Spark has fewer slots then. So lost senders wait until each place
has a TaskManager again: otherwise they would take the slot of a TaskManager, or processor time during its start. If no
sender serves, they do not wait, because no batch could run.
"""

from collections.abc import Collection
from dataclasses import dataclass

from holdfast import errors
from holdfast.execution import events as ev
from holdfast.execution.calls import Call, Calls
from holdfast.execution.failover import Cause, Why
from holdfast.execution.moves import Leaving
from holdfast.execution.processes import Process, ProcessTable
from holdfast.ids import Incarnation, ProcessId, Role, RunNumber
from holdfast.settings import FailoverConfig

LEFT = "its work has left the machine that is to go"
SENDER_PAUSE_S = 0.3
"""Least time in seconds that a lost sender waits while another sender serves. A higher value leaves more time to hear
that the TaskManagers of its executor were lost too."""


@dataclass(frozen=True)
class Loss:
    """A lost process. `over_budget` has the number of losses if the settings allow fewer."""

    process: ProcessId
    cause: Cause
    over_budget: str | None
    commands: list[ev.Command]


class Supervision:
    """The processes of a job, and the calls to them that are under way."""

    def __init__(self, config: FailoverConfig) -> None:
        self._config = config
        self._processes = ProcessTable(config)
        self._calls = Calls(config)
        self._standby = 0
        self.places = 0
        """The number of TaskManagers that the job needs."""

    def want(self, role: Role, count: int, now_s: float) -> None:
        self._processes.want(role, count, now_s)

    def keep_senders(self, numbers: frozenset[int], now_s: float) -> list[ev.Command]:
        """Want these senders, and end others that are being started: they may wait for a slot before a process that
        needs it more."""
        self._processes.keep(Role.SENDER, numbers, now_s)
        starting = [each for each in self._processes.starting() if each.role is Role.SENDER]
        return [_end(each, "fewer senders are to stay") for each in starting if each.number not in numbers]

    def want_standby(self, count: int, now_s: float) -> None:
        """Want `count` TaskManagers more than there are places; the places are the TaskManagers wanted so far."""
        self._standby, self.places = count, self._processes.wanted(Role.TASK_MANAGER)
        self._processes.want(Role.TASK_MANAGER, self.places + count, now_s)

    def grow(self, places: int, now_s: float) -> None:
        """Want enough TaskManagers for this number of places; existing ones stay."""
        self._processes.grow(Role.TASK_MANAGER, places + self._standby, now_s)

    def settle(self, holders: Collection[int]) -> list[ev.Command]:
        """Want one place for each of these holders, and end superfluous TaskManagers."""
        self.places = len(holders)
        live, numbers = self.live(), self._processes.numbers(Role.TASK_MANAGER)
        leaving = self.leaving
        others = sorted(numbers.difference(holders), key=lambda number: (number in leaving, number not in live, number))
        over = self._processes.retire(Role.TASK_MANAGER, others[self._standby :])
        return [_end(each, LEFT if each.leaves else "the job needs fewer TaskManagers") for each in over]

    def leaves(self, event: Leaving, now_s: float) -> bool:
        """Start a replacement for a TaskManager whose machine is about to be removed; return False if that was done
        already, or the TaskManager is gone."""
        found = self._processes.of(event.process)
        if found is None or found.leaves or found.retired:
            return False
        found.leaves = True
        self._processes.grow(Role.TASK_MANAGER, self._processes.wanted(Role.TASK_MANAGER) + 1, now_s)
        return True

    @property
    def leaving(self) -> frozenset[int]:
        """The TaskManagers whose machine is about to be removed."""
        return self._processes.leaving(Role.TASK_MANAGER)

    def staying(self) -> dict[int, Incarnation]:
        """The TaskManagers that serve, and whose machine stays."""
        leaving = self.leaving
        return {number: incarnation for number, incarnation in self.live().items() if number not in leaving}

    def stay(self) -> None:
        """Stop replacing TaskManagers before their machine is removed: their loss will be a loss like any other."""
        for each in self._processes:
            each.leaves = False

    def live(self) -> dict[int, Incarnation]:
        """The TaskManagers that serve, by index."""
        return self._processes.live()

    @property
    def is_complete(self) -> bool:
        """True if a TaskManager serves for each place."""
        return len(self.live()) >= self.places

    def proved(self) -> None:
        self._processes.proved()

    def validate(self) -> None:
        self._processes.validate()

    # --- starts and losses --------------------------------------------------------------------------------------------

    def start_due(self, now_s: float) -> list[ev.Command]:
        """Start the processes whose wait is over. Senders wait for TaskManagers as long as another sender serves."""
        senders_wait = not self.is_complete and self._processes.serves(Role.SENDER)
        roles = (Role.TASK_MANAGER,) if senders_wait else tuple(Role)
        return [ev.StartProcess(each.process) for each in self._processes.start_due(now_s, roles)]

    def registered(self, event: ev.Registered) -> None:
        found = self._processes.of(event.process)
        if found is not None and not found.retired:
            found.serving = True

    def lost(self, event: ev.Lost, now_s: float) -> Loss | None:
        """Note a loss; return None if the incarnation is not the last that was started, or is no longer needed."""
        found = self._processes.of(event.process)
        if found is None:
            return None
        if found.retired:
            self._calls.lost(event.process)
            self._processes.forget(found)
            return None
        reason = event.reason if found.ending is None else f"{found.ending} ({event.reason})"
        self._calls.lost(event.process)
        cause = Cause(Why.LOST, reason, event.process)
        if event.is_excused:
            self._processes.excused(found, now_s)
            return Loss(event.process, cause, None, [])
        wait_s = self._processes.lost(found, now_s)
        if found.leaves:
            self._processes.retire(found.role, [found.number])  # another was started for it
        if found.role is Role.SENDER and self._processes.serves(Role.SENDER):
            found.start_s = max(found.start_s, now_s + SENDER_PAUSE_S)
        count, window = len(found.lost_s), self._config.losses_window
        if count > self._config.losses_max:
            over = f"{event.process.name} was lost {count} times within {window!r}"
            return Loss(event.process, cause, over, [ev.Log(f"{over}; it is started again in {wait_s:g} s")])
        log = f"{event.process.name} was lost {found.streak} times in a row; it is started again in {wait_s:g} s"
        return Loss(event.process, cause, None, [ev.Log(log)] if wait_s else [])

    def unreachable(self, event: ev.Unreachable) -> list[ev.Command]:
        """End a process that did not answer; its loss follows."""
        found = self._processes.of(event.process)
        if found is None:
            return []
        return [_end(found, event.reason) if event.is_cause else ev.EndProcess(event.process, event.reason)]

    def not_started(self, now_s: float) -> errors.JobRefused | None:
        """Return the error for TaskManagers that did not register in time, if any."""
        limit_s = self._config.start_timeout_s
        late = [each for each in self._processes.late(now_s, limit_s) if each.role is Role.TASK_MANAGER]
        if not late or self.is_complete:
            return None
        missing = self._processes.missing()
        return errors.JobRefused(
            f"{len(missing)} of {len(missing) + len(self.live())} TaskManagers did not start within "
            f"start_timeout={self._config.start_timeout!r}: {', '.join(str(each.number) for each in missing)}. "
            "Look at the executors' logs; can the executors reach the driver (spark.driver.host)?"
        )

    # --- calls that take long -----------------------------------------------------------------------------------------

    def call_began(self, event: ev.CallBegan) -> None:
        self._calls.began(Call(event.number, event.step, event.about, event.process, event.began_s))

    def call_ended(self, event: ev.CallEnded) -> None:
        self._calls.ended(event.number)

    def at_work(self, event: ev.AtWork) -> None:
        self._calls.at_work = event.senders

    def left_behind(self, now_s: float) -> str:
        """Name the calls that have not returned, for a message about the end; empty if there are none."""
        calls = self._calls.unanswered(now_s)
        return f"; left behind: {', '.join(calls)}" if calls else ""

    def look(self, now_s: float, run: RunNumber) -> list[ev.Command]:
        """Log the calls and starts that take long; end the processes of those that are over their limit."""
        return [*self._look_at_calls(now_s, run), *self._look_at_starts(now_s)]

    def _look_at_calls(self, now_s: float, run: RunNumber) -> list[ev.Command]:
        commands: list[ev.Command] = []
        for overdue in self._calls.overdue(now_s):
            commands.append(ev.Log(overdue.text))
            call = overdue.call
            if not overdue.is_over:
                continue
            if call.process is None:
                commands.append(ev.Cancel(run))
            elif (found := self._processes.of(call.process)) is not None:
                commands.append(_end(found, overdue.text))
        return commands

    def _look_at_starts(self, now_s: float) -> list[ev.Command]:
        """Start a sender or standby that does not register in time again; for other processes, `not_started` has the
        error."""
        commands: list[ev.Command] = []
        limit_s = self._config.start_timeout_s
        for each in self._processes.late(now_s, limit_s / 2):
            if not each.is_late:
                each.is_late = True
                text = f"{each.process.name} was started {now_s - each.started_s:.0f} s ago and has not registered"
                commands.append(ev.Log(f"{text}; start_timeout={self._config.start_timeout!r}"))
            elif now_s - each.started_s > limit_s and (each.role is Role.SENDER or self.is_complete):
                each.started_s = now_s
                reason = f"it did not register within start_timeout={self._config.start_timeout!r}"
                commands.append(_end(each, reason))
        return commands


def _end(process: Process, reason: str) -> ev.EndProcess:
    process.ending = process.ending or reason
    return ev.EndProcess(process.process, reason)
