"""Rewinding the state of subtasks, tables and logs together, against a model: undone changes never come back.

Two subtasks share the objects of an uploader. Batches, cuts that lag behind them, checkpoints that complete or end
otherwise, materializations and uploads that are held up while others go on; and rewinds to the last completed
checkpoint at any time.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from obstore.store import MemoryStore

from holdfast.clock import ManualClock
from holdfast.errors import CheckpointFailed
from holdfast.formats.handles import TableHandle
from holdfast.formats.log_objects import LogId, read_directory
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import restore_table
from holdfast.settings import HashMapState, RocksDBState, StateBackend
from holdfast.state.backends import new_table
from holdfast.state.keys import encode_keys, key_groups
from holdfast.state.table import StateTable
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.stores import Fault, FaultyStore
from holdfast.uploads.uploader import Uploader
from waiting import until

GROUPS = 16
KEYS = pa.schema([("k", pa.int64())])
VALUES = pa.schema([("n", pa.int64()), ("s", pa.binary())])
POLICY = MaterializationPolicy(interval_s=1.0, log_handles_max=6, log_ratio_max=0.0, retry_delay_s=0.0)
WAIT_S = 60
RESTORED_TO = (HashMapState(), RocksDBState())
Rows = dict[int, tuple[int, bytes]]


@dataclass
class Gate:
    """Requests to a part of the store pass while it is open."""

    opened: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.opened.set()


class Subtask:
    def __init__(self, uploader: Uploader, backend: StateBackend, start: int, stop: int, clock: ManualClock) -> None:
        self.start, self.stop = start, stop
        self.table = new_table(backend, None, KEYS, VALUES, GROUPS)
        self.keyed = LoggedTable(LogId("op", "state", start, stop), self.table, uploader, POLICY, clock)

    def run(self, batch: int, rows: pa.RecordBatch, deleted: Any) -> None:
        groups = key_groups(encode_keys(rows, ["k"]), GROUPS)
        own = (groups >= self.start) & (groups < self.stop)
        self.table.begin(batch)
        slots = self.table.lookup(rows.filter(pa.array(own)))
        count, text = self.table.column("n"), self.table.column("s")
        for slot, delete in zip(slots, np.asarray(deleted)[own], strict=True):
            count.values[slot] = count.values[slot] + 1 if self.table.present[slot] else 1
            count.valid[slot] = self.table.present[slot] = not delete
        text.put_objects(slots, [None if delete else value_of(batch) for delete in np.asarray(deleted)[own]])
        self.keyed.commit(batch)

    def close(self) -> None:
        self.keyed.close()
        self.table.close()


def value_of(batch: int) -> bytes:
    return f"batch {batch} ".encode() * 20


def rows_of(table: StateTable) -> Rows:
    return {row["k"]: (row["n"], row["s"]) for row in table.snapshot().to_pylist()}


@dataclass(eq=False)
class Checkpoint:
    number: int
    batch: int
    handles: list[Any]


class StateAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.gates = {"shared": Gate(), "dstl": Gate()}
        self.clock = ManualClock()
        store = FaultyStore(self.inner, self._decide)
        self.uploader = Uploader(store, 1, 1, persist_delay_s=0.0, preempt_bytes_max=3000)
        edges = ((0, 5, HashMapState()), (5, GROUPS, RocksDBState(cache_max_entries=3)))
        self.subtasks = [Subtask(self.uploader, backend, start, stop, self.clock) for start, stop, backend in edges]
        self.batch = -1
        self.live = [-1]
        """Batches that were committed and not undone."""
        self.undone: set[int] = set()
        self.states: dict[int, Rows] = {-1: {}}
        self.checkpoints = 0
        self.last_cut = -1
        self.completed = -1
        self.pending: list[Checkpoint] = []
        self.acknowledged: set[str] = set()
        self.next_sqns = [0, 0]

    def _decide(self, operation: str, name: str) -> Fault | None:
        if operation == "put":
            assert self.gates[name.partition("/")[0]].opened.wait(WAIT_S)
        return None

    @rule(
        keys=st.lists(st.integers(0, 30), min_size=1, max_size=8),
        delete=st.lists(st.integers(0, 30), max_size=3),
        materialize=st.booleans(),
    )
    def run(self, keys: list[int], delete: list[int], materialize: bool) -> None:
        before = dict(self.states[self.live[-1]])
        self.batch += 1
        self.clock.advance(2.0 if materialize else 0.0)
        deleted = [False] * len(keys) + [True] * len(delete)
        for key, gone in zip([*keys, *delete], deleted, strict=True):
            count = before.pop(key, (0, b""))[0] + 1
            if not gone:
                before[key] = count, value_of(self.batch)
        rows = pa.record_batch({"k": pa.array([*keys, *delete], pa.int64())})
        for subtask in self.subtasks:
            subtask.run(self.batch, rows, deleted)
        self.live.append(self.batch)
        self.states[self.batch] = before

    @rule(lag=st.integers(0, 3))
    def cut(self, lag: int) -> None:
        """Cuts go forward, but a batch or more may be committed past them."""
        candidates = [each for each in self.live if each >= max(self.last_cut, 0)]
        if not candidates:
            return
        self.last_cut = candidates[max(0, len(candidates) - 1 - lag)]
        self.checkpoints += 1
        handles = [each.keyed.checkpoint(self.checkpoints, self.last_cut) for each in self.subtasks]
        self.pending.append(Checkpoint(self.checkpoints, self.last_cut, handles))

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 3))
    def complete(self, which: int) -> None:
        """The chosen checkpoint is recorded; earlier ones are subsumed."""
        self.open()
        which = min(which, len(self.pending) - 1)
        subsumed, chosen = self.pending[:which], self.pending[which]
        del self.pending[: which + 1]
        handles = [each.result(WAIT_S) for each in chosen.handles]
        self.check_handles(handles, chosen.batch)
        names = {name for handle in handles for name in handle.objects()}
        self.uploader.acknowledge(names)
        self.acknowledged |= names
        for subtask in self.subtasks:
            subtask.keyed.completed(chosen.number)
        self.completed = chosen.batch
        for each in (future for checkpoint in subsumed for future in checkpoint.handles):
            each.exception(WAIT_S)

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 3))
    def abort(self, which: int) -> None:
        chosen = self.pending.pop(min(which, len(self.pending) - 1))
        for subtask in self.subtasks:
            subtask.keyed.aborted(chosen.number)

    @rule(resolved=st.booleans())
    def rewind(self, resolved: bool) -> None:
        """Back to the last completed checkpoint; those that are pending are ended before, or by it."""
        while resolved and self.pending:
            self.abort(0)
        for subtask in self.subtasks:
            subtask.keyed.rewind(self.completed)
        if not resolved:
            given_up = [each for each in self.pending if each.batch > self.completed]
            self.pending = [each for each in self.pending if each not in given_up]
            self.expect_failures(given_up)
        self.undone.update(each for each in self.live if each > self.completed)
        self.live = [each for each in self.live if each <= self.completed]
        self.last_cut = min(self.last_cut, self.completed)
        for subtask, batch in [(each, batch) for each in self.subtasks for batch in self.undone]:
            if batch == max(self.undone):
                self.refuses(subtask, batch)

    def expect_failures(self, given_up: list[Checkpoint]) -> None:
        """Whoever waits for such a checkpoint learns of it, unless it was stored before."""
        if given_up:
            self.open()
        for future in (each for checkpoint in given_up for each in checkpoint.handles):
            error = future.exception(WAIT_S)
            assert error is None or isinstance(error, CheckpointFailed)

    def refuses(self, subtask: Subtask, batch: int) -> None:
        try:
            future = subtask.keyed.checkpoint(1_000_000 + batch, batch)
        except CheckpointFailed:
            return
        raise AssertionError(f"a cut at batch {batch}, which was undone, was accepted: {future}")

    @rule(part=st.sampled_from(["shared", "dstl"]))
    def hold(self, part: str) -> None:
        self.gates[part].opened.clear()

    @rule()
    def open(self) -> None:
        for gate in self.gates.values():
            gate.opened.set()

    @invariant()
    def tables_are_as_the_model_says(self) -> None:
        found: Rows = {}
        for subtask in self.subtasks:
            rows = rows_of(subtask.table)
            assert len(rows) == len(subtask.table)
            found |= rows
        assert found == self.states[self.live[-1]]

    @invariant()
    def sequence_numbers_never_go_back(self) -> None:
        found = [each.keyed._log.next_sqn() for each in self.subtasks]
        assert all(now >= before for now, before in zip(found, self.next_sqns, strict=True))
        self.next_sqns = found

    def check_handles(self, handles: list[TableHandle], batch: int) -> None:
        """Check that handles restore to the model's state, and name no change set of a batch that was undone."""
        found: Rows = {}
        for subtask, handle in zip(self.subtasks, handles, strict=True):
            table = new_table(RESTORED_TO[batch % 2], None, KEYS, VALUES, GROUPS)
            with ObjectCache(self.inner) as cache:
                restore_table(table, [handle], cache, subtask.start, subtask.stop)
            rows = rows_of(table)
            assert len(rows) == len(table) == handle.rows
            table.close()
            found |= rows
            for piece in handle.log:
                data = memoryview(self.inner.get(piece.object))[piece.offset : piece.offset + piece.length]
                for entry in read_directory("piece", data, piece.length)[0].change_sets:
                    if piece.sqn_start <= entry.sqn_start and entry.sqn_stop <= piece.sqn_stop:
                        assert not self.undone.intersection({entry.batch_start, entry.batch_stop - 1})
        assert found == self.states[batch]

    def teardown(self) -> None:
        self.open()
        for checkpoint in self.pending:
            for future in checkpoint.handles:
                future.exception(WAIT_S)
        for subtask in self.subtasks:
            subtask.close()
        self.uploader.close()
        until(lambda: not self.orphans(), lambda: f"the deletion of {self.orphans()}")

    def orphans(self) -> set[str]:
        return {info.name for info in self.inner.list("")} - self.acknowledged


TestStateAgainstModel = StateAgainstModel.TestCase
TestStateAgainstModel.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)


@pytest.mark.long
class TestStateAgainstModelAtLength(StateAgainstModel.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
