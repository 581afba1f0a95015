"""Messages of `pgoutput`, made by hand, and a plain decoder of changes for comparison."""

import struct
from dataclasses import dataclass

Value = str | None


def begin(xid: int, lsn: int, time_us: int = 0) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, time_us, xid)


def commit(lsn: int, end_lsn: int, time_us: int = 0) -> bytes:
    return b"C\0" + struct.pack(">QQq", lsn, end_lsn, time_us)


def relation(oid: int, name: str, columns: list[tuple[str, int, int, bool]]) -> bytes:
    schema, table = name.split(".")
    head = (
        b"R"
        + struct.pack(">I", oid)
        + schema.encode()
        + b"\0"
        + table.encode()
        + b"\0f"
        + struct.pack(">H", len(columns))
    )
    return head + b"".join(
        bytes([key]) + column.encode() + b"\0" + struct.pack(">Ii", type_oid, modifier)
        for column, type_oid, modifier, key in columns
    )


UNCHANGED = "\0unchanged"


def values(row: list[Value]) -> bytes:
    parts = []
    for value in row:
        if value is None:
            parts.append(b"n")
        elif value == UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(value.encode())) + value.encode())
    return struct.pack(">H", len(row)) + b"".join(parts)


def insert(oid: int, row: list[Value]) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + values(row)


def update(oid: int, new: list[Value], old: list[Value] | None = None, kind: bytes = b"O") -> bytes:
    before = b"" if old is None else kind + values(old)
    return b"U" + struct.pack(">I", oid) + before + b"N" + values(new)


def delete(oid: int, old: list[Value], kind: bytes = b"O") -> bytes:
    return b"D" + struct.pack(">I", oid) + kind + values(old)


@dataclass
class Change:
    """A change of a table whose first column is the key."""

    kind: str
    new: list[Value] | None = None
    old: list[Value] | None = None

    def message(self, oid: int) -> bytes:
        if self.kind == "I":
            assert self.new is not None
            return insert(oid, self.new)
        if self.kind == "D":
            assert self.old is not None
            return delete(oid, self.old)
        assert self.new is not None
        return update(oid, self.new, self.old)

    def rows(self) -> list[tuple[str, list[Value]]]:
        """The rows that the change gives, computed plainly."""
        if self.kind == "I":
            return [("insert", self.new or [])]
        if self.kind == "D":
            return [("delete", self.old or [])]
        assert self.new is not None
        if self.old is None:
            return [("update_postimage", self.new)]
        new = [old if value == UNCHANGED else value for value, old in zip(self.new, self.old, strict=True)]
        if new[0] != self.old[0]:
            return [("delete", self.old), ("insert", new)]
        return [("update_preimage", self.old), ("update_postimage", new)]
