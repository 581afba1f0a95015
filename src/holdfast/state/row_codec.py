"""Rows as records of bytes, as a base store keeps them, and with its files the materialized state of a table.

record := mark (1 byte); for each column: valid (1 byte); for each fixed-width column: its physical value;
          where there are other columns: msgpack array of their values' bytes, nil for null (`row_codec_kernels`)
mark   := 0, or 1 if decimals and nested values are blocks (`nested`); in records marked 0 they are Arrow messages

A record is made, and read, as a whole: no Python object is made for a value, unless values are objects.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from holdfast.errors import CorruptObject
from holdfast.state import row_codec_kernels as kernels
from holdfast.state.arena import Arena
from holdfast.state.arena_kernels import Handles
from holdfast.state.columns import Column, Values
from holdfast.state.physical import Bools, Bytes, Integers

PLAIN, WITH_BLOCKS = 0, 1
"""Marks of records."""


class RowCodec:
    """Encodes gathered columns as records, and decodes records."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._others = sum(not column.fixed_width for column in columns)
        self._mark = WITH_BLOCKS if any(column.in_blocks for column in columns) else PLAIN
        fixed = [(f"v{i}", column.values.dtype) for i, column in enumerate(columns) if column.fixed_width]
        self._head = np.dtype([("mark", np.uint8), ("valid", np.bool_, (len(columns),)), *fixed])

    @property
    def head_bytes(self) -> int:
        """Bytes of a record without its values of variable width."""
        return self._head.itemsize

    def encode(self, count: int, columns: Sequence[tuple[Values, Bools]]) -> list[bytes]:
        """The records of `count` rows."""
        rows = np.zeros(count, self._head)
        rows["mark"] = self._mark
        arena = Arena()
        others: list[tuple[Handles, Bools]] = []
        for i, (column, (values, valid)) in enumerate(zip(self._columns, columns, strict=True)):
            rows["valid"][:, i] = valid
            if column.fixed_width:
                rows[f"v{i}"] = values
            else:
                others.append((column.to_stored(values, valid, arena), valid))
        if not others:
            heads: list[bytes] = rows.view(f"V{self._head.itemsize}").tolist()
            return heads
        return _with_values(rows.view(np.uint8), self._head.itemsize, others)

    def to_arrow(self, records: Sequence[bytes]) -> list[Any]:
        """The value columns of records."""
        arena = Arena()
        pairs = zip(self._columns, self.decode(records, arena), strict=True)
        return [column.to_arrow(values, valid) for column, (values, valid) in pairs]

    def decode(self, records: Sequence[bytes], arena: Arena) -> list[tuple[Values, Bools]]:
        """The inverse of `encode`; handles name bytes of `arena`.

        Raises
        ------
        CorruptObject
            Records are not those of such columns.
        """
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        read = _Reading(b"".join(records), lengths, self._head)
        as_messages = read.rows["mark"] == PLAIN
        if self._others:
            read.array_heads(self._others)
        columns: list[tuple[Values, Bools]] = []
        for i, column in enumerate(self._columns):
            valid = read.rows["valid"][:, i].copy()
            if column.fixed_width:
                columns.append((np.ascontiguousarray(read.rows[f"v{i}"]), valid))
            else:
                handles = read.values(valid, arena)
                columns.append((column.from_stored(handles, valid, as_messages, arena), valid))
        read.end()
        return columns


def _with_values(heads: Bytes, width: int, others: Sequence[tuple[Handles, Bools]]) -> list[bytes]:
    """Records of heads of that width, followed by values."""
    array_head = bytes([0x90 + len(others)]) if len(others) < 16 else b"\xdc" + len(others).to_bytes(2, "big")
    lengths = np.full(len(heads) // width, width + len(array_head), np.int64)
    for handles, valid in others:
        kernels.add_lengths(handles, valid, lengths)
    ends: Integers = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    out, cursors = np.empty(int(ends[-1]), np.uint8), ends[:-1].copy()
    kernels.write_heads(heads, width, 1, cursors, out)
    kernels.write_heads(np.frombuffer(array_head, np.uint8).copy(), len(array_head), 0, cursors, out)
    for handles, valid in others:
        kernels.write_values(handles, valid, cursors, out)
    data = out.tobytes()
    return [data[begin:end] for begin, end in pairwise(ends.tolist())]


class _Reading:
    """Records that are read from their begin to their end, all at the same time."""

    def __init__(self, data: bytes, lengths: Integers, head: np.dtype[Any]) -> None:
        self._data: Bytes = np.frombuffer(data, np.uint8)
        self._stops = np.cumsum(lengths)
        self._cursors = self._stops - lengths
        heads = kernels.read_heads(self._data, self._cursors, self._stops, head.itemsize)
        if len(heads) < len(lengths) * head.itemsize:
            raise CorruptObject(f"a record of a base store is shorter than its {head.itemsize} bytes of fixed width")
        self.rows = heads.view(head)
        if len(lengths) and (self.rows["mark"] > WITH_BLOCKS).any():
            raise CorruptObject(
                f"a record of a base store has the mark {self.rows['mark'].max()}, expected at most {WITH_BLOCKS}: use "
                "the version of Holdfast that wrote it"
            )

    def array_heads(self, count: int) -> None:
        """Read the heads of arrays of so many values."""
        self._check(kernels.read_array_heads(self._data, self._cursors, self._stops, count))

    def values(self, valid: Bools, arena: Arena) -> Handles:
        """Read a value of each record into `arena`."""
        begins, lengths = np.empty((2, len(valid)), np.int64)
        self._check(kernels.read_values(self._data, self._cursors, self._stops, valid, begins, lengths))
        return arena.append_spans(begins, lengths, self._data)

    def end(self) -> None:
        """Check that the records end here."""
        longer = np.flatnonzero(self._cursors != self._stops)
        self._check(int(longer[0]) if len(longer) else -1)

    def _check(self, wrong: int) -> None:
        if wrong >= 0:
            raise CorruptObject(
                f"a record of a base store does not have the values of its table's columns: it differs "
                f"{self._stops[wrong] - self._cursors[wrong]} bytes before its end. Restore the object from a copy"
            )
