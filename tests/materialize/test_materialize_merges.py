"""Merges of a log's stored pieces: what handles name then, which objects stay, and merges that come to nothing."""

from collections.abc import Iterator

import pytest

from holdfast.changelog import merging
from holdfast.changelog_config import RetryPolicy
from holdfast.materialize import log_merge
from holdfast.metrics import SEPARATOR
from holdfast.uploads.uploader import MATERIALIZATIONS, MERGES
from logged_kit import HeldMerges, Subtask, checkpoint_cut_before_a_merge, make
from waiting import until


@pytest.fixture
def subtask() -> Iterator[Subtask]:
    subtask = make(log_handles_max=8)
    yield subtask
    subtask.keyed.close()
    subtask.uploader.close()


def completed(subtask: Subtask, first: int, last: int) -> None:
    """Complete checkpoints with these numbers, each after a batch of its own."""
    for number in range(first, last + 1):
        subtask.run(number % 3, 100 + number)
        subtask.checkpoint(number)
        subtask.keyed.completed(number)


def ended(subtask: Subtask) -> None:
    until(lambda: not subtask.keyed._merging)


def test_a_log_with_many_pieces_is_merged_and_the_table_is_not_stored(subtask: Subtask):
    for number in range(1, 100):
        completed(subtask, number, number)
        ended(subtask)
        assert len(subtask.checkpoint(1000 + number).log) <= 9
        subtask.keyed.completed(1000 + number)
    assert subtask.metric("startedMaterialization") == 0
    levels = [each.level for each in subtask.keyed._log._ranges()]
    assert levels == sorted(levels, reverse=True) and levels[0] > 2
    assert 10 < subtask.keyed._log.merges < 50


def test_the_end_of_the_completed_checkpoint_stays_a_piece_of_its_own(subtask: Subtask):
    completed(subtask, 1, 9)
    last = subtask.checkpoint(20).log[-1]
    subtask.keyed.completed(20)
    subtask.run(1)
    ended(subtask)
    assert subtask.keyed._log.merges
    handle = subtask.checkpoint(21)
    assert last in handle.log and handle.log[-1] != last


def test_objects_that_were_merged_are_held_until_a_checkpoint_without_them_completes(subtask: Subtask):
    held = HeldMerges(subtask)
    completed(subtask, 1, 8)
    newest = subtask.checkpoint(20)
    subtask.run(1)
    pending = subtask.checkpoint(21)
    held.open()
    assert subtask.keyed._log.merges == 1
    assert set(newest.objects()) | set(pending.objects()) < set(subtask.keyed.held())
    subtask.run(2)
    merged = subtask.checkpoint(22)
    assert held.stored[0] in merged.objects() and len(merged.log) < len(pending.log)
    subtask.keyed.completed(21)
    assert set(pending.objects()) < set(subtask.keyed.held())
    subtask.keyed.completed(22)
    assert set(subtask.keyed.held()) == set(merged.objects())


def test_a_checkpoint_that_was_cut_before_a_merge_still_finds_pieces_that_travel_with_it():
    assert checkpoint_cut_before_a_merge() == dict.fromkeys(range(12), 1)


def test_a_rewind_and_aborted_checkpoints_beside_a_merge_change_nothing(subtask: Subtask):
    held = HeldMerges(subtask)
    completed(subtask, 1, 9)
    cut = subtask.batch
    state = subtask.expected[cut]
    subtask.run(1)
    subtask.checkpoint(20)
    subtask.keyed.aborted(20)
    subtask.run(2)
    subtask.keyed.rewind(cut)
    subtask.expected[subtask.batch] = state
    held.open()
    assert subtask.keyed._log.merges == 1
    subtask.run(5)
    handle = subtask.checkpoint(21)
    assert held.stored[0] in handle.objects()
    subtask.keyed.rewind(cut)
    subtask.expected[subtask.batch] = state
    subtask.run(6)
    subtask.checkpoint(22)
    subtask.keyed.completed(22)


def test_a_merge_of_what_was_truncated_meanwhile_is_deleted():
    subtask = make(log_handles_max=8, interval_s=1.0)
    held = HeldMerges(subtask)
    completed(subtask, 1, 9)
    subtask.clock.advance(2.0)
    subtask.run(1)
    subtask.materialized(1)
    subtask.run(1)
    handle = subtask.checkpoint(20)
    subtask.keyed.completed(20)
    assert handle.materialized
    held.open()
    assert (len(held.stored), subtask.keyed._log.merges) == (1, 0)
    until(lambda: held.stored[0] not in subtask.names())
    subtask.uploader.close()


def test_a_merge_whose_pieces_went_while_they_were_read_is_no_failure():
    subtask = make(log_handles_max=8, interval_s=1.0)
    subtask.reads_open.clear()
    completed(subtask, 1, 9)
    until(lambda: subtask.reads)
    subtask.clock.advance(2.0)
    subtask.run(1)
    subtask.materialized(1)
    subtask.run(1)
    handle = subtask.checkpoint(20)
    subtask.keyed.completed(20)
    assert handle.materialized and not set(subtask.reads) & set(subtask.keyed.held())
    subtask.inner.delete(subtask.reads)
    subtask.reads_open.set()
    ended(subtask)
    assert (subtask.keyed._log.merges, subtask.keyed._schedule._merge_failures) == (0, 0)
    subtask.keyed.close()
    subtask.uploader.close()


def test_a_merge_takes_no_more_rows_than_its_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merging, "MERGED_ROWS_BYTES_MAX", 10_000)
    subtask = make(log_handles_max=8)
    completed(subtask, 1, 3)
    for number in range(4, 8):
        subtask.run(*range(200))
        subtask.checkpoint(number)
        subtask.keyed.completed(number)
    ranges = subtask.keyed._log._ranges()
    assert 2 * 10_000 > 4 * ranges[-1].rows_bytes > 10_000 and sum(each.stored_bytes for each in ranges) < 10_000
    run = subtask.keyed._log.run_to_merge(0, ranges[-1].sqn_stop, 1)
    assert 1 < len(run) < len(ranges) and sum(each.rows_bytes for each in run) <= 10_000
    subtask.keyed.close()
    subtask.uploader.close()


def test_a_merge_under_way_when_the_table_is_closed_is_deleted():
    subtask = make(log_handles_max=8)
    held = HeldMerges(subtask)
    completed(subtask, 1, 9)
    subtask.keyed.close()
    held.open()
    until(lambda: held.stored[0] not in subtask.names())
    subtask.uploader.close()


def test_a_merge_that_fails_comes_later_and_after_three_the_table_is_materialized():
    subtask = make(log_handles_max=8, retry_delay_s=1.0)
    held = HeldMerges(subtask)
    held.open()
    held.fails = 1
    completed(subtask, 1, 9)
    ended(subtask)
    completed(subtask, 10, 11)
    assert subtask.keyed._log.merges == 0, "not at once"
    subtask.clock.advance(2.0)
    completed(subtask, 12, 12)
    ended(subtask)
    assert subtask.keyed._log.merges == 1
    held.fails = 100
    number = 13
    while not subtask.metric("startedMaterialization"):
        subtask.clock.advance(2.0)
        completed(subtask, number, number)
        ended(subtask)
        number += 1
    assert held.fails == 97
    subtask.materialized(1)
    assert subtask.metric("completedMaterialization") == 1
    held.fails = 0
    completed(subtask, number, number + 20)
    ended(subtask)
    assert subtask.keyed._log.merges > 1
    subtask.uploader.close()


def test_a_read_that_fails_is_repeated_by_itself():
    subtask = make(retries=RetryPolicy.fixed(3, timeout=None, next_attempt_delay="1ms"), log_handles_max=8)
    subtask.fail_reads = 2
    completed(subtask, 1, 9)
    ended(subtask)
    assert (subtask.keyed._log.merges, subtask.keyed._schedule._merge_failures) == (1, 0)
    assert len(subtask.reads) == len(set(subtask.reads)) + 2
    subtask.keyed.close()
    subtask.uploader.close()


def test_reads_of_a_merge_hold_up_no_put_of_a_materialization():
    subtask = make(log_handles_max=8)
    subtask.reads_open.clear()
    completed(subtask, 1, 9)
    until(lambda: subtask.reads)
    assert subtask.uploader.put_shared(b"a part") in subtask.names()
    assert not subtask.keyed._log.merges
    subtask.reads_open.set()
    ended(subtask)
    assert subtask.keyed._log.merges == 1
    counts = [subtask.metric(f"{of}UploadSizes{SEPARATOR}count") for of in (MERGES, MATERIALIZATIONS)]
    assert counts == [1, 1]
    subtask.keyed.close()
    subtask.uploader.close()


def test_of_a_merge_that_fails_in_its_middle_nothing_stays(monkeypatch):
    monkeypatch.setattr(log_merge, "MERGED_BYTES_MAX", 1024)
    subtask = make(log_handles_max=8)
    held = HeldMerges(subtask)
    for number in range(1, 12):
        subtask.run(*range(1000 * number, 1000 * number + 200))
        subtask.checkpoint(number)
        subtask.keyed.completed(number)
    put = held.put

    def put_twice(data: bytes) -> str:
        held.fails = len(held.stored)
        return put(data)

    held.put = put_twice
    held.open()
    assert subtask.keyed._log.merges == 0
    assert len(held.stored) == 2
    until(lambda: not set(held.stored) & set(subtask.names()))
    subtask.keyed.close()
    subtask.uploader.close()
