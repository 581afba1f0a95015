"""What the dead have left: older epochs after a takeover, incarnations of TaskManagers after a failover.

After a takeover, what the base needs is read at once, before the first checkpoint can subsume it; the rest runs
beside the job, in the job's storage and at the targets of sinks.
Owns no rules: what may go is `journal.cleanup`'s to say, each sink's for its own target, and the coordinator's.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast import failpoints
from holdfast.errors import HoldfastError
from holdfast.jobmaster.publisher import Publisher
from holdfast.journal import cleanup
from holdfast.journal.fence import TakenOver
from holdfast.recovery.manifests import decode_manifest
from holdfast.sinks.staging import staged_names
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

log = logging.getLogger(__name__)


class Janitor:
    """Make one right after the takeover; `run` once, in the background.

    Raises `StorageError` or `CorruptObject` when made, if something that the base needs cannot be read.
    """

    def __init__(self, store: ObjectStore, taken: TakenOver, publishers: Mapping[str, Publisher]) -> None:
        self._store = store
        self._taken = taken
        self._publishers = publishers
        self._named: dict[str, list[bytes]] = {sink: [] for sink in publishers}
        self._needed = cleanup.needed_objects(store, taken.base, _manifest_objects, self._staged_files)

    def _staged_files(self, sink: str, committables: Sequence[bytes]) -> list[str]:
        self._named.setdefault(sink, []).extend(committables)
        return staged_names(committables, sink)

    def run(self, stopped: Callable[[], bool]) -> None:
        """Delete until `stopped`; what cannot be deleted is left to the next start."""
        failpoints.hit("jobmaster.cleanup.before")
        self._clean_storage(stopped)
        for sink, publisher in self._publishers.items():
            if not stopped():
                self._sweep(sink, publisher)

    def _clean_storage(self, stopped: Callable[[], bool]) -> None:
        try:
            plan = cleanup.plan_cleanup(cleanup.survey(self._store, self._taken, self._needed))
            deleted = cleanup.carry_out(self._store, plan, stopped)
        except HoldfastError as error:
            log.warning("clean-up of older epochs is left to the next start: %s", error)
            return
        for name in plan.unknown:
            log.warning("clean-up leaves %s alone: its name is unknown", name)
        log.info("clean-up deleted %d objects of older epochs", deleted)

    def _sweep(self, sink: str, publisher: Publisher) -> None:
        try:
            publisher.sweep(int(self._taken.epoch), self._named[sink])
        except (HoldfastError, OSError) as error:
            log.warning("sink %r: what older epochs staged is left to the next start: %s", sink, error)


def left_behind(store: ObjectStore, epoch: int, dead: Iterable[int], resolved: int) -> set[str]:
    """What dead incarnations of this epoch stored, named or not: to be told to the coordinator, which knows.

    Their acknowledgements may have died with them, so manifests of all checkpoints up to `resolved` are among it:
    those were recorded or aborted, and no acknowledgement can complete one any more.
    """
    found: set[str] = set()
    for incarnation in dead:
        for folder in names.incarnation_folders(epoch, incarnation):
            found.update(info.name for info in store.list(folder))
    for info in store.list(names.manifests_folder(epoch)):
        parsed = names.parse(info.name)
        if isinstance(parsed, names.ManifestName) and parsed.checkpoint <= resolved:
            found.add(info.name)
    return found


def _manifest_objects(name: str, data: bytes) -> list[str]:
    return [obj for table in decode_manifest(name, data).tables for obj in table.objects()]
