"""A table without a changelog, counting keys, with a store that fails when it is told to."""

import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pyarrow as pa
from obstore.store import MemoryStore

from holdfast.changelog_config import RetryPolicy
from holdfast.formats.handles import TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.materialize.policy import AWAITED
from holdfast.materialize.snapshotted_table import SnapshottedTable
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import restore_table
from holdfast.settings import StateBackend
from holdfast.state.backends import new_table
from holdfast.state.table import StateTable
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.stores import Fault, FaultyStore
from holdfast.uploads.uploader import Uploader

KEYS, VALUES, GROUPS = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]), 16


class Unlogged:
    """`batch` is the last committed; `fail`: so many puts of parts fail; while `open` is not set, all wait."""

    def __init__(self, state: StateBackend, folder: Path) -> None:
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.fail = 0
        self.open = threading.Event()
        self.open.set()
        self.acknowledged: set[str] = set()
        self.uploader = Uploader(
            FaultyStore(self.inner, self._fault), 1, 1, retries=RetryPolicy.none(), materializations_max=AWAITED.lanes
        )
        self.table = new_table(state, str(folder), KEYS, VALUES, GROUPS)
        self.keyed = SnapshottedTable(LogId("count", "state", 0, GROUPS), self.table, self.uploader)
        self.batch = -1
        self._model: dict[int, dict[int, int]] = {-1: {}}

    def begin(self, keys: range) -> None:
        self.table.begin(self.batch + 1)
        if not len(keys):
            return
        slots = self.table.lookup(pa.record_batch({"k": pa.array(keys, pa.int64())}))
        counts = self.table.column("n")
        counts.values[slots] = np.where(self.table.present[slots], counts.values[slots] + 1, 1)
        counts.valid[slots] = True
        self.table.present[slots] = True

    def undo(self) -> None:
        self.table.undo()

    def commit(self, keys: range) -> None:
        counts = dict(self.counts())
        self.batch += 1
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        self._model[self.batch] = counts
        self.keyed.commit(self.batch)

    def run(self, keys: range) -> None:
        """A batch that counts these keys."""
        self.begin(keys)
        self.commit(keys)

    def counts(self) -> dict[int, int]:
        """Counts of the table after the last commit."""
        return self._model[self.batch]

    def rewind(self, to_batch: int) -> None:
        """Later batches never were; their numbers are not used again."""
        self.keyed.rewind(to_batch)
        self._model[self.batch] = self._model[to_batch]

    def cut(self, checkpoint_id: int, batch: int | None = None) -> Future[TableHandle]:
        return self.keyed.checkpoint(checkpoint_id, self.batch if batch is None else batch)

    def acknowledge(self, future: Future[TableHandle]) -> None:
        self.acknowledged.update(future.result().objects())
        self.uploader.acknowledge(future.result().objects())

    def checkpoint(self) -> TableHandle:
        """Run a checkpoint that completes."""
        checkpoint_id = 100 + self.batch
        future = self.cut(checkpoint_id)
        handle = future.result(60)
        self.acknowledge(future)
        self.keyed.completed(checkpoint_id)
        return handle

    def restored(self, handle: TableHandle) -> dict[int, int]:
        table = StateTable(KEYS, VALUES, GROUPS)
        with ObjectCache(self.inner) as cache:
            restore_table(table, [handle], cache, 0, GROUPS)
        return {row["k"]: row["n"] for row in table.snapshot().to_pylist()}

    def metric(self, name: str) -> float:
        return self.uploader.metrics().get(name, 0)

    def stored(self) -> set[str]:
        return {info.name for info in self.inner.list("")}

    def close(self) -> None:
        self.keyed.close()
        self.uploader.close()
        self.table.close()

    def _fault(self, operation: str, name: str) -> Fault | None:
        if operation != "put" or not name.startswith("shared/"):
            return None
        self.open.wait(60)
        if not self.fail:
            return None
        self.fail -= 1
        return Fault.FAIL
