"""The course of the work in flight: begins it, recognises its end, numbers its runs, and ends the query.

    work begins ──► in flight ──the event that answers it──► over ──► the next step
                        │ a user stops the query, or an error ends it
                        ▼
                     ENDING ──the work is over, or END_S_MAX passed──► ENDED
    LEAVING: a batch has no further attempt: it is undone first, then the query ends

Invariants: at most a single work is in flight; a run number only grows; after `End` no command is given. Does not own:
the step after a work (`deployments.py`, `batches.py`).
"""

from collections.abc import Callable

from holdfast import errors
from holdfast.execution import events as ev
from holdfast.execution.failover import Cause
from holdfast.execution.phases import WORK_OF, Phase, Work
from holdfast.ids import BatchNumber, RunNumber

LOSS_NOTICE_S = 5.0
"""Seconds to wait for the end of a process that did not answer; then the job goes on as if it lived."""
GRACE_S = 1.0
"""Seconds in which tasks may end by themselves once a user stops the query: Spark warns of each task it cancels."""
END_S_MAX = 10.0
"""Seconds to wait for work in flight when the query ends. A higher value lets longer calls of user functions come to
their end, and holds up the end for longer where one never returns; its work counts nowhere in either case."""


class Course:
    """The phase of a job, its work in flight, and the commands of the present answer."""

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self._work: Work | None = None
        self._now_s = 0.0
        self._run = RunNumber(0)
        self._batch: BatchNumber | None = None
        self._has_run = False
        self._cause: Cause | None = None
        self._error: Exception | None = None
        self._noticed: Callable[[], None] = lambda: None
        self._unnoticed: Callable[[], None] = lambda: None
        self._until_s = self._cancel_s = 0.0
        self._commands: list[ev.Command] = []

    # --- work ---------------------------------------------------------------------------------------------------------

    def _begin(self, phase: Phase, command: ev.Command) -> None:
        self.phase = phase
        self._work = WORK_OF[phase]
        self._commands.append(command)

    def _is_over(self, work: Work, run: RunNumber | None = None, batch: BatchNumber | None = None) -> bool:
        """True if an event ends the work in flight; afterwards none is in flight."""
        if self._work is not work or run not in (None, self._run) or batch not in (None, self._batch):
            return False
        self._work = None
        return True

    def _next_run(self) -> RunNumber:
        self._run = RunNumber(self._run + 1)
        return self._run

    def _log(self, message: str) -> None:
        self._commands.append(ev.Log(message))

    def _wait(self, seconds: float, cause: Cause, noticed: Callable[[], None], unnoticed: Callable[[], None]) -> None:
        """Wait up to `seconds` for the loss of a process that did not answer, or for a store that comes back."""
        self.phase = Phase.WAITING
        self._cause = cause
        self._noticed, self._unnoticed = noticed, unnoticed
        self._until_s = self._now_s + seconds

    def _await_loss(self, cause: Cause, noticed: Callable[[], None], unnoticed: Callable[[], None]) -> None:
        """Wait for the loss of a process that did not answer."""
        self._wait(LOSS_NOTICE_S, cause, noticed, unnoticed)

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def _is_ending(self) -> bool:
        return self.phase in (Phase.LEAVING, Phase.ENDING, Phase.ENDED)

    def _on_stop_asked(self, event: ev.StopAsked) -> None:
        if not self._is_ending:
            self._end_with(None)

    def _on_failed(self, event: ev.Failed) -> None:
        if not self._is_ending:
            self._end_with(event.error)

    def _exhausted(self, count: str, cause: Cause) -> None:
        if self._has_run:
            self._end_with(errors.RestartsExhausted(f"{count}; the last cause: {cause}"))
        else:
            self._end_with(
                errors.JobRefused(f"TaskManagers keep ending while they start: {count}; the last cause: {cause}")
            )

    def _leave(self, error: Exception) -> None:
        """Undo the batch in flight, then end the query."""
        self._error = error
        self._until_s = self._now_s + END_S_MAX
        self._begin(Phase.LEAVING, ev.Undo(self._next_run()))

    def _end_with(self, error: Exception | None) -> None:
        """Ask the work in flight to end, and end the query after it."""
        self._error = error
        if self._work is None:
            self._end()
            return
        self.phase = Phase.ENDING
        self._until_s = self._now_s + END_S_MAX
        self._cancel_s = self._now_s + (GRACE_S if error is None else 0.0)
        self._commands.append(ev.Interrupt())
        self._cancel_due()

    def _cancel_due(self) -> None:
        if self.phase is Phase.ENDING and self._now_s >= self._cancel_s:
            self._cancel_s = float("inf")
            self._commands.append(ev.Cancel(self._run))

    def _end(self, complete: bool = False) -> None:
        self.phase = Phase.ENDED
        self._work = None
        self._commands.append(ev.End(self._error, complete))
