"""Clean-up after a takeover: what older epochs left, that the base checkpoint does not need.

    needed_objects (I/O, before the job runs) ──► survey (I/O) ──► plan_cleanup (pure) ──► carry_out (I/O)
                                                                          │ print it: a dry run

Invariants
- Only objects of epochs below one's own are ever deleted, and only checkpoint records below the base.
- Records before objects; oldest first. What `names.parse` does not know is left alone and reported, as are
  savepoints and everything outside the folders of `names.EPOCH_FOLDERS`.
- What the base needs is read before the first checkpoint of the new epoch can subsume it; if anything of it
  cannot be read, nothing is deleted.

Safe while the job runs, and also in a JobMaster that was fenced meanwhile without knowing: what a later record
names of epochs before one's own, one's base names too. Does not own objects of living epochs (the registry does).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.ids import JournalNumber
from holdfast.journal.codec import decode_committables
from holdfast.journal.fence import TakenOver, journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord, Record
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo, ObjectStore

DELETE_BATCH = 500

StagedFiles = Callable[[str, Sequence[bytes]], Iterable[str]]
"""(sink, committables) → names of the staged files in the job's storage that they refer to."""

ManifestObjects = Callable[[str, bytes], Iterable[str]]
"""(name, data) of a manifest → names of the objects it refers to. Raises `CorruptObject`."""


@dataclass(frozen=True)
class Survey:
    """What was observed. `older_records` are below the base (below the epoch where there is none); a value of None
    is a record that cannot be read."""

    epoch: int
    needed: frozenset[str]
    older_records: Mapping[int, Record | None]
    listing: Sequence[ObjectInfo]


@dataclass(frozen=True)
class CleanupPlan:
    """What would be deleted, in that order, and what is left alone for want of understanding."""

    expired: list[JournalNumber] = field(default_factory=list)
    deleted: list[ObjectInfo] = field(default_factory=list)
    kept: int = 0
    unknown: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people: one line an object, then the sums."""
        lines = [f"delete {names.journal(number)}" for number in self.expired]
        lines += [f"delete {info.name} ({info.size} bytes)" for info in self.deleted]
        lines += [f"leave  {name} (unknown name)" for name in self.unknown]
        size_bytes = sum(info.size for info in self.deleted)
        lines.append(
            f"{len(self.expired)} records and {len(self.deleted)} objects ({size_bytes} bytes) to delete, "
            f"{self.kept} objects of older epochs to keep, {len(self.unknown)} of unknown names left alone"
        )
        return lines


def plan_cleanup(survey: Survey) -> CleanupPlan:
    """Classify everything; pure."""
    expired: list[JournalNumber] = []
    unknown: list[str] = []
    for number, record in sorted(survey.older_records.items()):
        if record is None:
            unknown.append(names.journal(number))
        elif isinstance(record, CheckpointRecord):
            expired.append(JournalNumber(number))
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


def survey(store: ObjectStore, taken: TakenOver, needed: Iterable[str]) -> Survey:
    """List what there is. `needed` is what `needed_objects` returned for the base. Writes nothing."""
    below = taken.epoch if taken.base_number is None else taken.base_number
    listing = [info for folder in names.EPOCH_FOLDERS for info in store.list(folder)]
    return Survey(taken.epoch, frozenset(needed), _older_records(store, below), listing)


def needed_objects(
    store: ObjectStore, base: CheckpointRecord | None, manifest_objects: ManifestObjects, staged_files: StagedFiles
) -> set[str]:
    """Everything that a restart from `base` reads: what it names, what its manifests name, what is to be published.

    To be called before the first checkpoint of the new epoch: later, what only the base needs is deleted.
    Raises `StorageError` or `CorruptObject` where something of it cannot be read.
    """
    if base is None:
        return set()
    needed = set(base.objects())
    for manifest in base.manifests:
        needed.update(manifest_objects(manifest, store.get(manifest)))
    for sink, groups in base.groups.items():
        for group in groups:
            stored = decode_committables(group.object, store.get(group.object))
            needed.update(staged_files(sink, stored.committables))
    return needed


def carry_out(store: ObjectStore, plan: CleanupPlan, stopped: Callable[[], bool] = lambda: False) -> int:
    """Delete what the plan says, in its order, until `stopped`; returns how many objects and records were deleted.

    Raises `StorageError`; what is left is found again by the next takeover.
    """
    wanted = [names.journal(number) for number in plan.expired] + [info.name for info in plan.deleted]
    for start in range(0, len(wanted), DELETE_BATCH):
        if stopped():
            return start
        store.delete(wanted[start : start + DELETE_BATCH])
    return len(wanted)


def _older_records(store: ObjectStore, below: int) -> dict[int, Record | None]:
    records: dict[int, Record | None] = {}
    for number in journal_numbers(store):
        if number < below:
            try:
                records[number] = read_record(store, number)
            except CorruptObject:
                records[number] = None
            except ObjectNotFound:
                continue  # expired meanwhile, by the JobMaster before this one
    return records
