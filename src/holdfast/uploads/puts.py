"""The changelog's puts and deletes: attempts, the disposal of superfluous attempts, and measurements of both.

Invariant: an object that an attempt may have stored, and that no answer named, is given to the janitor. The janitor
deletes such objects in its own lane, at once and again later. Takes a store that does not retry. It does not know logs,
requests or owners.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from holdfast.changelog_config import RetryPolicy
from holdfast.metrics import Histogram
from holdfast.uploads.attempts import Answer, Losers, Upload
from holdfast.uploads.hedging import Hedging
from holdfast.uploads.janitor import DeletionQueue
from holdfast.uploads.scheduling import Scheduler, report_failure

DELETES = "delete"
LOG = "log"
"""Prefix for those metrics of logs whose names have no prefix elsewhere."""


class Repeats(NamedTuple):
    """Attempts at an upload besides the first: `retries` after a failure, `hedges` beside a slow attempt."""

    retries: int
    hedges: int


class Puts:
    """Stores objects under new names.

    Parameters
    ----------
    scheduler
        Has the lane `DELETES`, and the lanes that `put` is given.
    """

    def __init__(self, policy: RetryPolicy, scheduler: Scheduler, janitor: DeletionQueue) -> None:
        self._policy = policy
        self._scheduler = scheduler
        self._janitor = janitor
        self._hedging: dict[str, Hedging] = defaultdict(lambda: Hedging(policy.timeout_s, policy.extra_requests))
        """A hedging rule for each lane, since the time for a log's piece says nothing about a file a thousand times as
        large."""
        self._losers = Losers(self._landed, self._unknown)
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter(numberOfUploadRequests=0, numberOfUploadFailures=0, hedgedUploads=0)
        self._counters["curedUploadErrors"] = 0
        self._sizes: dict[str, Histogram] = defaultdict(Histogram)
        self._latencies: dict[str, Histogram] = defaultdict(Histogram)
        """Histograms by the prefix of their metric's name, which is empty for logs."""
        self._lane_attempts: dict[str, Histogram] = defaultdict(Histogram)
        self._attempts = Histogram()
        self._total_attempts = Histogram()
        self._repeats: dict[str, Repeats] = {}
        """The repeats of each object that needed any, until `take_repeats` hands them out or the object is deleted."""
        self._closed = False
        self._next_sweep: Callable[[], None] | None = None
        self._plan_sweep()

    def put(
        self,
        write: Callable[[str], None],
        new_name: Callable[[], str],
        size_bytes: int,
        lane: str,
        of: str = "",
        losers: Losers | None = None,
    ) -> Future[str]:
        """Return the name under which `write` stored the object, as a future; it has the last attempt's error once all
        attempts have failed. `of`: the prefix of the metrics that measure it. `losers`: the receiver of superfluous
        attempts, if attempts do not have their own names.
        """
        future: Future[str] = Future()
        begun_s = self._scheduler.monotonic()
        with self._lock:
            self._counters["numberOfUploadRequests"] += 1
            hedging = self._hedging[lane]
        Upload(
            write,
            new_name,
            size_bytes,
            lane,
            policy=self._policy,
            hedging=hedging,
            scheduler=self._scheduler,
            losers=losers or self._losers,
            answered=lambda answer: self._answered(answer, size_bytes, begun_s, future, of, keeps=losers is None),
        ).start()
        return future

    def take_repeats(self, names: Iterable[str]) -> dict[str, Repeats]:
        """Take out the repeats of those objects that needed any."""
        with self._lock:
            return {name: self._repeats.pop(name) for name in names if name in self._repeats}

    def discard(self, names: Iterable[str]) -> None:
        """Delete objects that may have been stored and whose names no other part knows; returns at once."""
        names = list(names)
        self.take_repeats(names)
        self._janitor.discard(names)
        self.sweep()

    def sweep(self) -> None:
        """Delete the queued objects; returns at once."""
        if self._janitor.queued():
            self._scheduler.submit(DELETES, self._sweep).add_done_callback(report_failure)

    def metrics(self) -> dict[str, float]:
        """Counters and histograms since the start, and gauges of the deletes that wait now."""
        with self._lock:
            values: dict[str, float] = dict(self._counters)
            histograms = {_named(of, "uploadSizes"): each for of, each in self._sizes.items()}
            histograms |= {_named(of, "uploadLatenciesNanos"): each for of, each in self._latencies.items()}
            histograms |= {f"{lane}UploadAttempts": each for lane, each in self._lane_attempts.items()}
        values["queuedDeletes"] = self._janitor.queued()
        histograms |= {"attemptsPerUpload": self._attempts, "totalAttemptsPerUpload": self._total_attempts}
        for name, histogram in histograms.items():
            values.update(histogram.values(name))
        return values

    def close(self) -> None:
        """Stop looking for late objects; uploads under way end by themselves, and unwanted objects are deleted."""
        with self._lock:
            self._closed = True
            cancel, self._next_sweep = self._next_sweep, None
        if cancel is not None:
            cancel()

    def _answered(
        self, answer: Answer, size_bytes: int, begun_s: float, future: Future[str], of: str, *, keeps: bool
    ) -> None:
        with self._lock:
            sizes, latencies = self._sizes[of], self._latencies[of]
            self._counters["hedgedUploads"] += answer.hedges > 0
            self._counters["numberOfUploadFailures"] += answer.error is not None
            if answer.error is None and answer.attempts > 1:
                self._counters["curedUploadErrors"] += answer.errors
            if keeps and answer.error is None and answer.attempts > 1:
                self._repeats[answer.name] = Repeats(answer.attempts - 1 - answer.hedges, answer.hedges)
            self._counters[f"{of or LOG}UploadErrors"] += answer.errors
            attempts = self._lane_attempts[of or LOG]
        attempts.add(answer.attempts)
        self._total_attempts.add(answer.attempts)
        if answer.error is not None:
            future.set_exception(answer.error)
            return
        sizes.add(size_bytes)
        latencies.add((self._scheduler.monotonic() - begun_s) * 1e9)
        self._attempts.add(answer.attempt)
        future.set_result(answer.name)

    def _landed(self, name: str) -> None:
        self.discard([name])

    def _unknown(self, name: str) -> None:
        self._janitor.suspect(name)
        self.sweep()

    def _sweep(self) -> None:
        self._janitor.sweep()
        self._plan_sweep()

    def _plan_sweep(self) -> None:
        delay_s = self._janitor.next_sweep_s()
        with self._lock:
            if delay_s is not None and not self._closed and self._next_sweep is None:
                self._next_sweep = self._scheduler.call_later(delay_s, self._look_again)

    def _look_again(self) -> None:
        with self._lock:
            self._next_sweep = None
        self._janitor.look_again()
        self.sweep()


def _named(of: str, metric: str) -> str:
    return of + metric[0].upper() + metric[1:] if of else metric
