"""Deletion of objects and staged files that are no longer needed, as the coordinator orders.

All calls are made on a single thread. Failures are reported, and the coordinator orders the deletion again.
"""

from collections.abc import Callable, Mapping

from holdfast import failpoints
from holdfast.checkpoint import events
from holdfast.checkpoint.events import Event
from holdfast.cleanup.targets import Target
from holdfast.errors import HoldfastError, ObjectNotFound
from holdfast.printable import logger
from holdfast.storage.routing import PartlyDeleted
from holdfast.storage.store import ObjectStore

log = logger(__name__)


class Disposer:
    """Carries out deletions. `post` receives the outcome of each command."""

    def __init__(self, store: ObjectStore, targets: Mapping[str, Target], post: Callable[[Event], None]) -> None:
        self._store = store
        self._targets = targets
        self._post = post

    def delete(self, command: events.DeleteObjects) -> None:
        found = frozenset(command.names)
        failpoints.hit("jobmaster.delete.before")
        try:
            self._store.delete(command.names)
        except (HoldfastError, OSError) as error:
            left = error.left if isinstance(error, PartlyDeleted) else found
            log.warning("%d objects could not be deleted: %s", len(left), error)
            self._post(events.DeleteFailed(left))
            found -= left
        if found:
            self._post(events.ObjectsDeleted(found))

    def discard(self, command: events.Discard) -> None:
        """Delete the staged files of a published group."""
        try:
            self._targets[command.sink].discard(command.object)
        except ObjectNotFound as error:
            text = "staged files of sink %r are left to the next sweep, since the list of them is gone: %s"
            log.warning(text, command.sink, error)
        except (HoldfastError, OSError) as error:
            log.warning("staged files of sink %r could not be deleted: %s", command.sink, error)
            self._post(events.DiscardFailed(command.sink, command.number))
            return
        self._post(events.Discarded(command.sink, command.number))

    def drop_staged(self, sink: str, committables: list[bytes]) -> None:
        """Delete staged files that no record ever held."""
        try:
            self._targets[sink].drop(committables)
        except (HoldfastError, OSError) as error:
            log.warning("staged files of sink %r are left to the next sweep: %s", sink, error)
