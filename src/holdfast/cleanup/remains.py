"""Objects left by dead processes of the living epoch, and by late puts: found by listing, while the job runs.

    dstl/, shared/    folders of dead incarnations    ─┐ told to the coordinator, which knows the objects that
    gathered/,        of checkpoints that are resolved │ a record, a group or a live log still names
    manifests/                                         │
    sources/          objects that no source uses     ─┘
    staging/          of runs that are over, and of batches that were committed: deleted here, unless a
                      committable names it that may still be published

This is correct because a snapshot is taken before the listing (`Outstanding`): names only lose users, so an object
without users at that time has none now. `schedule` decides when this runs; `janitor` handles older epochs.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress

from holdfast.checkpoint.outstanding import Outstanding
from holdfast.cleanup.targets import Target
from holdfast.errors import HoldfastError, ObjectNotFound
from holdfast.ids import Epoch, Incarnation
from holdfast.journal.codec import decode_committables
from holdfast.printable import logger
from holdfast.sinks.base import Gone
from holdfast.sinks.gathered import Named, gathering_of
from holdfast.sinks.staging import batch_of
from holdfast.sources.objects import SourceObjects
from holdfast.storage import names
from holdfast.storage.names import (
    ChangelogName,
    CommittablesName,
    GatheredName,
    ManifestName,
    SharedName,
    StagedName,
)
from holdfast.storage.reading import read
from holdfast.storage.store import ObjectStore

log = logger(__name__)

FOLDERS_MAX = 32
"""Number of dead incarnations above which all folders of the epoch are listed instead of each incarnation's folders."""


class Remains:
    """The leftovers of an epoch."""

    def __init__(
        self,
        store: ObjectStore,
        job_id: str,
        epoch: Epoch,
        targets: Mapping[str, Target],
        source_objects: SourceObjects,
    ) -> None:
        self._store = store
        self._source_objects = source_objects
        self._job_id = job_id
        self._epoch = epoch
        self._targets = targets

    def stored(self, dead: Collection[Incarnation], resolved: int) -> frozenset[str]:
        """Return the names of objects that `dead` incarnations stored, of objects stored for checkpoints up to
        `resolved`, and of sources' unused objects. Some may still be in use. Acknowledgements may have been lost with
        their senders, and none completes these checkpoints any more.
        """
        found = self._source_objects.strays()
        for folder in [*self._folders(dead), *names.checkpoint_folders(self._epoch)]:
            for info in self._store.list(folder):
                parsed = names.parse(info.name)
                if isinstance(parsed, GatheredName | ManifestName | CommittablesName):
                    wanted = parsed.checkpoint <= resolved
                else:
                    wanted = isinstance(parsed, ChangelogName | SharedName) and parsed.incarnation in dead
                if wanted:
                    found.add(info.name)
        return frozenset(found)

    def drop_staged(self, outstanding: Outstanding) -> None:
        """Delete staged files that will never be published, in the job's storage and at the targets of sinks."""
        named = Named(self._store, self._job_id)
        for sink, committables in outstanding.committables.items():
            for each in committables:
                with suppress(ObjectNotFound):  # given up, or published and discarded, since the snapshot was taken
                    named.add(sink, [each])
        for sink, name in outstanding.groups:
            with suppress(ObjectNotFound):  # published and discarded: without it nobody can publish the group again
                named.add(sink, decode_committables(name, read(self._store, name)).committables)

        def gone(name: StagedName) -> bool:
            if name.epoch != self._epoch:
                return False
            gathering = gathering_of(name)
            if gathering is not None:
                return gathering < outstanding.gathers and gathering not in outstanding.gathering
            batch = batch_of(name)
            return name.run < outstanding.run or (batch is not None and batch <= outstanding.batch)

        dropped = []
        for info in self._store.list(names.staging_epoch_folder(self._job_id, self._epoch)):
            parsed = names.parse(info.name)
            if isinstance(parsed, StagedName) and gone(parsed) and info.name not in named.stored:
                dropped.append(info.name)
        self._store.delete(dropped)
        for sink, target in self._targets.items():
            self._sweep(sink, target, gone, named.at_targets.get(sink, []))

    def _sweep(self, sink: str, target: Target, gone: Gone, named: list[bytes]) -> None:
        try:
            target.sweep(gone, named)
        except (HoldfastError, OSError) as error:
            log.warning("sink %r: files staged for nothing are left to the next sweep: %s", sink, error)

    def _folders(self, dead: Collection[Incarnation]) -> list[str]:
        if len(dead) > FOLDERS_MAX:
            return names.epoch_folders(self._epoch)
        return [
            folder for incarnation in sorted(dead) for folder in names.incarnation_folders(self._epoch, incarnation)
        ]
