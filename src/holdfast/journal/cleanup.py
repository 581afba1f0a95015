"""Clean-up after a takeover: what older epochs left, that the base checkpoint does not need.

    needed_objects (I/O) ──► survey (I/O) ──► plan_cleanup (pure) ──► carry_out (I/O)
                                                     │ print it: a dry run

Invariants
- Only objects of epochs below one's own are ever deleted, and only checkpoint records of those, below the base.
- Records before objects; oldest first. What `names.parse` does not know is left alone and reported, as are
  savepoints and everything outside the folders of `names.EPOCH_FOLDERS`.
- If anything that the base needs cannot be read, nothing is deleted.

The base is the newest checkpoint, at the takeover or at any time later: what a later record names of epochs before
one's own, an earlier one names too. So it is safe while the job runs, and also in a JobMaster that was fenced
meanwhile without knowing. Does not own objects of living epochs (the registry does).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.ids import JournalNumber
from holdfast.journal.codec import decode_committables
from holdfast.journal.fence import TakenOver, journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord, Record
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo, ObjectStore

DELETE_BATCH = 500
READS_MAX = 8

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
        elif isinstance(record, CheckpointRecord) and record.epoch < survey.epoch:
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

    Once a later checkpoint is recorded, what only this one needs may be gone (`ObjectNotFound`).
    Raises `StorageError` or `CorruptObject` where something of it cannot be read.
    """
    if base is None:
        return set()
    needed = set(base.objects())
    groups = [(sink, group.object) for sink, each in base.groups.items() for group in each]
    wanted = [*base.manifests, *(name for _, name in groups)]
    with ThreadPoolExecutor(READS_MAX, thread_name_prefix="holdfast-needed") as readers:
        found = dict(zip(wanted, readers.map(store.get, wanted), strict=True))
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
    """Delete what the plan says, in its order, until `stopped`; returns how many objects and records were deleted.

    `progress` is told how many of how many are gone.

    Raises `StorageError`; what is left is found again by the next takeover.
    """
    wanted = [names.journal(number) for number in plan.expired] + [info.name for info in plan.deleted]
    for start in range(0, len(wanted), DELETE_BATCH):
        if stopped():
            return start
        progress(start, len(wanted))
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
