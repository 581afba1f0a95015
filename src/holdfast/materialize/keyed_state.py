"""The durable side of one state table: its log, its materializations, and the handle of each checkpoint.

    restored ─► base 0 ──────────────┬─────────────────────── log ───────────────────────►
                                     └ boundary: snapshot, upload ─► provisional base
    checkpoint(cut) = newest base with boundary ≤ cut, and the log from that boundary to the cut
    completed       = the base it used becomes the current one, and the log is truncated to its boundary

Invariants: a base that no completed checkpoint used replaces nothing: the current one and the log since it are
kept. At most one materialization runs. An object that an acknowledgement names is never deleted from here.
It does not decide what a checkpoint is, and reads nothing: restoring is `recovery/`.
"""

import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pyarrow as pa

from holdfast.changelog.format import LogId
from holdfast.changelog.handles import LogPiece, MaterializedPart, TableHandle
from holdfast.changelog.uploader import Uploader
from holdfast.changelog.writer import ChangelogWriter, DeferredChanges, LogSize
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CheckpointFailed, StorageError
from holdfast.materialize.base_files import encode_heading, encode_lasting, lasting_files
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.materialize.snapshot import encode_parts
from holdfast.state.table import Captured, StateTable, merge_changes

BEFORE_ALL_BATCHES = -1


@dataclass(frozen=True, eq=False)
class _Base:
    """A state to replay the log upon: as of `batch`, and of all change sets below `sqn`."""

    sqn: int
    batch: int
    materialized: Sequence[MaterializedPart] = ()
    restored_log: Sequence[LogPiece] = ()
    files: Mapping[str, MaterializedPart] = field(default_factory=dict)
    """Of `materialized`, files that never change, by their names: the next base names those it still has."""

    def objects(self) -> list[str]:
        parts, pieces = [part.object for part in self.materialized], [piece.object for piece in self.restored_log]
        return list(dict.fromkeys(parts + pieces))

    def size(self, log: LogSize) -> LogSize:
        """The log upon this base, with what of it was restored."""
        return LogSize(
            log.pieces + len(self.restored_log),
            log.stored_bytes + sum(piece.length for piece in self.restored_log),
            log.pending_sets,
        )


@dataclass(eq=False)
class _Pending:
    checkpoint_id: int
    batch: int
    base: _Base
    handle: Future[TableHandle] = field(default_factory=Future)


class KeyedState:
    """Makes one table of one subtask durable.

    `committed` is called on the subtask's thread, at each batch boundary, `restored` before that, the rest on any.

    Parameters
    ----------
    uploader
        The TaskManager's; shared by all its tables.
    policy
        When to materialize.
    """

    def __init__(
        self,
        operator: str,
        table_name: str,
        table: StateTable,
        key_group_start: int,
        key_group_stop: int,
        uploader: Uploader,
        policy: MaterializationPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._id = LogId(operator, table_name, key_group_start, key_group_stop)
        self._table = table
        self._uploader = uploader
        self._policy = policy or MaterializationPolicy()
        self._clock = clock or SystemClock()
        self._schema = table.stored_schema().serialize().to_pybytes()
        self._log = ChangelogWriter(self._id, uploader, merge_changes)
        self._lock = threading.Lock()
        self._current = _Base(0, BEFORE_ALL_BATCHES)
        self._provisional: list[_Base] = []
        self._pending: dict[int, _Pending] = {}
        self._materializing = False
        self._next_s = self._policy.first_s(self._id, self._clock.monotonic())
        self._failures = 0
        self._failed: Exception | None = None
        self._closed = False

    def restored(self, handles: Sequence[TableHandle]) -> None:
        """The table was restored from these. They stay in every checkpoint until the first own materialization.

        Before the first batch. SQNs continue above theirs.
        """
        own = [handle.narrow(self._id.key_group_start, self._id.key_group_stop) for handle in handles]
        log = tuple(piece for handle in own for piece in handle.log)
        sqn = max((piece.sqn_stop for piece in log), default=0)
        self._log.resume(sqn)
        parts = tuple(part for handle in own for part in handle.materialized)
        self._current = _Base(sqn, BEFORE_ALL_BATCHES, parts, log)

    def committed(self, batch: int, changes: pa.RecordBatch | DeferredChanges | None) -> None:
        """The table committed this batch, with these net changes; also where there are none. May take a snapshot.

        Raises
        ------
        HoldfastError
            Materialization failed `failures_max` times in a row, or in a way that will not pass: the subtask fails.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            self._log.append(batch, changes)
            due = self._due()
        if due:
            self._start_materialization(batch)

    def checkpoint(self, checkpoint_id: int, batch: int) -> Future[TableHandle]:
        """The state as of the cut at `batch`, once it is stored. Asked again, gives the same future.

        Its objects stay this TaskManager's to delete until an acknowledgement names them: the handle of another
        table may fail, and then there is none. The future fails with the I/O error, or with `CheckpointFailed` where
        the checkpoint was aborted or subsumed meanwhile.

        Raises
        ------
        ValueError
            The batch was not committed, or the cut went back.
        """
        with self._lock:
            if checkpoint_id in self._pending:
                return self._pending[checkpoint_id].handle
            base = max(
                (each for each in (self._current, *self._provisional) if each.batch <= batch),
                key=lambda each: each.sqn,
            )
            pieces = self._log.persist(batch, base.sqn)
            pending = self._pending[checkpoint_id] = _Pending(checkpoint_id, batch, base)
        pieces.add_done_callback(partial(self._persisted, pending))
        return pending.handle

    def completed(self, checkpoint_id: int) -> None:
        """The checkpoint was recorded: earlier ones are subsumed, and the log is truncated to the base it used."""
        with self._lock:
            pending = self._pending.pop(checkpoint_id, None)
            if pending is None:
                return
            for earlier in [each for each in self._pending if each < checkpoint_id]:
                del self._pending[earlier]
            unused = self._adopt(pending.base) + self._superseded()
        self._table.release(pending.batch)
        self._release(unused)

    def aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will not complete. What it stored stays, for the next one."""
        with self._lock:
            self._pending.pop(checkpoint_id, None)
            self._log.reset()
            unused = self._superseded()
        self._release(unused)

    def held(self) -> list[str]:
        """Names of all stored objects that the log and the materializations still use."""
        with self._lock:
            bases = [name for base in (self._current, *self._provisional) for name in base.objects()]
            return list(dict.fromkeys(bases + self._log.held()))

    def close(self) -> None:
        """Ends the log. What was uploaded and no acknowledgement named is deleted; late uploads as they arrive."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._pending.clear()
            bases = [self._current, *self._provisional]
            self._provisional = []
        self._log.close()
        self._release(bases)

    def _due(self) -> bool:
        if self._materializing or self._closed:
            return False
        newest = self._newest()
        table_bytes = sum(part.length for part in newest.materialized)
        size = newest.size(self._log.size(newest.sqn))
        return self._policy.due(size, table_bytes, self._clock.monotonic(), self._next_s)

    def _newest(self) -> _Base:
        return self._provisional[-1] if self._provisional else self._current

    def _start_materialization(self, batch: int) -> None:
        captured = self._table.capture()
        with self._lock:
            self._materializing = True
            known = self._newest().files
            self._uploader.retain(part.object for part in known.values())
        self._uploader.count(startedMaterialization=1)
        self._uploader.in_background(partial(self._materialize, captured, known, self._log.next_sqn(), batch))

    def _materialize(self, captured: Captured, known: Mapping[str, MaterializedPart], sqn: int, batch: int) -> None:
        """`known` are files that are stored already, each retained for this one."""
        parts: list[MaterializedPart] = []
        files: dict[str, MaterializedPart] = {}
        try:
            if captured.files is not None:
                parts.append(self._put(encode_heading(self._id, self._schema, captured.files)))
                for file in lasting_files(captured.files):
                    part = known.get(file.name) or self._put(encode_lasting(self._id, file))
                    files[file.name] = part
                    parts.append(part)
            for encoded in encode_parts(self._id, captured.rows, sqn, batch):
                parts.append(self._put(encoded))
        except Exception as error:
            self._uploader.release({part.object for part in (*parts, *known.values())})
            self._materialization_failed(error)
            return
        finally:
            if captured.files is not None:
                shutil.rmtree(captured.files, ignore_errors=True)
        self._uploader.release(part.object for name, part in known.items() if name not in files)
        self._uploader.count(completedMaterialization=1)
        with self._lock:
            self._failures = 0
            self._end_materialization(self._policy.interval_s)
            base = _Base(sqn, batch, tuple(parts), files=files)
            if not self._closed:
                self._provisional.append(base)
            unused = [base] if self._closed else self._superseded()
        self._release(unused)

    def _put(self, encoded: tuple[bytes, MaterializedPart]) -> MaterializedPart:
        data, part = encoded
        return msgspec.structs.replace(part, object=self._uploader.put_shared(data))

    def _materialization_failed(self, error: Exception) -> None:
        self._uploader.count(failedMaterialization=1)
        with self._lock:
            self._failures += 1
            self._end_materialization(self._policy.retry_delay_s)
            passing = isinstance(error, StorageError)
            if not passing or self._failures >= self._policy.failures_max:
                self._failed = error

    def _end_materialization(self, next_in_s: float) -> None:
        self._materializing = False
        self._next_s = self._clock.monotonic() + next_in_s

    def _persisted(self, pending: _Pending, pieces: Future[list[LogPiece]]) -> None:
        error = pieces.exception()
        with self._lock:
            wanted = self._pending.get(pending.checkpoint_id) is pending
            if error is not None:
                self._log.reset()
                if wanted:
                    del self._pending[pending.checkpoint_id]
            elif wanted:
                handle = self._handle(pending.base, pieces.result())
        if error is not None:
            pending.handle.set_exception(error)
        elif wanted:
            pending.handle.set_result(handle)
        else:
            pending.handle.set_exception(
                CheckpointFailed(f"checkpoint {pending.checkpoint_id}: ended before the log of {self._id} was stored")
            )

    def _handle(self, base: _Base, pieces: Sequence[LogPiece]) -> TableHandle:
        return TableHandle(
            self._id.operator,
            self._id.table,
            self._id.key_group_start,
            self._id.key_group_stop,
            self._schema,
            list(base.materialized),
            [*base.restored_log, *pieces],
        )

    def _adopt(self, base: _Base) -> list[_Base]:
        """A completed checkpoint used this base: what is older has no use here any more."""
        if base is self._current:
            return []
        older = [self._current, *(each for each in self._provisional if each.sqn < base.sqn)]
        self._provisional = [each for each in self._provisional if each.sqn > base.sqn]
        self._current = base
        self._log.truncate(base.sqn)
        return older

    def _superseded(self) -> list[_Base]:
        """Takes out provisional bases that a newer one makes useless and no pending checkpoint uses."""
        used = [pending.base for pending in self._pending.values()]
        unused = [each for each in self._provisional[:-1] if each not in used]
        self._provisional = [each for each in self._provisional if each not in unused]
        return unused

    def _release(self, bases: Sequence[_Base]) -> None:
        for base in bases:
            self._uploader.release(base.objects())
