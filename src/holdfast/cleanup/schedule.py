"""The times of clean-up: directly after the takeover and each failover, and then repeatedly.

A repeated put, or a put of a process that counts as dead, may take effect long after its folder was listed. So folders
are listed again a minute after a takeover or failover, and then every five minutes. Clean-up has its own thread:
neither the start nor the job waits for it. `remains` finds objects of this epoch, `janitor` objects of older epochs.
"""

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

from holdfast.checkpoint.events import ObjectsFound
from holdfast.checkpoint.outstanding import Outstanding
from holdfast.cleanup.janitor import EpochJanitor
from holdfast.cleanup.remains import Remains
from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.ids import Incarnation
from holdfast.printable import logger

log = logger(__name__)

AGAIN_AFTER_S = (60.0, 300.0)
"""Seconds from a takeover or failover to the next sweep, and between two sweeps after that."""

OLDER_EVERY = 12
"""Sweeps between two clean-ups of older epochs, which list the complete storage. The first two sweeps include a
clean-up."""


class CleanupSchedule:
    """Schedules clean-up. The control thread calls `died` and `tick`; the JobMaster calls `start`, `finish` and
    `close`."""

    def __init__(
        self,
        janitor: EpochJanitor,
        remains: Remains,
        found: Callable[[ObjectsFound], None],
        clock: Clock,
        stopped: Callable[[], bool],
    ) -> None:
        self._janitor = janitor
        self._remains = remains
        self._found = found
        self._clock = clock
        self._stopped = stopped
        self._dead: set[Incarnation] = set()
        self._sweeps = 0
        self._next_s = float("inf")
        self._thread = ThreadPoolExecutor(1, "holdfast-cleanup")
        self._running: list[Future[None]] = []

    def start(self) -> None:
        """Look for objects of older epochs after the takeover. Returns at once."""
        self._submit(self._older)
        self._next_s = self._clock.monotonic() + AGAIN_AFTER_S[0]

    def died(self, incarnations: Collection[Incarnation], outstanding: Outstanding) -> None:
        """Note dead incarnations, after all TaskManagers were deployed again."""
        self._dead.update(incarnations)
        dead = sorted(self._dead)
        self._submit(lambda: self._living(dead, outstanding))
        self._next_s = self._clock.monotonic() + AGAIN_AFTER_S[0]

    def tick(self, now_s: float, outstanding: Callable[[], Outstanding]) -> None:
        """Sweep again if it is time and the last sweep is over."""
        if now_s < self._next_s or not all(each.done() for each in self._running):
            return
        self._next_s = now_s + AGAIN_AFTER_S[1]
        self._sweeps += 1
        dead, snapshot = sorted(self._dead), outstanding()
        self._submit(lambda: self._living(dead, snapshot))
        if self._sweeps <= 2 or self._sweeps % OLDER_EVERY == 0:
            self._submit(self._older)

    def finish(self) -> None:
        """Wait for a running clean-up, so that a job which runs only briefly each hour cleans up too."""
        wait_for(self._running)

    def close(self) -> None:
        """Begin no more clean-ups, and wait for a running one, which ends early when `stopped`."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _submit(self, work: Callable[[], None]) -> None:
        if not self._stopped():
            self._running = [each for each in self._running if not each.done()]
            self._running.append(self._thread.submit(work))

    def _older(self) -> None:
        self._janitor.run(self._stopped)

    def _living(self, dead: Collection[Incarnation], outstanding: Outstanding) -> None:
        try:
            self._found(ObjectsFound(self._remains.stored(dead, outstanding.resolved)))
            if not self._stopped():
                self._remains.drop_staged(outstanding)
        except (HoldfastError, OSError) as error:
            log.warning("the remains of the dead are left to the next sweep: %s", error)
