"""The course of a job: the phase, the work in flight, waits, and the end. The machine decides what follows.

Invariants
----------
- At most one piece of work is in flight, and a single event ends it. An event that ends other work, for instance of an
  earlier run, is ignored.
- Run numbers only grow.
- Waits are limited, and so is the time that work in flight gets when the query ends.
"""

from collections.abc import Callable
from typing import Any

from holdfast.execution import events as ev
from holdfast.execution import moves
from holdfast.execution.failover import Cause
from holdfast.execution.phases import WORK_OF, Phase, Work
from holdfast.ids import BatchNumber, RunNumber

LOSS_NOTICE_S = 5.0
"""Seconds to wait for the end of a process that did not answer. After that, the job continues as if it lived."""
GRACE_S = 1.0
"""Seconds in which tasks may end by themselves once a user stops the query: Spark warns of each task it cancels."""
END_S_MAX = 10.0
"""Seconds to wait for work in flight when the query ends. A higher value lets longer calls of user functions return,
but delays the end for longer if a call never returns. The work's result is dropped in either case."""

ENDS: dict[type[Any], tuple[Work, ...]] = {
    ev.Deployed: (Work.DEPLOY,),
    ev.DeployFailed: (Work.DEPLOY,),
    moves.HandedOver: (Work.HAND_OVER,),
    moves.NotHandedOver: (Work.HAND_OVER,),
    ev.BatchPlanned: (Work.PLAN,),
    ev.EndReached: (Work.PLAN,),
    ev.Interrupted: (Work.PLAN, Work.FINISH, Work.HAND_OVER),
    ev.BatchProcessed: (Work.RUN,),
    ev.BatchFailed: (Work.RUN, Work.COMMIT),
    ev.BatchCommitted: (Work.COMMIT,),
    ev.CommitFailed: (Work.COMMIT,),
    ev.Undone: (Work.UNDO,),
    ev.UndoFailed: (Work.UNDO,),
    ev.Finished: (Work.FINISH,),
    ev.WorkFailed: tuple(Work),
}
"""The kind of work that each event ends. Other events end no work."""


class Course:
    """The work in flight and the end of a query. Its commands are added to `commands`."""

    def __init__(self, commands: list[ev.Command]) -> None:
        self._commands = commands
        self.phase = Phase.IDLE
        self.work: Work | None = None
        self.now_s, self.run = 0.0, RunNumber(0)
        self.batch: BatchNumber | None = None
        self.cause: Cause | None = None
        """The cause of the wait, or of the restart that follows."""
        self.error: Exception | None = None
        """The error with which the query ends."""
        self.noticed: Callable[[], None] = lambda: None
        """The step to take when the expected loss is noticed."""
        self._unnoticed: Callable[[], None] = lambda: None
        self._until_s = self._cancel_s = 0.0
        self._is_complete = False

    def validate(self) -> None:
        """Check the invariants; for tests. Raises AssertionError."""
        wanted = WORK_OF.get(self.phase, self.work)
        assert self.work is wanted, f"{self.work} is in flight, expected {wanted}"
        assert self.phase is not Phase.DRAINING or self.work, "draining, but nothing is in flight"
        assert self.phase is not Phase.ENDING or self.work, "ending, but nothing is in flight"
        assert self.phase is not Phase.DRAINING or self.cause, "draining without a cause"
        has_batch = self.phase in (Phase.RUNNING, Phase.COMMITTING, Phase.UNDOING)
        assert not has_batch or self.batch is not None, "no batch"

    # --- work in flight -----------------------------------------------------------------------------------------------

    def begin(self, phase: Phase, command: ev.Command) -> None:
        self.phase = phase
        self.work = WORK_OF[phase]
        self._commands.append(command)

    def take(self, event: ev.Event) -> bool:
        """Note that an event ends the work in flight. Returns False if it ends other work and must be ignored."""
        ends = ENDS.get(type(event))
        if ends is None:
            return True
        run = getattr(event, "run", None)
        batch = self.batch if run is None else getattr(event, "batch", self.batch)
        if self.work not in ends or run not in (None, self.run) or batch != self.batch:
            return False
        self.work = None
        return True

    def next_run(self) -> RunNumber:
        self.run = RunNumber(self.run + 1)
        return self.run

    def log(self, message: str) -> None:
        self._commands.append(ev.Log(message))

    # --- waits --------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float, cause: Cause, noticed: Callable[[], None], unnoticed: Callable[[], None]) -> None:
        """Wait up to `seconds` for the loss of a process that did not answer, or for an unreachable store to return."""
        self.phase = Phase.WAITING
        self.cause = cause
        self.noticed, self._unnoticed = noticed, unnoticed
        self._until_s = self.now_s + seconds

    def await_loss(self, cause: Cause, noticed: Callable[[], None], unnoticed: Callable[[], None]) -> None:
        """Wait for the loss of a process that did not answer."""
        self.wait(LOSS_NOTICE_S, cause, noticed, unnoticed)

    def tick(self, now_s: float, left_behind: Callable[[float], str]) -> None:
        """End waits and work whose time is over. `left_behind` gives the text that names the calls which never
        returned."""
        self.now_s = max(self.now_s, now_s)
        is_over = self.now_s >= self._until_s
        if is_over and self.phase in (Phase.ENDING, Phase.LEAVING):
            work = self.work and self.work.value
            self.log(f"the query ends before its work has: {work}{left_behind(self.now_s)}")
            self.end()
            return
        self._cancel_due()
        if is_over and self.phase is Phase.WAITING:
            self._unnoticed()

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        return self.phase in (Phase.LEAVING, Phase.ENDING, Phase.ENDED)

    def leave(self, error: Exception) -> None:
        """Undo the batch in flight, then end the query."""
        self.error = error
        self._until_s = self.now_s + END_S_MAX
        self.begin(Phase.LEAVING, ev.Undo(self.next_run()))

    def end_with(self, error: Exception | None) -> None:
        """Ask the work in flight to end, and end the query after it."""
        self.error = error
        if self.work is None:
            self.end()
            return
        self.phase = Phase.ENDING
        self._until_s = self.now_s + END_S_MAX
        self._cancel_s = self.now_s + (GRACE_S if error is None else 0.0)
        self._commands.append(ev.Interrupt())
        self._cancel_due()

    def _cancel_due(self) -> None:
        if self.phase is Phase.ENDING and self.now_s >= self._cancel_s:
            self._cancel_s = float("inf")
            self._commands.append(ev.Cancel(self.run))

    def end(self, complete: bool = False) -> None:
        """End the query. The command of `the_end` must be its last."""
        self.phase = Phase.ENDED
        self.work = None
        self._is_complete = complete

    @property
    def the_end(self) -> ev.End:
        """Return the last command of the query."""
        return ev.End(self.error, self._is_complete)
