"""A scripted source: each element is a batch, an abort comes once, and the end is the end."""

from unittest.mock import Mock

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.availability import SnapshotAvailability
from holdfast.errors import SettingsError
from holdfast.sources.base import SplitRead
from holdfast.testing import Abort, Boundaries, Eof, TestSource, run
from holdfast.testing.source import Aborted

ONE, TWO = [{"k": 1}], [{"k": 2}]


def counted(source: TestSource) -> tuple[hf.Query, list[tuple[int, int]]]:
    job = hf.Job(None, name="scripted", storage=f"memory://{id(source)}")
    sink = hf.MemorySink()
    job.read(source).key_by("k").aggregate(n=hf.count()).write(sink)
    query = run(job)
    return query, [(row["k"], row["n"]) for row in sink.rows()]


def test_each_element_with_rows_is_a_batch_of_its_own() -> None:
    query, rows = counted(TestSource([ONE, ONE, TWO], "k BIGINT"))
    assert [size for size in query.totals.batch_rows if size] == [1, 1, 1]
    assert rows == [(1, 1), (1, 2), (2, 1)]


def test_an_abort_loses_all_task_managers_once_and_the_output_is_as_without_it() -> None:
    query, rows = counted(TestSource([ONE, Abort(), ONE], "k BIGINT"))
    assert len(query.restarts) == 1
    assert rows[-1] == (1, 2)


def test_elements_after_the_end_are_not_read() -> None:
    _, rows = counted(TestSource([ONE, Eof(), TWO], "k BIGINT"))
    assert rows == [(1, 1)]
    assert TestSource([Eof(drain=True)], "k BIGINT").drains and not TestSource([Eof()], "k BIGINT").drains


def test_an_abort_is_raised_by_the_first_read_alone() -> None:
    source = TestSource([Abort()], "k BIGINT")
    with pytest.raises(Aborted):
        list(source.read(SplitRead("script", 0, 1)))
    assert list(source.read(SplitRead("script", 0, 1))) == []


def test_boundaries_answer_from_their_place_on() -> None:
    source = TestSource([ONE, Boundaries(SnapshotAvailability.SOFT_FAILURE), TWO], "k BIGINT")
    answers = [source.availability(place) for place in range(4)]
    assert answers == [SnapshotAvailability.AVAILABLE] * 2 + [SnapshotAvailability.SOFT_FAILURE] * 2


def test_rows_that_do_not_fit_the_schema_are_refused_with_their_place_in_the_script() -> None:
    with pytest.raises(SettingsError, match="element 1 of the script"):
        TestSource([ONE, [{"k": "text"}]], "k BIGINT")


def test_record_batches_are_taken_as_they_are() -> None:
    rows = pa.RecordBatch.from_pylist(TWO, pa.schema([("k", pa.int64())]))
    source = TestSource([rows], "k BIGINT")
    enumerator = source.enumerator(Mock())
    found = enumerator.plan(enumerator.initial(), enumerator.latest(), 10, 10)
    (batch,) = source.read(found.reads[0])
    assert batch.rows is rows
