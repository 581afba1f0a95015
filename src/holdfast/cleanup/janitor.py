"""Clean-up of older epochs, in the job's storage and at the targets of sinks, while the job runs.

`plan` decides which objects are deleted, and each sink decides for its own target. `schedule`
decides when the clean-up runs.
"""

from collections.abc import Callable, Mapping

from holdfast import failpoints
from holdfast.cleanup.observation import observe, plan
from holdfast.cleanup.plan import carry_out
from holdfast.cleanup.targets import Target
from holdfast.errors import HoldfastError
from holdfast.ids import Epoch
from holdfast.printable import logger
from holdfast.storage.store import ObjectStore

log = logger(__name__)


class EpochJanitor:
    """Deletes objects of epochs before `epoch`. It may run at any time after the takeover, and repeatedly."""

    def __init__(self, store: ObjectStore, epoch: Epoch, targets: Mapping[str, Target]) -> None:
        self._store = store
        self._epoch = epoch
        self._targets = targets

    def run(self, stopped: Callable[[], bool]) -> None:
        """Delete until `stopped`; the next run deletes the rest."""
        failpoints.hit("jobmaster.cleanup.before")
        try:
            observed = observe(self._store, self._epoch, self._targets.keys())
            if observed is None:
                return
            decided = plan(self._store, observed)
            deleted = carry_out(self._store, decided, stopped)
        except HoldfastError as error:
            log.warning("clean-up of older epochs is left to the next time: %s", error)
            return
        for name in decided.unknown:
            log.warning("clean-up leaves %s alone: its name is unknown", name)
        log.info("clean-up deleted %d objects of older epochs", deleted)
        for sink, target in self._targets.items():
            if not stopped():
                self._sweep(sink, target, observed.committables.get(sink, []))

    def _sweep(self, sink: str, target: Target, named: list[bytes]) -> None:
        try:
            target.sweep(lambda name: name.epoch < self._epoch, named)
        except (HoldfastError, OSError) as error:
            log.warning("sink %r: the staged files of older epochs are left to the next time: %s", sink, error)
