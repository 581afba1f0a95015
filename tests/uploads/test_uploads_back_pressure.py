"""Requests wait for company, uploads for room, and batches for uploads (behaviours 6 and 7)."""

import random
import string
import threading
from concurrent.futures import Future

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from changelog_kit import LOG, SCHEMA, ManualLog, change
from holdfast.changelog.writer import ChangelogWriter
from holdfast.errors import CheckpointFailed
from holdfast.formats.log_objects import LogId
from holdfast.settings import ChangelogConfig, SettingsError
from holdfast.state.table import merge_changes
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.stores import Fault, SlowStore
from holdfast.uploads.in_flight import InFlight
from holdfast.uploads.precedence import RECORD_S
from holdfast.uploads.uploader import Uploader


def large(size_bytes: int) -> pa.RecordBatch:
    return change("x" * size_bytes)


def writers(world: ManualLog, count: int) -> list[ChangelogWriter]:
    return [ChangelogWriter(LogId("op", str(index), 0, 4), world.uploader, merge_changes) for index in range(count)]


def test_without_delay_and_threshold_a_request_goes_at_once():
    world = ManualLog(persist_delay_s=0.0, persist_bytes_max=0)
    writers(world, 1)  # another log, which does not ask
    world.writer.append(0, change("a"))
    world.persisted(0)
    assert world.scheduler.monotonic() == pytest.approx(0.1)


def test_requests_are_held_until_the_delay_after_the_first_one_is_over_with_one_timer():
    world = ManualLog(persist_delay_s=1.0)
    first, second, _silent = writers(world, 3)
    first.append(0, change("a"))
    second.append(0, change("b"))
    futures = [first.persist(0)]
    world.scheduler.advance(0.75)
    futures.append(second.persist(0))
    assert world.puts == []
    pieces = [world.scheduler.result(future) for future in futures]
    assert world.scheduler.monotonic() == pytest.approx(1.1)
    assert pieces[0][0].object == pieces[1][0].object
    assert world.metric("uploadBatchSizes#max") == 2


def test_requests_are_held_until_the_size_is_reached():
    world = ManualLog(persist_delay_s=1000.0, persist_bytes_max=3000)
    first, second, _silent = writers(world, 3)
    first.append(0, large(2000))
    second.append(0, large(2000))
    future = first.persist(0)
    world.scheduler.advance(10.0)
    assert world.puts == []
    second.persist(0)
    world.scheduler.result(future)
    assert world.scheduler.monotonic() == pytest.approx(10.1)


def test_a_log_that_ends_is_not_waited_for():
    world = ManualLog(persist_delay_s=1000.0)
    [silent] = writers(world, 1)
    world.writer.append(0, change("a"))
    future = world.writer.persist(0)
    silent.close()
    world.scheduler.result(future)
    assert world.scheduler.monotonic() == pytest.approx(0.1)


def test_past_the_bound_in_flight_whoever_makes_changes_waits_until_a_release():
    world = ManualLog(in_flight_bytes_max=1000)
    assert world.uploader.available().done()
    world.writer.append(0, large(2000))
    future = world.writer.persist(0)
    available = world.uploader.available()
    assert not available.done()
    assert (world.metric("uploadBackPressured"), world.metric("uploadQueueSize")) == (1, 1)
    world.uploader.wait_until_available()
    assert (available.done(), future.done()) == (True, True)
    assert world.scheduler.monotonic() == pytest.approx(0.1)
    assert (world.metric("uploadBackPressured"), world.metric("uploadQueueSize")) == (0, 0)
    assert world.metric("uploadBackPressuredTimeMs") == pytest.approx(100.0)


def test_a_failed_upload_releases_its_room_too():
    world = ManualLog(in_flight_bytes_max=1000)
    world.faults = [Fault.FAIL] * 3
    world.writer.append(0, large(2000))
    future = world.writer.persist(0)
    world.uploader.wait_until_available()
    assert future.exception() is not None
    assert world.metric("uploadBytesInFlight") == 0


def test_what_waits_to_be_encoded_counts_too():
    world = ManualLog(in_flight_bytes_max=20_000, object_bytes_max=5000)
    world.took_s = [1.0] * 100
    futures = []
    for writer in writers(world, 10):
        writer.append(0, large(4000))
        futures.append(writer.persist(0))
    assert not world.uploader.available().done()
    world.scheduler.advance(0.0)
    assert world.metric("uploadBytesInFlight") <= 20_000
    assert not world.uploader.available().done()
    for future in futures:
        world.scheduler.result(future)
    assert len(world.puts) == 10
    assert world.uploader.available().done()


def test_no_more_is_in_flight_than_the_bound_but_for_a_single_larger_object():
    world = ManualLog(in_flight_bytes_max=10_000, object_bytes_max=5000)
    in_flight = []
    inner_put = world.inner.put

    def put(name: str, data: bytes) -> None:
        in_flight.append((world.metric("uploadBytesInFlight"), len(data)))
        inner_put(name, data)

    world.inner.put = put  # type: ignore[method-assign]
    rows = [
        {"__key_group": g % 4, "__deleted": False, "k": "y" * (12_000 if g == 3 else 900), "n": g} for g in range(4)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    batch = batch.set_column(2, SCHEMA.field(2), pa.array([random_text(row["k"]) for row in rows]))
    world.writer.append(0, batch)
    others = writers(world, 8)
    for index, other in enumerate(others):
        other.append(0, change(random_text("z" * 4000), index))
    futures = [each.persist(0) for each in [world.writer, *others]]
    for future in futures:
        world.scheduler.result(future)
    assert max(size for _, size in in_flight) > 10_000  # a single key group is not divided
    assert all(total <= 10_000 or total == size for total, size in in_flight)


def test_room_is_kept_for_the_objects_that_others_make():
    in_flight = InFlight(10_000, 5000, 12, lambda: 0.0)
    assert in_flight.room(1)
    assert not in_flight.room(2)
    in_flight.started(1)
    assert in_flight.room()
    assert not in_flight.room(1)


def test_large_logs_are_encoded_side_by_side():
    """Each waits, while it is encoded, until the other is too."""
    both = threading.Barrier(2)

    def merge(change_sets: list[pa.RecordBatch]) -> pa.RecordBatch:
        both.wait(30)
        return merge_changes(change_sets)

    store = ObstoreStore("memory://", MemoryStore())
    uploader = Uploader(store, 1, 1, persist_delay_s=0.0, persist_bytes_max=0)
    logs = [ChangelogWriter(LogId("op", str(index), 0, 4), uploader, merge) for index in range(2)]
    for log in logs:
        log.append(0, change("a", 0))
        log.append(1, change("a", 1))
    stored = [log.persist(1) for log in logs]
    assert [len(each.result(60)) for each in stored] == [1, 1]
    uploader.close(discard=False)


def random_text(like: str) -> str:
    """Make a text of that length that cannot be compressed."""
    return "".join(random.Random(len(like)).choices(string.printable, k=len(like)))


def test_a_threshold_above_the_bound_in_flight_is_refused():
    with pytest.raises(SettingsError, match="persist_size_threshold='200MB' is above in_flight_max='100MB'"):
        ChangelogConfig(persist_size_threshold="200MB")


def test_a_batch_that_waits_for_room_goes_on_when_the_task_manager_closes():
    opened = threading.Event()
    slow = SlowStore(ObstoreStore("memory://", MemoryStore()), 1.0, wait=lambda _: opened.wait(60) and None)
    uploader = Uploader(slow, 1, 1, in_flight_bytes_max=1, persist_delay_s=0.0)
    writer = ChangelogWriter(LOG, uploader, merge_changes)
    writer.append(0, change("a"))
    stored = writer.persist(0)
    waiting = threading.Thread(target=uploader.wait_until_available)
    waiting.start()
    uploader.close()
    waiting.join(60)
    assert not waiting.is_alive()
    opened.set()
    stored.result(60)


def test_a_materialized_part_comes_after_the_logs_and_not_at_all_once_the_task_manager_closes():
    world = ManualLog(in_flight_bytes_max=1000)
    world.writer.append(0, large(2000))
    log = world.writer.persist(0)
    part = world.uploader.in_background(lambda: world.uploader.put_shared(b"part"))
    name = world.scheduler.result(part)
    assert log.done()
    assert world.puts[1] == name
    world.uploader.close()
    with pytest.raises(CheckpointFailed, match="closing"):
        world.uploader.put_shared(b"part")


def test_a_materialized_part_may_wait_until_a_checkpoint_has_ended():
    world, checkpoint = ManualLog(), Future()
    world.uploader.precede(checkpoint)
    world.scheduler.call_later(0.3, lambda: checkpoint.set_result(None))
    part = world.uploader.in_background(lambda: world.uploader.wait_for_checkpoints(0))
    world.scheduler.result(part)
    assert checkpoint.done()
    assert world.scheduler.monotonic() == 0.3 + RECORD_S
