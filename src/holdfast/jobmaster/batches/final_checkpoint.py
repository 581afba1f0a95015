"""The final checkpoint of `available_now`: requested once everything is processed, and again after a failure."""

from concurrent.futures import Future

from holdfast.availability import listed
from holdfast.clock import Clock
from holdfast.errors import CheckpointFailed
from holdfast.ids import JournalNumber
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.printable import logger
from holdfast.settings import AvailableNow, QueryTrigger

log = logger(__name__)


class FinalCheckpoint:
    """Requests the final checkpoint when there is nothing to process. It does not wait, since refusals need further
    batches."""

    def __init__(self, trigger: QueryTrigger, control: Control, clock: Clock) -> None:
        self._timeout = trigger.timeout if isinstance(trigger, AvailableNow) else None
        self._timeout_s = trigger.timeout_s if isinstance(trigger, AvailableNow) else None
        self._control = control
        self._clock = clock
        self._began_s: float | None = None
        self._promise: Future[JournalNumber | None] | None = None

    def is_taken(self) -> bool:
        """True if everything processed so far is recorded; otherwise request a checkpoint, unless a request is pending.

        Raises
        ------
        CheckpointFailed
            The checkpoint was not taken within the trigger's timeout; names those who refuse it, or the cause of the
            failure.
        """
        if self._promise is None:
            self._promise = self._control.request_checkpoint()
            self._began_s = self._clock.monotonic() if self._began_s is None else self._began_s
        if self._promise.done():
            promise, self._promise = self._promise, None
            error = promise.exception()
            if error is None:
                return True
            if not isinstance(error, CheckpointFailed) or not error.soft:
                log.warning("the final checkpoint failed, trying again: %s", error)
            self._check(str(error))
        else:
            self._check(listed(self._control.refused_by) or "it is still under way")
        return False

    def _check(self, reason: str) -> None:
        limit_s = self._timeout_s
        if limit_s is not None and self._began_s is not None and self._clock.monotonic() - self._began_s > limit_s:
            raise CheckpointFailed(f"no final checkpoint within {self._timeout}: {reason}")
