"""Processes of a job: which incarnation of each was started, which serve, and how often each was lost.

    waiting ──due──► starting ──Registered──► serving
       ▲                 │                       │
       └──────Lost───────┴───────Lost────────────┘

The first loss of a process is answered by a start at once. Each further loss without a completed checkpoint in
between doubles the wait, up to a bound. Losses within a window of time have a budget of their own.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.ids import Incarnation
from holdfast.settings import FailoverConfig


class Kind(StrEnum):
    """The kinds of processes. A TaskManager holds state, so its loss takes the job back; a sender holds none."""

    TASK_MANAGER = "TaskManager"
    SENDER = "sender"


@dataclass(frozen=True, order=True, slots=True)
class ProcessId:
    """One place in the job that an incarnation after the other fills."""

    kind: Kind
    index: int

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"


@dataclass
class Process:
    """The state of one process. `incarnation` is None while it waits for its start at `start_s`."""

    process: ProcessId
    incarnation: Incarnation | None = None
    serving: bool = False
    start_s: float = 0.0
    started_s: float = 0.0
    is_late: bool = False
    """Whether the log already says that it takes long to start."""
    streak: int = 0
    """Losses since a checkpoint completed while it served."""
    lost_s: deque[float] = field(default_factory=deque)
    """Times of the losses within the window."""
    ending: str | None = None
    """Why its end was ordered."""


class Processes:
    """All processes of a job."""

    def __init__(self, config: FailoverConfig) -> None:
        self._config = config
        self._processes: dict[ProcessId, Process] = {}
        self._last_incarnation = Incarnation(0)

    def __iter__(self) -> Iterator[Process]:
        return iter(self._processes.values())

    def add(self, processes: Iterable[ProcessId], now_s: float) -> None:
        for process in processes:
            self._processes[process] = Process(process, start_s=now_s)

    def of(self, process: ProcessId, incarnation: Incarnation) -> Process | None:
        """The process, if that incarnation is the one that was started last."""
        found = self._processes.get(process)
        return found if found is not None and found.incarnation == incarnation else None

    def start_due(self, now_s: float) -> list[Process]:
        """Those whose wait is over: they are starting from now on, under a new incarnation."""
        due = [each for each in self if each.incarnation is None and each.start_s <= now_s]
        for each in due:
            self._last_incarnation = Incarnation(self._last_incarnation + 1)
            each.incarnation = self._last_incarnation
            each.started_s, each.is_late, each.ending = now_s, False, None
        return due

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
        """A checkpoint completed: whoever serves now works, and its next loss counts as a first one."""
        for each in self:
            if each.serving:
                each.streak = 0

    def live(self) -> dict[int, Incarnation]:
        """The TaskManagers that serve, by index."""
        return {
            each.process.index: each.incarnation
            for each in self
            if each.serving and each.incarnation is not None and each.process.kind is Kind.TASK_MANAGER
        }

    def missing(self) -> list[Process]:
        """TaskManagers that do not serve."""
        return [each for each in self if each.process.kind is Kind.TASK_MANAGER and not each.serving]

    def late(self, now_s: float, after_s: float) -> list[Process]:
        """Processes that were started so long ago and have not registered."""
        return [
            each
            for each in self
            if each.incarnation is not None and not each.serving and now_s - each.started_s > after_s
        ]

    def validate(self) -> None:
        numbers = [each.incarnation for each in self if each.incarnation is not None]
        assert len(numbers) == len(set(numbers)), f"two processes share an incarnation: {numbers}"
        for each in self:
            assert not each.serving or each.incarnation is not None, f"{each.process} serves without a start"
            assert each.incarnation is None or each.incarnation <= self._last_incarnation, f"{each} is from the future"


def back_off_s(failures: int, config: FailoverConfig) -> float:
    """The wait after so many failures in a row: none after the first, then doubling up to the bound."""
    if failures <= 1:
        return 0.0
    return float(min(config.backoff_max_s, config.backoff_first_s * 2.0 ** min(failures - 2, 60)))
