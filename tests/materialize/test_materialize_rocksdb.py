"""Materializations of tables in RocksDB: only files that are new are stored, and all that a handle needs is kept."""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from holdfast.clock import ManualClock
from holdfast.errors import CorruptObject
from holdfast.formats.base_files import (
    FILES_MAGIC,
    FileEntry,
    encode_heading,
    encode_lasting,
    lasting_files,
    read_files,
    read_files_head,
)
from holdfast.formats.base_files import (
    VERSION as FILES_VERSION,
)
from holdfast.formats.handles import FILE, HEADING, ROWS, MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import restore_table
from holdfast.settings import HashMapState, RocksDBState, StateBackend
from holdfast.state.backends import new_table
from holdfast.state.table import StateTable
from holdfast.storage import checksum
from holdfast.storage.framing import frame
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.uploads.attempts import RetryPolicy
from holdfast.uploads.uploader import Uploader

KEYS = pa.schema([("k", pa.string())])
VALUES = pa.schema([("n", pa.int64()), ("last", pa.list_(pa.int64()))])
GROUPS = 16


class Subtask:
    """A table in RocksDB with its durable side; a materialization at each boundary where the clock was advanced."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.clock = ManualClock()
        self.uploader = Uploader(self.inner, 1, 1, retries=RetryPolicy.none())
        self.table = new_table(RocksDBState(cache_max_entries=limit), str(folder), KEYS, VALUES, GROUPS)
        policy = MaterializationPolicy(interval_s=1.0, log_handles_max=1000)
        self.keyed = LoggedTable(LogId("count", "state", 0, GROUPS), self.table, self.uploader, policy, self.clock)
        self.batch = -1
        self.model: dict[str, tuple[int, list[int]]] = {}

    def run(self, keys: range, delete: bool = False, materialize: bool = False) -> None:
        self.batch += 1
        self.clock.advance(2.0 if materialize else 0.0)
        self.table.begin(self.batch)
        slots = self.table.lookup(pa.record_batch({"k": [f"key {k}" for k in keys]}))
        count, last = self.table.column("n"), self.table.column("last")
        count.values[slots] = np.where(self.table.present[slots], count.values[slots] + 1, 1)
        last.put_objects(slots, [[self.batch]] * len(slots))
        count.valid[slots] = True
        self.table.present[slots] = not delete
        for key in (f"key {k}" for k in keys):
            if delete:
                self.model.pop(key, None)
            else:
                self.model[key] = self.model.get(key, (0, []))[0] + 1, [self.batch]
        self.keyed.commit(self.batch)
        self.uploader.in_background(lambda: None).result(60)

    def checkpoint(self) -> TableHandle:
        handle = self.keyed.checkpoint(self.batch, self.batch).result(60)
        self.keyed.completed(self.batch)
        return handle

    def stored(self) -> set[str]:
        return {info.name for info in self.inner.list("shared/")}

    def close(self) -> None:
        self.keyed.close()
        self.uploader.close()
        self.table.close()


@pytest.fixture(params=[0, 10])
def subtask(tmp_path, request):
    subtask = Subtask(tmp_path, request.param)
    yield subtask
    subtask.close()


def restored(store: ObstoreStore, handle: TableHandle, state: StateBackend, start: int = 0, stop: int = GROUPS):
    table = new_table(state, None, KEYS, VALUES, GROUPS)
    with ObjectCache(store) as cache:
        restore_table(table, [handle], cache, start, stop)
    rows = {row["k"]: (row["n"], row["last"]) for row in table.snapshot().to_pylist()}
    assert len(rows) == len(table)
    table.close()
    return rows


def of_kind(handle: TableHandle, kind: str) -> list[MaterializedPart]:
    return [part for part in handle.materialized if part.kind == kind]


def test_a_materialization_stores_the_files_that_are_new_and_names_the_others_again(subtask):
    subtask.run(range(300), materialize=True)
    first = subtask.checkpoint()
    before = subtask.stored()
    subtask.run(range(200, 400))
    subtask.run(range(50), delete=True, materialize=True)
    second = subtask.checkpoint()
    assert of_kind(first, FILE)[0] in of_kind(second, FILE)
    assert len(of_kind(second, FILE)) == len(of_kind(first, FILE)) + 1
    assert len(of_kind(second, HEADING)) == 1
    new = subtask.stored() - before
    assert new == set(second.objects()) - set(first.objects())
    assert restored(subtask.inner, second, HashMapState()) == subtask.model


def test_rows_that_have_not_reached_the_base_come_as_rows(tmp_path):
    subtask = Subtask(tmp_path, 10)
    subtask.run(range(300), materialize=True)
    handle = subtask.checkpoint()
    assert sum(part.length for part in of_kind(handle, ROWS)) > 0
    assert restored(subtask.inner, handle, RocksDBState()) == subtask.model
    subtask.close()


@pytest.mark.parametrize("state", [HashMapState(), RocksDBState(), RocksDBState(cache_max_entries=20)], ids=str)
def test_files_restore_on_every_backend_and_by_key_groups_with_the_log_on_top(subtask, state):
    subtask.run(range(300))
    subtask.run(range(0, 300, 3), delete=True, materialize=True)
    subtask.run(range(100, 350))
    handle = subtask.checkpoint()
    assert of_kind(handle, FILE)
    assert restored(subtask.inner, handle, state) == subtask.model
    parts = [restored(subtask.inner, handle, state, *edges) for edges in ((0, 3), (3, 11), (11, 16))]
    assert {key: row for part in parts for key, row in part.items()} == subtask.model
    assert sum(map(len, parts)) == len(subtask.model)


def test_superseded_materializations_let_go_of_their_own_files_only(subtask):
    for _ in range(4):
        subtask.run(range(300), materialize=True)
    handle = subtask.checkpoint()
    assert set(subtask.keyed.held()) >= set(handle.objects())
    assert restored(subtask.inner, handle, HashMapState()) == subtask.model
    subtask.run(range(300), materialize=True)
    subtask.uploader._janitor.sweep()
    assert subtask.stored() >= {part.object for part in handle.materialized}
    assert len(subtask.stored()) <= len(handle.materialized) + 4


def test_no_checkpoint_folder_is_left_behind(subtask, tmp_path):
    for _ in range(3):
        subtask.run(range(300), materialize=True)
    assert list(tmp_path.glob("holdfast-state-*/checkpoint-*")) == []


def test_damaged_and_foreign_files_are_refused(tmp_path):
    table = new_table(RocksDBState(), str(tmp_path), KEYS, VALUES, GROUPS)
    table.begin(0)
    slots = table.lookup(pa.record_batch({"k": ["a"]}))
    table.present[slots] = True
    table.commit()
    folder = table.capture().files
    assert folder is not None
    log = LogId("count", "state", 0, GROUPS)
    for data, part in [encode_heading(log, b"schema", folder, 1), encode_lasting(log, lasting_files(folder)[0])]:
        directory, files = read_files(data, part, "count", "state")
        assert (directory.key_group_start, directory.key_group_stop) == (0, GROUPS)
        assert (directory.schema, directory.rows) == ((b"schema", 1) if part.kind == HEADING else (b"", 0))
        assert {name: bytes(content) for name, content in files} == {
            entry.name: (folder / entry.name).read_bytes() for entry in directory.blocks
        }
        frame = bytes(data[: len(data) - sum(entry.length for entry in directory.blocks)])
        assert read_files_head(part, frame, "count", "state") == directory
        with pytest.raises(CorruptObject, match=r"holds files of the table count\.state"):
            read_files_head(part, frame, "count", "other")
        with pytest.raises(CorruptObject, match="damaged"):
            read_files_head(part, frame[:-1] + b"?", "count", "state")
        with pytest.raises(CorruptObject, match=r"holds files of the table count\.state"):
            read_files(data, part, "count", "other")
        altered = bytearray(data)
        altered[-1] ^= 1
        with pytest.raises(CorruptObject, match="damaged"):
            list(read_files(memoryview(bytes(altered)), part, "count", "state")[1])
        with pytest.raises(CorruptObject, match="truncated"):
            read_files(data[:-1], part, "count", "state")
    table.close()


def test_a_value_added_since_starts_null_and_one_removed_is_left_out(subtask):
    subtask.run(range(30), materialize=True)
    handle = subtask.checkpoint()
    table = StateTable(KEYS, pa.schema([("x", pa.float64()), ("n", pa.int64())]), GROUPS)
    with ObjectCache(subtask.inner) as cache:
        restore_table(table, [handle], cache, 0, GROUPS)
    rows = table.snapshot().to_pylist()
    assert {row["k"]: (row["x"], row["n"]) for row in rows} == {f"key {k}": (None, 1) for k in range(30)}


def altered(store: ObstoreStore, part: MaterializedPart, suffix: str, content: bytes) -> MaterializedPart:
    """Store an object in which files of that suffix have other content, checksums made right."""
    directory, files = read_files(memoryview(store.get(part.object))[part.offset :], part, "count", "state")
    found = [(name, content if name.endswith(suffix) or suffix in name else bytes(data)) for name, data in files]
    blocks = [FileEntry(name, len(data), checksum.crc32(data)) for name, data in found]
    head = frame(FILES_MAGIC, FILES_VERSION, msgspec.msgpack.encode(msgspec.structs.replace(directory, blocks=blocks)))
    made = head + b"".join(data for _, data in found)
    store.put("shared/altered", made)
    return msgspec.structs.replace(part, object="shared/altered", offset=0, length=len(made), head_crc=None)


@pytest.mark.parametrize("state", [HashMapState(), RocksDBState()], ids=["scanned", "adopted"])
@pytest.mark.parametrize("case", ["CURRENT", "MANIFEST", ".sst", "no file", "no heading"])
def test_files_that_rocksdb_cannot_use_are_refused_with_the_objects_name(tmp_path, state, case):
    subtask = Subtask(tmp_path, 10)
    try:
        subtask.run(range(300), materialize=True)
        handle = subtask.checkpoint()
        parts = list(handle.materialized)
        if case in ("no file", "no heading"):
            parts = of_kind(handle, HEADING if case == "no file" else FILE)
        else:
            at = next(i for i, part in enumerate(parts) if part.kind == (FILE if case == ".sst" else HEADING))
            parts[at] = altered(subtask.inner, parts[at], case, b"MANIFEST-000999\n" * 40)
        with pytest.raises(CorruptObject, match="shared/"):
            restored(subtask.inner, msgspec.structs.replace(handle, materialized=parts), state)
    finally:
        subtask.close()
