"""Epochs of a streaming DataFrame without Spark: each counts once, in order, whatever is repeated or replaced."""

from uuid import uuid4

import cloudpickle
import pyarrow as pa
import pytest
from sources_stream_kit import Rows, SparkCheckpoint

from holdfast import failpoints
from holdfast.clock import ManualClock
from holdfast.errors import BadRecord, JobRefused
from holdfast.sources.base import EnumeratorContext
from holdfast.sources.spark_stream import epoch_calls
from holdfast.sources.spark_stream.epoch_calls import CallsHere
from holdfast.sources.spark_stream.storing import StoreParts
from holdfast.sources.spark_stream.stream_source import StreamingDataFrameSource
from holdfast.spark.connect_epochs import CallsFromServer
from holdfast.storage.store import open_store
from waiting import until


def from_server():
    """Calls as those of a Spark Connect server: the function that it gets goes through pickling."""
    return CallsFromServer(Pickling, "127.0.0.1")


class Pickling:
    """A streaming DataFrame whose query has a copy of its function."""

    def __init__(self, rows):
        self.writeStream, self._rows = self, rows

    def foreachBatch(self, function):
        return self._rows.foreachBatch(cloudpickle.loads(cloudpickle.dumps(function)))


@pytest.fixture(params=[CallsHere, from_server])
def world(request, tmp_path):
    made = StoredStream(f"file://{tmp_path}/storage", request.param)
    yield made
    made.stop()
    failpoints.disarm()


class StoredStream:
    """A job's storage and Spark's checkpoint, which outlive drivers."""

    def __init__(self, storage, calls):
        self.storage = storage
        self.calls = calls
        self.store = open_store(storage)
        self.spark = SparkCheckpoint()
        self.epoch = 0
        self.drivers = []

    def driver(self, at=None, objects=(), available_now=False, **settings):
        """A new driver's enumerator, begun at a position or at the beginning."""
        self.epoch += 1
        self.rows = Rows(self.spark)
        source = StreamingDataFrameSource(self.rows, **settings)
        source.bind(self.storage, {}, self.calls)
        context = EnumeratorContext(self.store, "s", self.epoch, ManualClock(), available_now)
        enumerator = source.enumerator(context)
        self.drivers.append(enumerator)
        if at is None:
            self.first = enumerator.initial()
        else:
            enumerator.restore(at, list(objects))
        return enumerator

    def stop(self):
        for each in self.drivers:
            each.close()

    def add(self, *partitions):
        self.spark.epochs.append(partitions)

    def wait_for(self, enumerator, segment):
        until(lambda: enumerator.latest()["segment"] >= segment)

    def read(self, enumerator, at, rows_max=10**6):
        """The rows of the next batch, and the position after them."""
        plan = enumerator.plan(at, enumerator.latest(), rows_max, 10**9)
        source = StreamingDataFrameSource(self.rows)
        batches = [b for r in plan.reads for b in source.read_output("", r, self.store, None)]
        return [n for batch in batches for n in batch.rows.column("n").to_pylist()], plan.to

    def stored(self):
        return sorted(info.name for info in self.store.list("segments/"))


def test_epochs_are_read_in_their_order_by_batches_of_any_size_and_go_once_a_checkpoint_is_past_them(world):
    driver = world.driver()
    for number in range(0, 40, 10):
        world.add(range(number, number + 3), [], range(number + 3, number + 10))
    world.wait_for(driver, 4)
    found, at = [], world.first
    while at != driver.latest():
        rows, at = world.read(driver, at, rows_max=7)
        found += rows
    assert found == list(range(40))
    assert driver.lag(world.first) == {"epochs": 40}
    assert driver.objects(at) == []
    half = {**at, "segment": 2, "sequence": 4}
    assert sorted(driver.objects(half)) == [name for name in world.stored() if int(name.split("/")[3][:12]) >= 2]
    driver.completed(half)
    assert sorted(driver.objects(half)) == world.stored()
    driver.completed(at)
    assert world.stored() == []


@pytest.mark.parametrize("place", ["stream.epoch.parts", "stream.epoch.stored"])
def test_an_epoch_counts_once_if_its_driver_dies_while_it_is_stored(world, place):
    world.add([0, 1], [2])
    driver = world.driver()
    world.wait_for(driver, 1)
    _, recorded = world.read(driver, world.first)
    failpoints.arm(place, "raise:StorageError")
    world.add([3, 4])
    until(lambda: "fails" in driver.message)
    objects = driver.objects(recorded)
    driver.close()
    failpoints.disarm()
    again = world.driver(recorded, objects)
    world.add([5])
    world.wait_for(again, 3)
    assert world.read(again, recorded)[0] == [3, 4, 5]
    _, end = world.read(again, recorded)
    again.completed(end)
    last = world.driver(end, again.objects(end))
    assert world.stored() == [], "parts without a head go at the next start"
    last.close()


def test_a_position_within_an_epoch_is_found_again_in_the_very_objects_of_its_record(world):
    world.add(range(10))
    driver = world.driver()
    world.wait_for(driver, 1)
    rows, at = world.read(driver, world.first, rows_max=4)
    assert rows == [0, 1, 2, 3]
    objects = driver.objects(at)
    driver.close()
    again = world.driver(at, objects)
    assert world.read(again, at)[0] == list(range(4, 10))


def test_an_epoch_that_an_older_driver_stored_and_committed_late_is_adopted(world):
    world.add([0])
    old = world.driver()
    world.wait_for(old, 1)
    new = world.driver(world.first, old.objects(world.first))
    new._reader._query.stop()
    world.add([1])
    world.wait_for(old, 2)
    old.close()
    world.add([2])
    new._reader._start()
    world.wait_for(new, 3)
    assert world.read(new, world.first)[0] == [0, 1, 2]


def test_epochs_that_are_nowhere_stored_end_the_query_with_their_numbers(world):
    for number in range(3):
        world.add([number])
    world.spark.committed = 2
    driver = world.driver()
    with pytest.raises(JobRefused, match=r"goes on with epoch 2, and epochs 0 to 1 of query .* are not in"):
        until(lambda: driver.latest() is None)


def test_another_query_of_sparks_is_refused_after_a_checkpoint_and_begins_anew_before_one(world):
    world.add([0])
    driver = world.driver()
    world.wait_for(driver, 1)
    recorded = driver.latest()
    driver.close()
    world.spark = SparkCheckpoint()
    with pytest.raises(JobRefused, match=r"belongs to query .*whose epochs do not fit"):
        world.driver(recorded)
    world.add([7])
    again = world.driver()
    world.wait_for(again, 1)
    assert world.read(again, world.first)[0] == [7]


def test_a_full_spool_makes_spark_wait_until_a_checkpoint_completes(world):
    driver = world.driver(spool_bytes_max=1)
    world.add([0])
    world.add([1])
    until(lambda: "the spool is full" in driver.message)
    assert driver.latest()["segment"] == 1
    driver.completed(driver.latest())
    world.wait_for(driver, 2)
    assert driver.message == ""


def test_available_now_waits_until_sparks_query_has_read_everything(world):
    for number in range(5):
        world.add([number])
    driver = world.driver(available_now=True, spool_bytes_max=1)
    assert driver.latest()["segment"] == 5
    assert world.rows.settings == {"availableNow": True}


@pytest.mark.parametrize("again", [True, False])
def test_a_query_whose_process_is_not_there_in_time_is_started_again(world, monkeypatch, again):
    monkeypatch.setattr(epoch_calls, "START_S_MAX", 60.0 if again else -1.0)
    monkeypatch.setattr(epoch_calls, "PAUSE_S", 0.0)
    failing, start = ["one", "two"], Rows.start

    def late(rows):
        if failing:
            raise RuntimeError(f"Python worker failed to connect back {failing.pop()}")
        return start(rows)

    monkeypatch.setattr(Rows, "start", late)
    world.add([1])
    if not again:
        with pytest.raises(JobRefused, match="failed to connect back two"):
            world.driver()
        return
    world.wait_for(driver := world.driver(), 1)
    assert world.read(driver, world.first)[0] == [1]


def test_a_pause_that_is_ended_ends_the_attempts_and_the_first_of_them_is_a_warning(caplog):
    pauses = iter([False, False, True])
    starts = []

    def late():
        starts.append(1)
        raise RuntimeError("Python worker failed to connect back")

    with caplog.at_level("INFO"), pytest.raises(RuntimeError):
        epoch_calls.started_in_time(late, lambda _: next(pauses))
    assert len(starts) == 3
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO", "INFO"]


def test_a_query_that_fails_for_longer_than_the_timeout_fails_the_job_with_sparks_message(world):
    failpoints.arm("stream.epoch.parts", "raise:StorageError")
    driver = world.driver(outage_timeout="300ms")
    world.add([0])
    with pytest.raises(JobRefused, match=r"has failed for .*\[STREAM_FAILED\]$"):
        until(lambda: driver.latest() is None)
    assert world.rows.starts > 1


def test_spark_reaches_a_store_other_than_files_by_a_folder_of_its_own_only(world):
    source = StreamingDataFrameSource(Rows(world.spark))
    source.bind("s3://bucket/job", {})
    with pytest.raises(JobRefused, match="checkpoint_location"):
        source.enumerator(EnumeratorContext(world.store, "s", 1, ManualClock()))


def test_without_a_session_the_source_is_refused(world):
    source = StreamingDataFrameSource(Rows(world.spark))
    with pytest.raises(JobRefused, match="TestSource"):
        source.enumerator(EnumeratorContext(world.store, "s", 1, ManualClock()))


def test_a_value_that_could_not_be_read_again_is_named_before_it_is_stored():
    texts = pa.array([b"a", b"\xff"]).view(pa.string())
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    store = StoreParts(f"memory://{uuid4().hex}", {}, "segments/s/1", 7, "q", schema)
    with pytest.raises(BadRecord, match=r"batch 7 of query q: column 'text' holds a text that is not UTF-8: .*'n': 2"):
        list(store(iter([pa.record_batch([pa.array([1, 2]), texts], schema=schema)])))
