"""A TaskManager's work for a checkpoint after the cut: wait for the uploads, store the manifest, acknowledge.

    cut ──► handles of all tables ──► small: logs and manifest travel with the acknowledgement ──► acknowledged
                     │           └──► logs and manifest stored as one object ───────────────────┘  until answered
                     └──────────────────────┴── failed ──► declined until answered

A part is acknowledged once every object that its manifest names is durable, or travels with the acknowledgement.

Runs on threads of its own and never holds up a batch. Nothing here deletes: the JobMaster's registry decides who may
delete acknowledged objects. An acknowledgement is repeated until it is answered or the TaskManager ends, even after a
new deployment, because the objects that it names have no other owner any more.
"""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.back_off import doubled_s
from holdfast.errors import CheckpointFailed, HoldfastError, described, is_outage
from holdfast.failpoints import hit
from holdfast.formats.handles import HERE, Manifest, TableHandle, placed
from holdfast.formats.history import SubtaskPart
from holdfast.formats.log_objects import OBJECT_HEADER
from holdfast.formats.manifests import encode_manifest
from holdfast.ids import BatchNumber, CheckpointId
from holdfast.printable import logger
from holdfast.protocol.named import AnsweredNames
from holdfast.protocol.taskmanager import Acknowledgement, Decline, Deployment, JobMasterGateway
from holdfast.references import object_of
from holdfast.storage import names
from holdfast.uploads.carried import Composed
from holdfast.uploads.puts import Repeats
from holdfast.uploads.uploader import Uploader

_log = logger(__name__)

FIRST_REPEAT_S = 0.05
REPEAT_S_MAX = 2.0
AT_ONCE_MAX = 4
"""Number of checkpoints whose uploads and acknowledgements are awaited side by side."""


@dataclass(frozen=True)
class LocalCheckpoint:
    """A TaskManager's work for a checkpoint."""

    checkpoint_id: CheckpointId
    batch: BatchNumber
    handles: list[Future[TableHandle]]
    held: Callable[[], list[str]]
    begun_s: float
    sync_ms: float


class Answers:
    """The order and the end of acknowledgements, shared by all deployments of an incarnation."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.names = AnsweredNames()
        self._numbers = itertools.count(1)

    def next_sequence(self) -> int:
        """Return a number above the numbers of all earlier acknowledgements."""
        return next(self._numbers)

    def until_answered(self, task_manager: int, call: Callable[[], bool]) -> None:
        """Repeat a call to the JobMaster until it is answered, or this TaskManager ends."""
        for times in itertools.count(1):
            if self.ended.is_set():
                return
            try:
                if call():
                    return
            except (HoldfastError, OSError) as error:
                _log.info("TaskManager %d repeats an unanswered call: %s", task_manager, error)
            self.ended.wait(doubled_s(FIRST_REPEAT_S, times, REPEAT_S_MAX))

    def end(self) -> None:
        """End: acknowledgements are not repeated any more."""
        self.ended.set()


class CheckpointWork:
    """The checkpoints of a deployment. After `close` no work starts; earlier cuts still get an answer."""

    def __init__(
        self,
        deployment: Deployment,
        uploader: Uploader,
        job_master: JobMasterGateway,
        answers: Answers,
    ) -> None:
        self._job_id = deployment.job_id
        self._epoch = deployment.epoch
        self._task_manager = deployment.task_manager
        self._incarnation = deployment.incarnation
        self._uploader = uploader
        self._job_master = job_master
        self._answers = answers
        self._held_lock = threading.Lock()
        self._closing_sequence: int | None = None
        self._pieces_seen: Set[tuple[str, int]] = frozenset()
        self._pool = ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="checkpoint")

    def start(self, cut: LocalCheckpoint) -> None:
        """Begin the work for a cut, and return at once. An acknowledgement or a decline follows."""
        work = self._submit(self._run, cut)
        if work is not None:
            self._uploader.precede(work)

    def decline(self, checkpoint_id: CheckpointId, error: Exception) -> None:
        """Decline a checkpoint whose cut failed; return at once."""
        self._submit(self._decline, checkpoint_id, error)

    def close(self) -> None:
        """Number the answers of this deployment before those of the next one. End its threads once all cuts are
        answered."""
        with self._held_lock:
            if self._closing_sequence is None:
                self._closing_sequence = self._answers.next_sequence()
        self._pool.shutdown(wait=False)

    def _submit(self, call: Callable[..., None], *arguments: object) -> Future[None] | None:
        with self._held_lock:
            if self._closing_sequence is None:
                return self._pool.submit(call, *arguments)
        _log.info("TaskManager %d: a checkpoint of a deployment that has ended is dropped", self._task_manager)
        return None

    def _run(self, cut: LocalCheckpoint) -> None:
        try:
            acknowledgement = self._persist(cut)
        except CheckpointFailed as error:
            # The checkpoint or this TaskManager has ended for another reason: nothing went wrong here.
            _log.info("checkpoint %d: TaskManager %d declines: %s", cut.checkpoint_id, self._task_manager, error)
            self._decline(cut.checkpoint_id, error)
            return
        except Exception as error:
            _log.warning("checkpoint %d: TaskManager %d declines", cut.checkpoint_id, self._task_manager, exc_info=True)
            self._decline(cut.checkpoint_id, error)
            return
        hit("taskmanager.acknowledge.before")
        self._acknowledge(acknowledgement)
        hit("taskmanager.acknowledge.after")

    def _acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Send an acknowledgement as a difference to the one before; a repetition is complete, since the JobMaster may
        lack that one."""
        attempts = itertools.chain([self._answers.names.shortened(acknowledgement)], itertools.repeat(acknowledgement))
        self._until_answered(lambda: self._job_master.acknowledge(next(attempts)))
        self._answers.names.answered(acknowledgement)

    def _persist(self, cut: LocalCheckpoint) -> Acknowledgement:
        tables = [handle.result() for handle in cut.handles]
        hit("taskmanager.cut.uploaded")
        composed = self._uploader.carried.compose(cut.checkpoint_id, (n for table in tables for n in table.objects()))
        stored = [placed(each, composed.places) for each in tables]
        manifest = self._manifest(cut, stored)
        travels = len(composed.log) + len(manifest) <= self._uploader.carried.bytes_max
        name = "" if travels else self._store(cut, composed.log, manifest)
        others = (each for table in stored for each in table.objects() if each != HERE)
        objects = list(dict.fromkeys([*([object_of(name)] if name else []), *others]))
        # From here on only the JobMaster may delete them.
        self._uploader.acknowledge(objects)
        repeats = self._uploader.take_repeats(objects)
        of_subtasks = self._parts(tables, repeats | _of_logs(composed, repeats.get(object_of(name))))
        sequence, held = self._held(cut)
        already = set(objects)
        return Acknowledgement(
            checkpoint_id=cut.checkpoint_id,
            task_manager=self._task_manager,
            incarnation=self._incarnation,
            batch=cut.batch,
            manifest=name,
            objects=objects,
            held=[each for each in dict.fromkeys(held) if each not in already],
            incremental_bytes=sum(each.incremental_bytes for each in of_subtasks.values()),
            full_bytes=sum(each.full_bytes for each in of_subtasks.values()),
            materialized_bytes=sum(part.length for table in tables for part in table.materialized),
            sync_ms=cut.sync_ms,
            async_ms=(time.monotonic() - cut.begun_s) * 1000.0,
            sequence=sequence,
            retries=sum(each.retries for each in repeats.values()),
            hedges=sum(each.hedges for each in repeats.values()),
            subtasks=of_subtasks,
            part=composed.log + manifest if travels else b"",
            manifest_start=len(composed.log),
            informed=composed.informed,
        )

    def _manifest(self, cut: LocalCheckpoint, tables: list[TableHandle]) -> bytes:
        return encode_manifest(
            Manifest(
                self._epoch, cut.checkpoint_id, self._task_manager, self._incarnation, cut.batch, tables, self._job_id
            )
        )

    def _store(self, cut: LocalCheckpoint, log: bytes, manifest: bytes) -> str:
        """Store logs and the manifest behind them as one object; return the reference to the manifest."""
        start = len(OBJECT_HEADER) + len(log)
        name = self._uploader.put_part(OBJECT_HEADER + log + manifest)
        try:
            hit("taskmanager.cut.manifest")
            place = start, len(manifest), cut.checkpoint_id, self._task_manager
            reference = names.manifest_behind_logs(name, *place)
            self._uploader.carried.stored(cut.checkpoint_id, reference)
        except Exception:
            self._uploader.discard([name])  # no other process would know of this object
            raise
        return reference

    def _held(self, cut: LocalCheckpoint) -> tuple[int, list[str]]:
        """Return the objects that the live logs hold, with a number that orders such answers: a higher number was read
        later."""
        with self._held_lock:
            late = self._closing_sequence
            sequence = self._answers.next_sequence() if late is None else late
            return sequence, self._uploader.carried.in_store(cut.held())

    def _parts(self, tables: list[TableHandle], repeats: Mapping[str, Repeats]) -> dict[str, SubtaskPart]:
        """Describe the part of each subtask; bytes to which no earlier checkpoint referred are new."""
        seen: set[tuple[str, int]] = set()
        found: defaultdict[str, list[tuple[str, int, bool]]] = defaultdict(list)
        for table in tables:
            pieces = {(each.object, each.offset): each.length for each in table.ranges()}
            subtask = f"{table.operator}, key groups {table.key_group_start} to {table.key_group_stop - 1}"
            found[subtask] += [(each[0], size, each not in self._pieces_seen) for each, size in pieces.items()]
            seen.update(pieces)
        self._pieces_seen = seen
        return {subtask: _part(pieces, repeats) for subtask, pieces in found.items()}

    def _decline(self, checkpoint_id: CheckpointId, error: Exception) -> None:
        reason = described(error)
        soft = isinstance(error, CheckpointFailed) and error.soft
        decline = Decline(checkpoint_id, self._task_manager, self._incarnation, reason, soft, is_outage(error))
        self._until_answered(lambda: self._job_master.decline(decline))

    def _until_answered(self, call: Callable[[], bool]) -> None:
        self._answers.until_answered(self._task_manager, call)


def _of_logs(composed: Composed, repeats: Repeats | None) -> dict[str, Repeats]:
    """Give the repeats of an object to each of the logs that a manifest took along in it."""
    along = [name for name, (place, _) in composed.places.items() if place == HERE]
    return {} if repeats is None else dict.fromkeys(along, repeats)


def _part(pieces: Sequence[tuple[str, int, bool]], repeats: Mapping[str, Repeats]) -> SubtaskPart:
    """Add up pieces: each the name of its object, its length, and whether it is new."""
    repeated = [repeats[name] for name in {name for name, _, new in pieces if new} if name in repeats]
    return SubtaskPart(
        sum(length for _, length, new in pieces if new),
        sum(length for _, length, _ in pieces),
        sum(each.retries for each in repeated),
        sum(each.hedges for each in repeated),
    )
