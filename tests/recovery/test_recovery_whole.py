"""Tables that every subtask reads whole: all rows of all subtasks, each object once, many at a time, or an error."""

import threading
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from holdfast.clock import ManualClock
from holdfast.errors import CorruptObject
from holdfast.formats.handles import FILE, MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.functions.process.of_subtask.list_states import SplitListState
from holdfast.functions.process.of_subtask.subtask_list import SubtaskList
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.snapshotted_table import SnapshottedTable
from holdfast.recovery.downloads import DOWNLOADS_MAX, ObjectCache
from holdfast.recovery.whole import BATCHES_MAX, read_whole
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.store import ObjectStore
from holdfast.uploads.uploader import Uploader

GROUPS, WAIT_S = 1024, 30
NAME = ("lists", "seen.list")


def memory() -> ObjectStore:
    return ObstoreStore("memory://", MemoryStore())


class OneList:
    """A subtask's list with its durable side, stored by an uploader of its own: so each list has objects of its own."""

    def __init__(self, store: ObjectStore, start: int, stop: int, kind: Any = None, logged: bool = True) -> None:
        self.list = SubtaskList("lists", "seen", SplitListState(kind or pa.int64()), GROUPS)
        self.list.open(range(start, stop))
        self.uploader = Uploader(store, 1, start + 1)
        log, clock = LogId(*NAME, start, stop), ManualClock()
        self.keyed = (
            LoggedTable(log, self.list.table, self.uploader, None, clock)
            if logged
            else SnapshottedTable(log, self.list.table, self.uploader, clock)
        )
        self.batch = 0

    def put(self, *values: Any) -> TableHandle:
        """A batch that puts these values in place of all, and a checkpoint after it."""
        self.batch += 1
        self.list.table.begin(self.batch)
        self.list.begin()
        self.list.replace(values)
        self.list.store()
        self.list.end()
        self.keyed.commit(self.batch)
        handle = self.keyed.checkpoint(self.batch, self.batch).result(WAIT_S)
        self.keyed.completed(self.batch)
        return handle


def values_of(handles: list[TableHandle], store: Any) -> list[Any]:
    with ObjectCache(store) as fetch:
        fetch.expect([each for handle in handles for each in handle.ranges()])
        return sorted(read_whole(handles, fetch)[NAME].column("__value").to_pylist())


@pytest.mark.parametrize("logged", [True, False])
def test_the_last_version_of_each_entry_of_all_subtasks_is_read(logged: bool) -> None:
    store = memory()
    first, second = OneList(store, 0, 500, logged=logged), OneList(store, 500, GROUPS, logged=logged)
    first.put(1, 2, 3)
    first.put(1, 7)
    assert values_of([first.put(1, 7, 8), second.put(4, 5)], store) == [1, 4, 5, 7, 8]
    assert values_of([first.put(), second.put()], store) == []


def test_entries_of_batches_whose_key_groups_are_in_any_order_are_all_read() -> None:
    store = memory()
    one = OneList(store, 0, GROUPS)
    for stop in range(1, 20):
        handle = one.put(*range(stop))
    assert values_of([handle], store) == list(range(19))


@pytest.mark.parametrize("logged", [True, False])
def test_a_table_without_rows_is_read(logged: bool) -> None:
    store = memory()
    assert values_of([OneList(store, 0, GROUPS, logged=logged).put()], store) == []


def test_entries_with_a_type_that_got_more_room_are_read_with_older_ones() -> None:
    store = memory()
    narrow, wide = OneList(store, 0, 500, pa.int32()), OneList(store, 500, GROUPS, pa.int64())
    assert values_of([narrow.put(1), wide.put(1 << 40)], store) == [1, 1 << 40]


def test_objects_are_read_side_by_side_and_each_once() -> None:
    store, names = memory(), list[str]()
    together = threading.Barrier(DOWNLOADS_MAX)

    class Counting:
        def get_range(self, name: str, offset: int, length: int) -> bytes:
            names.append(name)
            together.wait(WAIT_S)
            return store.get_range(name, offset, length)

    subtasks = DOWNLOADS_MAX * (1 + BATCHES_MAX // DOWNLOADS_MAX)
    edges = [subtask * GROUPS // subtasks for subtask in range(subtasks + 1)]
    handles = [OneList(store, edges[i], edges[i + 1]).put(i) for i in range(subtasks)]
    assert values_of(handles, Counting()) == list(range(subtasks))
    assert len(names) == len(set(names)) == subtasks


def test_files_of_a_base_store_are_refused_by_name() -> None:
    store = memory()
    handle = OneList(store, 0, GROUPS).put(1)
    part = MaterializedPart(handle.log[0].object, 0, 1, 0, GROUPS, FILE)
    broken = TableHandle(*NAME, 0, GROUPS, handle.schema, [part], handle.log)
    with pytest.raises(CorruptObject, match=r"holds files of the table lists\.seen\.list"):
        values_of([broken], store)
