"""Clean-up after a takeover: deletes objects of older epochs that the base checkpoint does not need.

    needed_objects (I/O) ──► survey (I/O) ──► plan_cleanup (pure) ──► carry_out (I/O)
                                                     │ print it: a dry run

Invariants
- Only objects of epochs below the JobMaster's own are deleted, and only checkpoint records of those epochs below the
  base that the base does not retain.
- Records are deleted before objects, and older ones first. Names that `names.parse` does not know are left alone and
  reported, as are savepoints and everything outside the folders of `names.EPOCH_FOLDERS`.
- If anything that the base needs cannot be read, nothing is deleted.

The base is the newest checkpoint, at the takeover or at any later time: if a later record names an object of an older
epoch, an earlier record names it too. So clean-up is safe while the job runs, and also in a JobMaster that does not
know yet that it was fenced. The registry owns objects of living epochs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from holdfast.errors import CorruptObject, HoldfastError, ObjectNotFound
from holdfast.ids import Epoch, JournalNumber
from holdfast.journal.codec import decode_committables
from holdfast.journal.fence import TakenOver, journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord, Record
from holdfast.storage import names
from holdfast.storage.reading import read_all
from holdfast.storage.store import ObjectInfo, ObjectStore

DELETE_BATCH = 500
FAILURES_MAX = 3
"""Deletions that may fail one after the other: a store that does not answer is left to the next clean-up."""
READS_MAX = 8

StagedFiles = Callable[[str, Sequence[bytes]], Iterable[str]]
"""A function that maps a sink's name and committables to the names of their staged files in the job's storage."""

ManifestObjects = Callable[[str, bytes], Iterable[str]]
"""A function that maps a manifest's name and data to the names of its objects. Raises `CorruptObject`."""


@dataclass(frozen=True)
class StorageSurvey:
    """Observed facts from which a plan is made. `older_records` have numbers below the base (below the epoch if there
    is no base). The value None is a record that cannot be read."""

    epoch: Epoch
    needed: frozenset[str]
    older_records: Mapping[JournalNumber, Record | None]
    listing: Sequence[ObjectInfo]
    retained: frozenset[int] = frozenset()
    """Numbers of the other records that the base retains."""


@dataclass(frozen=True)
class CleanupPlan:
    """Objects and records to delete, and unknown names that are not touched."""

    expired: list[JournalNumber] = field(default_factory=list)
    deleted: list[ObjectInfo] = field(default_factory=list)
    kept: int = 0
    unknown: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return lines for people to read: a line for each object, then the sums."""
        lines = [f"delete {names.journal(number)}" for number in self.expired]
        lines += [f"delete {info.name} ({info.size} bytes)" for info in self.deleted]
        lines += [f"leave  {name} (unknown name)" for name in self.unknown]
        size_bytes = sum(info.size for info in self.deleted)
        lines.append(
            f"{len(self.expired)} records and {len(self.deleted)} objects ({size_bytes} bytes) to delete, "
            f"{self.kept} objects of older epochs to keep, {len(self.unknown)} of unknown names left alone"
        )
        return lines


def plan_cleanup(survey: StorageSurvey) -> CleanupPlan:
    """Divide all objects and records into kept, deleted and unknown ones. Pure."""
    expired: list[JournalNumber] = []
    unknown: list[str] = []
    for number, record in sorted(survey.older_records.items()):
        if record is None:
            unknown.append(names.journal(number))
        elif number not in survey.retained and isinstance(record, CheckpointRecord) and record.epoch < survey.epoch:
            expired.append(number)
    kept = 0
    candidates: list[tuple[int, ObjectInfo]] = []
    for info in survey.listing:
        epoch = names.epoch_of(info.name)
        if epoch is None:
            unknown.append(info.name)
        elif epoch < survey.epoch and info.name in survey.needed:
            kept += 1
        elif epoch < survey.epoch:
            candidates.append((epoch, info))
    candidates.sort(key=lambda candidate: (candidate[0], candidate[1].modified_s, candidate[1].name))
    return CleanupPlan(expired, [info for _, info in candidates], kept, unknown)


def survey(store: ObjectStore, taken: TakenOver, needed: Iterable[str]) -> StorageSurvey:
    """List records and objects, and write nothing. `needed`: the names that `needed_objects` returned for the base."""
    below = taken.epoch if taken.base_number is None else taken.base_number
    listing = [info for folder in names.EPOCH_FOLDERS for info in store.list(folder)]
    retained = frozenset(taken.base.retains if taken.base is not None else ())
    return StorageSurvey(taken.epoch, frozenset(needed), _older_records(store, below), listing, retained)


def needed_objects(
    store: ObjectStore, base: CheckpointRecord | None, manifest_objects: ManifestObjects, staged_files: StagedFiles
) -> set[str]:
    """Collect the names of all objects that a restart from `base` reads: those in the record, in its manifests, and in
    its groups still to be published.

    After a later checkpoint is recorded, objects that only `base` needs may be missing (`ObjectNotFound`). Raises
    `StorageError` or `CorruptObject` if an object cannot be read.
    """
    if base is None:
        return set()
    needed = set(base.objects())
    groups = [(sink, group.object) for sink, each in base.groups.items() for group in each]
    wanted = [*base.manifests, *(name for _, name in groups)]
    with ThreadPoolExecutor(READS_MAX, thread_name_prefix="holdfast-needed") as readers:
        found = dict(zip(wanted, read_all(store, wanted, readers.map), strict=True))
    for manifest in base.manifests:
        needed.update(manifest_objects(manifest, found[manifest]))
    for sink, name in groups:
        needed.update(staged_files(sink, decode_committables(name, found[name]).committables))
    return needed


def carry_out(
    store: ObjectStore,
    plan: CleanupPlan,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Delete the plan's records and objects, in its order, until `stopped`; return how many were deleted.

    `progress` is called with the number deleted so far and the number planned.

    Objects go only once all expired records, which may name them, are gone. Beyond that, a failure keeps no other
    objects from being deleted, until `FAILURES_MAX` follow each other. Raises the first error at the end; the next
    takeover finds the remaining objects again.
    """
    first: HoldfastError | None = None
    failures = 0
    wanted = [names.journal(number) for number in plan.expired] + [info.name for info in plan.deleted]
    for start in range(0, len(wanted), DELETE_BATCH):
        if stopped():
            return start
        progress(start, len(wanted))
        try:
            store.delete(wanted[start : start + DELETE_BATCH])
            failures = 0
        except HoldfastError as error:
            first, failures = first or error, failures + 1
            if start < len(plan.expired) or failures == FAILURES_MAX:
                break
    if first is not None:
        raise first
    return len(wanted)


def _older_records(store: ObjectStore, below: int) -> dict[JournalNumber, Record | None]:
    records: dict[JournalNumber, Record | None] = {}
    for number in journal_numbers(store):
        if number < below:
            try:
                records[number] = read_record(store, number)
            except CorruptObject:
                records[number] = None
            except ObjectNotFound:
                continue  # expired meanwhile, by the previous JobMaster
    return records
