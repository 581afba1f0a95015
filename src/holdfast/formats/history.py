"""The stored history of a job, for people: outcomes of the last triggers, lost TaskManagers, and savepoints.

HFCH | version | … | payload: msgpack, a `StoredHistory`
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.formats.store_use import StoreUse
from holdfast.ids import BatchNumber, CheckpointId, Epoch, JobId, SplitPosition
from holdfast.storage.framing import frame, unframe
from holdfast.storage.names import HistoryName, check_same, check_writer, history, parse
from holdfast.storage.reading import decode
from holdfast.storage.store import ObjectStore

HISTORY_MAGIC, HISTORY_VERSION, HISTORY_VERSION_MIN = b"HFCH", 4, 2

NO_EPOCH = Epoch(0)
"""The epoch of entries that were written before histories named it."""


@dataclass(frozen=True)
class SubtaskPart:
    """A subtask's part of a checkpoint: the bytes newly stored, and all bytes that the checkpoint refers to.

    `retries`, `hedges`: repeated attempts at the objects with its new bytes. Subtasks share objects, so a repeat counts
    for each subtask that has bytes in the object.
    """

    incremental_bytes: int = 0
    full_bytes: int = 0
    retries: int = 0
    hedges: int = 0


class TaskManagerPart(msgspec.Struct, frozen=True, gc=False):
    """A TaskManager's part of a checkpoint. Its fields have the meaning of the same fields of `CheckpointStats`.

    `answered`: the TaskManager acknowledged. Without an acknowledgement its sizes, times and repeats are 0.
    `subtasks`: the parts of its subtasks, by "operator, key groups".
    """

    task_manager: int
    address: str
    answered: bool
    start_delay_s: float = 0.0
    sync_s: float = 0.0
    async_s: float = 0.0
    incremental_bytes: int = 0
    full_bytes: int = 0
    retries: int = 0
    hedges: int = 0
    subtasks: dict[str, SubtaskPart] = {}


@dataclass(frozen=True)
class CheckpointStats:
    """The outcome of a trigger. Times are in seconds. Each time of TaskManagers is the time of the slowest one.

    `duration_s`: from the cut to the record, or to the failure. `start_delay_s`: until the last TaskManager began.
    `sync_s`: the time in which batches could not commit. `async_s`: from then until the TaskManager's part was stored.
    `incremental_bytes`: bytes stored for this checkpoint. `full_bytes`: the bytes of all state that it refers to;
    `materialized_bytes` of them are in tables, and the rest is in logs. `retries`: uploads that were tried again after
    a failed attempt. `hedges`: second attempts that were started beside a slow attempt. `number` is the number of the
    record; `number` and `batch` are -1 if there is no record.
    """

    checkpoint_id: CheckpointId
    number: int
    batch: BatchNumber
    duration_s: float
    incremental_bytes: int
    full_bytes: int
    sync_s: float = 0.0
    async_s: float = 0.0
    start_delay_s: float = 0.0
    materialized_bytes: int = 0
    outcome: str = "completed"
    counted: bool = False
    """True if the outcome counts as a failure."""
    reason: str = ""
    """Why it did not complete, and which process is the cause; or which splits it left at their old positions."""
    trigger: str = ""
    at_s: float = 0.0
    """When it was triggered, in seconds since the Unix epoch."""
    epoch: Epoch = NO_EPOCH
    failing_splits: int = 0
    """Number of splits that stayed at their old positions, because they had failed. Parked splits are not counted."""
    parked_splits: tuple[str, ...] = ()
    """The splits that were left out, as "source/split"; at most the first hundred."""
    retries: int = 0
    hedges: int = 0
    task_managers: tuple[TaskManagerPart, ...] = ()


@dataclass(frozen=True)
class LostRows:
    """Rows that a job lost for good, because it went on without a TaskManager (`on_loss="drop"`).

    `checkpoint`: number of the record from which the replacement went on; -1 if it began with empty state. `batches`:
    the first and the last batch that are affected. Rows are counted by "operator/subtask". `positions`: the positions
    at which the affected rows begin and end, by source and split.
    """

    at_s: float
    epoch: Epoch
    checkpoint: int
    cause: str
    batches: tuple[int, int] = (-1, -1)
    subtasks: tuple[int, ...] = ()
    rows_forgotten: dict[str, int] = field(default_factory=dict)
    """Rows whose effect on state is lost."""
    rows_dropped: dict[str, int] = field(default_factory=dict)
    """Rows that arrived while the TaskManager was missing."""
    positions: dict[str, dict[str, tuple[SplitPosition, SplitPosition]]] = field(default_factory=dict)
    acknowledged: bool = False
    """True once a user has acknowledged it."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that stay the same while a loss grows, from checkpoint to checkpoint."""
        return self.epoch, self.subtasks, self.batches[0], self.cause

    def grown_by(self, later: "LostRows") -> "LostRows":
        """Return this loss together with its continuation."""
        return replace(
            self,
            batches=(self.batches[0], later.batches[1]),
            rows_forgotten=dict(sorted((Counter(self.rows_forgotten) + Counter(later.rows_forgotten)).items())),
            rows_dropped=dict(sorted((Counter(self.rows_dropped) + Counter(later.rows_dropped)).items())),
            positions={
                source: {
                    split: (self.positions.get(source, {}).get(split, (start, stop))[0], stop)
                    for split, (start, stop) in splits.items()
                }
                for source, splits in later.positions.items()
            },
        )

    @property
    def rows(self) -> int:
        return sum(self.rows_forgotten.values()) + sum(self.rows_dropped.values())

    def __str__(self) -> str:
        return (
            f"{self.cause}: {sum(self.rows_dropped.values()):,} rows were dropped, and the effect of "
            f"{sum(self.rows_forgotten.values()):,} rows on the state of subtasks {', '.join(map(str, self.subtasks))} "
            f"is lost, in batches {self.batches[0]} to {self.batches[1]}"
        )


@dataclass(frozen=True)
class SavepointStats:
    """The outcome of a savepoint: "completed" or "failed", and the reason of a failure.

    `checkpoint`: number of the record that was copied; -1 if the savepoint failed before that. `duration_s`: from the
    call to its end, including the checkpoint. `objects`, `size_bytes`: the number and size of the objects copied.
    """

    url: str
    checkpoint: int
    at_s: float
    duration_s: float
    objects: int
    size_bytes: int
    outcome: str = "completed"
    reason: str = ""
    epoch: Epoch = NO_EPOCH


@dataclass(frozen=True)
class StoredHistory:
    """The payload of the object."""

    checkpoints: list[CheckpointStats]
    losses: list[LostRows]
    savepoints: list[SavepointStats] = field(default_factory=list)
    job: JobId | None = None
    """Id of the job. This field and the epoch are None in old objects, which did not have them."""
    epoch: Epoch | None = None
    ended: bool = False
    """True once the epoch ended in order: it writes no further record, so no further object will be referred to."""
    use: StoreUse | None = None
    """Requests of the epoch to its storage. None in old objects, which did not have them."""


def with_losses(known: Iterable[LostRows], found: Iterable[LostRows]) -> list[LostRows]:
    """Return the known losses. A loss that was found again, with later batches, replaces its older description."""
    losses = {each.identity: each for each in known}
    for each in found:
        before = losses.get(each.identity)
        if before is None or before.batches[1] < each.batches[1]:
            losses[each.identity] = each
    return list(losses.values())


def encode_history(
    entries: Sequence[CheckpointStats],
    losses: Sequence[LostRows] = (),
    savepoints: Sequence[SavepointStats] = (),
    job: JobId | None = None,
    epoch: Epoch | None = None,
    ended: bool = False,
    use: StoreUse | None = None,
) -> bytes:
    stored = StoredHistory(list(entries), list(losses), list(savepoints), job, epoch, ended, use)
    return frame(HISTORY_MAGIC, HISTORY_VERSION, msgspec.msgpack.encode(stored))


def decode_history(name: str, data: bytes) -> StoredHistory:
    """Raises `CorruptObject`."""
    payload = unframe(name, data, HISTORY_MAGIC, HISTORY_VERSION, HISTORY_VERSION_MIN)
    stored = decode(name, payload, _HISTORY, "the payload does not have the form of its format version")
    if isinstance(parse(name), HistoryName) and stored.epoch is not None:
        check_same(name, history, stored.epoch)
    return stored


def stored_epochs(store: ObjectStore) -> list[Epoch]:
    """Return the epochs that have stored a history, oldest first."""
    found = [parse(info.name) for info in store.list("history/")]
    return sorted(each.epoch for each in found if isinstance(each, HistoryName))


def has_ended(store: ObjectStore, epoch: Epoch) -> bool:
    """Return True if that epoch ended in order and stored this. False also if its history is gone or unreadable."""
    name = history(epoch)
    try:
        return decode_history(name, store.get(name)).ended
    except (ObjectNotFound, CorruptObject):
        return False


def read_stored(store: ObjectStore, job: JobId | None = None) -> StoredHistory:
    """Return the newest history of a storage, oldest entry first; it is empty if there is none.

    Raises `CorruptObject`, also if the history is not that of `job` (None: any job).
    """
    epochs = stored_epochs(store)
    if not epochs:
        return StoredHistory([], [])
    name = history(epochs[-1])
    stored = decode_history(name, store.get(name))
    check_writer(name, stored.job, [] if job is None else [job])
    return stored


_HISTORY = msgspec.msgpack.Decoder(StoredHistory)
