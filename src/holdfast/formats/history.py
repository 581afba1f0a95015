"""The history of checkpoints as it is stored: what became of the last triggers of a job, for people.

HFCH | version | … | payload: msgpack, an array of `CheckpointStats`
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.errors import CorruptObject
from holdfast.storage.framing import frame, unframe
from holdfast.storage.names import HistoryName, history, parse
from holdfast.storage.store import ObjectStore

HISTORY_MAGIC, HISTORY_VERSION = b"HFCH", 2


@dataclass(frozen=True)
class SubtaskPart:
    """One subtask's part of a checkpoint: bytes newly stored, and bytes in all that the checkpoint refers to.

    `retries`, `hedges`: repeated attempts at the objects with its new bytes. Subtasks share objects, so a repeat counts
    for each subtask that has bytes in the object.
    """

    incremental_bytes: int = 0
    full_bytes: int = 0
    retries: int = 0
    hedges: int = 0


@dataclass(frozen=True)
class TaskManagerPart:
    """One TaskManager's part of a checkpoint. Its fields mean the same as those of `CheckpointStats`.

    `answered`: the TaskManager acknowledged; where it did not, its sizes, times and repeats are not known, and 0.
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
    subtasks: dict[str, SubtaskPart] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointStats:
    """The outcome of a trigger. Times in seconds; those of TaskManagers are the slowest one's.

    `duration_s`: from the cut to the record, or to the failure. `start_delay_s`: until the last TaskManager began.
    `sync_s`: while batches could not commit. `async_s`: from then until its part was stored. `incremental_bytes`: what
    was stored for it; `full_bytes`: all the state that it refers to, of which `materialized_bytes` are tables and the
    rest logs. `retries`: attempts at uploads after a failed one; `hedges`: attempts beside a slow one. `number`, of the
    record, and `batch` are -1 where there is none.
    """

    checkpoint_id: int
    number: int
    batch: int
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
    """Why it did not complete, and who is to blame."""
    trigger: str = ""
    at_s: float = 0.0
    """When it was triggered, in seconds since the Unix epoch."""
    epoch: int = 0
    failing_splits: int = 0
    """Splits that stood where they were, since they had failed; parked splits are not counted."""
    parked_splits: tuple[str, ...] = ()
    """Splits that were left out, the first hundred of them, as "source/split"."""
    retries: int = 0
    hedges: int = 0
    task_managers: tuple[TaskManagerPart, ...] = ()


def encode_history(entries: Sequence[CheckpointStats]) -> bytes:
    return frame(HISTORY_MAGIC, HISTORY_VERSION, msgspec.msgpack.encode(list(entries)))


def decode_history(name: str, data: bytes) -> list[CheckpointStats]:
    """Raises `CorruptObject`."""
    try:
        return _HISTORY.decode(unframe(name, data, HISTORY_MAGIC, HISTORY_VERSION))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptObject(f"{name}: the payload is not what its format version says: {error}") from error


def stored_epochs(store: ObjectStore) -> list[int]:
    """The epochs that have stored a history, oldest first."""
    found = [parse(info.name) for info in store.list("history/")]
    return sorted(each.epoch for each in found if isinstance(each, HistoryName))


def read_history(store: ObjectStore) -> list[CheckpointStats]:
    """The newest history of a storage, oldest entry first; empty where there is none. Raises `CorruptObject`."""
    epochs = stored_epochs(store)
    if not epochs:
        return []
    name = history(epochs[-1])
    return decode_history(name, store.get(name))


_HISTORY = msgspec.msgpack.Decoder(list[CheckpointStats])
