"""The attempts at an upload: the only layer that retries and hedges the changelog's puts.

    attempt 1 ──slow──► attempts 2, 3 at once, beside it  first success: the answer, under that attempt's name
             └─failed─► attempt 2 after the delay         later success: discarded when it lands
                                                          last failure:  the answer, once no attempt is running

Every attempt writes under its own name. A put that was reported as failed may have happened, or may happen later; its
name keeps it apart from the attempt that counts. Invariants: each attempt starts successors at most once; an upload
makes at most `max_attempts` requests and gives a single answer. Attempt, answer and discarding are separate steps, as
in Flink's `RetryingExecutor`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast.changelog_config import RetryPolicy
from holdfast.errors import StorageError
from holdfast.uploads.hedging import Hedging
from holdfast.uploads.scheduling import Scheduler, report_failure


@dataclass(frozen=True)
class Answer:
    """The outcome of an upload; `error` is None if the object `name` holds the bytes."""

    name: str
    error: BaseException | None
    attempts: int
    """Number of attempts until the answer."""
    attempt: int
    """The number of the attempt that decided the outcome, from 1."""
    hedges: int
    """Attempts that were started beside a slow attempt."""
    errors: int
    """Number of attempts that had failed before the answer."""


class Losers:
    """Receivers of the names of superfluous or failed attempts. They are called without any lock held."""

    def __init__(self, landed: Callable[[str], None], unknown: Callable[[str], None]) -> None:
        self.landed = landed
        """Receives the name of an object that is stored and not wanted."""
        self.unknown = unknown
        """Receives the name of a put that was reported as failed: the object may exist, now or later."""


@dataclass(eq=False)
class _Attempt:
    name: str
    number: int
    begun_s: float
    followed: bool = False
    """True if it has successors, so that its failure starts none."""
    cancel_timeout: Callable[[], None] = lambda: None


class Upload:
    """The upload of an object; it is started once.

    Parameters
    ----------
    put
        Stores the object under a name. Runs in `lane`.
    answered
        Called once, with no lock held.
    """

    def __init__(
        self,
        put: Callable[[str], None],
        new_name: Callable[[], str],
        size_bytes: int,
        lane: str,
        *,
        policy: RetryPolicy,
        hedging: Hedging,
        scheduler: Scheduler,
        losers: Losers,
        answered: Callable[[Answer], None],
    ) -> None:
        self._put = put
        self._new_name = new_name
        self._size_bytes = size_bytes
        self._lane = lane
        self._policy = policy
        self._hedging = hedging
        self._scheduler = scheduler
        self._losers = losers
        self._answered = answered
        self._lock = threading.Lock()
        self._attempts = 0
        self._planned = 1
        """Attempts that `_unfinished` counts and that have not begun."""
        self._hedges = 0
        self._errors = 0
        self._unfinished = 0
        """Attempts that are running or about to start."""
        self._fatal: BaseException | None = None
        self._over = False

    def start(self) -> None:
        self._hedging.upload_started()
        self._unfinished = 1
        self._attempt()

    def _attempt(self) -> None:
        """Start an attempt that `_unfinished` counts already."""
        with self._lock:
            self._planned -= 1
            if self._over:
                self._unfinished -= 1
                return
            self._attempts += 1
            attempt = _Attempt(self._new_name(), self._attempts, self._scheduler.monotonic())
        timeout_s = self._hedging.timeout_s(self._size_bytes)
        if timeout_s is not None and attempt.number < self._policy.max_attempts:
            attempt.cancel_timeout = self._scheduler.call_later(timeout_s, partial(self._slow, attempt))
        self._scheduler.submit(self._lane, partial(self._run, attempt)).add_done_callback(report_failure)

    def _run(self, attempt: _Attempt) -> None:
        """Make the request, and decide on its successor. Both are one call of the scheduler: after a request alone, a
        scheduler that is closing could end before the next attempt is planned."""
        error: BaseException | None = None
        try:
            self._put(attempt.name)
        except BaseException as raised:
            error = raised
        self._ended(attempt, error)

    def _slow(self, attempt: _Attempt) -> None:
        with self._lock:
            wanted = 0 if self._over or attempt.followed else self._may_follow()
            hedges = self._hedging.take(wanted) if wanted else 0
            attempt.followed |= hedges > 0
            self._hedges += hedges
            self._planned += hedges
            self._unfinished += hedges
        for _ in range(hedges):
            self._attempt()

    def _ended(self, attempt: _Attempt, error: BaseException | None) -> None:
        attempt.cancel_timeout()
        # Timer and attempt refer to each other. This cycle would keep the object's bytes until a garbage collection.
        attempt.cancel_timeout = lambda: None
        if error is None:
            self._hedging.attempt_succeeded(self._size_bytes, self._scheduler.monotonic() - attempt.begun_s)
        with self._lock:
            loser = self._over
            self._errors += error is not None
            if error is not None and not isinstance(error, StorageError):
                self._fatal = error
            retry = error is not None and not self._over and not attempt.followed and self._may_follow() > 0
            if retry:
                self._planned += 1
            else:
                self._unfinished -= 1
            answer = None
            if not self._over and (error is None or not self._unfinished):
                self._over = True
                decided = self._fatal or error if error is not None else None
                answer = Answer(attempt.name, decided, self._attempts, attempt.number, self._hedges, self._errors)
        if error is not None:
            self._losers.unknown(attempt.name)
        elif loser:
            self._losers.landed(attempt.name)
        if retry:
            self._scheduler.call_later(self._policy.next_attempt_delay_s, self._attempt)
        if answer is not None:
            self._answered(answer)

    def _may_follow(self) -> int:
        """The number of attempts that may still be begun."""
        return self._policy.max_attempts - self._attempts - self._planned if self._fatal is None else 0
