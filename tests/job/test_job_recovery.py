"""Jobs that lose TaskManagers, several times over and while they recover, and that are rescaled: every total stays.

State is in memory or in RocksDB; restored rows come from the log alone, or from materialized tables and the log
upon them; from the storage, or from copies on the local disk.
"""

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from job_kit import Feed, new_job, new_storage, newest

import holdfast as hf
from holdfast import failpoints
from holdfast.errors import SettingsError
from holdfast.query import Query
from holdfast.recovery import local, spans
from holdfast.recovery.downloads import Fetched
from holdfast.storage.framing import HEADER_BYTES
from holdfast.storage.store import ObjectStore, open_store
from holdfast.taskmanager.hosting import Hosted
from holdfast.testing import FaultyStore, start
from holdfast.testing.local import LocalCluster
from sampling import some
from waiting import until

BACKENDS = [hf.HashMapState(), hf.RocksDBState(cache_max_entries=20)]
LOG_ALONE, MATERIALIZED = 64, 2
"""Pieces of a log before its table is materialized."""
OTHER_PAIRS = [(BACKENDS[0], MATERIALIZED), (BACKENDS[1], LOG_ALONE)]
PAIRS = [
    *((BACKENDS[0], LOG_ALONE), (BACKENDS[1], MATERIALIZED)),
    *(pytest.param(each, marks=pytest.mark.long) for each in OTHER_PAIRS),
]
"""Each backend and each length of a log once; the other pairs are long."""


class Job:
    """A keyed count and sum on a feed that lasts over all starts, checked against a recomputation."""

    def __init__(self, tmp_path: Path, state: hf.HashMapState | hf.RocksDBState, log_handles_max: int) -> None:
        self.storage = new_storage()
        self.feed = Feed(name="feed")
        self.sink = hf.MemorySink(name="out")
        self.rng = random.Random(5)
        self.tmp_path = tmp_path
        self.state = state
        self.log_handles_max = log_handles_max
        self.cluster: LocalCluster | None = None
        self.fetched: Counter[str] = Counter()
        self.gathered = 64_000

    def start(self, parallelism: int, local_recovery: bool = False, on_loss: str = "rewind") -> Query:
        job = new_job(
            self.storage,
            state=self.state,
            parallelism=parallelism,
            task_managers=min(2, parallelism),
            on_loss=on_loss,
            checkpoint=hf.CheckpointConfig(
                trigger=hf.manual(),
                changelog=hf.ChangelogConfig(log_handles_max=self.log_handles_max, gathered_size_max=self.gathered),
            ),
            task_manager=hf.TaskManagerConfig(local_dir=str(self.tmp_path), local_recovery=local_recovery),
        )
        job.read(self.feed).key_by("k").aggregate(n=hf.count(), total=hf.sum("v"), name="sums").write(self.sink)
        return start(job, hf.processing_time("0s"), store=self._store(), on_cluster=self._note)

    def _store(self) -> ObjectStore:
        def count(operation: str, name: str) -> None:
            if operation.startswith("get"):
                self.fetched[name.partition("/")[0]] += 1

        return FaultyStore(open_store(self.storage), count)

    def _note(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def kill(self, task_manager: int) -> None:
        assert self.cluster is not None
        self.cluster.kill(task_manager)

    def hosted(self) -> list[Hosted]:
        assert self.cluster is not None
        found = [each.task_manager._hosted for each in self.cluster._hosted.values()]
        return [each for each in found if each is not None]

    def work(self, query: Query, batches: int = 3) -> None:
        """Some batches, with a checkpoint after each."""
        for _ in range(batches):
            self.feed.put({"k": self.rng.randrange(80), "v": self.rng.randrange(9)} for _ in range(60))
            query.processAllAvailable()

    def check(self) -> None:
        counts: Counter[int] = Counter(row["k"] for row in self.feed.rows)  # type: ignore[index]
        totals: Counter[int] = Counter()
        for row in self.feed.rows:
            totals[row["k"]] += row["v"]  # type: ignore[index]
        assert newest(self.sink.rows(), "k") == {k: {"n": n, "total": totals[k]} for k, n in counts.items()}


@pytest.fixture(params=PAIRS, ids=str)
def job(request, tmp_path):
    made = Job(tmp_path, *request.param)
    yield made
    failpoints.disarm()


def test_a_job_rescaled_from_one_to_four_to_three_to_eight_keeps_every_total(job):
    for parallelism in (1, 4, 3, 8):
        query = job.start(parallelism)
        job.work(query)
        query.stop()
    job.check()


def test_several_losses_in_a_row_and_during_recovery_keep_every_total(job):
    query = job.start(3)
    job.work(query)
    losses = iter([0, 1, 0])
    lock = threading.Lock()

    def lose() -> None:
        """Whoever restores a table: either TaskManager ends at that moment."""
        with lock:
            index = next(losses, None)
        if index is not None:
            job.kill(index)

    failpoints.arm("taskmanager.deploy.table", lose)
    job.kill(1)
    job.work(query)
    assert next(losses, None) is None
    job.kill(0)
    job.kill(1)
    job.work(query)
    query.stop()
    job.check()


def test_losses_with_nothing_committed_in_between_restore_the_same_checkpoint_each_time(job):
    query = job.start(2)
    job.work(query)
    for restarts in range(1, 4):
        job.kill(0)
        until(lambda restarts=restarts: len(query.restarts) == restarts)
    job.work(query)
    query.stop()
    job.check()


def test_a_survivor_goes_back_in_memory_and_only_the_replacement_reads(job):
    query = job.start(2)
    job.work(query)
    survivor = job.hosted()[0]
    job.feed.put({"k": k, "v": 1} for k in range(90))  # committed, in no checkpoint
    until(lambda: query.totals.rows == len(job.feed.rows))
    job.kill(1)
    job.work(query)
    kept, replaced = job.hosted()
    assert kept is survivor and not kept.recovery.fetched.objects
    assert replaced.recovery.fetched.objects
    query.stop()
    job.check()


def test_a_survivor_that_cannot_go_back_in_memory_restores(tmp_path):
    job = Job(tmp_path, hf.HashMapState(), LOG_ALONE)
    query = job.start(2)
    job.work(query)
    survivor = job.hosted()[0]
    failpoints.arm("taskmanager.rewind.between", "raise:HoldfastError")
    job.kill(1)
    until(lambda: len(query.restarts) == 1 and len(job.hosted()) == 2)
    failpoints.disarm()
    job.work(query)
    assert all(each is not survivor and each.recovery.fetched.objects for each in job.hosted())
    query.stop()
    job.check()


def has_copies(hosted: Hosted) -> bool:
    """The TaskManager knows where its logs lie, and has copies of all that the last checkpoint names."""
    held, known = set(hosted.held()), not hosted.uploader.carried._waiting
    return hosted.copies is not None and known and bool(held) and hosted.copies.names() >= held


def copied(job: Job) -> bool:
    return all(has_copies(each) for each in job.hosted())


def local_job(
    tmp_path: Path, state: hf.HashMapState | hf.RocksDBState, handles: int, gathered: int = 64_000
) -> tuple[Job, Query]:
    job = Job(tmp_path, state, handles)
    job.gathered = gathered
    query = job.start(3, local_recovery=True)
    job.work(query, 6)
    until(lambda: copied(job))
    job.fetched.clear()
    return job, query


def lose_all(job: Job, query: Query) -> Fetched:
    """Lose all TaskManagers; return the reads of their replacements."""
    before = len(query.restarts)
    for index in (0, 1):
        job.kill(index)
    until(lambda: len(query.restarts) > before and len(job.hosted()) == 2)
    found = [each.recovery.fetched for each in job.hosted()]
    objects, from_store, from_local = (
        sum(each.objects for each in found),
        sum(each.bytes_from_store for each in found),
        sum(each.bytes_from_local for each in found),
    )
    return Fetched(objects, from_store, from_local)


@pytest.mark.parametrize("state", BACKENDS, ids=str)
@pytest.mark.parametrize("handles", [LOG_ALONE, MATERIALIZED])
def test_replacements_on_the_same_machine_restore_from_local_copies_alone(tmp_path, state, handles):
    job, query = local_job(tmp_path, state, handles)
    for _ in range(2):
        fetched = lose_all(job, query)
        assert fetched.objects and fetched.bytes_from_local and not fetched.bytes_from_store
        job.work(query, 1)
        until(lambda: copied(job))
    assert not job.fetched["dstl"] and not job.fetched["shared"]
    query.stop()
    job.check()
    assert list(tmp_path.rglob("holdfast-copies*")) == []


@pytest.mark.parametrize("state", some(BACKENDS, 1), ids=str)
def test_damaged_copies_are_deleted_and_the_storage_is_asked(tmp_path, state):
    job, query = local_job(tmp_path, state, MATERIALIZED)
    damaged = [path for path in tmp_path.rglob("*") if path.suffix in (local.OBJECT, local.BODY, local.HEAD)]
    for path in damaged:
        data = path.read_bytes()
        path.unlink()  # linked files are RocksDB's own
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    fetched = lose_all(job, query)
    assert fetched.bytes_from_store and not fetched.bytes_from_local
    job.work(query)
    query.stop()
    job.check()


def test_a_rescaled_job_finds_the_copies_of_all_task_managers_of_the_machine(tmp_path):
    # Of a gathered object, each TaskManager copies its own logs alone.
    job, query = local_job(tmp_path, hf.HashMapState(), LOG_ALONE, gathered=0)
    assert job.cluster is not None
    for each in job.cluster._hosted.values():
        each.task_manager.stop = lambda: None  # type: ignore[method-assign]  # a driver that was killed asks nobody
    query.stop()
    query = job.start(7, local_recovery=True)
    fetched = [each.recovery.fetched for each in job.hosted()]
    assert all(each.bytes_from_local and not each.bytes_from_store for each in fetched)
    job.work(query)
    query.stop()
    job.check()


@pytest.mark.parametrize("local_recovery", some([False, True], 1))
def test_a_rescaled_job_reads_no_more_of_the_objects_than_its_handles_name(tmp_path, local_recovery, monkeypatch):
    monkeypatch.setattr(spans, "GAP_BYTES_MAX", HEADER_BYTES)
    job = Job(tmp_path, hf.HashMapState(), LOG_ALONE)
    query = job.start(3)  # the second subtask's key groups go to both TaskManagers of the next start
    job.work(query, 6)
    query.stop()
    query = job.start(2, local_recovery=local_recovery)
    for hosted in job.hosted():
        handles = [handle for each in hosted.deployment.subtasks for handle in each.restore]
        named_bytes = sum(handle.stored_bytes() for handle in handles)
        fetched = hosted.recovery.fetched
        assert named_bytes <= fetched.bytes_from_store <= named_bytes + HEADER_BYTES * fetched.objects
    assert job.hosted()[1].deployment.shared
    job.work(query)
    query.stop()
    job.check()


def test_copies_go_when_no_checkpoint_needs_them_and_are_bounded_where_none_completes(tmp_path):
    job, query = local_job(tmp_path, hf.RocksDBState(), MATERIALIZED)
    job.work(query, 10)
    for hosted in job.hosted():
        needed = hosted.uploader.in_use().union(hosted.held())
        assert hosted.copies is not None
        until(lambda hosted=hosted, needed=needed: len(hosted.copies.names() - needed) <= 4)
    query.stop()
    job.check()


def counted(folder: Path, rows: int) -> hf.Job:
    """The same job in this process and in a process that is killed."""
    job = new_job(
        (folder / "storage").as_uri(),
        state=hf.RocksDBState(cache_max_entries=20),
        parallelism=2,
        max_rows_per_batch=500,
        task_manager=hf.TaskManagerConfig(local_dir=str(folder / "local"), local_recovery=True),
    )
    numbers = job.read(hf.SequenceSource(rows=rows, name="numbers")).map_batches(modulo, "k BIGINT")
    numbers.key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="out"))
    return job


def modulo(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(rows.column(0).to_numpy() % 70)})


KILLED = """
import os, signal, sys
from pathlib import Path
from test_job_recovery import counted, has_copies
import holdfast as hf
from holdfast.testing import start
clusters = []
query = start(counted(Path(sys.argv[1]), 3000), hf.processing_time("0s"), on_cluster=clusters.append)
query.processAllAvailable()
[hosted] = [each.task_manager._hosted for each in clusters[0]._hosted.values()]
while not has_copies(hosted):
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.kill
def test_a_process_started_after_a_kill_9_restores_from_the_copies_of_the_dead_one(tmp_path):
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], env={**os.environ, "PYTHONPATH": paths}, timeout=100
    )
    assert ended.returncode == -9
    clusters: list[LocalCluster] = []
    query = start(counted(tmp_path, 4000), hf.available_now(), on_cluster=clusters.append)
    [hosted] = [each.task_manager._hosted for each in clusters[0]._hosted.values()]
    assert hosted is not None
    fetched = hosted.recovery.fetched
    assert fetched.objects and fetched.bytes_from_local and not fetched.bytes_from_store
    query.awaitTermination()
    assert query.totals.rows == 1000
    assert not list((tmp_path / "local").rglob("holdfast-copies*"))


def test_with_on_loss_restart_survivors_restore_too_and_keep_every_total(tmp_path):
    job = Job(tmp_path, BACKENDS[0], MATERIALIZED)
    query = job.start(2, on_loss="restart")
    job.work(query)
    query.trigger_checkpoint(60)
    before = {id(each) for each in job.hosted()}
    job.kill(1)
    until(lambda: len(query.restarts) == 1)
    job.work(query)
    assert not before & {id(each) for each in job.hosted()}, "a survivor went back in memory"
    query.stop()
    job.check()


def test_an_unknown_on_loss_is_refused_by_name(tmp_path):
    with pytest.raises(SettingsError, match='on_loss=\'wait\' is not allowed: "rewind", "drop" or "restart"'):
        new_job(new_storage(), on_loss="wait")
