"""Nothing is left in the process when a query has ended: no threads, no open files, no spilled rows."""

import gc
import threading
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from simulation_kit import KEYED, keyed, short_waits

import holdfast as hf
from holdfast import errors
from holdfast.storage.store import open_store
from holdfast.testing import Abort, Fault, FaultyStore, TestSource, run, start
from holdfast.testing.local import LocalCluster
from waiting import until

PATIENCE_S = 20.0


def open_files() -> set[str]:
    gc.collect()
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{link.name} {link.readlink()}")
        except FileNotFoundError:
            continue
    return found


class Census:
    """The threads that were there before; whatever else a query starts has to be gone after it."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def new(self) -> list[str]:
        return sorted(thread.name for thread in threading.enumerate() if thread not in self._before)

    def check(self) -> None:
        until(lambda: not self.new(), self.new)


def counting(storage: str, local_dir: Path, rows: int = 60, rows_per_batch: int = 20) -> hf.Job:
    job = hf.Job(
        None,
        name="counting",
        storage=storage,
        parallelism=2,
        task_managers=2,
        max_rows_per_batch=rows_per_batch,
        task_manager=hf.TaskManagerConfig(memory="16MB", local_dir=str(local_dir)),
        checkpoint=hf.CheckpointConfig(trigger=hf.every(0.01), tolerable_failed_checkpoints=1000),
    )
    numbers = job.read(hf.SequenceSource(stop=rows, name="numbers")).map_batches(partial(keyed, 5), KEYED)
    numbers.key_by("k").aggregate(emit="every", n=hf.count()).write(hf.MemorySink())
    return job


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"file://{tmp_path}/storage"


def test_a_query_that_ends_leaves_no_threads_and_no_spilled_rows(storage: str, tmp_path: Path) -> None:
    census = Census()
    job = counting(storage, tmp_path / "spill", rows=1_200_000, rows_per_batch=600_000)
    spilled: list[float] = []
    query = start(job, hf.processing_time(0))
    query.processAllAvailable()
    for each in query._master.parts.cluster._hosted.values():  # type: ignore[attr-defined]
        spilled.append(each.task_manager.metrics()["exchangeSpilledBytes"])
    assert any(spilled), "the job was to spill"
    assert not list((tmp_path / "spill").rglob("*.arrows")), "what was released is gone while the query runs"
    query.stop()
    census.check()
    assert not list((tmp_path / "spill").iterdir())


def test_a_query_that_fails_leaves_no_threads(storage: str, tmp_path: Path) -> None:
    census = Census()
    job = counting(storage, tmp_path)
    rows = job.read(TestSource([[{"k": 1}], [{"k": None}]], "k BIGINT"))
    rows.key_by("k").aggregate(n=hf.count()).write(hf.MemorySink())
    with pytest.raises(errors.QueryFailed, match="null in a key column"):
        run(job)
    census.check()


def test_a_start_that_is_refused_leaves_no_threads(storage: str, tmp_path: Path) -> None:
    def refuse(operation: str, name: str) -> Fault | None:
        return Fault.FAIL if name.startswith("gathered/") and operation.startswith("get") else None

    census = Census()
    run(counting(storage, tmp_path))
    census.check()
    with short_waits(), pytest.raises(errors.StorageError, match="injected"):
        run(counting(storage, tmp_path, rows=90), store=FaultyStore(open_store(storage), refuse))
    census.check()


def test_task_managers_that_are_killed_leave_no_threads(storage: str, tmp_path: Path) -> None:
    census = Census()
    clusters: list[LocalCluster] = []
    job = counting(storage, tmp_path, rows=100_000)
    query = start(job, hf.processing_time(0), on_cluster=clusters.append)
    for restarts in range(1, 6):
        clusters[0].kill(restarts % 2)
        until(lambda restarts=restarts: len(query.restarts) >= restarts, lambda: query.status)  # type: ignore[misc]
    query.stop()
    census.check()


def test_a_store_that_never_answers_again_does_not_keep_threads_after_the_end(storage: str, tmp_path: Path) -> None:
    broken = threading.Event()

    def break_down(operation: str, name: str) -> Fault | None:
        return Fault.FAIL if broken.is_set() else None

    census = Census()
    with short_waits():
        store = FaultyStore(open_store(storage), break_down)
        query = start(counting(storage, tmp_path, rows=100_000), hf.processing_time(0), store=store)
        until(lambda: query.totals.checkpoints, lambda: query.status)
        broken.set()
        failed = query.totals.failed_checkpoints
        until(lambda: query.totals.failed_checkpoints > failed or not query.isActive, lambda: query.status)
        query.stop()
        census.check()


@pytest.mark.parametrize("starts", [8, pytest.param(200, marks=pytest.mark.long)])
def test_many_starts_leave_as_many_threads_and_open_files_as_one(storage: str, tmp_path: Path, starts: int) -> None:
    run(counting(storage, tmp_path / "spill"))
    census, files = Census(), open_files()
    memory = open_store(f"memory://leaks/{uuid4().hex}")
    for number in range(starts):
        query = start(counting(memory.url, tmp_path / "spill", rows=20 * number), hf.available_now(), store=memory)
        assert query.awaitTermination(PATIENCE_S)
    census.check()
    assert open_files() <= files
    left = list((tmp_path / "spill").rglob("*")) if (tmp_path / "spill").exists() else []
    assert not left


def test_an_aborted_script_leaves_no_threads(tmp_path: Path) -> None:
    census = Census()
    rows = [{"k": 1}]
    job = hf.Job(None, name="aborted", storage=f"memory://leaks/{uuid4().hex}")
    sink = hf.MemorySink()
    job.read(TestSource([rows, Abort(), rows], "k BIGINT")).key_by("k").aggregate(n=hf.count()).write(sink)
    run(job)
    assert sink.rows()[-1] == {"k": 1, "n": 2}
    census.check()
