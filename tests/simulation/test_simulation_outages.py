"""A store or a target that is away for a while is waited for, visibly, whatever the query wants of it; then it ends."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock
from uuid import uuid4

import pyarrow as pa
import pytest
from simulation_kit import HastyClock, short_waits

import holdfast as hf
from holdfast.errors import HoldfastError, ObjectNotFound, StorageError, UserFunctionError, is_outage
from holdfast.storage import names
from holdfast.storage.store import ObjectStore, open_store
from holdfast.stored_state.opened import retained
from holdfast.testing import Fault, FaultyStore, start
from sampling import some
from waiting import until

KEYS = 3


@pytest.fixture(autouse=True)
def hasty() -> Iterator[None]:
    with short_waits(), mock.patch("holdfast.sinks.staging.INLINE_BYTES_MAX", 0):
        yield


class Away:
    """A store of which a part refuses some operations while `gone`."""

    def __init__(self, inner: ObjectStore, operations: set[str], folder: str) -> None:
        self.gone = threading.Event()
        self.refused = 0
        self._operations = operations
        self._folder = folder
        self.store = FaultyStore(inner, self._decide)

    def _decide(self, operation: str, name: str) -> Fault | None:
        if self.gone.is_set() and operation in self._operations and name.startswith(self._folder):
            self.refused += 1
            return Fault.FAIL
        return None


def _keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(batch.column(0).to_numpy() % KEYS)], names=["k"])


def counting(folder: Path, storage: str, sink: hf.CallbackSink, **config: object) -> hf.Job:
    trigger = hf.every("1s")
    checkpoint = hf.CheckpointConfig(
        trigger=trigger, changelog=hf.ChangelogConfig(retries=hf.RetryPolicy.none()), **config
    )  # type: ignore[arg-type]
    job = hf.Job(None, name="waiting", storage=storage, parallelism=2, max_rows_per_batch=9, checkpoint=checkpoint)
    rows = job.read(hf.FileSource(f"{folder}/*.csv", schema="n BIGINT", name="files"))
    rows.map_batches(_keyed, "k BIGINT").key_by("k").aggregate(n=hf.count(), name="counts").write(sink)
    return job


def write(folder: Path, number: int) -> None:
    hidden = folder / f"_{number}"
    hidden.write_text("n\n" + "".join(f"{row}\n" for row in range(30)))
    hidden.rename(folder / f"{number:03d}.csv")


class Target:
    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.seen: set[tuple[int, int]] = set()
        self.numbers: set[int] = set()
        self.gone = threading.Event()

    def __call__(self, table: pa.Table, number: int) -> None:
        if self.gone.is_set():
            raise ConnectionError("the target is away")
        if number in self.numbers:
            return  # a start repeats groups that it cannot know to be published
        self.numbers.add(number)
        for row in table.to_pylist():
            assert (row["k"], row["n"]) not in self.seen, "a count came twice"
            self.seen.add((row["k"], row["n"]))
            self.counts[row["k"]] = row["n"]


PLACES = [
    pytest.param({"put"}, "sources/", id="source chunks"),
    pytest.param({"put"}, "gathered/", id="gathered objects"),
    pytest.param({"put"}, "staging/", id="staging"),
    pytest.param({"create", "get"}, "journal/", id="records"),
    pytest.param({"put", "get", "list", "create", "delete"}, "", id="everything"),
]


@pytest.mark.parametrize(("operations", "folder"), some(PLACES, 0, 1, 4))
def test_a_store_that_is_away_is_waited_for_and_nothing_is_lost_or_doubled(
    tmp_path: Path, operations: set[str], folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.jobmaster.checkpoints.outages")
    storage = f"memory://outages/{uuid4().hex}"
    away, target = Away(open_store(storage), operations, folder), Target()
    job = counting(tmp_path, storage, hf.CallbackSink(target, name="out"))
    write(tmp_path, 0)
    query = start(job, hf.processing_time(0), store=away.store, clock=HastyClock())
    try:
        query.processAllAvailable()
        away.gone.set()
        for number in range(1, 4):
            write(tmp_path, number)
        until(lambda: "Waiting for store, disk or service" in query.status["message"], "a wait that is seen")
        assert query._master.progress.picture().values["outageMs"] > 0
        refused = away.refused
        until(lambda: away.refused > refused + 20, "attempts that go on")
        assert query.isActive
        away.gone.clear()
        query.processAllAvailable()
        until(lambda: query.status["message"] == "Processing", "the end of the wait")
        assert target.counts == dict.fromkeys(range(KEYS), 40)
    finally:
        away.gone.clear()
        query.stop()
    assert query.exception() is None
    assert any(
        "waits for store, disk or service" in each.message and "injected" in each.message for each in caplog.records
    )


@pytest.mark.parametrize(("operations", "folder"), some(PLACES, 1, 4))
def test_a_store_that_stays_away_ends_the_query_with_step_path_and_remedy(
    tmp_path: Path, operations: set[str], folder: str
) -> None:
    storage = f"memory://outages/{uuid4().hex}"
    away, target = Away(open_store(storage), operations, folder), Target()
    job = counting(tmp_path, storage, hf.CallbackSink(target, name="out"), outage_timeout="20s")
    write(tmp_path, 0)
    query = start(job, hf.processing_time(0), store=away.store, clock=HastyClock())
    query.processAllAvailable()
    away.gone.set()
    write(tmp_path, 1)
    until(lambda: not query.isActive, "its end")
    away.gone.clear()
    message = str(query.exception())
    assert "outage_timeout='20s'" in message and storage in message and "start again" in message
    assert (folder or "injected") in message
    again = start(counting(tmp_path, storage, hf.CallbackSink(target, name="out")), hf.available_now())
    again.awaitTermination()
    assert target.counts == dict.fromkeys(range(KEYS), 20)


def test_a_sinks_target_that_stays_away_ends_the_query_and_gets_its_rows_at_the_next_start(tmp_path: Path) -> None:
    storage, target = f"memory://outages/{uuid4().hex}", Target()
    job = counting(tmp_path, storage, hf.CallbackSink(target, name="out"), outage_timeout="20s")
    write(tmp_path, 0)
    target.gone.set()
    query = start(job, hf.processing_time(0), clock=HastyClock())
    until(lambda: "publication to sink 'out'" in query.status["message"], "a wait that is seen")
    until(lambda: not query.isActive, "its end")
    assert "publication to sink 'out' has failed" in str(query.exception())
    target.gone.clear()
    start(job, hf.available_now()).awaitTermination()
    assert target.counts == dict.fromkeys(range(KEYS), 10)


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (StorageError("put failed"), True),
        (ObjectNotFound("no such object"), False),
        (OSError(28, "No space left on device"), True),
        (Exception("IO error: No space left on device: While appending to file"), True),
        (HoldfastError("the text of a cell: StorageError: No space left on device"), False),
        (ValueError("StorageError: put failed"), False),
        (UserFunctionError("a function raised"), False),
        (ValueError("no"), False),
    ],
    ids=lambda each: str(each)[:30],
)
def test_an_outage_is_told_from_other_errors(error: Exception, outage: bool) -> None:
    assert is_outage(error) is outage


class CountingReads:
    """A store that notes which parts of gathered objects are read."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url, self.inner, self.read = inner.url, inner, list[tuple[str, int, int]]()

    def __getattr__(self, operation: str) -> object:
        return getattr(self.inner, operation)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        if name.startswith("gathered/"):
            self.read.append((name, offset, length))
        return self.inner.get_range(name, offset, length)


def test_a_start_reads_the_manifests_once_beside_the_sweep_of_the_storage(tmp_path: Path) -> None:
    storage, target = f"memory://reads/{uuid4().hex}", Target()
    job = counting(tmp_path, storage, hf.CallbackSink(target, name="out"))
    write(tmp_path, 0)
    start(job, hf.available_now()).awaitTermination()
    newest = max(retained(open_store(storage)).items())[1]
    part = names.part(newest.manifests[0])
    assert part is not None
    counted = CountingReads(open_store(storage))
    write(tmp_path, 1)
    start(job, hf.available_now(), store=counted).awaitTermination()
    assert counted.read.count((part.object, part.offset, part.length)) <= 2
