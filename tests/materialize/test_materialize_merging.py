"""Stored pieces of a log are merged, so that a table need not be stored anew because of their number."""

import threading
from itertools import pairwise

import pytest

from holdfast.changelog.log_size import LARGE_BYTES
from holdfast.changelog.ranges import Extent, Range
from holdfast.formats.handles import LogPiece
from holdfast.materialize.merging import GROUP_BYTES, group_to_merge
from holdfast.recovery.continuation import continuation
from logged_kit import complete, complete_many, make
from waiting import until

MERGED = {"log_handles_max": 16, "merged_handles_min": 8}


def stored(*sizes: tuple[int, int]) -> list[Range]:
    """Ranges of these numbers of merges and sizes."""
    made = []
    for at, (merges, size) in enumerate(sizes):
        piece = LogPiece(f"dstl/{at}", 0, size, at, at + 1, 0, 16)
        made.append(Range(True, [], [Extent(at, at + 1, at, at + 1)], [piece], merges=merges))
    return made


def merged_places(*sizes: tuple[int, int], handles_max: int = 16, late: bool = False) -> list[int]:
    return [each.sqn_start for each in group_to_merge(stored(*sizes), handles_max, late)]


def test_pieces_are_merged_when_there_are_many_and_the_newest_are_left():
    assert merged_places(*[(0, 100)] * 11) == []
    assert merged_places(*[(0, 100)] * 12) == list(range(10))


def test_pieces_that_were_merged_before_are_left_alone_while_there_are_enough_others():
    assert merged_places(*[(1, 500)] * 3, *[(0, 100)] * 9) == list(range(3, 10))
    assert merged_places(*[(1, 500)] * 9, *[(0, 100)] * 3) == list(range(10)), "a single new piece is not worth it"


def test_large_pieces_are_left_alone_and_few_pieces_that_are_large_together_are_merged():
    assert merged_places((0, LARGE_BYTES), *[(0, 100)] * 12) == list(range(1, 11))
    half = LARGE_BYTES // 2
    assert merged_places(*[(0, half)] * 9) == []
    assert merged_places(*[(0, half)] * 10) == list(range(8))
    assert 8 * half == GROUP_BYTES
    assert merged_places(*[(0, half)] * 30) == list(range(16)), "a merge takes no more than that into memory"


def test_few_pieces_are_merged_once_they_are_old():
    assert merged_places(*[(0, 100)] * 4) == []
    assert merged_places(*[(0, 100)] * 4, late=True) == [0, 1]
    assert merged_places(*[(0, 100)] * 3, late=True) == []


def test_a_table_with_many_small_checkpoints_is_not_stored_anew_and_restores_from_each_of_them():
    subtask = make(**MERGED)
    handles = complete_many(subtask, range(200))
    assert subtask.metric("completedMaterialization") == 0
    assert subtask.metric("mergedPieces") > 100
    assert max(len(each.log) for each in handles) <= 16
    subtask.keyed.close()
    subtask.uploader.close()


def test_the_old_pieces_are_held_until_a_checkpoint_that_was_cut_later_completed():
    subtask = make(**MERGED)
    complete_many(subtask, range(11))
    subtask.run(1)
    subtask.run(2)
    early = subtask.keyed.checkpoint(11, 11)
    subtask.keyed.checkpoint(12, 12)
    assert subtask.restored(early.result(60)) == subtask.expected[11]
    subtask.uploader.acknowledge(early.result().objects())
    subtask.keyed.completed(11)
    until(lambda: not subtask.keyed._merger.running)
    assert subtask.metric("mergedPieces") > 0
    assert set(early.result().objects()) <= set(subtask.keyed.held()), "checkpoint 12 names them"
    late = subtask.keyed.checkpoint(12, 12).result(60)
    assert subtask.restored(late) == subtask.expected[12]
    subtask.keyed.completed(12)
    assert set(late.objects()) <= set(subtask.keyed.held())
    after = complete_many(subtask, range(13, 14))[0]
    assert len(after.log) < len(late.log)
    assert set(subtask.keyed.held()) == set(after.objects())
    subtask.uploader.close()


def test_a_rewind_to_the_completed_cut_leaves_what_was_merged():
    subtask = make(**MERGED)
    complete_many(subtask, range(12))
    assert subtask.metric("mergedPieces") == 10
    subtask.run(5)
    subtask.keyed.rewind(11)
    subtask.expected[12] = subtask.expected[11]
    handle = complete_many(subtask, range(13, 14))[0]
    assert subtask.restored(handle) == subtask.expected[subtask.batch]
    subtask.uploader.close()


def test_a_merge_that_fails_leaves_the_log_and_is_tried_again_later(monkeypatch: pytest.MonkeyPatch):
    subtask = make(**MERGED, retry_delay_s=5.0)
    with monkeypatch.context() as patched:
        patched.setattr(subtask.uploader, "put_merged", lambda data: (_ for _ in ()).throw(OSError("no room")))
        complete_many(subtask, range(13))
    assert subtask.metric("failedMerges") == 1
    assert subtask.restored(complete_many(subtask, range(13, 14))[0]) == subtask.expected[13]
    assert subtask.metric("mergedPieces") == 0, "the delay is not over"
    subtask.clock.advance(5.0)
    complete_many(subtask, range(14, 15))
    assert subtask.metric("mergedPieces") == 13
    subtask.uploader.close()


def test_pieces_that_are_never_many_are_merged_after_the_interval_and_the_table_is_not_stored_anew():
    subtask = make(**MERGED, interval_s=600.0)
    subtask.clock.advance(601.0)
    complete_many(subtask, range(1))
    subtask.materialized(1)
    complete_many(subtask, range(1, 7))
    assert subtask.metric("mergedPieces") == 0
    subtask.clock.advance(601.0)
    complete_many(subtask, range(7, 9))
    assert subtask.metric("mergedPieces") > 0
    assert subtask.metric("startedMaterialization") == 1
    subtask.uploader.close()


def test_a_follower_goes_on_with_the_log_across_a_merge():
    subtask = make(**MERGED)
    handles = complete_many(subtask, range(40))
    merged = 0
    for held, new in pairwise(handles):
        found = continuation([held], new)
        assert found is not None
        merged += len(new.log) < len(held.log)
    assert merged > 1
    subtask.uploader.close()


def test_a_merged_piece_is_a_changelog_object_of_its_own_and_smaller_than_the_pieces_that_it_stands_for():
    subtask = make(**MERGED)
    handles = complete_many(subtask, range(13))
    piece = handles[-1].log[0]
    assert (piece.sqn_start, piece.sqn_stop) == (0, 10)
    assert piece.object.startswith("dstl/")
    assert sum(each.length for each in handles[-1].log) < sum(each.length for each in handles[-2].log)
    subtask.uploader.close()


@pytest.mark.parametrize("step", ["read", "put_merged", "count"])
def test_a_table_that_is_closed_during_a_merge_leaves_only_what_checkpoints_name(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces are being read, or the merged piece is to be stored, or it is stored already."""
    subtask = make(**MERGED)
    complete_many(subtask, range(11))
    before, began, closed = getattr(subtask.uploader, step), threading.Event(), threading.Event()

    def after_the_end(*arguments: object, **named: object) -> object:
        began.set()
        assert closed.wait(60)
        return before(*arguments, **named)

    monkeypatch.setattr(subtask.uploader, step, after_the_end)
    subtask.run(1)
    handle = subtask.checkpoint(11)
    subtask.keyed.completed(11)
    assert began.wait(60)
    subtask.keyed.close()
    closed.set()
    until(lambda: not subtask.keyed._merger.running)
    until(lambda: set(subtask.names()) == set(handle.objects()))
    assert subtask.keyed.held() == []
    assert subtask.uploader.in_use() == set()
    assert subtask.metric("failedMerges") == 0
    subtask.uploader.close()


def test_a_merge_that_ends_when_its_table_closes_lets_go_of_the_old_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge puts its piece into the log before that closes, and notes the old pieces after."""
    subtask = make(**MERGED)
    complete_many(subtask, range(11))
    replace, closed = subtask.keyed._log.replace, threading.Event()
    closing = threading.Thread(target=lambda: (subtask.keyed._ended(), closed.set()))

    def replaced_while_it_closes(*arguments: object) -> bool:
        put = replace(*arguments)  # type: ignore[arg-type]
        closing.start()
        until(lambda: subtask.keyed._log._closed)
        return put

    monkeypatch.setattr(subtask.keyed._log, "replace", replaced_while_it_closes)
    subtask.run(1)
    handle = subtask.checkpoint(11)
    subtask.keyed.completed(11)
    assert closed.wait(60)
    closing.join(60)
    until(lambda: set(subtask.names()) == set(handle.objects()))
    assert subtask.uploader.in_use() == set()
    subtask.uploader.close()


def test_pieces_without_rows_are_merged_into_none() -> None:
    subtask = make(**MERGED)
    complete_many(subtask, range(1))
    sizes = []
    for number in range(1, 40):
        subtask.touch(0)
        sizes.append(len(complete(subtask, number).log))
    assert max(sizes) <= 16
    assert subtask.metric("completedMaterialization") == 0
    subtask.uploader.close()
