"""Waiting of a running query while its store or a disk is unreachable: it waits visibly, for a limited time, then it
ends.

    a step fails for lack of store, disk or service ──► failing ──tried again after a pause──► answered: forgotten
                                                  └── for longer than `outage_timeout`: the query ends

The layers below (`RetryingStore`, the uploader) retry only for moments, wherever they run: in tasks, in TaskManagers,
in the driver. Longer outages reach the JobMaster as the failure of a step: planning, a batch, a restore, a checkpoint,
a record, a publication. Each kind of step has a clock of its own, since a store may serve reads and refuse writes. A
clock stands while its step is not tried: nobody knows then whether the store would answer. This module alone decides
how long a running query waits.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.errors import StorageError, is_outage
from holdfast.execution.events import Event, LossExplained, Lost
from holdfast.ids import ProcessId, Role
from holdfast.printable import logger

log = logger(__name__)

PLANNING, BATCHES, RESTORES = "planning", "a batch", "a restore"
CHECKPOINTS, RECORDS = "a checkpoint", "a checkpoint's record"
"""Steps that may wait, besides publication to each sink."""
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
"""Bounds in seconds on the pause between two attempts at a step. Within these bounds, the pause is a quarter of the
time for which the step has been failing."""
UNTRIED_S_MAX = 10.0
"""Bound in seconds on the time without an attempt that counts as a part of an outage: the usual interval of
checkpoints. With a higher value, outages before and after a long restart count as a single one; with a lower value, an
outage that only rare checkpoints meet ends the query later."""


@dataclass(frozen=True)
class Failing:
    """A kind of step that has failed for `failing_s`, up to its last failure at `last_s`."""

    failing_s: float
    last_s: float
    reason: str

    def at(self, now_s: float, began_s: float | None = None) -> float:
        """Return for how long the step has failed by now; `began_s`: the time at which the newest attempt began, or
        None if it has not ended yet."""
        untried_s = (now_s if began_s is None else began_s) - self.last_s
        return self.failing_s + now_s - self.last_s - max(0.0, untried_s - UNTRIED_S_MAX)


class Outages:
    """Outages of all steps. Thread-safe. `limit`: bound on the time for which a step may fail, in seconds and as the
    user wrote it."""

    def __init__(self, job: str, url: str, clock: Clock, limit: Callable[[], tuple[float, object]]) -> None:
        self._job = job
        self._url = url
        self._clock = clock
        self._limit = limit
        self._lock = threading.Lock()
        self._failing: dict[str, Failing] = {}
        self._loss: tuple[ProcessId, str] | None = None
        """The newest loss of a TaskManager; None once a step has failed because of an outage since, or a batch was
        committed."""

    def failed(self, step: str, reason: str, began_s: float | None = None) -> float:
        """Note that a step failed for lack of store, disk or service.

        Returns the pause before the next attempt, in seconds.

        Parameters
        ----------
        began_s
            Time of the monotonic clock at which the attempt began. None: it followed the last attempt at once.

        Raises
        ------
        StorageError
            The step has been failing for too long; the message names step, reason and remedy.
        """
        now_s = self._clock.monotonic()
        limit_s, shown = self._limit()
        with self._lock:
            before = self._failing.get(step)
            failing_s = 0.0 if before is None else before.at(now_s, before.last_s if began_s is None else began_s)
            self._failing[step] = Failing(failing_s, now_s, reason)
            self._loss = None
        if failing_s > limit_s:
            raise StorageError(
                f"{step} has failed for {failing_s:.0f} s, longer than outage_timeout={shown!r}: {reason}. "
                f"See that {self._url}, the sinks' targets and the disk below local_dir can be reached, have room and "
                "take writes; then start again: the job goes on from its last checkpoint"
            )
        if before is None:
            log.warning("%s: %s waits for store, disk or service, up to %s: %s", self._job, step, shown, reason)
        return min(PAUSE_S_MAX, max(PAUSE_S_MIN, failing_s / 4))

    def ride_out(self, step: str, error: Exception, began_s: float, wait: Callable[[float], None]) -> None:
        """Wait before the next attempt at the step. Raises `error` if it is no outage; otherwise raises as `failed`
        does."""
        if not is_outage(error):
            raise error
        wait(self.failed(step, str(error), began_s))

    def answered(self, step: str) -> None:
        """Note that the step succeeded."""
        if step == BATCHES:
            self._loss = None
        if step not in self._failing:
            return
        with self._lock:
            failing = self._failing.pop(step, None)
        if failing is not None:
            log.info("%s: %s goes on after %.1f s", self._job, step, failing.at(self._clock.monotonic()))

    def failed_otherwise(self, step: str) -> None:
        """Note that the step failed for another reason than an outage: a following outage counts as a new one."""
        with self._lock:
            self._failing.pop(step, None)

    def note_loss(self, event: Event) -> None:
        """Note the loss of a TaskManager, or its reason if that becomes known later; ignore other events.

        `message` names the loss until a step fails again or a batch is committed.
        """
        with self._lock:
            match event:
                case Lost(process, reason) if process.role is Role.TASK_MANAGER:
                    self._loss = process, reason
                case LossExplained(process, reason) if self._loss is not None and self._loss[0] == process:
                    self._loss = process, reason

    @property
    def waited_s(self) -> float:
        """Seconds for which the longest failing step has failed; 0 if none is failing."""
        now_s = self._clock.monotonic()
        with self._lock:
            return max((each.at(now_s) for each in self._failing.values()), default=0.0)

    @property
    def message(self) -> str | None:
        """Describe for people why the failing step has not succeeded yet; None if none is failing."""
        with self._lock:
            failing, loss = dict(self._failing), self._loss
        if not failing:
            return None
        if loss is not None:
            process, reason = loss
            return f"Recovering: {process.name} ended: {reason}"
        now_s = self._clock.monotonic()
        step = max(failing, key=lambda each: failing[each].at(now_s))
        waited_s = failing[step].at(now_s)
        return f"Waiting for store, disk or service for {waited_s:.0f} s: {step}: {failing[step].reason}"
