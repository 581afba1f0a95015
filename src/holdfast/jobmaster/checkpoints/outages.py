"""Waiting of a running query while its store or a disk is unreachable: it waits visibly, for a limited time, then it
ends.

    a step fails for lack of store, disk or service ──► failing ──tried again after a pause──► answered: forgotten
                                                  └── for longer than `outage_timeout`: the query ends

The layers below (`RetryingStore`, the uploader) retry only for moments, wherever they run: in tasks, in TaskManagers,
in the driver. Longer outages reach the JobMaster as the failure of a step: planning, a batch, a restore, a checkpoint,
a record, a publication. Each kind of step has a clock of its own, since a store may serve reads and refuse writes. This
module alone decides how long a running query waits.
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


@dataclass(frozen=True)
class Failing:
    """A kind of step that has been failing since `since_s`."""

    since_s: float
    reason: str


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

    def failed(self, step: str, reason: str) -> float:
        """Note that a step failed for lack of store, disk or service.

        Returns the pause before the next attempt, in seconds.

        Raises
        ------
        StorageError
            The step has been failing for too long; the message names step, reason and remedy.
        """
        now_s = self._clock.monotonic()
        limit_s, shown = self._limit()
        with self._lock:
            first = step not in self._failing
            since_s = now_s if first else self._failing[step].since_s
            self._failing[step] = Failing(since_s, reason)
            self._loss = None
        if now_s - since_s > limit_s:
            raise StorageError(
                f"{step} has failed for {now_s - since_s:.0f} s, longer than outage_timeout={shown!r}: {reason}. "
                f"See that {self._url}, the sinks' targets and the disk below local_dir can be reached, have room and "
                "take writes; then start again: the job goes on from its last checkpoint"
            )
        if first:
            log.warning("%s: %s waits for store, disk or service, up to %s: %s", self._job, step, shown, reason)
        return min(PAUSE_S_MAX, max(PAUSE_S_MIN, (now_s - since_s) / 4))

    def ride_out(self, step: str, error: Exception, wait: Callable[[float], None]) -> None:
        """Wait before the next attempt at the step. Raises `error` if it is no outage; otherwise raises as `failed`
        does."""
        if not is_outage(error):
            raise error
        wait(self.failed(step, str(error)))

    def answered(self, step: str) -> None:
        """Note that the step succeeded."""
        if step == BATCHES:
            self._loss = None
        if step not in self._failing:
            return
        with self._lock:
            failing = self._failing.pop(step, None)
        if failing is not None:
            log.info("%s: %s goes on after %.1f s", self._job, step, self._clock.monotonic() - failing.since_s)

    def failed_otherwise(self, step: str) -> None:
        """Note that the step failed for another reason than an outage: an outage that follows begins anew."""
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
        with self._lock:
            since_s = min((each.since_s for each in self._failing.values()), default=None)
        return 0.0 if since_s is None else self._clock.monotonic() - since_s

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
        step = min(failing, key=lambda each: failing[each].since_s)
        return f"Waiting for store, disk or service for {self.waited_s:.0f} s: {step}: {failing[step].reason}"
