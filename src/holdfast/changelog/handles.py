"""Handles: how a manifest names the durable parts of a table. Data only; stored inside manifests."""

import msgspec


class LogPiece(msgspec.Struct, frozen=True):
    """A contiguous range of one changelog object that holds one log's change sets `[sqn_start, sqn_stop)`.

    A reader drops change sets outside that range: an object may hold more than the piece refers to.
    """

    object: str
    offset: int
    length: int
    sqn_start: int
    sqn_stop: int


class MaterializedPart(msgspec.Struct, frozen=True):
    """A part of a materialized table: a range of an object, for key groups `[start, stop)`."""

    object: str
    offset: int
    length: int
    key_group_start: int
    key_group_stop: int


class TableHandle(msgspec.Struct, frozen=True):
    """One table of one subtask at a cut: the materialized parts, then the log pieces, in replay order.

    `schema` is the table's Arrow schema (IPC bytes): keys and values, to find changes between restarts.
    """

    operator: str
    table: str
    key_group_start: int
    key_group_stop: int
    schema: bytes
    materialized: list[MaterializedPart]
    log: list[LogPiece]

    def objects(self) -> list[str]:
        """Names of all objects this handle refers to, without doubles, in order."""
        return list(dict.fromkeys([part.object for part in self.materialized] + [piece.object for piece in self.log]))


class Manifest(msgspec.Struct, frozen=True):
    """One TaskManager's part of a checkpoint."""

    epoch: int
    checkpoint_id: int
    task_manager: int
    incarnation: int
    batch: int
    tables: list[TableHandle]
