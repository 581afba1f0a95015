"""Processes of a job: the incarnation of each that was started last, whether it serves, and how often it was lost.

    waiting ──due──► starting ──Registered──► serving
       ▲                 │                       │
       └──────Lost───────┴───────Lost────────────┘

A TaskManager holds state, so its loss takes the job back to a checkpoint; a sender holds none. After its first loss, a
process is started again at once. Each further loss without a completed checkpoint in between doubles the wait, up to a
bound. Losses within a window of time have a budget of their own.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import count as counted
from itertools import islice

from holdfast.back_off import doubled_s
from holdfast.ids import Incarnation, ProcessId, Role
from holdfast.settings import FailoverConfig


@dataclass
class Process:
    """A place that incarnations fill in turn. `incarnation` is None until its start at `start_s`."""

    role: Role
    number: int
    incarnation: Incarnation | None = None
    serving: bool = False
    start_s: float = 0.0
    started_s: float = 0.0
    is_late: bool = False
    """True once the log has reported that the process takes long to start."""
    streak: int = 0
    """Number of losses since a checkpoint last completed while the process served."""
    lost_s: deque[float] = field(default_factory=deque)
    """Times of the losses within the window."""
    ending: str | None = None
    """The reason why its end was ordered."""
    leaves: bool = False
    """True if its machine is about to be removed; another process was started to replace it."""
    retired: bool = False
    """True once the process is not needed any more; its number becomes free once its end is noticed."""

    @property
    def process(self) -> ProcessId:
        assert self.incarnation is not None, "it was not started"
        return ProcessId(self.role, self.number, self.incarnation)


class ProcessTable:
    """All processes of a job."""

    def __init__(self, config: FailoverConfig) -> None:
        self._config = config
        self._processes: dict[tuple[Role, int], Process] = {}
        self._wanted: dict[Role, frozenset[int]] = {}
        """The numbers of the processes of each role."""
        self._last_incarnation = Incarnation(0)

    def __iter__(self) -> Iterator[Process]:
        return iter(self._processes.values())

    def want(self, role: Role, count: int, now_s: float) -> None:
        """Set the number of processes of a role. Processes past the count are not started again."""
        self.keep(role, frozenset(range(count)), now_s)

    def grow(self, role: Role, count: int, now_s: float) -> None:
        """Want at least `count` processes of a role; new processes get free numbers."""
        before = self._wanted.get(role, frozenset())
        free = (number for number in counted() if (role, number) not in self._processes)
        self.keep(role, before.union(islice(free, max(0, count - len(before)))), now_s)

    def retire(self, role: Role, numbers: Collection[int]) -> list[Process]:
        """Stop wanting these processes; return those that must be ended."""
        self._wanted[role] = self._wanted[role].difference(numbers)
        found = [self._processes[role, number] for number in sorted(numbers)]
        for each in found:
            each.retired, each.serving = True, False
            if each.incarnation is None:
                self.forget(each)
        return [each for each in found if each.incarnation is not None]

    def leaving(self, role: Role) -> frozenset[int]:
        """The numbers of the processes whose machine is about to be removed."""
        return frozenset(each.number for each in self if each.role is role and each.leaves and not each.retired)

    def forget(self, process: Process) -> None:
        """Free the number of a process that was retired and has ended."""
        del self._processes[process.role, process.number]

    def keep(self, role: Role, numbers: frozenset[int], now_s: float) -> None:
        """Want the processes of a role with these numbers, and no others."""
        self._wanted[role] = numbers
        for number in sorted(numbers):
            self._processes.setdefault((role, number), Process(role, number, start_s=now_s))

    def wanted(self, role: Role) -> int:
        return len(self._wanted.get(role, ()))

    def numbers(self, role: Role) -> frozenset[int]:
        """The numbers of the processes that are wanted."""
        return self._wanted.get(role, frozenset())

    def of(self, process: ProcessId) -> Process | None:
        """The process, if that incarnation is the last that was started."""
        found = self._processes.get((process.role, process.number))
        return found if found is not None and found.incarnation == process.incarnation else None

    def _is_wanted(self, each: Process) -> bool:
        return each.number in self._wanted[each.role]

    def start_due(self, now_s: float, roles: Collection[Role]) -> list[Process]:
        """Return the processes of these roles whose wait is over: they start now, under a new incarnation."""
        waiting = [each for each in self if each.incarnation is None and each.role in roles and self._is_wanted(each)]
        due = [each for each in waiting if each.start_s <= now_s]
        for each in due:
            self._last_incarnation = Incarnation(self._last_incarnation + 1)
            each.incarnation = self._last_incarnation
            each.started_s, each.is_late, each.ending = now_s, False, None
        return due

    def excused(self, process: Process, now_s: float) -> None:
        """Note a loss that the process did not cause: it is started again at once, and the loss does not count."""
        process.incarnation, process.serving = None, False
        process.start_s = now_s

    def lost(self, process: Process, now_s: float) -> float:
        """Note a loss; returns how long the process waits for its next start."""
        process.incarnation, process.serving = None, False
        process.streak += 1
        process.lost_s.append(now_s)
        while process.lost_s[0] < now_s - self._config.losses_window_s:
            process.lost_s.popleft()
        wait_s = back_off_s(process.streak, self._config)
        process.start_s = now_s + wait_s
        return wait_s

    def proved(self) -> None:
        """Note a completed checkpoint: processes that serve now have proved to work, so their next loss counts as a
        first loss."""
        for each in self:
            if each.serving:
                each.streak = 0

    def live(self) -> dict[int, Incarnation]:
        """The TaskManagers that serve, by number."""
        return {
            each.number: each.incarnation
            for each in self
            if each.serving and each.incarnation is not None and each.role is Role.TASK_MANAGER
        }

    def serves(self, role: Role) -> bool:
        """True if a process of that role serves."""
        return any(each.serving and each.role is role for each in self)

    def missing(self) -> list[Process]:
        """TaskManagers that do not serve."""
        return [each for each in self if each.role is Role.TASK_MANAGER and not each.serving and not each.retired]

    def late(self, now_s: float, after_s: float) -> list[Process]:
        """Processes that were started more than `after_s` ago and have not registered."""
        return [each for each in self.starting() if now_s - each.started_s > after_s]

    def starting(self) -> list[Process]:
        """Processes that were started and have not registered."""
        return [each for each in self if each.incarnation is not None and not each.serving and not each.retired]

    def validate(self) -> None:
        numbers = [each.incarnation for each in self if each.incarnation is not None]
        assert len(numbers) == len(set(numbers)), f"two processes share an incarnation: {numbers}"
        for each in self:
            assert not each.serving or each.incarnation is not None, f"{each} serves without a start"
            assert each.incarnation is None or each.incarnation <= self._last_incarnation, f"{each} is from the future"


def back_off_s(failures: int, config: FailoverConfig) -> float:
    """Return the wait after that many consecutive failures: none after the first, then doubling up to the bound."""
    if failures <= 1:
        return 0.0
    return doubled_s(config.backoff_first_s, failures - 1, config.backoff_max_s)
