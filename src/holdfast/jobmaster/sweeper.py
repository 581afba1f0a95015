"""When what the dead left is looked for: right after the takeover and after each failover, and again later.

A put of a process that was given up may land long after its folders were listed, so they are listed again, after a
minute, then ten, then every hour; a failover begins that anew. One thread of its own: neither the start nor the job
waits for it. What older epochs left is the `Janitor`'s to delete; what dead incarnations of this epoch stored is told
to the coordinator, which knows what of it is still named.
"""

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

from holdfast.checkpoint.events import ObjectsFound
from holdfast.clock import Clock
from holdfast.errors import StorageError
from holdfast.jobmaster.janitor import Janitor
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

log = logging.getLogger(__name__)

AGAIN_AFTER_S = (60.0, 600.0, 3600.0)
"""Between sweeps; the last one from then on."""

FOLDERS_MAX = 32
"""With more dead incarnations than that, all folders of the epoch are listed instead of each of theirs."""


class Sweeper:
    """`died` and `tick` are the control thread's to call, `start`, `finish` and `close` the JobMaster's."""

    def __init__(
        self,
        store: ObjectStore,
        epoch: int,
        janitor: Janitor,
        found: Callable[[ObjectsFound], None],
        clock: Clock,
        stopped: Callable[[], bool],
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._janitor = janitor
        self._found = found
        self._clock = clock
        self._stopped = stopped
        self._dead: set[int] = set()
        self._resolved = 0
        self._step = 0
        self._next_s = float("inf")
        self._thread = ThreadPoolExecutor(1, "holdfast-cleanup")
        self._running: list[Future[None]] = []

    def start(self) -> None:
        """The storage was taken over: look for what older epochs left. Returns at once."""
        self._schedule(0)
        self._running = [self._thread.submit(self._janitor.run, self._stopped)]

    def died(self, incarnations: Collection[int], resolved: int) -> None:
        """These incarnations are dead, and no acknowledgement can complete a checkpoint up to `resolved` any more."""
        self._dead.update(incarnations)
        self._resolved = resolved
        self._schedule(0)
        self._submit(self._sweep_incarnations)

    def tick(self, now_s: float) -> None:
        """Sweep again, where it is time."""
        if now_s >= self._next_s and all(each.done() for each in self._running):
            self._schedule(self._step + 1)
            self._submit(self._sweep)

    def finish(self) -> None:
        """Wait for what was begun: a job that runs for a moment each hour cleans up, too."""
        wait_for(self._running)

    def close(self) -> None:
        """Begin nothing more; wait for what is under way, which ends early once `stopped`."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _schedule(self, step: int) -> None:
        self._step = min(step, len(AGAIN_AFTER_S) - 1)
        self._next_s = self._clock.monotonic() + AGAIN_AFTER_S[self._step]

    def _submit(self, work: Callable[[], None]) -> None:
        if not self._stopped():
            self._running = [each for each in self._running if not each.done()]
            self._running.append(self._thread.submit(work))

    def _sweep(self) -> None:
        self._sweep_incarnations()
        self._janitor.run(self._stopped)

    def _sweep_incarnations(self) -> None:
        dead = sorted(self._dead)
        if not dead:
            return
        try:
            found = left_behind(self._store, self._epoch, dead, self._resolved)
        except (StorageError, OSError) as error:
            log.warning("what dead incarnations of this epoch left is left to the next time: %s", error)
            return
        self._found(ObjectsFound(frozenset(found)))


def left_behind(store: ObjectStore, epoch: int, dead: Collection[int], resolved: int) -> set[str]:
    """What dead incarnations of this epoch stored, named or not: to be told to the coordinator, which knows.

    Their acknowledgements may have died with them, so manifests of all checkpoints up to `resolved` are among it:
    those were recorded or aborted, and no acknowledgement can complete one any more.
    """
    if len(dead) > FOLDERS_MAX:
        folders = names.epoch_folders(epoch)
    else:
        folders = [folder for incarnation in dead for folder in names.incarnation_folders(epoch, incarnation)]
    found: set[str] = set()
    for folder in [*folders, names.manifests_folder(epoch)]:
        for info in store.list(folder):
            parsed = names.parse(info.name)
            if isinstance(parsed, names.ManifestName):
                wanted = parsed.checkpoint <= resolved
            else:
                wanted = isinstance(parsed, names.ChangelogName | names.SharedName) and parsed.incarnation in dead
            if wanted:
                found.add(info.name)
    return found
