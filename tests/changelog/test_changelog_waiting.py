"""Changes that wait in tables are stored ahead of a cut once there are many, so that the cut has few left."""

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from changelog_kit import (
    IN_FLIGHT_BYTES,
    ManualLog,
    Waiting,
    change,
    cut_behind_what_was_stored_ahead,
)
from holdfast.changelog.waiting import LAG_BATCHES, LAG_BATCHES_MIN, ROW_BYTES, UncollectedRows, WaitingChanges
from holdfast.errors import CheckpointFailed
from holdfast.formats.log_objects import LogId
from holdfast.materialize.logged_table import LoggedTable
from holdfast.state.table import StateTable
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.scheduler import ManualScheduler
from holdfast.testing.stores import Fault
from holdfast.uploads.uploader import COLLECT_DIVISOR, Uploader


class CountedTable:
    """A table of a number and a text with its log, in manual time; the store counts the bytes that are put."""

    def __init__(self, **bounds: int) -> None:
        self.scheduler = ManualScheduler(lambda lane: 0.01)
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.uploader = Uploader(self.inner, 1, 1, object_bytes_max=10_000, scheduler=self.scheduler, **bounds)
        self.table = StateTable(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64()), ("t", pa.string())]), 16)
        self.keyed = LoggedTable(LogId("op", "state", 0, 16), self.table, self.uploader)
        self.batch = -1

    def run(self, keys: range) -> None:
        """Run a batch that changes these keys, and let a moment pass."""
        self.batch += 1
        self.table.begin(self.batch)
        slots = self.table.lookup(pa.record_batch({"k": pa.array(keys, pa.int64())}))
        column = self.table.column("n")
        column.values[slots] = self.batch
        column.valid[slots] = True
        self.table.column("t").put_objects(slots, [f"{key}-{self.batch}" for key in keys])
        self.table.present[slots] = True
        self.keyed.commit(self.batch)
        assert self.uploader.available().done(), "a batch would have to wait"
        self.scheduler.advance(0.1)

    def cut(self) -> int:
        """Cut after the last batch; return the bytes that the cut had to store."""
        before = self.stored_bytes()
        handle = self.keyed.checkpoint(1, self.batch)
        assert self.uploader.available().done(), "a batch would have to wait"
        assert self.scheduler.result(handle).rows == len(self.table)
        return self.stored_bytes() - before

    def stored_bytes(self) -> int:
        return sum(each.size for each in self.inner.list(""))


def test_a_long_interval_leaves_few_bytes_to_its_cut_and_no_batch_waits() -> None:
    world = CountedTable(in_flight_bytes_max=100_000)
    for number in range(400):
        world.run(range(50 * (number // 3), 50 * (number // 3) + 50))
    ahead, at_the_cut = world.stored_bytes(), world.cut()
    assert ahead > at_the_cut
    assert at_the_cut < 100_000 // COLLECT_DIVISOR + LAG_BATCHES * 50 * 60


def test_rows_that_many_batches_change_wait_and_are_stored_once() -> None:
    world = CountedTable(in_flight_bytes_max=200_000, preempt_bytes_max=2_000)
    world.run(range(200))
    as_new = world.stored_bytes()
    for _ in range(200):
        world.run(range(200))
    assert world.stored_bytes() == as_new
    assert 0 < world.cut() < 200 * 60


def test_rows_that_are_new_go_ahead_as_soon_as_pending_changes_do() -> None:
    """New rows would be stored only once anyway, and a cut with few bytes is sooner over."""
    world = CountedTable(preempt_bytes_max=20_000)
    for number in range(300):
        world.run(range(50 * number, 50 * number + 50))
    ahead, at_the_cut = world.stored_bytes(), world.cut()
    assert ahead > 5 * at_the_cut
    assert at_the_cut < 20_000 + LAG_BATCHES * 50 * 60


def test_large_batches_of_new_rows_leave_nothing_to_a_cut_and_may_each_be_cut_late() -> None:
    world = CountedTable(preempt_bytes_max=1_000)
    for number in range(20):
        world.run(range(50 * number, 50 * number + 50))
    assert world.cut() == 0
    for lag in range(19):
        log, waiting = ManualLog(preempt_bytes_max=1), Waiting(new=True)
        for batch in range(20):
            log.writer.append(batch, waiting.committed(batch, change(str(batch))))
            log.scheduler.advance(1.0)
        found = log.keys(log.persisted(19 - lag))
        assert [key for keys in found for key in keys] == [str(batch) for batch in range(20 - lag)]
        assert len(log.puts) == 20


def test_a_table_tells_how_many_rows_a_batch_left_and_how_many_are_new() -> None:
    world = CountedTable()
    world.run(range(10))
    assert world.table.added == WaitingChanges(10, 10, 10)
    world.run(range(5, 12))
    assert world.table.added == WaitingChanges(7, 2, 2)
    world.run(range(0))
    assert world.table.added == WaitingChanges(0, 0, 0)


def test_objects_that_are_stored_ahead_do_not_wait_for_a_manifest() -> None:
    log, waiting = ManualLog(in_flight_bytes_max=IN_FLIGHT_BYTES, awaited_bytes_max=IN_FLIGHT_BYTES), Waiting()
    for batch in range(60):
        log.writer.append(batch, waiting.committed(batch, change(str(batch))))
        log.scheduler.advance(1.0)
    assert log.puts


def test_logs_share_the_bound_once_they_have_more_than_it_together() -> None:
    log = ManualLog(in_flight_bytes_max=1000)
    log.uploader.register(LogId("op", "other", 0, 4))
    log.uploader.wait_in_tables(500)
    assert log.uploader.collect_bytes_max == 1000 // COLLECT_DIVISOR
    log.uploader.wait_in_tables(1)
    assert log.uploader.collect_bytes_max == 500 // COLLECT_DIVISOR
    log.uploader.wait_in_tables(-1)
    assert log.uploader.collect_bytes_max == 1000 // COLLECT_DIVISOR


def test_what_waits_is_no_longer_counted_after_a_cut_a_rewind_or_the_end() -> None:
    log, waiting = ManualLog(), Waiting()
    log.writer.append(0, waiting.committed(0, change("a")))
    log.writer.append(1, waiting.committed(1, change("b")))
    log.persisted(0)
    assert log.uploader._waiting_bytes > 0
    waiting.rewind(0)
    log.writer.rewind(0)
    assert log.uploader._waiting_bytes == 0
    log.writer.append(2, waiting.committed(2, change("c")))
    log.writer.close()
    assert log.uploader._waiting_bytes == 0


def test_a_cut_has_all_changes_whether_they_were_stored_ahead_or_not() -> None:
    log, waiting = ManualLog(in_flight_bytes_max=IN_FLIGHT_BYTES), Waiting()
    for batch in range(500):
        log.writer.append(batch, waiting.committed(batch, change(str(batch))))
        log.scheduler.advance(0.1)
    ahead = len(log.puts)
    assert ahead > 1
    found = log.keys(log.persisted(499))
    assert [key for keys in found for key in keys] == [str(batch) for batch in range(500)]
    assert len(log.puts) == ahead + 1
    assert len(found[-1]) < 300


def test_a_cut_that_lags_by_few_batches_has_them_and_another_is_refused_softly() -> None:
    refused, found = cut_behind_what_was_stored_ahead()
    assert refused == "refused"
    assert found == [str(batch) for batch in range(len(found))] and len(found) > LAG_BATCHES


def test_changes_behind_those_that_can_no_longer_be_separated_come_with_the_next_cut() -> None:
    """A later range would take the rows of an earlier one, whose own cut would then complete without them."""
    log, waiting = ManualLog(in_flight_bytes_max=IN_FLIGHT_BYTES), Waiting(new=True)
    collect = waiting.collect

    def collect_condensed(up_to_batch: int) -> list[pa.RecordBatch]:
        if up_to_batch < 3:
            raise CheckpointFailed("condensed", soft=True)
        return collect(up_to_batch)

    waiting.collect = collect_condensed  # type: ignore[method-assign]
    for batch in range(4):
        rows = pa.Table.from_batches([change(f"{batch} {row}") for row in range(40)]).combine_chunks().to_batches()[0]
        log.writer.append(batch, waiting.committed(batch, rows))
    log.scheduler.advance(1.0)
    assert not log.puts
    with pytest.raises(CheckpointFailed, match="condensed"):
        log.persisted(2)
    log.writer.reset()
    assert [len(keys) for keys in log.keys(log.persisted(3))] == [160]


def test_changes_past_a_cut_that_came_too_late_come_with_the_next() -> None:
    log, waiting = ManualLog(in_flight_bytes_max=IN_FLIGHT_BYTES), Waiting()
    for batch in range(60):
        log.writer.append(batch, waiting.committed(batch, change(str(batch))))
    with pytest.raises(CheckpointFailed, match="came too late") as refused:
        log.writer.persist(5)
    assert refused.value.soft
    found = log.keys(log.persisted(59))
    assert [key for keys in found for key in keys] == [str(batch) for batch in range(60)]


def test_changes_that_could_not_be_stored_ahead_come_with_the_cut() -> None:
    log, waiting = ManualLog(in_flight_bytes_max=IN_FLIGHT_BYTES), Waiting()
    log.faults = [Fault.FAIL] * 3
    for batch in range(60):
        log.writer.append(batch, waiting.committed(batch, change(str(batch))))
        log.scheduler.advance(10.0)
    found = log.keys(log.persisted(59))
    assert sorted((key for keys in found for key in keys), key=int) == [str(batch) for batch in range(60)]


def test_a_rewind_drops_what_was_stored_ahead() -> None:
    log, waiting = ManualLog(in_flight_bytes_max=IN_FLIGHT_BYTES), Waiting()
    log.writer.append(0, waiting.committed(0, change("kept")))
    kept = log.persisted(0)
    for batch in range(1, 60):
        log.writer.append(batch, waiting.committed(batch, change(str(batch))))
        log.scheduler.advance(0.1)
    waiting.rewind(0)
    log.writer.rewind(0)
    log.scheduler.advance(10.0)
    assert log.names() == [piece.object for piece in kept]
    log.writer.append(60, waiting.committed(60, change("new")))
    assert log.keys(log.persisted(60)) == [["kept"], ["new"]]


def older_than(batches: int, changes: WaitingChanges, bytes_max: float) -> list[list[int]]:
    waiting, found = UncollectedRows(), list[list[int]]()
    for batch in range(batches):
        waiting.add(batch, changes)
        found.append(waiting.due(int(ROW_BYTES), int(bytes_max)))
    return found


def test_large_batches_leave_the_newest_alone_and_small_ones_eight_unless_their_rows_are_new() -> None:
    old, new = WaitingChanges(2, 2, 0), WaitingChanges(2, 2, 2)
    few = [[]] * LAG_BATCHES_MIN
    assert older_than(LAG_BATCHES_MIN + 2, old, ROW_BYTES) == [*few, [0], [1]]
    small = older_than(200, WaitingChanges(1, 1, 0), 10 * ROW_BYTES * LAG_BATCHES)
    first = next(batch for batch, up_to in enumerate(small) if up_to)
    assert small[first] == [first - LAG_BATCHES]
    assert older_than(3, new, 100 * ROW_BYTES) == [[0], [1], [2]], "new rows do not wait for others"
