"""Recovery and rescaling: the restored state is the model's, or an error names the object; simulated with faults."""

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from holdfast.clock import ManualClock
from holdfast.errors import CheckpointFailed, CorruptObject, HoldfastError, StorageError
from holdfast.formats.handles import LogPiece, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.ids import BatchNumber
from holdfast.materialize.keyed_state import KeyedState
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.materialize.snapshotted_table import SnapshottedTable
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import restore_table, select
from holdfast.settings import HashMapState, RocksDBState, StateBackend
from holdfast.state.backends import new_table
from holdfast.state.keys import encode_keys, key_groups
from holdfast.state.table import StateTable
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.store import ObjectStore
from holdfast.testing.stores import FaultyStore, seeded_faults
from holdfast.uploads.attempts import RetryPolicy
from holdfast.uploads.uploader import Uploader

GROUPS = 128
KEYS, VALUES = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
POLICY = MaterializationPolicy(log_handles_max=3, retry_delay_s=0.0, failures_max=1000)


SEEDS_QUICK = 4
"""The number of simulated seeds in `make test`; the others are long."""
MEMORY = HashMapState()
BACKENDS = (MEMORY, RocksDBState(), RocksDBState(cache_max_entries=7))


@dataclass(eq=False)
class Cut:
    """A checkpoint that was begun."""

    checkpoint_id: int
    batch: int
    handles: list[Future[TableHandle]]


class Job:
    """Some subtasks of a counting operator, with a model of their state; no coordinator."""

    def __init__(
        self,
        store: ObjectStore,
        inner: ObjectStore,
        attempts_max: int = 1,
        backends: Sequence[StateBackend] = (MEMORY,),
    ) -> None:
        self.backends = backends
        self.store = store
        self.inner = inner
        self.attempts_max = attempts_max
        self.epoch = 0
        self.batch = -1
        self.checkpoint_id = 0
        self.models: dict[int, Counter[int]] = {}
        """The expected state after each batch that counts, from the last completed checkpoint on."""
        self.recorded: list[TableHandle] = []
        self.recorded_model: Counter[int] = Counter()
        self.subtasks: list[Subtask] = []
        self.cuts: list[Cut] = []
        self.last_cut = -1

    @property
    def model(self) -> Counter[int]:
        return self.models[max(self.models)]

    def start(self, parallelism: int, *, changelog: bool = True) -> None:
        """Recover the last recorded checkpoint with that many subtasks, as a new epoch."""
        self.stop()
        self.epoch += 1
        self.changelog = changelog
        self.uploader = Uploader(
            self.store, self.epoch, 1, retries=RetryPolicy(self.attempts_max, next_attempt_delay=0.0)
        )
        self.models = {self.batch: Counter(self.recorded_model)}
        self.cuts, self.last_cut = [], self.batch
        edges = [-(-GROUPS * index // parallelism) for index in range(parallelism + 1)]
        with ObjectCache(self.inner) as cache:
            self.subtasks = [
                Subtask(
                    self.uploader,
                    start,
                    stop,
                    self.recorded,
                    cache,
                    self.backends[self.epoch % len(self.backends)],
                    changelog,
                )
                for start, stop in pairwise(edges)
            ]

    def stop(self) -> None:
        for subtask in self.subtasks:
            subtask.keyed.close()
            subtask.table.close()
        if self.subtasks:
            self.uploader.close()

    def run(self, keys: list[int], delete: list[int]) -> None:
        self.batch += 1
        rows = pa.record_batch({"k": pa.array(keys + delete, pa.int64())})
        groups = key_groups(encode_keys(rows, ["k"]), GROUPS)
        for subtask in self.subtasks:
            own = (groups >= subtask.start) & (groups < subtask.stop)
            subtask.run(self.batch, rows.filter(pa.array(own)), np.flatnonzero(own) >= len(keys))
        model = Counter(self.model)
        model.update(keys)
        for key in delete:
            model.pop(key, None)
        self.models[self.batch] = model

    def idle(self) -> None:
        """Run a batch without rows."""
        self.batch += 1
        self.models[self.batch] = Counter(self.model)
        for each in self.subtasks:
            each.keyed.commit(BatchNumber(self.batch))

    def checkpoint(self, complete: bool = True) -> bool:
        """Take a checkpoint; True if it was recorded."""
        return self.end(self.cut(max(self.models)), complete)

    def cut(self, batch: int) -> Cut:
        """Begin a checkpoint of the state after that batch; none of an earlier batch may follow."""
        self.checkpoint_id += 1
        self.last_cut = batch
        handles = [each.keyed.checkpoint(self.checkpoint_id, batch) for each in self.subtasks]
        self.cuts.append(Cut(self.checkpoint_id, batch, handles))
        return self.cuts[-1]

    def end(self, cut: Cut, complete: bool) -> bool:
        """Record it, if it is to complete and can; earlier ones are subsumed then."""
        try:
            handles = [future.result(60) for future in cut.handles]
            self.uploader.acknowledge(name for handle in handles for name in handle.objects())
        except (StorageError, CheckpointFailed):
            complete = False
        for future in cut.handles:
            future.exception(30)
        if complete:
            self.recorded, self.recorded_model = handles, self.models[cut.batch]
            self.models = {batch: model for batch, model in self.models.items() if batch >= cut.batch}
            self.cuts = [each for each in self.cuts if each.checkpoint_id > cut.checkpoint_id]
        else:
            self.cuts.remove(cut)
        for each in self.subtasks:
            (each.keyed.completed if complete else each.keyed.aborted)(cut.checkpoint_id)
        return complete

    def rewind(self) -> None:
        """Go back in memory to the last recorded checkpoint; the others are given up."""
        first = self.last_cut = min(self.models)
        for each in self.subtasks:
            each.keyed.rewind(first)
        self.models = {first: self.models[first]}
        for cut in list(self.cuts):
            self.end(cut, complete=False)

    def totals(self) -> Counter[int]:
        rows = [row for each in self.subtasks for row in each.table.snapshot().to_pylist()]
        assert len(rows) == len({row["k"] for row in rows}) == sum(len(each.table) for each in self.subtasks)
        return Counter({row["k"]: row["n"] for row in rows})

    def held(self) -> set[str]:
        return {name for each in self.subtasks for name in each.keyed.held()}

    def referenced(self) -> set[str]:
        return {name for handle in self.recorded for name in handle.objects()}


@dataclass
class Subtask:
    uploader: Uploader
    start: int
    stop: int
    handles: list[TableHandle]
    cache: ObjectCache
    backend: StateBackend
    changelog: bool
    table: StateTable = field(init=False)
    keyed: KeyedState = field(init=False)

    def __post_init__(self) -> None:
        own = select(self.handles, "count", "state", self.start, self.stop)
        self.table = new_table(self.backend, None, KEYS, VALUES, GROUPS)
        files = restore_table(self.table, own, self.cache, self.start, self.stop)
        log = LogId("count", "state", self.start, self.stop)
        if self.changelog:
            self.keyed = LoggedTable(log, self.table, self.uploader, POLICY, ManualClock())
        else:
            self.keyed = SnapshottedTable(log, self.table, self.uploader, ManualClock())
        self.keyed.restored(own, files)

    def run(self, batch: int, rows: pa.RecordBatch, deleted: np.ndarray) -> None:
        self.table.begin(batch)
        counts = self.table.column("n")
        for slot, delete in zip(self.table.lookup(rows), deleted, strict=True):
            counts = self.table.column("n")
            counts.values[slot] = counts.values[slot] + 1 if self.table.present[slot] else 1
            counts.valid[slot] = self.table.present[slot] = not delete
        self.keyed.commit(batch)


def memory() -> ObjectStore:
    return ObstoreStore("memory://", MemoryStore())


@pytest.mark.parametrize(
    "backends", [BACKENDS, *(pytest.param((each,), marks=pytest.mark.long) for each in BACKENDS)], ids=str
)
def test_rescaling_from_one_to_four_to_three_to_eight_keeps_every_total(backends):
    store = memory()
    job = Job(store, store, backends=backends)
    rng = random.Random(1)
    for parallelism in (1, 4, 3, 8, 1):
        job.start(parallelism)
        assert job.totals() == job.model
        for _ in range(5):
            job.run([rng.randrange(300) for _ in range(200)], [])
            assert job.checkpoint()
        assert job.totals() == job.model
    job.stop()


def test_restored_handles_stay_in_every_checkpoint_and_serve_recovery_after_recovery():
    """Nothing is materialized in between: the logs of earlier subtasks are joined and divided again and again."""
    store = memory()
    job = Job(store, store)
    job.start(1)
    job.run(list(range(200)), [])
    assert job.checkpoint()
    for parallelism in (2, 1, 3, 2, 1):
        job.start(parallelism)
        assert job.totals() == job.model
        job.run(list(range(0, 200, parallelism)), [0, 199])
        assert job.checkpoint()
    job.start(4)
    assert job.totals() == job.model
    job.stop()


def test_a_missing_or_altered_object_is_an_error_that_names_it_and_never_wrong_state():
    store = memory()
    job = Job(store, store)
    job.start(2)
    for _ in range(9):
        job.run(list(range(100)), [])
        assert job.checkpoint()
    names = sorted(job.referenced())
    assert {name.split("/")[0] for name in names} == {"dstl", "shared"}
    for name in names:
        data = store.get(name)
        store.delete([name])
        with pytest.raises(StorageError, match=name):
            job.start(3)
        for damaged in (data[:-1], data[: len(data) // 2], data[:-5] + b"12345", b""):
            store.put(name, damaged)
            with pytest.raises(CorruptObject, match=name):
                job.start(3)
        store.put(name, data)
    job.start(3)
    assert job.totals() == job.recorded_model
    job.stop()


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < SEEDS_QUICK else pytest.mark.long) for seed in range(40)]
)
def test_simulated_failures_never_lose_a_recorded_state_or_an_object_of_it(seed):
    """Requests that fail, lie or come late; checkpoints that overlap, lag and abort; rewinds, recoveries, rescaling."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    inner = memory()
    store = FaultyStore(inner, seeded_faults(seed, rng.choice([0.0, 0.1, 0.4])))
    job = Job(store, inner, rng.choice([1, 3]), rng.choice([BACKENDS, BACKENDS[1:2], BACKENDS[2:]]))
    job.start(rng.randint(1, 4))
    for _ in range(80):
        event = rng.random()
        if event < 0.06:
            job.start(rng.randint(1, 5), changelog=rng.random() < 0.8)
            assert job.totals() == job.recorded_model
        elif event < 0.1:
            job.rewind()
            assert job.totals() == job.recorded_model
        elif event < 0.3:
            batches = [batch for batch in job.models if batch >= job.last_cut]
            job.cut(rng.choice(batches[-3:]) if job.changelog else batches[-1])
        elif event < 0.45:
            if job.cuts:
                job.end(rng.choice(job.cuts), complete=rng.random() < 0.7)
        elif event < 0.5:
            store.land()
        else:
            job.run([rng.randrange(50) for _ in range(20)], [rng.randrange(50) for _ in range(3)])
        # Materializations end in the background, so held objects can change beside the listing, either way.
        held = job.held()
        stored = {info.name for info in inner.list("")}
        assert held & job.held() <= stored
        assert job.referenced() <= stored
    assert any(job.checkpoint() for _ in range(100))
    expected = job.model
    job.start(3)
    assert job.totals() == job.recorded_model == expected
    job.stop()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_rows_that_went_before_a_later_materialization_of_their_key_groups_stay_gone(backend):
    """The files of the first materialization have them still, and stand for the other half of the key groups."""
    store = memory()
    job = Job(store, store, backends=[backend])
    groups = key_groups(encode_keys(pa.record_batch({"k": pa.array(range(200), pa.int64())}), ["k"]), GROUPS)
    upper = np.flatnonzero(groups >= GROUPS // 2).tolist()

    def run_until_materialized(keys: list[int]) -> None:
        while not any(part.object.startswith(f"shared/{job.epoch:012d}") for part in job.recorded[-1].materialized):
            job.run(keys, [])
            assert job.checkpoint()

    job.start(1)
    job.run(list(range(200)), [])
    assert job.checkpoint()
    run_until_materialized(list(range(200)))
    job.start(2)
    job.run([], upper[1:])
    run_until_materialized(upper[:1])
    for _ in range(2):
        job.start(1)
        assert job.totals() == job.model
        job.run(upper[:1], [])
        assert job.checkpoint()
    job.stop()


def handle(start: int, stop: int, table: str = "state") -> TableHandle:
    return TableHandle("op", table, start, stop, b"", [], [LogPiece("dstl/a", 0, 1, 0, 1, start, stop)])


def test_select_narrows_handles_and_pieces_to_the_key_groups_in_common():
    chosen = select([handle(8, 16), handle(0, 8), handle(0, 16, "other")], "op", "state", 4, 10)
    assert [(each.key_group_start, each.key_group_stop) for each in chosen] == [(4, 8), (8, 10)]
    assert [(p.key_group_start, p.key_group_stop) for each in chosen for p in each.log] == [(4, 8), (8, 10)]


def test_select_leaves_out_pieces_without_any_of_the_key_groups():
    pieces = [LogPiece("dstl/a", 0, 1, 0, 1, 0, 4), LogPiece("dstl/b", 0, 1, 0, 1, 4, 8)]
    [chosen] = select([TableHandle("op", "state", 0, 8, b"", [], pieces)], "op", "state", 4, 8)
    assert chosen.objects() == ["dstl/b"]


def test_state_that_the_checkpoint_does_not_have_at_all_is_new():
    assert select([handle(0, 16)], "op", "another", 0, 16) == []


@pytest.mark.parametrize(
    ("handles", "problem"),
    [
        ([handle(0, 4)], "4 to 8 have no state"),
        ([handle(4, 8)], "0 to 4 have no state"),
        ([handle(0, 2), handle(5, 8)], "2 to 5 have no state"),
        ([handle(0, 5), handle(4, 8)], "4 to 5 are there twice"),
        ([handle(8, 16)], "0 to 8 have no state"),
    ],
)
def test_key_groups_that_are_missing_or_doubled_are_refused(handles, problem):
    with pytest.raises(HoldfastError, match=problem):
        select(handles, "op", "state", 0, 8)


def test_an_aggregate_that_is_added_starts_null_and_old_and_new_log_are_replayed_together():
    store = memory()
    job = Job(store, store)
    job.start(1)
    job.run([1, 2], [])
    assert job.checkpoint()
    job.stop()
    wider = pa.schema([*VALUES, ("x", pa.float64())])

    def restored(handles: list[TableHandle]) -> StateTable:
        table = StateTable(KEYS, wider, GROUPS)
        with ObjectCache(store) as cache:
            restore_table(table, handles, cache, 0, GROUPS)
        return table

    table, uploader = restored(job.recorded), Uploader(store, 2, 1)
    assert [row["x"] for row in table.snapshot().to_pylist()] == [None, None]
    keyed = LoggedTable(LogId("count", "state", 0, GROUPS), table, uploader, POLICY, ManualClock())
    keyed.restored(job.recorded)
    table.begin(0)
    [slot] = table.lookup(pa.record_batch({"k": pa.array([2], pa.int64())}))
    column = table.column("x")
    column.values[slot], column.valid[slot] = 0.5, True
    keyed.commit(0)
    again = restored([keyed.checkpoint(1, 0).result(60)])
    assert {row["k"]: (row["n"], row["x"]) for row in again.snapshot().to_pylist()} == {1: (1, None), 2: (1, 0.5)}
    uploader.close()
