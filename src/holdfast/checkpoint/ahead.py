"""Storing ahead: committables and parts that came along are stored while TaskManagers still store large parts.

    missing: only TaskManagers that store parts themselves ──StoreAhead──► being stored
                                       acknowledged by all ──StoreAndRecord──► waits for it, then the record
                                                       └── given up ──► ObjectsFound

Without it a checkpoint with large parts would make three requests in a row: part, gathered object, record. Whether a
TaskManager stores its part itself is a guess, from the newest record. A wrong guess costs requests and nothing else: if
other bytes are wanted in the end, these are stored then. Invariant: the record waits for all acknowledgements.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.checkpoint.positions import Position
from holdfast.ids import CheckpointId, Incarnation


@dataclass(frozen=True, slots=True)
class StoreAhead:
    """Begin to store these committables and parts, as `StoreAndRecord` will probably have them. Not answered."""

    checkpoint_id: CheckpointId
    position: Position
    committables: Mapping[str, list[bytes]]
    carried_parts: tuple[tuple[int, Incarnation], ...]
