"""Bounded: the storage of a job, and the reads of a restart, depend on its state and not on its running time."""

import itertools
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from simulation_kit import KEYED, MAX_PARALLELISM, keyed, short_waits
from simulation_oracle import referenced, stored_state

import holdfast as hf
from holdfast.errors import CheckpointFailed
from holdfast.graph.build import build_program
from holdfast.storage import names
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing import Fault, FaultyStore, ManualClock, SlowStore, start

KEYS = 100
WINDOW = 100
"""More than a cycle of the log: what is stored grows until a materialization, and then shrinks."""

RESTORED = 7
"""Each seventh checkpoint of a window is restored: no part of the log's cycle, so all of its lengths come."""

GROWTH_MAX = 1.7
"""Bound on a figure around the late checkpoint, as a multiple of the same figure around the early checkpoint. What grew
with each checkpoint would be 2.8 times as much. Late materializations on a busy machine make a log longer by a third.
"""

INCOMPLETE_OBJECTS_MAX = 75
"""Bound for two tables whose logs have up to 8 pieces, and materializations that may be late where the machine is busy.
Each of the 80 checkpoints stores 2 objects."""


class CountedReads(SlowStore):
    """Counts objects and bytes that are read."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, 0.0, lambda seconds: None)
        self.sizes: list[int] = []

    def get(self, name: str) -> bytes:
        data = super().get(name)
        self.sizes.append(len(data))
        return data


class Figures:
    """Figures of a window of checkpoints."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, list[float]] = defaultdict(list)

    def note_stored(self, store: ObjectStore, query: hf.Query) -> None:
        listing = store.list("")
        self._seen["objects"].append(len(listing))
        self._seen["stored bytes"].append(sum(info.size for info in listing))
        self._seen["registered"].append(len(query._master.parts.control._coordinator._shared.registry))

    def note_restore(self, store: ObjectStore, job: hf.Job) -> None:
        reads = CountedReads(store)
        state = stored_state(reads, build_program(job.declared, _no_spark, None), "counts", "k", "n.count")
        assert len(state) == KEYS
        self._seen["restore requests"].append(len(reads.sizes))
        self._seen["restore bytes"].append(sum(reads.sizes))

    def medians(self) -> dict[str, float]:
        """Not the most: where the machine is busy a materialization is late now and then, and a log longer."""
        return {name: statistics.median(values) for name, values in self._seen.items()}


def _no_spark(fn: object, schema: pa.Schema) -> pa.Schema:
    raise AssertionError("there is no step of Spark's in this job")


permits = threading.Semaphore(0)
"""One for each batch: a checkpoint holds one batch, however the threads run."""


def _permitted(batch: pa.RecordBatch) -> pa.RecordBatch:
    permits.acquire()
    return batch


def checkpoints(query: hf.Query, clock: ManualClock) -> Iterator[int]:
    """Take checkpoints a second apart, each after a further batch; return their number."""
    last = None
    for count in itertools.count(1):
        clock.advance(1.0)
        permits.release()
        while (number := query.trigger_checkpoint(60)) == last:
            time.sleep(0.0002)
        last = number
        yield count


def _no_log_of_the_first(operation: str, name: str) -> Fault | None:
    """The first TaskManager declines each checkpoint, and the second acknowledges it."""
    parsed = names.parse(name)
    first = operation == "put" and isinstance(parsed, names.ChangelogName) and parsed.incarnation == 1
    return Fault.FAIL if first else None


@pytest.mark.timeout(300)
def test_checkpoints_that_fail_one_after_the_other_store_and_copy_no_more_and_more(tmp_path: Path) -> None:
    clock, store = ManualClock(), open_store("memory://bounded/incomplete")
    changelog = hf.ChangelogConfig(log_handles_max=8, gathered_size_max=0)
    config = hf.CheckpointConfig(trigger=hf.manual(), tolerable_failed_checkpoints=1_000_000, changelog=changelog)
    job = hf.Job(
        None,
        name="bounded",
        storage=store.url,
        parallelism=2,
        max_parallelism=MAX_PARALLELISM,
        task_managers=2,
        task_manager=hf.TaskManagerConfig(local_dir=str(tmp_path), local_recovery=True),
        max_rows_per_batch=2 * KEYS,
        checkpoint=config,
    )
    rows = (
        job.read(hf.SequenceSource()).map_batches(_permitted, "value BIGINT").map_batches(partial(keyed, KEYS), KEYED)
    )
    rows.key_by("k").aggregate(name="counts", n=hf.count()).write(hf.CallbackSink(lambda table, number: None))
    objects: list[int] = []
    copies: list[int] = []
    with short_waits():
        query = start(job, hf.processing_time(0), store=FaultyStore(store, _no_log_of_the_first), clock=clock)
    try:
        while len(objects) < 80:
            clock.advance(1.0)
            permits.release()
            batches = query._master.progress.totals().batches
            while query._master.progress.totals().batches == batches:
                time.sleep(0.0002)
            with pytest.raises(CheckpointFailed):
                query.trigger_checkpoint(60)
            objects.append(len(store.list("dstl/")) + len(store.list("shared/")))
            copies.append(sum(path.suffix in (".object", ".body") for path in tmp_path.rglob("*")))
    finally:
        permits.release(1000)
        query.stop()
    print(f"objects {objects[::10]}, copies {copies[::10]}")
    for counts in (objects, copies):
        assert statistics.median(counts[50:]) < INCOMPLETE_OBJECTS_MAX, counts


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("early", "late"), [(110, 220), pytest.param(1_000, 10_000, marks=pytest.mark.long)])
def test_later_checkpoints_store_no_more_than_early_ones_did(early: int, late: int) -> None:
    clock, storage = ManualClock(), f"memory://bounded/{late}"
    store = open_store(storage)
    config = hf.CheckpointConfig(trigger=hf.manual(), changelog=hf.ChangelogConfig(log_handles_max=8))
    job = hf.Job(
        None,
        name="bounded",
        storage=storage,
        parallelism=1,
        max_parallelism=MAX_PARALLELISM,
        max_rows_per_batch=2 * KEYS,
        checkpoint=config,
    )
    rows = (
        job.read(hf.SequenceSource()).map_batches(_permitted, "value BIGINT").map_batches(partial(keyed, KEYS), KEYED)
    )
    rows.key_by("k").aggregate(name="counts", n=hf.count()).write(hf.CallbackSink(lambda table, number: None))
    windows = {early: Figures(), late: Figures()}
    begun_s = time.perf_counter()
    query = start(job, hf.processing_time(0), store=store, clock=clock)
    try:
        for count in checkpoints(query, clock):
            for end, figures in windows.items():
                if end - WINDOW < count <= end:
                    figures.note_stored(store, query)
                    if count % RESTORED == 0:
                        figures.note_restore(store, job)
            if count == late:
                break
        referenced(store)
    finally:
        permits.release(1000)
        query.stop()
    first, last = windows[early].medians(), windows[late].medians()
    print(f"{late} checkpoints in {time.perf_counter() - begun_s:.1f} s; around number {early}: {first}")
    print(f"around number {late}: {last}")
    assert len(first) == 5
    assert {name: last[name] / first[name] for name in first if last[name] > GROWTH_MAX * first[name]} == {}
