"""What a running query does while its store or a disk is away: it waits, visibly, for a limited time; then it ends.

    a step fails for want of store or disk ──► failing ──tried again after a pause──► answered: forgotten
                                                  └── for longer than `outage_timeout`: the query ends

The layers below try again for moments only (`RetryingStore`, the uploader), wherever they run: in tasks, in
TaskManagers, in the driver. What they cannot get over comes to the JobMaster as the failure of a step: planning, a
batch, a restore, a checkpoint, a record, a publication. Each kind of step has a clock of its own, since a store may
read well and refuse to write. Everything about the patience of a running query is decided here.
"""

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.errors import ObjectExists, ObjectNotFound, StorageError

log = logging.getLogger(__name__)

PLANNING, BATCHES, RESTORES = "planning", "a batch", "a restore"
CHECKPOINTS, RECORDS = "a checkpoint", "a checkpoint's record"
"""The steps that may wait, beside publication to each sink."""
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
"""Between two attempts at a step; a quarter of the time for which it has been failing, between these."""

_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|errno 28\b|errno 122\b", re.IGNORECASE)
_AWAY = re.compile(r"\bStorageError: ")
"""In the words of another process, or of Spark: the class of the error has been lost there."""


def is_outage(error: Exception) -> bool:
    """Whether a step failed for want of store or disk, so that it may do later. A missing object is none."""
    if isinstance(error, StorageError):
        return not isinstance(error, ObjectNotFound | ObjectExists)
    return says_outage(str(error))


def says_outage(reason: str) -> bool:
    """The same, by what an error said."""
    return bool(_DISK_FULL.search(reason) or _AWAY.search(reason))


@dataclass(frozen=True)
class Failing:
    """One kind of step that has been failing since then."""

    since_s: float
    reason: str


class Outages:
    """Thread-safe. `limit` is how long a step may go on failing, in seconds and as the user wrote it."""

    def __init__(self, job: str, url: str, clock: Clock, limit: Callable[[], tuple[float, object]]) -> None:
        self._job = job
        self._url = url
        self._clock = clock
        self._limit = limit
        self._lock = threading.Lock()
        self._failing: dict[str, Failing] = {}

    def failed(self, step: str, reason: str) -> float:
        """The step failed for want of store or disk. Returns the pause before it is tried again, in seconds.

        Raises
        ------
        StorageError
            It has been failing for too long; names step, reason and what to do.
        """
        now_s = self._clock.monotonic()
        limit_s, shown = self._limit()
        with self._lock:
            first = step not in self._failing
            since_s = now_s if first else self._failing[step].since_s
            self._failing[step] = Failing(since_s, reason)
        if now_s - since_s > limit_s:
            raise StorageError(
                f"{step} has failed for {now_s - since_s:.0f} s, longer than outage_timeout={shown!r}: {reason}. "
                f"See that {self._url}, the sinks' targets and the disk below local_dir can be reached, have room and "
                "take writes; then start again: the job goes on from its last checkpoint"
            )
        if first:
            log.warning("%s: %s waits for store or disk, up to %s: %s", self._job, step, shown, reason)
        return min(PAUSE_S_MAX, max(PAUSE_S_MIN, (now_s - since_s) / 4))

    def ride_out(self, step: str, error: Exception, wait: Callable[[float], None]) -> None:
        """Wait before the step is tried again. Raises `error` where it is no outage, and as `failed` does."""
        if not is_outage(error):
            raise error
        wait(self.failed(step, str(error)))

    def answered(self, step: str) -> None:
        """The step was done."""
        if step not in self._failing:
            return
        with self._lock:
            failing = self._failing.pop(step, None)
        if failing is not None:
            log.info("%s: %s goes on after %.1f s", self._job, step, self._clock.monotonic() - failing.since_s)

    @property
    def waited_s(self) -> float:
        """For how long the step that has failed for the longest has; 0 where none is failing."""
        with self._lock:
            since_s = min((each.since_s for each in self._failing.values()), default=None)
        return 0.0 if since_s is None else self._clock.monotonic() - since_s

    @property
    def message(self) -> str | None:
        """For people: which step waits for what; None where none does."""
        with self._lock:
            failing = dict(self._failing)
        if not failing:
            return None
        step = min(failing, key=lambda each: failing[each].since_s)
        return f"Waiting for store or disk for {self.waited_s:.0f} s: {step}: {failing[step].reason}"
