"""Rows as records of bytes, as a base store keeps them, and with its files the materialized state of a table.

record := mark (1 byte); for each column: valid (1 byte); for each fixed-width column: its physical value;
          where there are other columns: msgpack array of their values' bytes, nil for null
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from holdfast.state.arena import Arena
from holdfast.state.columns import Column, Values
from holdfast.state.physical import Bools


class RowCodec:
    """Encodes gathered columns as records, and decodes records."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._objects = [column for column in columns if not column.fixed_width]
        fixed = [(f"v{i}", column.values.dtype) for i, column in enumerate(columns) if column.fixed_width]
        self._head = np.dtype([("mark", np.uint8), ("valid", np.bool_, (len(columns),)), *fixed])

    @property
    def head_bytes(self) -> int:
        """Bytes of a record without its objects."""
        return self._head.itemsize

    def encode(self, count: int, columns: Sequence[tuple[Values, Bools]]) -> list[bytes]:
        """The records of `count` rows."""
        rows = np.zeros(count, self._head)
        for i, (column, (values, valid)) in enumerate(zip(self._columns, columns, strict=True)):
            rows["valid"][:, i] = valid
            if column.fixed_width:
                rows[f"v{i}"] = values
        heads: list[bytes] = rows.view(f"V{self._head.itemsize}").tolist()
        if not self._objects:
            return heads
        parts = [
            column.to_bytes(values, valid)
            for column, (values, valid) in zip(self._columns, columns, strict=True)
            if not column.fixed_width
        ]
        if len(parts) == 1 and None not in parts[0]:
            return _with_one(heads, cast(list[bytes], parts[0]))
        pack = msgspec.msgpack.Encoder().encode
        return [head + pack(objects) for head, objects in zip(heads, zip(*parts, strict=True), strict=True)]

    def to_arrow(self, records: Sequence[bytes]) -> list[Any]:
        """The value columns of records."""
        arena = Arena()
        pairs = zip(self._columns, self.decode(records, arena), strict=True)
        return [column.to_arrow(values, valid) for column, (values, valid) in pairs]

    def decode(self, records: Sequence[bytes], arena: Arena) -> list[tuple[Values, Bools]]:
        """The inverse of `encode`; handles name bytes of `arena`."""
        size = self._head.itemsize
        heads = records if not self._objects else [record[:size] for record in records]
        rows = np.frombuffer(b"".join(heads), self._head)
        objects: Iterator[Values] = iter(())
        if self._objects:
            parts: Sequence[Sequence[bytes | None]]
            if len(self._objects) == 1:
                parts = [_only_ones(records, size)]
            else:
                unpack = msgspec.msgpack.Decoder(list[bytes | None]).decode
                tails = [unpack(memoryview(record)[size:]) for record in records]
                parts = list(zip(*tails, strict=True)) or [()] * len(self._objects)
            objects = (column.from_bytes(part, arena) for column, part in zip(self._objects, parts, strict=True))
        return [
            (np.ascontiguousarray(rows[f"v{i}"]) if column.fixed_width else next(objects), rows["valid"][:, i].copy())
            for i, column in enumerate(self._columns)
        ]


def _with_one(heads: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    """Records with a single object, which is copied once: msgpack's bytes before it follow from its length."""
    pack = msgspec.msgpack.Encoder().encode
    lengths = list(map(len, values))
    before = {length: pack([bytes(length)])[: -length or None] for length in set(lengths)}
    return list(map(b"".join, zip(heads, map(before.__getitem__, lengths), values, strict=True)))


def _only_ones(records: Sequence[bytes], head: int) -> list[bytes | None]:
    """The inverse of `_with_one`, null where there is no value: the length of a record tells where its value begins."""
    lengths = list(map(len, records))
    starts = {length: head + _bytes_before_one(length - head) for length in set(lengths)}
    null = head + len(msgspec.msgpack.encode([None]))
    return [
        None if length == null else record[starts[length] :] for record, length in zip(records, lengths, strict=True)
    ]


def _bytes_before_one(stored: int) -> int:
    """The number of bytes before the value of a msgpack array with a single binary value, of `stored` bytes in all."""
    return 3 if stored < 3 + (1 << 8) else 4 if stored < 4 + (1 << 16) else 6
