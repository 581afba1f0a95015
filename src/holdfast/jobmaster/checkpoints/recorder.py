"""Records: stores committables, appends to the journal and expires records, as the coordinator orders.

    StoreAhead ──► parts, committables being stored ──given up──► ObjectsFound
                                  │
    StoreAndRecord ──► parts, committables stored ──┬─► record put ──► RecordWritten
    RecordAgain ──────────────────│─────────────────┘       └── another epoch's is there: Superseded
                                  └── failed: RecordFailed

Invariants: only the journal's thread makes calls, except for `record` and `found`. While it is unknown whether a record
was written, the module asks again, and writes and deletes nothing else. Answers are events; the coordinator decides.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from holdfast import failpoints
from holdfast.checkpoint import events
from holdfast.checkpoint.ahead import StoreAhead
from holdfast.checkpoint.events import Event
from holdfast.checkpoint.gathering import Gather, Gathered, GatherFailed
from holdfast.clock import Clock
from holdfast.errors import Fenced, ObjectNotFound, StorageError, described, is_outage
from holdfast.ids import CheckpointId, Epoch, JournalNumber
from holdfast.jobmaster.checkpoints.gathered import CarriedPart, GatheredObjects, StoredAhead, StoredObjects, Unstored
from holdfast.jobmaster.checkpoints.job_facts import JobFacts
from holdfast.jobmaster.checkpoints.outages import RECORDS, Outages
from holdfast.journal.codec import encode_committables
from holdfast.journal.fence import exists
from holdfast.journal.journal import Journal
from holdfast.journal.records import CheckpointRecord
from holdfast.printable import logger
from holdfast.references import object_of
from holdfast.sinks.gathered import gather, gathered_name
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.uploads.hedged_store import DriverUploads

log = logger(__name__)

LOOK_AT_RECORD_S = 10.0
"""Seconds between looks at the newest record; a higher value notices later that the storage was deleted."""


LOOK_AT_JOURNAL_S = 3.0
"""Seconds without a record after which a JobMaster looks if another has taken over. With a higher value, a job at rest
makes fewer requests and notices a second driver later."""


class Recorder:
    """Writes records. `post` takes the outcome of each command, `failed` the error that ends the query."""

    def __init__(
        self,
        journal: Journal,
        store: ObjectStore,
        facts: JobFacts,
        layouts: Mapping[str, bytes],
        post: Callable[[Event], None],
        failed: Callable[[Exception], None],
        closing: threading.Event,
        outages: Outages,
        clock: Clock,
        uploads: DriverUploads,
    ) -> None:
        self._clock = clock
        self._looked_s = float("-inf")
        self._next_look_s = clock.monotonic() + LOOK_AT_JOURNAL_S
        self._has_job = False
        """True if the last look found the object of the job itself, which is never written again."""
        self._journal = journal
        self._store = store
        self._facts = facts
        self._layouts = layouts
        """Layout of each sink, stored with each of its groups."""
        self._post = post
        self._failed = failed
        self._closing = closing
        self._outages = outages
        self._uploads = uploads
        self._objects = GatheredObjects(uploads, facts.epoch)
        self._ahead: StoredAhead | None = None
        """Objects of a checkpoint whose record is not due yet."""
        self._looks_ahead: list[Callable[[], tuple[str, bool]]] = []
        """Looks that began with these objects."""
        self._records: dict[JournalNumber, CheckpointRecord] = {}
        """Records in the journal that a restart may go back to. An entry exists before its event is posted."""

    def found(self, number: JournalNumber, record: CheckpointRecord) -> None:
        """Note the record that this start begins from."""
        self._records[number] = record

    def record(self, number: JournalNumber | None) -> CheckpointRecord | None:
        """Return a record that the coordinator names; None for None. Any thread may call this."""
        return None if number is None else self._records[number]

    @property
    def newest(self) -> CheckpointRecord | None:
        """The record with the highest number; None if there is none yet. Any thread may call this."""
        records = dict(self._records)
        return records[max(records)] if records else None

    @property
    def newest_number(self) -> JournalNumber | None:
        """Number of the newest record; None if there is none."""
        return max(dict(self._records), default=None)

    @property
    def is_at_rest(self) -> bool:
        """True if the outcomes of all records are known, and no other JobMaster was found to have taken over."""
        return not self._journal.unresolved and not self._journal.fenced

    def check_not_fenced(self) -> None:
        """Check that no other JobMaster took over. Raises `Fenced`."""
        self._journal.check()

    def look_is_due(self) -> bool:
        """True if for `LOOK_AT_JOURNAL_S` no call has shown who owns the journal; the next True comes only after `look`
        was called. The control thread asks."""
        now_s = self._clock.monotonic()
        if now_s < self._next_look_s:
            return False
        self._next_look_s = math.inf
        return True

    def look(self) -> None:
        """Find out if another JobMaster has taken over, while this job is at rest and writes no record."""
        self.check_ownership()
        if not self._journal.fenced:
            self._next_look_s = self._clock.monotonic() + LOOK_AT_JOURNAL_S

    def check_ownership(self) -> None:
        """Find out if another JobMaster has taken over, at a time when no record is due that would show it."""
        try:
            self._journal.check()
        except Fenced as error:
            self._superseded(error)
        except StorageError as error:
            log.info("it is not known whether another JobMaster took over: %s", error)

    def fail_query(self, error: Exception) -> None:
        """End the query with `error`, or with `Fenced` if another JobMaster has taken over, which explains the
        error."""
        self.check_ownership()
        self._failed(error)

    def store_and_record(self, command: events.StoreAndRecord, parts: Mapping[int, CarriedPart]) -> None:
        """Store the parts that came with acknowledgements, and the committables; then write the record that names
        them."""
        checkpoint_id = command.checkpoint_id
        committables = {sink: self._committables(sink, command) for sink in command.committables}
        looked = self._looks_ahead or self._begin_looks()
        try:
            stored = self._objects.end(self._begun(checkpoint_id, parts, committables))
        except Unstored as error:
            self._post(events.RecordFailed(checkpoint_id, str(error), error.stored, outage=True))
            return
        objects = frozenset(map(object_of, [*stored.manifests.values(), *stored.committables.values()]))
        try:
            failpoints.hit("jobmaster.record.stored")
            failpoints.hit("jobmaster.record.before")
            gone = self._gone([look() for look in looked])
        except (StorageError, OSError) as error:
            self._post(events.RecordFailed(checkpoint_id, described(error), objects, is_outage(error)))
            return
        if gone is not None:
            self.fail_query(gone)
            self._post(events.RecordFailed(checkpoint_id, str(gone), objects))
            return
        newest = (number := max(self._records), self._records[number]) if self._records else None
        record = self._facts.record(command, stored, self._journal.next_number, newest)
        self._put(record, checkpoint_id, stored)

    def store_ahead(self, command: StoreAhead, parts: Mapping[int, CarriedPart]) -> None:
        """Begin to store the objects that `store_and_record` will want, beside large parts that are being stored."""
        self._drop_ahead()
        committables = {sink: self._committables(sink, command) for sink in command.committables}
        self._ahead = self._objects.begin(command.checkpoint_id, parts, committables)
        self._looks_ahead = self._begin_looks()

    def drop_ahead(self, checkpoint_id: CheckpointId) -> None:
        """Let go of the objects stored ahead for a checkpoint that was given up: no record will name them."""
        if self._ahead is not None and self._ahead.checkpoint_id == checkpoint_id:
            self._drop_ahead()

    def _drop_ahead(self) -> None:
        ahead, self._ahead, self._looks_ahead = self._ahead, None, []
        for _, stored in () if ahead is None else ahead.objects:
            stored.add_done_callback(self._found_object)

    def _found_object(self, stored: Future[str]) -> None:
        if stored.exception() is None:
            self._post(events.ObjectsFound(frozenset([stored.result()])))

    def _begun(
        self, checkpoint_id: CheckpointId, parts: Mapping[int, CarriedPart], committables: Mapping[str, bytes]
    ) -> StoredAhead:
        """Return the objects stored ahead, if they have these contents; otherwise begin to store objects with them."""
        if self._ahead is not None and self._ahead.holds(checkpoint_id, parts, committables):
            begun, self._ahead, self._looks_ahead = self._ahead, None, []
            return begun
        self._drop_ahead()
        return self._objects.begin(checkpoint_id, parts, committables)

    def _committables(self, sink: str, command: events.StoreAndRecord | StoreAhead) -> bytes:
        return encode_committables(
            sink,
            command.committables[sink],
            self._layouts[sink],
            self._facts.watermark_us(sink, command.position),
            self._facts.job_id,
            self._facts.epoch,
            command.checkpoint_id,
        )

    def _begin_looks(self) -> list[Callable[[], tuple[str, bool]]]:
        """Begin to look for the job's object and its newest record, at most every `LOOK_AT_RECORD_S`, while the
        checkpoint's objects are being stored."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < LOOK_AT_RECORD_S:
            return []
        self._looked_s = now_s
        wanted = [names.job(), *([names.journal(max(self._records))] if self._records else [])]
        return [self._objects.beside(partial(self._look_for, name)) for name in wanted]

    def _look_for(self, name: str) -> tuple[str, bool]:
        return name, exists(self._store, name)

    def _gone(self, looked: Sequence[tuple[str, bool]]) -> ObjectNotFound | None:
        """The error if the job's object or its newest record is gone.

        A store whose folder or bucket was emptied still accepts puts, and checkpoints would refer to state that is no
        longer there.
        """
        if not looked:
            return None
        had_job, self._has_job = self._has_job, looked[0][1]
        missing = [name for name, is_there in looked if not is_there and (name != names.job() or had_job)]
        if not missing:
            return None
        name = missing[0]
        return ObjectNotFound(
            f"{self._store.url}: the object {name!r} is gone: the storage was deleted or emptied "
            "while the query ran, and its stored state may be gone too. Restore the folder from a backup, or from the "
            "bucket's older versions, and start again; or start from a savepoint on a new storage: "
            "Job(storage=…) with job.start(start_from=…); or with a new, empty storage from the beginning"
        )

    def record_again(self, command: events.RecordAgain) -> None:
        record = self._facts.again(self._records[command.number], command)
        self._put(record, command.checkpoint_id, StoredObjects({}, {}))

    def _put(self, record: CheckpointRecord, checkpoint_id: CheckpointId, stored: StoredObjects) -> None:
        try:
            number = self._append(record)
        except Fenced as error:
            self._superseded(error)
            return
        except StorageError as error:
            self._failed(error)
            return
        failpoints.hit("jobmaster.record.after")
        self._records[number] = record
        self._next_look_s = self._clock.monotonic() + LOOK_AT_JOURNAL_S
        self._post(events.RecordWritten(checkpoint_id, number, stored.committables, stored.manifests))

    def _superseded(self, error: Fenced) -> None:
        self._post(events.Superseded())
        self._failed(error)

    def _append(self, record: CheckpointRecord) -> JournalNumber:
        """Append a record and wait until its outcome is known.

        Raises `StorageError` if this JobMaster is closed first, or the store is unreachable for too long. Then nothing
        more is written or deleted, and the next takeover finds out the outcome.
        """
        while True:
            try:
                number = self._journal.resolve() if self._journal.unresolved else self._journal.append(record)
            except StorageError as error:
                if self._closing.wait(self._outages.failed(RECORDS, str(error))):
                    raise
            else:
                self._outages.answered(RECORDS)
                return number

    def upload_metrics(self) -> dict[str, float]:
        """Metrics of everything that was stored from here."""
        return self._uploads.puts.metrics()

    def close(self) -> None:
        """Store nothing any more. Returns at once."""
        self._uploads.close()

    def expire(self, command: events.ExpireRecords) -> None:
        numbers = frozenset(command.numbers)
        failpoints.hit("jobmaster.expire.before")
        try:
            self._journal.expire(command.numbers)
        except (StorageError, Fenced) as error:
            log.warning("records %s could not be expired: %s", sorted(numbers), error)
            self._post(events.ExpireFailed(numbers))
            return
        failpoints.hit("jobmaster.expire.after")
        for number in numbers:
            self._records.pop(number, None)
        self._post(events.RecordsExpired(numbers))


class Gatherer:
    """Stores committables that take too much memory as a single object, as the coordinator orders.

    `post` takes the outcome of each command. A thread of its own makes the calls, so that neither records nor deletions
    delay them.
    """

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
