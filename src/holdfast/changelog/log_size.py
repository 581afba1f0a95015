"""The size of a log, by which tables are materialized and pieces of logs are merged. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.formats.handles import LogPiece

LARGE_BYTES = 2 * 1024 * 1024
"""The size from which a piece is large: worth a request of its own, so that it is not merged with its neighbours. A
higher value stores changes more often before they are left alone, and names fewer pieces."""


class LogSize(NamedTuple):
    """The size of a log from some SQN on.

    `pieces` are counted by `small_pieces`, `pending_sets` are the change sets that are not stored yet.
    """

    pieces: int
    stored_bytes: int
    pending_sets: int


def small_pieces(pieces: Sequence[LogPiece]) -> int:
    """Count the pieces that are small, and that no large one precedes: the size of the log bounds the others."""
    small = [piece.length < LARGE_BYTES for piece in pieces]
    return sum(each and before for before, each in zip([True, *small], small, strict=False))
