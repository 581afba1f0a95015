"""Calls to processes that are under way, and the time that each call may take.

A process that still sends heartbeats may hang, in a restore or in a user's function. So each call has a time limit that
depends on its step. Before the limit, the log names a call that takes long, and again each time that its duration has
doubled. A call for the tasks of a level concerns no single process, so the log names the senders at work.
"""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.ids import ProcessId
from holdfast.settings import FailoverConfig

SLOW_S = 30.0
"""A call is slow after this time, or after half of its limit, whichever comes first."""
AGAIN_S = 30.0
"""Seconds after which a call that is still over its limit is reported again."""
NAMED_MAX = 5
"""Number of senders that a line of the log names; it only counts the others. A higher value makes longer lines."""


class Step(StrEnum):
    """The steps whose calls are watched; most have a limit.

    `LEVEL` is the tasks of a level of a batch, `NEWS` the end of a checkpoint, `COPY` a portion of a savepoint.
    """

    DEPLOY = "deploying"
    LEVEL = "running the tasks of"
    PROCESS = "processing"
    COMMIT = "committing"
    UNDO = "undoing"
    CUT = "cutting"
    NEWS = "taking the news of"
    COPY = "copying objects of"


LIMITED_BY: dict[Step, str | None] = {
    Step.DEPLOY: "deploy_timeout",
    Step.LEVEL: "process_timeout",
    Step.PROCESS: "process_timeout",
    Step.COMMIT: "commit_timeout",
    Step.UNDO: "commit_timeout",
    Step.CUT: "cut_timeout",
    Step.NEWS: "cut_timeout",
    Step.COPY: None,
}
"""The field of `FailoverConfig` that limits each step. None: a slow store of a savepoint ends no process."""


@dataclass
class Call:
    """A watched call. `process` is None if the call concerns no single process, as the tasks of a level do."""

    number: int
    step: Step
    about: str
    process: ProcessId | None
    began_s: float
    due_s: float = 0.0
    """Time of the next look at the call."""

    def __str__(self) -> str:
        return f"{self.process.name if self.process else 'the cluster'} has been {self.step} {self.about}"


@dataclass(frozen=True)
class Overdue:
    """A call that takes long; `is_over` once its limit is passed."""

    call: Call
    text: str
    is_over: bool


class Calls:
    """The calls under way."""

    def __init__(self, config: FailoverConfig) -> None:
        self._config = config
        self._calls: dict[int, Call] = {}
        self.at_work: tuple[ProcessId, ...] = ()
        """Senders that work on the current level, if it takes long."""

    def __len__(self) -> int:
        return len(self._calls)

    def began(self, call: Call) -> None:
        limit_s = self._limit_s(call.step)
        if call.step is Step.LEVEL:
            self.at_work = ()
        call.due_s = call.began_s + (SLOW_S if limit_s is None else min(SLOW_S, limit_s / 2))
        self._calls[call.number] = call

    def ended(self, number: int) -> None:
        self._calls.pop(number, None)

    def lost(self, process: ProcessId) -> None:
        """Drop the calls to a process that has ended."""
        for each in [each for each in self._calls.values() if each.process == process]:
            del self._calls[each.number]

    def unanswered(self, now_s: float) -> list[str]:
        """Describe the calls under way, and for how long."""
        return [self._shown(call, now_s) for call in self._calls.values()]

    def overdue(self, now_s: float) -> list[Overdue]:
        """Return the calls to log as slow now, and the calls that are over their limit."""
        return [self._look_at(call, now_s) for call in list(self._calls.values()) if now_s >= call.due_s]

    def _look_at(self, call: Call, now_s: float) -> Overdue:
        taken_s = now_s - call.began_s
        limit_s = self._limit_s(call.step)
        field = LIMITED_BY[call.step]
        text = self._shown(call, now_s)
        if field is not None and limit_s is not None and taken_s >= limit_s:
            call.due_s = now_s + AGAIN_S
            return Overdue(call, f"{text}, longer than {field}={getattr(self._config, field)!r}", True)
        call.due_s = call.began_s + 2 * taken_s
        if field is None or limit_s is None:
            return Overdue(call, f"{text}; {field or 'this step'} sets no limit", False)
        call.due_s = min(call.due_s, call.began_s + limit_s)
        return Overdue(call, f"{text}; after {field}={getattr(self._config, field)!r} it is ended", False)

    def _shown(self, call: Call, now_s: float) -> str:
        return f"{call} for {now_s - call.began_s:.0f} s{self._named() if call.step is Step.LEVEL else ''}"

    def _named(self) -> str:
        """Name the senders at work, in brackets."""
        names = [each.name for each in self.at_work[:NAMED_MAX]]
        others = len(self.at_work) - len(names)
        more = f" and {others} more" if others else ""
        return f" (at work: {', '.join(names)}{more})" if names else ""

    def _limit_s(self, step: Step) -> float | None:
        field = LIMITED_BY[step]
        return None if field is None else self._config.limit_s(field)
