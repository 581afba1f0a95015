"""Changes that wait in their table until a cut collects them."""

import threading
from concurrent.futures import Future

import pyarrow as pa
import pytest

from changelog_kit import ThreadedLog, Waiting, change, spans
from holdfast.errors import CheckpointFailed, HoldfastError, StorageError
from holdfast.formats.handles import LogPiece
from holdfast.testing.stores import Fault


def test_deferred_changes_are_collected_up_to_the_cut_and_never_twice(threaded: ThreadedLog):
    writer, waiting = threaded.writer, Waiting()
    writer.append(0, change("at once"))
    for batch in range(1, 5):
        writer.append(batch, waiting.committed(batch, change(f"batch {batch}")))
    assert writer.size(0).pending_sets == 5
    threaded.gate.faults = [Fault.FAIL] * 3
    with pytest.raises(StorageError):
        writer.persist(2).result(60)
    assert list(waiting.rows) == [3, 4]
    writer.reset()
    pieces = writer.persist(2).result(60)
    assert (spans(pieces), threaded.keys(pieces)) == ([(0, 3)], [["at once", "batch 1", "batch 2"]])
    pieces = writer.persist(4).result(60)
    assert spans(pieces) == [(0, 3), (3, 5)]
    assert threaded.keys(pieces[1:]) == [["batch 3", "batch 4"]]


def test_what_failed_is_stored_whole_where_a_base_was_made_in_the_midst_of_it(threaded: ThreadedLog):
    """Collected changes of several batches are a set: the base has some of them, the log has to have the others."""
    writer, waiting = threaded.writer, Waiting()
    for batch in range(2):
        writer.append(batch, waiting.committed(batch, change(f"batch {batch}")))
    threaded.gate.faults = [Fault.FAIL] * 3
    assert writer.persist(1).exception(30) is not None
    writer.reset()
    assert writer.size(1).pending_sets == 1
    pieces = writer.persist(1, from_sqn=1).result(60)
    assert (spans(pieces), threaded.keys(pieces)) == ([(1, 2)], [["batch 0", "batch 1"]])


def test_batches_are_appended_while_a_cut_collects(threaded: ThreadedLog):
    writer, waiting, collecting, go_on = threaded.writer, Waiting(), threading.Event(), threading.Event()
    collect = waiting.collect

    def slowly(up_to_batch: int) -> list[pa.RecordBatch]:
        collecting.set()
        assert go_on.wait(60)
        return collect(up_to_batch)

    waiting.collect = slowly  # type: ignore[method-assign]
    writer.append(0, waiting.committed(0, change("batch 0")))
    futures: list[Future[list[LogPiece]]] = []
    cut = threading.Thread(target=lambda: futures.append(writer.persist(0)))
    cut.start()
    assert collecting.wait(60)
    writer.append(1, waiting.committed(1, change("batch 1")))
    go_on.set()
    cut.join(60)
    assert threaded.keys(futures[0].result(60)) == [["batch 0"]]
    assert threaded.keys(writer.persist(1).result(60)) == [["batch 0"], ["batch 1"]]


def test_changes_that_cannot_be_collected_fail_the_cut_and_come_with_the_next(threaded: ThreadedLog):
    writer, waiting = threaded.writer, Waiting()
    collect = waiting.collect

    def refuse(up_to_batch: int) -> list[pa.RecordBatch]:
        raise CheckpointFailed("too late")

    waiting.collect = refuse  # type: ignore[method-assign]
    for batch in range(2):
        writer.append(batch, waiting.committed(batch, change(f"batch {batch}")))
    with pytest.raises(CheckpointFailed, match="too late"):
        writer.persist(0).result(60)
    writer.reset()
    waiting.collect = collect  # type: ignore[method-assign]
    pieces = writer.persist(1).result(60)
    assert (spans(pieces), threaded.keys(pieces)) == ([(0, 2)], [["batch 0", "batch 1"]])


def test_a_cut_that_is_undone_before_it_collects_fails_and_takes_no_later_changes(threaded: ThreadedLog):
    writer, waiting = threaded.writer, Waiting()
    writer.append(0, waiting.committed(0, change("batch 0")))
    writer.persist(0).result(60)
    writer.append(1, waiting.committed(1, change("undone")))
    cut = writer.cut(1)
    waiting.rewind(0)
    writer.rewind(0)
    writer.append(2, waiting.committed(2, change("instead")))
    with pytest.raises(CheckpointFailed, match="rewound"):
        writer.store(cut).result(60)
    assert threaded.keys(writer.persist(2).result(60)) == [["batch 0"], ["instead"]]


def test_of_two_cuts_the_later_one_may_store_first(threaded: ThreadedLog):
    writer, waiting = threaded.writer, Waiting()
    cuts = []
    for batch in range(2):
        writer.append(batch, waiting.committed(batch, change(f"batch {batch}")))
        cuts.append(writer.cut(batch))
    later, earlier = writer.store(cuts[1]), writer.store(cuts[0])
    assert threaded.keys(earlier.result(60)) == [["batch 0"]]
    assert threaded.keys(later.result(60)) == [["batch 0"], ["batch 1"]]


def test_a_log_whose_changes_could_not_be_read_fails_all_cuts_and_takes_no_more(threaded: ThreadedLog):
    writer, waiting = threaded.writer, Waiting()
    collect = waiting.collect

    def fail(up_to_batch: int) -> list[pa.RecordBatch]:
        if up_to_batch == 0:
            raise MemoryError("no room")
        return collect(up_to_batch)

    waiting.collect = fail  # type: ignore[method-assign]
    cuts = []
    for batch in range(2):
        writer.append(batch, waiting.committed(batch, change(f"batch {batch}")))
        cuts.append(writer.cut(batch))
    for cut in reversed(cuts):
        assert isinstance(writer.store(cut).exception(30), MemoryError)
    writer.reset()
    with pytest.raises(HoldfastError, match="could not be read: no room"):
        writer.append(2, change("more"))
    with pytest.raises(HoldfastError, match="could not be read: no room"):
        writer.persist(1)
