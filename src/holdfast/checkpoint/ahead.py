"""Storing ahead: small parts of a checkpoint and its committables are stored beside the large logs that it waits for.

    Announced or Acknowledged by every TaskManager, not yet Acknowledged by all ──StoreAhead──► being stored
                                              acknowledged by all ──StoreAndRecord──► waits for it, then the record
                                                              └── given up ──► ObjectsFound

Without it a checkpoint with large logs would make three requests in a row: log, gathered object, record. Invariants: an
announcement says that bytes are there, and never that a log is stored: the record waits for acknowledgements alone. A
checkpoint's objects are ordered ahead once; where other bytes are wanted in the end, these are stored then.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.checkpoint.positions import Position
from holdfast.ids import BatchNumber, CheckpointId, Incarnation


@dataclass(frozen=True, slots=True)
class Announced:
    """A TaskManager's part of a checkpoint is here (`carried`), or needs no place in the gathered object; logs that it
    names are still being stored."""

    checkpoint_id: CheckpointId
    task_manager: int
    incarnation: Incarnation
    batch: BatchNumber
    carried: bool


@dataclass(frozen=True, slots=True)
class StoreAhead:
    """Begin to store these parts and committables, as `StoreAndRecord` will have them. Not answered."""

    checkpoint_id: CheckpointId
    position: Position
    committables: Mapping[str, list[bytes]]
    carried_parts: tuple[tuple[int, Incarnation], ...]
