"""A table that counts keys, with its log and its materializations, upon a store whose faults a test gives."""

import threading
from collections.abc import Callable

import msgspec
import pyarrow as pa
from obstore.store import MemoryStore

from holdfast.clock import ManualClock
from holdfast.errors import StorageError
from holdfast.formats.handles import HERE, TableHandle, placed
from holdfast.formats.log_objects import OBJECT_HEADER, LogId
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import restore_table
from holdfast.state.table import StateTable
from holdfast.storage import names
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.stores import Fault, FaultyStore
from holdfast.uploads.attempts import RetryPolicy
from holdfast.uploads.uploader import Uploader
from waiting import until

KEYS, VALUES = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
ONCE = RetryPolicy.none()


class Subtask:
    """A table with its durable side; counts keys, and keeps the expected restored state by batch."""

    def __init__(self, policy: MaterializationPolicy, gathered_bytes_max: int, retries: RetryPolicy) -> None:
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.fail_shared = self.fail_logs = 0
        self.puts = 0
        self.shared_open = threading.Event()
        self.shared_open.set()
        self.fail_reads = 0
        self.reads: list[str] = []
        self.reads_open = threading.Event()
        self.reads_open.set()
        self.clock = ManualClock()
        store = FaultyStore(self.inner, self._fault)
        self.uploader = Uploader(store, 1, 1, retries=retries, gathered_bytes_max=gathered_bytes_max)
        self.table = StateTable(KEYS, VALUES, 16)
        self.keyed = LoggedTable(LogId("count", "state", 0, 16), self.table, self.uploader, policy, self.clock)
        self.batch = -1
        self.expected: dict[int, dict[int, int]] = {-1: {}}

    def run(self, *keys: int) -> int:
        """A batch that counts these keys; returns its number."""
        self.batch += 1
        self.table.begin(self.batch)
        slots = self.table.lookup(pa.record_batch({"k": pa.array(keys, pa.int64())}))
        counts = self.table.column("n")
        for slot in slots:
            counts.values[slot] = counts.values[slot] + 1 if self.table.present[slot] else 1
            counts.valid[slot] = self.table.present[slot] = True
        state = dict(self.expected[self.batch - 1])
        for key in keys:
            state[key] = state.get(key, 0) + 1
        self.expected[self.batch] = state
        self.keyed.commit(self.batch)
        return self.batch

    def checkpoint(self, checkpoint_id: int, batch: int | None = None) -> TableHandle:
        cut = self.batch if batch is None else batch
        handle = self.keyed.checkpoint(checkpoint_id, cut).result(60)
        assert self.restored(handle) == self.expected[cut]
        self.uploader.acknowledge(handle.objects())
        return handle

    def restored(self, *handles: TableHandle) -> dict[int, int]:
        table = StateTable(KEYS, VALUES, 16)
        with ObjectCache(self.inner) as cache:
            restore_table(table, handles, cache, 0, 16)
        return {row["k"]: row["n"] for row in table.snapshot().to_pylist()}

    def metric(self, name: str) -> float:
        return self.uploader.metrics().get(name, 0)

    def materialized(self, times: int) -> None:
        until(lambda: self.metric("completedMaterialization") + self.metric("failedMaterialization") >= times)

    def names(self) -> list[str]:
        return [info.name for info in self.inner.list("")]

    def _fault(self, operation: str, name: str) -> Fault | None:
        if operation == "get_range":
            self.reads.append(name)
            self.reads_open.wait(60)
            self.fail_reads -= 1
            return Fault.FAIL if self.fail_reads >= 0 else None
        if operation == "put" and name.startswith("dstl/") and self.fail_logs:
            self.fail_logs -= 1
            return Fault.FAIL
        if operation != "put" or not name.startswith("shared/"):
            return None
        self.puts += 1
        self.shared_open.wait(60)
        if self.fail_shared:
            self.fail_shared -= 1
            return Fault.FAIL
        return None


class HeldMerges:
    """Merged pieces wait before they are stored until `open`, and then fail as often as `fails` says."""

    def __init__(self, subtask: Subtask) -> None:
        self.subtask = subtask
        self.put: Callable[[bytes], str] = subtask.uploader.put_merged
        self.opened = threading.Event()
        self.stored: list[str] = []
        self.fails = 0
        subtask.uploader.put_merged = self._put_merged  # type: ignore[method-assign]

    def open(self) -> None:
        """Let merges go on, and wait until none is under way."""
        self.opened.set()
        until(lambda: not self.subtask.keyed._merging)

    def _put_merged(self, data: bytes) -> str:
        assert self.opened.wait(60)
        if self.fails:
            self.fails -= 1
            raise StorageError("injected")
        self.stored.append(self.put(data))
        return self.stored[-1]


def make(gathered_bytes_max: int = 0, retries: RetryPolicy = ONCE, **policy: float) -> Subtask:
    settings = {"log_handles_max": 1000, "interval_s": 600.0, "retry_delay_s": 0.0} | policy
    return Subtask(MaterializationPolicy(**settings), gathered_bytes_max, retries)  # type: ignore[arg-type]


def checkpoint_cut_before_a_merge() -> dict[int, int]:
    """Return the counts of a checkpoint whose pieces travel, and were merged between its cut and its manifest."""
    subtask = make(64_000, log_handles_max=8)
    held, carried = HeldMerges(subtask), subtask.uploader.carried

    def stored(number: int, handle: TableHandle) -> TableHandle:
        composed = carried.compose(number, handle.objects())
        name, start = subtask.uploader.put_part(OBJECT_HEADER + composed.log), len(OBJECT_HEADER) + len(composed.log)
        carried.stored(number, names.manifest_behind_logs(name, start, 0, number, 0))
        log = [
            msgspec.structs.replace(each, object=name, offset=start + each.offset) if each.object == HERE else each
            for each in placed(handle, composed.places).log
        ]
        return msgspec.structs.replace(handle, log=log)

    for number in range(11):
        subtask.run(number)
        stored(number, subtask.keyed.checkpoint(number, subtask.batch).result(60))
        subtask.keyed.completed(number)
    subtask.run(11)
    pending = subtask.keyed.checkpoint(11, subtask.batch).result(60)
    held.open()
    assert subtask.keyed._log.merges == 1
    try:
        return subtask.restored(stored(11, pending))
    finally:
        subtask.uploader.close()


def back_behind_what_is_not_completed() -> dict[int, int]:
    """Return the counts of a checkpoint after the log was merged, and the table then went back to the completed one."""
    subtask = make(log_handles_max=8)
    for number in range(6):
        subtask.run(number)
        subtask.checkpoint(number)
        subtask.keyed.completed(number)
    for number in range(6, 9):
        subtask.run(number)
        subtask.checkpoint(number)
    until(lambda: not subtask.keyed._merging)
    assert subtask.keyed._log.merges == 1
    try:
        subtask.keyed.rewind(5)
        subtask.run(9)
        return subtask.restored(subtask.keyed.checkpoint(9, subtask.batch).result(60))
    finally:
        subtask.uploader.close()


def cut_before_a_materialization() -> dict[int, int]:
    """Return the counts of a checkpoint whose batch came before the newest materialization's."""
    subtask = make(log_handles_max=2)
    for checkpoint_id in (1, 2):
        subtask.run(1)
        subtask.checkpoint(checkpoint_id)
    subtask.run(1)
    subtask.run(1)
    subtask.materialized(1)
    restored = subtask.restored(subtask.keyed.checkpoint(3, 1).result(60))
    subtask.uploader.close()
    return restored


def a_part_that_was_not_stored_has_a_name() -> bool:
    """Return whether the uploader gives the name of a part whose put fails, so that it would be acknowledged."""
    subtask = make()
    subtask.fail_logs = 1
    try:
        subtask.uploader.put_part(OBJECT_HEADER)
    except StorageError:
        return False
    finally:
        subtask.uploader.close()
    return True
