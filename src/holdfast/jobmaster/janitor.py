"""Clean-up of older epochs, in the job's storage and at the targets of sinks, while the job runs.

`journal.cleanup` decides which objects are deleted, and each sink decides for its own target. `jobmaster.sweeper`
decides when the clean-up runs.
"""

import logging
from collections.abc import Callable, Mapping

from holdfast import failpoints
from holdfast.errors import HoldfastError
from holdfast.jobmaster.publisher import Publisher
from holdfast.journal import cleanup
from holdfast.maintenance import cleaning
from holdfast.storage.store import ObjectStore

log = logging.getLogger(__name__)


class EpochJanitor:
    """Deletes objects of epochs before `epoch`. It may run at any time after the takeover, and repeatedly."""

    def __init__(self, store: ObjectStore, epoch: int, publishers: Mapping[str, Publisher]) -> None:
        self._store = store
        self._epoch = epoch
        self._publishers = publishers

    def run(self, stopped: Callable[[], bool]) -> None:
        """Delete until `stopped`; the next run deletes the rest."""
        failpoints.hit("jobmaster.cleanup.before")
        try:
            observed = cleaning.observe(self._store, self._epoch, self._publishers.keys())
            if observed is None:
                return
            plan = cleaning.plan(self._store, observed)
            deleted = cleanup.carry_out(self._store, plan, stopped)
        except HoldfastError as error:
            log.warning("clean-up of older epochs is left to the next time: %s", error)
            return
        for name in plan.unknown:
            log.warning("clean-up leaves %s alone: its name is unknown", name)
        log.info("clean-up deleted %d objects of older epochs", deleted)
        for sink, publisher in self._publishers.items():
            if not stopped():
                self._sweep(sink, publisher, observed.committables.get(sink, []))

    def _sweep(self, sink: str, publisher: Publisher, named: list[bytes]) -> None:
        try:
            publisher.sweep(lambda name: name.epoch < self._epoch, named)
        except (HoldfastError, OSError) as error:
            log.warning("sink %r: what older epochs staged is left to the next time: %s", sink, error)
