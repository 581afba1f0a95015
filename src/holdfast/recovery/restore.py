"""From handles to a restored table: which handles a subtask needs, fetching their objects, replaying them.

Rescaling is no case of its own: a subtask takes the handles that share key groups with it, narrowed to those,
whatever subtask wrote them. Invariants: each key group comes from exactly one handle; materialized parts come
before the log; an object is fetched once, whoever needs it. Writes nothing.
"""

import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.ipc

from holdfast.changelog.format import check_object, read_piece
from holdfast.changelog.handles import FILE, HEADING, ROWS, LogPiece, MaterializedPart, TableHandle
from holdfast.errors import CorruptObject
from holdfast.materialize.base_files import read_files
from holdfast.materialize.snapshot import read_part
from holdfast.recovery.manifests import load_manifests
from holdfast.state.base_rocksdb import scan_folder
from holdfast.state.table import StateTable
from holdfast.storage.store import ObjectStore

__all__ = ["ObjectCache", "load_manifests", "restore_table", "select"]

DOWNLOADS_MAX = 8


class ObjectCache:
    """Objects of a store, each fetched once, in parallel. Kept until it is closed: one for each recovery."""

    def __init__(self, store: ObjectStore, downloads_max: int = DOWNLOADS_MAX) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._objects: dict[str, Future[bytes]] = {}
        self._pool = ThreadPoolExecutor(downloads_max, thread_name_prefix="holdfast-download")

    def __enter__(self) -> "ObjectCache":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prefetch(self, names: Iterable[str]) -> None:
        """Start to fetch those that were not asked for before."""
        for name in names:
            self._start(name)

    def get(self, name: str) -> memoryview:
        """The whole object; waits for it. Raises `StorageError` where it cannot be read."""
        return memoryview(self._start(name).result())

    def close(self) -> None:
        """Let go of everything; what was not begun is not fetched."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._objects.clear()

    def _start(self, name: str) -> Future[bytes]:
        with self._lock:
            if name not in self._objects:
                self._objects[name] = self._pool.submit(self._store.get, name)
            return self._objects[name]


def select(
    handles: Iterable[TableHandle], operator: str, table: str, key_group_start: int, key_group_stop: int
) -> list[TableHandle]:
    """The handles of a table that share key groups with `[key_group_start, key_group_stop)`, narrowed to those.

    None where the checkpoint has no state of that table at all.

    Raises
    ------
    CorruptObject
        The handles leave some of these key groups out, or have some twice.
    """
    own = [handle for handle in handles if (handle.operator, handle.table) == (operator, table)]
    chosen = sorted(
        (
            handle.narrow(key_group_start, key_group_stop)
            for handle in own
            if max(handle.key_group_start, key_group_start) < min(handle.key_group_stop, key_group_stop)
        ),
        key=lambda handle: handle.key_group_start,
    )
    if own:
        _check_cover(chosen, f"{operator}.{table}", key_group_start, key_group_stop)
    return chosen


def restore_table(
    table: StateTable,
    handles: Sequence[TableHandle],
    fetch: ObjectCache,
    key_group_start: int,
    key_group_stop: int,
    local_dir: str | None = None,
) -> None:
    """Fill an empty table with the state that the handles describe, for these key groups.

    Files of a base store are read in a folder below `local_dir`. After an error the table holds a part of it: drop it.

    Raises
    ------
    StorageError
        An object is missing or cannot be fetched.
    CorruptObject
        An object is not what was written, or not what the handle says.
    JobRefused
        A stored column has another type than declared.
    """
    own = [handle.narrow(key_group_start, key_group_stop) for handle in handles]
    fetch.prefetch(name for handle in own for name in handle.objects())
    for handle in own:
        start, stop = handle.key_group_start, handle.key_group_stop
        for files in _file_sets(handle):
            _load_files(table, handle, files, fetch, local_dir)
        for part in (each for each in handle.materialized if each.kind == ROWS):
            for rows in read_part(_slice(fetch, part), part, handle.operator, handle.table, start, stop):
                table.apply(rows, start, stop)
        for piece in handle.log:
            check_object(piece.object, fetch.get(piece.object))
            for rows in read_piece(_slice(fetch, piece), piece, handle.operator, handle.table, start, stop):
                table.apply(rows, start, stop)


def _load_files(
    table: StateTable, handle: TableHandle, parts: Sequence[MaterializedPart], fetch: ObjectCache, local_dir: str | None
) -> None:
    """Lay the files of one base store out in a folder and read the rows of the key groups from there."""
    start, stop = (group.to_bytes(2, "big") for group in (parts[0].key_group_start, parts[0].key_group_stop))
    if local_dir is not None:
        Path(local_dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-restore-", dir=local_dir) as folder:
        schemas = []
        for part in parts:
            directory, files = read_files(_slice(fetch, part), part, handle.operator, handle.table)
            schemas.append(directory.schema)
            for name, content in files:
                (Path(folder) / name).write_bytes(content)
        table.load(pa.ipc.read_schema(pa.py_buffer(schemas[0])), scan_folder(Path(folder), start, stop))


def _file_sets(handle: TableHandle) -> list[list[MaterializedPart]]:
    """The parts that are files, those of one base store together, its heading first."""
    sets: list[list[MaterializedPart]] = []
    for part in handle.materialized:
        if part.kind == HEADING:
            sets.append([part])
        elif part.kind == FILE:
            sets[-1].append(part)
    return sets


def _slice(fetch: ObjectCache, ranged: LogPiece | MaterializedPart) -> memoryview:
    data = fetch.get(ranged.object)
    return data[ranged.offset : ranged.offset + ranged.length]


def _check_cover(handles: Sequence[TableHandle], what: str, start: int, stop: int) -> None:
    reached = start
    for handle in handles:
        if handle.key_group_start != reached:
            problem = "have no state" if handle.key_group_start > reached else "are there twice"
            between = sorted((reached, handle.key_group_start))
            raise CorruptObject(f"{what}: in this checkpoint, key groups {between[0]} to {between[1]} {problem}")
        reached = handle.key_group_stop
    if reached != stop:
        raise CorruptObject(f"{what}: in this checkpoint, key groups {reached} to {stop} have no state")
