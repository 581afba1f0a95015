"""Storage of committables that take too much memory, as the coordinator orders: they become a single object.

A thread of its own makes the calls, so that neither records nor deletions delay them.
"""

from collections.abc import Callable

from holdfast import failpoints
from holdfast.checkpoint.events import Event
from holdfast.checkpoint.gathering import Gather, Gathered, GatherFailed
from holdfast.errors import StorageError
from holdfast.ids import Epoch
from holdfast.printable import logger
from holdfast.sinks.gathered import gather, gathered_name
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

log = logger(__name__)


class Gatherer:
    """Stores committables; `post` takes the outcome of each command."""

    def __init__(self, store: ObjectStore, job_id: str, epoch: Epoch, post: Callable[[Event], None]) -> None:
        self._store = store
        self._job_id = job_id
        self._epoch = epoch
        self._post = post

    def gather(self, command: Gather) -> None:
        folder = names.staging_folder(self._job_id, self._epoch, command.run)
        name = gathered_name(folder, command.sink, command.gathering)
        failpoints.hit("jobmaster.gather.before")
        try:
            committable = gather(command.committables, name, self._store)
        except (StorageError, OSError) as error:
            log.warning("committables of sink %r stay in memory for now: %s", command.sink, error)
            self._post(GatherFailed(command.sink, command.gathering))
            return
        failpoints.hit("jobmaster.gather.after")
        self._post(Gathered(command.sink, command.gathering, committable))
