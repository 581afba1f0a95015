"""Uploads ahead of a cut (behaviour 1), and rewinds: of changes pending, uploading, stored, and across a boundary."""

from concurrent.futures import Future

import pytest

from changelog_kit import ManualLog, Waiting, change, spans
from holdfast.changelog.writer import ChangelogWriter
from holdfast.errors import CheckpointFailed
from holdfast.formats.log_objects import LogId
from holdfast.state.table import merge_changes
from holdfast.testing.stores import Fault

ROW_BYTES = change("a").nbytes


def ahead(batches: int) -> ManualLog:
    """Uploads once so many batches are pending."""
    return ManualLog(preempt_bytes_max=batches * ROW_BYTES - 1)


def test_append_alone_uploads_nothing_until_the_threshold_and_a_later_persist_uploads_only_the_rest():
    world = ahead(3)
    for batch in range(2):
        world.writer.append(batch, change("a", batch))
    world.scheduler.advance(10.0)
    assert world.puts == []
    world.writer.append(2, change("a", 2))
    world.scheduler.advance(10.0)
    assert len(world.puts) == 1
    world.writer.append(3, change("b"))
    pieces = world.persisted(3)
    assert len(world.puts) == 2
    assert spans(pieces) == [(0, 3), (3, 4)]
    assert world.rows(pieces) == [[("a", 0), ("a", 1), ("a", 2)], [("b", 1)]]  # not merged across batches


def test_a_quarter_is_enough_where_a_checkpoint_comes_soon():
    world = ahead(8)
    for pause_s in (1.0, 0.69):
        checkpoint: Future[None] = Future()
        world.uploader.precede(checkpoint)
        checkpoint.set_result(None)
        world.scheduler.advance(pause_s)
    for batch in range(3):
        world.writer.append(batch, change("a", batch))
    assert world.puts == []
    world.scheduler.advance(0.02)
    world.writer.append(3, change("b"))
    world.writer.append(4, change("c"))
    world.scheduler.advance(0.1)
    assert len(world.puts) == 1
    pieces = world.persisted(4)
    assert (spans(pieces), len(world.puts)) == ([(0, 4), (4, 5)], 2)


def test_a_persist_while_it_is_uploaded_ahead_waits_for_it_and_uploads_nothing_twice():
    world = ahead(2)
    world.writer.append(0, change("a"))
    world.writer.append(1, change("b"))
    pieces = world.persisted(1)
    assert (spans(pieces), len(world.puts)) == ([(0, 2)], 1)


def test_a_cut_inside_of_what_was_uploaded_ahead_takes_exactly_the_batches_up_to_it():
    world = ahead(4)
    for batch in range(4):
        world.writer.append(batch, change(str(batch)))
    assert world.keys(world.persisted(1)) == [["0", "1"]]
    assert world.keys(world.persisted(2)) == [["0", "1", "2"]]
    assert world.keys(world.persisted(3, from_sqn=2)) == [["2", "3"]]
    assert len(world.puts) == 1


def test_what_could_not_be_uploaded_ahead_is_uploaded_by_the_cut_and_no_checkpoint_fails_for_it():
    world = ahead(2)
    world.faults = [Fault.FAIL] * 3
    world.writer.append(0, change("a"))
    world.writer.append(1, change("b"))
    world.scheduler.advance(60.0)
    assert (len(world.puts), world.metric("numberOfUploadFailures")) == (3, 1)
    assert world.keys(world.persisted(1)) == [["a", "b"]]


def test_a_cut_that_waits_for_what_is_uploaded_ahead_fails_with_it():
    world = ahead(1)
    world.faults = [Fault.FAIL] * 3
    world.writer.append(0, change("a"))
    future = world.writer.persist(0)
    world.scheduler.advance(60.0)
    assert future.exception() is not None
    assert world.writer.persist(0).done()
    world.writer.reset()
    assert world.keys(world.persisted(0)) == [["a"]]


def test_changes_that_wait_in_their_table_are_not_uploaded_ahead():
    world = ahead(1)
    waiting = Waiting()
    for batch in range(5):
        world.writer.append(batch, waiting.committed(batch, change(str(batch))))
    world.scheduler.advance(10.0)
    assert (world.puts, list(waiting.rows)) == ([], [0, 1, 2, 3, 4])


def test_a_rewind_drops_what_is_pending_past_the_cut_and_uses_no_sqn_twice():
    world = ManualLog()
    for batch in range(4):
        world.writer.append(batch, change(str(batch)))
    world.writer.rewind(1)
    assert world.writer.next_sqn() == 4
    world.writer.append(4, change("new"))
    pieces = world.persisted(4)
    assert (spans(pieces), world.keys(pieces)) == ([(0, 5)], [["0", "1", "new"]])


def test_a_rewind_deletes_what_was_stored_past_the_cut_unless_an_acknowledgement_named_it():
    world = ManualLog()
    world.writer.append(0, change("kept"))
    kept = world.persisted(0)
    world.writer.append(1, change("named"))
    named = world.persisted(1)[1:]
    world.uploader.acknowledge(piece.object for piece in named)
    world.writer.append(2, change("gone"))
    gone = world.persisted(2)[2:]
    world.writer.rewind(0)
    world.scheduler.advance(1.0)
    assert sorted(world.names()) == sorted(piece.object for piece in kept + named)
    assert gone[0].object not in world.writer.held()
    assert world.writer.held() == [kept[0].object]


def test_a_rewind_while_it_uploads_fails_the_cut_and_deletes_the_object_when_it_lands():
    world = ManualLog()
    world.took_s = [30.0]
    world.writer.append(0, change("gone"))
    future = world.writer.persist(0)
    world.scheduler.advance(1.0)
    world.writer.rewind(-1)
    world.writer.append(1, change("new"))
    assert world.keys(world.persisted(1)) == [["new"]]
    with pytest.raises(CheckpointFailed, match="rewound"):
        world.scheduler.result(future)
    world.scheduler.advance(1.0)
    assert world.names() == world.writer.held()


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "uploading"])
def test_an_object_that_straddles_the_cut_is_kept_and_narrowed(stored):
    world = ahead(4)
    world.took_s = [5.0]
    for batch in range(4):
        world.writer.append(batch, change(str(batch)))
    world.scheduler.advance(10.0 if stored else 1.0)
    assert len(world.names()) == stored
    world.writer.rewind(1)
    world.writer.append(4, change("new"))
    pieces = world.persisted(4)
    assert (spans(pieces), world.keys(pieces)) == ([(0, 2), (4, 5)], [["0", "1"], ["new"]])
    assert sorted(world.names()) == sorted(world.writer.held())


def test_an_upload_ahead_that_fails_after_a_rewind_brings_back_only_what_the_rewind_left():
    world = ahead(4)
    world.faults = [Fault.FAIL] * 3
    for batch in range(4):
        world.writer.append(batch, change(str(batch)))
    world.scheduler.advance(0.05)
    world.writer.rewind(1)
    world.scheduler.advance(60.0)
    assert world.keys(world.persisted(3)) == [["0", "1"]]


def test_a_rewind_takes_back_what_had_failed():
    world = ManualLog()
    world.faults = [Fault.FAIL] * 3
    for batch in range(3):
        world.writer.append(batch, change(str(batch)))
    future = world.writer.persist(2)
    world.scheduler.advance(60.0)
    assert future.exception() is not None
    world.writer.rewind(0)
    assert world.keys(world.persisted(2)) == [["0"]]


def test_an_object_shared_with_a_log_that_was_not_rewound_stays():
    world = ManualLog(persist_delay_s=10.0)
    other = ChangelogWriter(LogId("op", "other", 0, 4), world.uploader, merge_changes)
    for writer in (world.writer, other):
        writer.append(0, change(str(writer is other)))
    futures = [writer.persist(0) for writer in (world.writer, other)]
    [mine], [theirs] = (world.scheduler.result(future) for future in futures)
    assert mine.object == theirs.object
    world.writer.rewind(-1)
    world.scheduler.advance(1.0)
    assert world.names() == other.held() == [theirs.object]
    other.rewind(-1)
    world.scheduler.advance(1.0)
    assert world.names() == []


def test_a_rewind_into_what_a_cut_asked_for_as_a_whole_is_refused_and_changes_nothing():
    world = ManualLog()
    for batch in range(3):
        world.writer.append(batch, change(str(batch)))
    pieces = world.persisted(2)
    world.writer.append(3, change("3"))
    with pytest.raises(ValueError, match=r"batch 1 lies inside .* up to batch 2: .*rewinds go to a cut"):
        world.writer.rewind(1)
    assert world.persisted(3)[:1] == pieces


def test_a_rewind_to_the_last_batch_changes_nothing():
    world = ManualLog()
    world.writer.append(0, change("a"))
    world.writer.rewind(0)
    assert world.keys(world.persisted(0)) == [["a"]]
