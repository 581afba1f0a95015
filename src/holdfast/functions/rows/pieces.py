"""Pieces of a batch: rows that an operator takes or puts out together, so that a batch may be larger than the memory.

    input batches ──► slices of at most so many bytes ──► groups of slices ──► a step of the operator each ──► check

Slices share the memory of their batch, which for large input is a local file.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from holdfast.functions.operator import BatchRoom
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable

Numbered = tuple[int, pa.RecordBatch]
"""Rows with the number of their input."""

KEPT_BYTES = 64
"""Approximate bytes that a copy of a row takes in state beside its values, in the index and in the order of times."""
ROWS_PUT_OUT_MAX = 1 << 17
BYTES_PUT_OUT = 8 << 20
"""Bounds on the rows, and on the bytes of rows, in a batch of output. Higher values make larger batches of output,
which take more memory."""


def fits(inputs: Iterable[Numbered], room: BatchRoom, copies: int = 1) -> bool:
    """True if the input batches fit a single piece when each row is kept in `copies` copies."""
    return sum(_size(rows, copies) for _, rows in inputs) <= room.piece_bytes


def sliced(inputs: Iterable[Numbered], room: BatchRoom, copies: int = 1) -> Iterator[Numbered]:
    """Divide input batches into slices that fit, but have at least a row."""
    for number, rows in inputs:
        size = _size(rows, copies)
        at_once = rows.num_rows if size <= room.piece_bytes else max(1, rows.num_rows * room.piece_bytes // size)
        for start in range(0, rows.num_rows, max(1, at_once)):
            yield number, rows if at_once == rows.num_rows else rows.slice(start, at_once)


def in_pieces(inputs: Sequence[Numbered], room: BatchRoom, copies: int = 1) -> Iterator[list[Numbered]]:
    """Group input batches into pieces that fit. The room is checked between two pieces."""
    piece: list[Numbered] = []
    held = 0
    for number, rows in sliced(inputs, room, copies):
        size = _size(rows, copies)
        if piece and held + size > room.piece_bytes:
            yield piece
            room.check()
            piece, held = [], 0
        piece.append((number, rows))
        held += size
    if piece:
        yield piece


def checked(inputs: Sequence[Numbered], room: BatchRoom) -> Iterator[Numbered]:
    """The input batches one by one, with the checks of `in_pieces`."""
    for piece in in_pieces(inputs, room):
        yield from piece


def _size(rows: pa.RecordBatch, copies: int) -> int:
    size: int = (rows.nbytes + KEPT_BYTES * rows.num_rows) * copies
    return size


def rows_at_once(row_bytes: float) -> int:
    """Return the number of rows of that size to emit together."""
    return max(1, min(ROWS_PUT_OUT_MAX, int(BYTES_PUT_OUT / max(1.0, row_bytes))))


def rows_of_slots(table: StateTable, slots: Slots, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a table in these slots, with the columns of a schema, in pieces."""
    at_once = rows_at_once(table.row_bytes)
    for start in range(0, len(slots), at_once):
        rows = table.rows_of(slots[start : start + at_once]).select(schema.names)
        yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)
