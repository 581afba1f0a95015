"""`verify` reads every object to which the retained checkpoints refer, and reports problems. It writes nothing.

    job, journal ──► records ──► manifests, committables, source chunks ──► log pieces, parts, staged files
                                                                                 each object once

Invariants: bytes are released at once, so that terabytes can be checked. An object without a problem is not read again.
A running job may subsume checkpoints meanwhile, so the journal is read again after a problem, and only real losses are
reported. Files at sinks' own targets are not read. For a savepoint, the list of copies is checked as well: each
object's size and checksum.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.errors import CorruptObject, ObjectNotFound, StorageError
from holdfast.formats.handles import Manifest, TableHandle
from holdfast.formats.manifests import decode_manifest
from holdfast.ids import JournalNumber
from holdfast.journal import rules
from holdfast.journal.codec import StoredSavepoint, decode_committables, decode_record
from holdfast.journal.fence import Listed, list_journal, lost
from holdfast.journal.job import LAYOUT_VERSION, read_job
from holdfast.journal.records import CheckpointRecord, Record
from holdfast.journal.savepoints import find_savepoint
from holdfast.maintenance import report as kinds
from holdfast.maintenance.objects import Check, Key, Wrong, copy_check, part_check, piece_check, staged_check
from holdfast.maintenance.report import CheckpointSummary, OnProgress, Report
from holdfast.recovery.restore import select
from holdfast.references import object_of
from holdfast.sinks.base import Owner
from holdfast.sinks.gathered import Expanded
from holdfast.sinks.staging import StagedRows, decode_owned
from holdfast.sources.files.discovery_chunks import decode as decode_chunk
from holdfast.sources.files.discovery_chunks import join
from holdfast.sources.spooled.segments import check_segment
from holdfast.storage import names
from holdfast.storage.copying import CopiedObject
from holdfast.storage.reading import read
from holdfast.storage.store import ObjectStore

READS_MAX = 8
ROUNDS_MAX = 20


def verify(store: ObjectStore, progress: OnProgress = lambda done, total: None) -> Report:
    """Check everything that the checkpoints in the journal refer to, or a savepoint. Raises `StorageError` if the
    storage cannot be listed."""
    try:
        savepoint = find_savepoint(store)
    except CorruptObject as error:
        return _unreadable(store, error)
    if savepoint is not None:
        return _Verification(store, set(), progress).run_savepoint(savepoint)
    verified: set[Key] = set()
    for attempt in itertools.count(1):
        listed = list_journal(store)
        report = _Verification(store, verified, progress).run(listed)
        if report.ok or attempt == ROUNDS_MAX or list_journal(store) == listed:
            return report
    raise AssertionError("unreachable")


def _unreadable(store: ObjectStore, error: CorruptObject) -> Report:
    report = Report(store.url)
    report.wrong(kinds.JOB, names.savepoint(), str(error), "the record and the list of a savepoint's objects")
    return report


class _Verification:
    """One round of verification. `verified`: the checks of earlier rounds that found no problem."""

    def __init__(self, store: ObjectStore, verified: set[Key], progress: OnProgress) -> None:
        self._store = store
        self._verified = verified
        self._progress = progress
        self._report = Report(store.url)
        self._checks: dict[str, dict[Key, Check]] = {}
        self._copies: dict[str, CopiedObject] = {}
        """Copies that a savepoint lists."""
        self._unread: dict[str, tuple[str, str, list[str]]] = {}
        """Objects that cannot be read: the kind, what was found, and everything that they should contain."""

    def run(self, listed: Listed) -> Report:
        self._read_job()
        records = self._read_records(listed.numbers)
        self._look_for_a_lost_record(listed, records)
        for number, record in records.items():
            if isinstance(record, CheckpointRecord):
                self._read_checkpoint(number, record)
        self._read_objects()
        self._note_unknown()
        return self._finished()

    def run_savepoint(self, savepoint: StoredSavepoint) -> Report:
        """Check a savepoint's checkpoint, and that no object has changed since it was copied."""
        report, record = self._report, savepoint.record
        report.job, report.job_id, report.epoch = savepoint.job.name, savepoint.job.job_id, record.epoch
        report.count(kinds.JOB, 0)
        self._copies = {each.name: each for each in savepoint.objects}
        self._read_checkpoint(JournalNumber(savepoint.number), record)
        for name, copy in self._copies.items():
            if name in self._checks:
                self._wanted([copy_check(next(iter(self._checks[name].values())).kind, copy)])
            elif isinstance(names.parse(name), names.GatheredName | names.ChangelogName):
                self._wanted([copy_check(kinds.CHANGELOG, copy)])
        self._read_objects()
        return self._finished()

    # --- small objects ------------------------------------------------------------------------------------------------

    def _read_job(self) -> None:
        name, report = names.job(), self._report
        try:
            job = read_job(self._store)
        except ObjectNotFound:
            report.wrong(kinds.JOB, name, "no such object", "the job's own: is this the folder of a job?")
            return
        except CorruptObject as error:
            report.wrong(kinds.JOB, name, str(error), "the job's own object as it was created")
            return
        report.count(kinds.JOB, 0)
        report.job, report.job_id = job.name, job.job_id
        if job.layout_version != LAYOUT_VERSION:
            report.wrong(kinds.JOB, name, f"layout version {job.layout_version}", f"{LAYOUT_VERSION}, this version's")

    def _read_records(self, numbers: Sequence[JournalNumber]) -> dict[JournalNumber, Record]:
        """Read all readable records. A missing record has expired, unless it is a takeover or the newest record."""
        found: dict[JournalNumber, Record] = {}
        for number in numbers:
            name = names.journal(number)
            data = self._get(kinds.RECORDS, name, "a record of the journal", missing_is_wrong=False)
            if data is None:
                continue
            try:
                found[number] = decode_record(name, data)
            except CorruptObject as error:
                self._report.wrong(kinds.RECORDS, name, str(error), "a record of the journal")
        for number, record in found.items():
            takeover = JournalNumber(record.epoch)
            if takeover != number and (takeover > number or not isinstance(record, CheckpointRecord)):
                self._report.wrong(
                    kinds.RECORDS, names.journal(number), f"epoch {record.epoch}", "the number of an earlier takeover"
                )
            elif takeover not in numbers:
                self._report.wrong(
                    kinds.RECORDS,
                    names.journal(takeover),
                    "no such object",
                    f"the takeover of epoch {record.epoch}",
                )
        if found:
            self._report.epoch = found[max(found)].epoch
        return found

    def _look_for_a_lost_record(self, listed: Listed, records: Mapping[JournalNumber, Record]) -> None:
        newest = max((number for number, each in records.items() if isinstance(each, CheckpointRecord)), default=None)
        missing = rules.missing_record(listed.numbers, listed.begun, newest)
        if missing is not None and len(records) == len(listed.numbers):
            found = f"no such object: {lost(missing, listed, newest)}"
            self._report.wrong(kinds.RECORDS, names.journal(missing), found, "the newest checkpoint record")

    def _read_checkpoint(self, number: JournalNumber, record: CheckpointRecord) -> None:
        referrer = f"checkpoint {names.journal(number)}"
        manifests = [
            manifest
            for name in record.manifests
            if (manifest := self._read_manifest(name, record, referrer)) is not None
        ]
        handles = [handle for manifest in manifests for handle in manifest.tables]
        for handle in handles:
            self._wanted(piece_check(kinds.CHANGELOG, handle, piece, referrer) for piece in handle.log)
            self._wanted(part_check(kinds.MATERIALIZED, handle, part, referrer) for part in handle.materialized)
        if len(manifests) == len(record.manifests):
            self._check_tables(record, handles, referrer)
        for source, chunks in record.source_objects.items():
            self._read_chunks(source, chunks, referrer)
        for sink, groups in record.groups.items():
            for group in groups:
                self._read_group(sink, group.object, record, referrer)
        self._report.checkpoints.append(
            CheckpointSummary(
                number,
                record.epoch,
                record.checkpoint_id,
                record.batch,
                len(manifests),
                len(handles),
                sum(handle.stored_bytes() for handle in handles),
            )
        )

    def _read_manifest(self, name: str, record: CheckpointRecord, referrer: str) -> Manifest | None:
        expected = f"a TaskManager's part of {referrer}"
        data = self._get(kinds.MANIFESTS, name, expected)
        if data is None:
            return None
        try:
            manifest = decode_manifest(name, data)
            names.check_writer(name, manifest.job, record.writers())
        except CorruptObject as error:
            self._report.wrong(kinds.MANIFESTS, name, str(error), expected)
            return None
        parsed = names.meaning(name)
        said = names.ManifestName(manifest.epoch, manifest.checkpoint_id, manifest.task_manager)
        older = name in record.older_manifests and manifest.batch < record.batch
        if parsed != said or (manifest.batch != record.batch and not older):
            self._report.wrong(
                kinds.MANIFESTS,
                name,
                f"that of epoch {said.epoch}, checkpoint {said.checkpoint}, TaskManager {said.task_manager}, batch "
                f"{manifest.batch}",
                f"the values in its name, and batch {record.batch}: {expected}",
            )
        return manifest

    def _check_tables(self, record: CheckpointRecord, handles: Sequence[TableHandle], referrer: str) -> None:
        """Check that every table of every operator has each of its key groups exactly once."""
        for operator, identity in record.operators.items():
            for table in identity.tables:
                expected = f"the state of {operator}.{table}, key groups 0 to {record.max_parallelism}, in {referrer}"
                try:
                    found = select(handles, operator, table, 0, record.max_parallelism)
                except CorruptObject as error:
                    self._report.wrong(kinds.MANIFESTS, record.manifests[0], str(error), expected)
                    continue
                if not found:
                    name = record.manifests[0] if record.manifests else referrer
                    self._report.wrong(kinds.MANIFESTS, name, "no handle of that table in any manifest", expected)

    def _read_chunks(self, source: str, chunks: Sequence[str], referrer: str) -> None:
        expected = f"discovery chunks of source {source!r}, named by {referrer}"
        stored = []
        for name in chunks:
            data = self._get(kinds.SOURCES, name, expected)
            if data is None:
                return
            try:
                if isinstance(names.parse(name), names.SegmentName):
                    check_segment(name, data)
                    continue
                stored.append((name, decode_chunk(name, data)))
            except CorruptObject as error:
                self._report.wrong(kinds.SOURCES, name, str(error), expected)
                return
        try:
            if stored:
                join(source, stored)
        except CorruptObject as error:
            self._report.wrong(kinds.SOURCES, chunks[0], str(error), expected)

    def _read_group(self, sink: str, name: str, record: CheckpointRecord, referrer: str) -> None:
        expected = f"what sink {sink!r} has still to publish, named by {referrer}"
        data = self._get(kinds.COMMITTABLES, name, expected)
        if data is None:
            return
        try:
            stored = decode_committables(name, data)
            names.check_writer(name, stored.job, [record.job] if record.job is not None else [])
            owner = Owner(sink, record.job)
            committables = [decode_owned(each, owner) for each in Expanded(stored.committables, self._store, owner)]
        except (CorruptObject, ObjectNotFound) as error:
            self._report.wrong(kinds.COMMITTABLES, name, str(error), expected)
            return
        if stored.sink != sink:
            self._report.wrong(kinds.COMMITTABLES, name, f"those of sink {stored.sink!r}", expected)
        elsewhere = 0
        for each in committables:
            if not isinstance(each, StagedRows):
                elsewhere += 1
            elif each.name is not None:
                self._wanted([staged_check(kinds.STAGED, each, each.name, f"{name} of {referrer}")])
            else:
                self._run(staged_check(kinds.STAGED, each, name, referrer), memoryview(each.data))
        if elsewhere:
            self._report.notes.append(f"{name}: {elsewhere} files at the target of sink {sink!r} were not read")

    # --- large objects ------------------------------------------------------------------------------------------------

    def _wanted(self, checks: Iterable[Check]) -> None:
        for check in checks:
            self._checks.setdefault(check.name, {})[check.key] = check

    def _read_objects(self) -> None:
        total = sum(check.length for checks in self._checks.values() for check in checks.values())
        done = 0
        self._progress(done, total)
        with ThreadPoolExecutor(READS_MAX, thread_name_prefix="holdfast-verify") as readers:
            pending: list[tuple[str, Future[bytes]]] = []
            waiting = sorted(self._checks, reverse=True)
            while waiting or pending:
                while waiting and len(pending) < READS_MAX:
                    name = waiting.pop()
                    if self._is_new(name):
                        pending.append((name, readers.submit(self._store.get, name)))
                    else:
                        done += self._count(name, None)
                if pending:
                    name, reading = pending.pop(0)
                    done += self._check_object(name, reading)
                self._progress(done, total)

    def _is_new(self, name: str) -> bool:
        return any((name, *key) not in self._verified for key in self._checks[name])

    def _check_object(self, name: str, reading: "Future[bytes]") -> int:
        checks = list(self._checks[name].values())
        length = sum(check.length for check in checks)
        try:
            data = memoryview(reading.result())
        except ObjectNotFound:
            self._note_unread(checks[0].kind, name, "no such object", f"{length:,} bytes: {checks[0].what}")
            return length
        except StorageError as error:
            self._note_unread(checks[0].kind, name, str(error), checks[0].what)
            return length
        for check in checks:
            self._run(check, data)
        return self._count(name, len(data))

    def _run(self, check: Check, data: memoryview) -> None:
        try:
            check.run(data)
        except Wrong as wrong:
            self._report.wrong(check.kind, check.name, wrong.found, wrong.expected)
        else:
            self._verified.add((check.name, *check.key))

    def _count(self, name: str, size_bytes: int | None) -> int:
        checks = self._checks[name].values()
        length = sum(check.length for check in checks)
        self._report.count(next(iter(checks)).kind, length if size_bytes is None else size_bytes)
        return length

    # --- shared -------------------------------------------------------------------------------------------------------

    def _get(self, kind: str, name: str, expected: str, *, missing_is_wrong: bool = True) -> bytes | None:
        try:
            data = read(self._store, name)
        except ObjectNotFound:
            if missing_is_wrong:
                self._note_unread(kind, name, "no such object", expected)
            return None
        except StorageError as error:
            self._note_unread(kind, name, str(error), expected)
            return None
        self._report.count(kind, len(data))
        if name in self._copies:
            self._run(copy_check(kind, self._copies[name]), memoryview(data))
        return data

    def _note_unread(self, kind: str, name: str, found: str, expected: str) -> None:
        """Note that an object cannot be read. It is one problem, however many of its parts are needed."""
        _, _, wanted = self._unread.setdefault(object_of(name), (kind, found, []))
        if expected not in wanted:
            wanted.append(expected)

    def _finished(self) -> Report:
        for name, (kind, found, wanted) in self._unread.items():
            self._report.wrong(kind, name, found, "; ".join(wanted))
        self._report.problems.sort()
        return self._report

    def _note_unknown(self) -> None:
        for info in self._store.list(names.JOURNAL):
            if names.parse(info.name) is None:
                self._report.notes.append(f"{info.name}: an unknown name in the journal's folder; it was not read")
