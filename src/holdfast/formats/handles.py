"""Handles: the form in which a manifest names the durable parts of a table. Plain data, stored inside manifests.

Invariant: each part and each piece names the key groups for which it counts. Two subtasks that restored from the same
range of a log can therefore have their handles joined again: neither replays the other's rows.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from holdfast.errors import CorruptObject
from holdfast.ids import BatchNumber, CheckpointId, Epoch, Incarnation, JobId
from holdfast.storage import names

ROWS, HEADING, FILE = "rows", "heading", "file"
HERE = ""
"""The object name of a piece that is stored in the same gathered object as its manifest. The piece's offset counts from
the start of the manifest, so it is negative. Only stored bytes have this name: the reader of a manifest replaces name
and offset by the real ones."""


class LogPiece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A contiguous range of a changelog object that holds change sets `[sqn_start, sqn_stop)` of a single log.

    A reader drops change sets outside that range, and key groups outside `[key_group_start, key_group_stop)`:
    an object may hold more than the piece refers to.
    """

    object: str
    offset: int
    length: int
    sqn_start: int
    sqn_stop: int
    key_group_start: int
    key_group_stop: int
    head_crc: int | None = None
    """The checksum in the frame at the start of the piece, which identifies its content. None in old handles."""


class MaterializedPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of a materialized table: a range of an object, for key groups `[start, stop)`.

    A reader drops key groups outside: an object may hold more than the part refers to.
    `kind`: rows (`ROWS`), or files of a base store: the small files that say which files belong together (`HEADING`),
    followed by a part for each other file (`FILE`).
    """

    object: str
    offset: int
    length: int
    key_group_start: int
    key_group_stop: int
    kind: str = ROWS
    head_crc: int | None = None
    """See `LogPiece.head_crc`."""


class MadeBase(msgspec.Struct, frozen=True):
    """A table as of a batch, materialized by a follower: sent to the table's owner, and never stored."""

    operator: str
    table: str
    subtask: int
    key_group_start: int
    key_group_stop: int
    batch: BatchNumber
    """The cut of the checkpoint whose state it is."""
    parts: list[MaterializedPart]


class TableHandle(msgspec.Struct, frozen=True):
    """The handle of a subtask's table at a cut: the materialized parts, then the log pieces, in replay order.

    `schema` is the table's Arrow schema (IPC bytes): keys and values, to find changes between restarts.
    `rows` is the number of rows of the table; None if it is not known, because the handle was narrowed.
    """

    operator: str
    table: str
    key_group_start: int
    key_group_stop: int
    schema: bytes
    materialized: list[MaterializedPart]
    log: list[LogPiece]
    rows: int | None = None

    def ranges(self) -> list[MaterializedPart | LogPiece]:
        """Return the ranges of objects that this handle refers to, and that a restore reads."""
        return [*self.materialized, *self.log]

    def objects(self) -> list[str]:
        """Return the names of all objects that this handle refers to, without duplicates, in order."""
        return list(dict.fromkeys([each.object for each in self.ranges()]))

    def stored_bytes(self) -> int:
        """Return the number of bytes in the ranges that this handle refers to."""
        return sum(each.length for each in self.ranges())

    def narrow(self, key_group_start: int, key_group_stop: int) -> "TableHandle":
        """Return the handle limited to the given key groups, without the parts and pieces outside."""
        start, stop = max(self.key_group_start, key_group_start), min(self.key_group_stop, key_group_stop)
        if (start, stop) == (self.key_group_start, self.key_group_stop):
            return self
        return msgspec.structs.replace(
            self,
            key_group_start=start,
            key_group_stop=max(start, stop),
            materialized=_narrowed(self.materialized, start, stop),
            log=_narrowed(self.log, start, stop),
            rows=None,
        )


class Manifest(msgspec.Struct, frozen=True):
    """The part of a checkpoint that belongs to a single TaskManager."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    task_manager: int
    incarnation: Incarnation
    batch: BatchNumber
    tables: list[TableHandle]
    job: JobId | None = None
    """Id of the job whose TaskManager wrote it. None in old manifests, which did not have it."""


StateName = names.ChangelogName | names.SharedName | names.GatheredName
FOLDERS = (names.CHANGELOG, names.SHARED, names.GATHERED)
"""Folders of the objects that hold state."""


def placed(handle: TableHandle, places: Mapping[str, tuple[str, int]]) -> TableHandle:
    """Return the handle with the log pieces of the objects in `places` moved: to the other object that `places` names,
    and by the number of bytes that it names."""
    if places.keys().isdisjoint(piece.object for piece in handle.log):
        return handle
    return msgspec.structs.replace(handle, log=[_placed(piece, places) for piece in handle.log])


def _placed(piece: LogPiece, places: Mapping[str, tuple[str, int]]) -> LogPiece:
    place = places.get(piece.object)
    if place is None:
        return piece
    return msgspec.structs.replace(piece, object=place[0], offset=piece.offset + place[1])


def check_handle(what: str, handle: TableHandle) -> None:
    """Check that a handle refers only to ranges of objects that hold state. Raises `CorruptObject`."""
    for each in handle.ranges():
        if not each.object.startswith(FOLDERS) or min(each.offset, each.length) < 0:
            raise CorruptObject(
                f"{what}: the table {handle.operator}.{handle.table} refers to bytes {each.offset} to "
                f"{each.offset + each.length} of {each.object!r}, expected an object below {', '.join(FOLDERS)}"
            )


def check_objects(what: str, manifest: Manifest) -> None:
    """Check that all objects have names as TaskManagers give them, in no later epoch. Raises `CorruptObject`."""
    for name in dict.fromkeys(each.object for table in manifest.tables for each in table.ranges()):
        parsed = names.parse(name)
        if not isinstance(parsed, StateName) or parsed.epoch > manifest.epoch:
            raise CorruptObject(
                f"{what}: refers to {name!r}, expected an object that a TaskManager stored in an epoch up to "
                f"{manifest.epoch}; restore the object from a copy"
            )


Ranged = TypeVar("Ranged", LogPiece, MaterializedPart)


def _narrowed(ranges: Iterable[Ranged], start: int, stop: int) -> list[Ranged]:
    return [
        msgspec.structs.replace(
            ranged,
            key_group_start=max(ranged.key_group_start, start),
            key_group_stop=min(ranged.key_group_stop, stop),
        )
        for ranged in ranges
        if max(ranged.key_group_start, start) < min(ranged.key_group_stop, stop)
    ]
