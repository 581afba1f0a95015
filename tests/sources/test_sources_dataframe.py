"""DataFrameSource without Spark: offsets and plans; and answers to a streaming DataFrame."""

import pickle

import cloudpickle
import pyarrow as pa
import pytest
from sources_kit import enumerator

from holdfast.errors import HoldfastError, JobRefused
from holdfast.sources.base import SplitRead
from holdfast.sources.dataframe import DataFrameSource


class Session:
    """Stands for a Spark session; cannot be pickled."""

    latest = 0

    def __reduce__(self):
        raise pickle.PicklingError("a session cannot be shipped")


def source_of(session: Session, **settings) -> DataFrameSource:
    source = DataFrameSource(
        lambda spark, start, end: (spark, start, end),
        lambda spark: {"version": spark.latest},
        "id BIGINT",
        **({"initial_offset": {"version": 0}} | settings),
    )
    source.bind(session)
    return source


def test_a_batch_is_one_read_between_two_offsets():
    session = Session()
    source = source_of(session)
    planner = enumerator(source)
    start = planner.initial()
    assert planner.plan(start, planner.latest(), 10, 10).reads == []
    session.latest = 7
    plan = planner.plan(start, planner.latest(), 10, 10)
    assert plan.to == {"version": 7}
    [read] = plan.reads
    assert source.dataframe_of(session, read) == (session, {"version": 0}, {"version": 7})
    assert source.schema() == pa.schema([("id", pa.int64())])


def test_starting_offsets_replace_the_initial_ones():
    assert enumerator(source_of(Session(), starting={"version": 3})).initial() == {"version": 3}


def test_the_session_is_not_shipped_to_tasks():
    source = source_of(Session())
    assert cloudpickle.loads(cloudpickle.dumps(source)).schema() == source.schema()


def test_a_task_that_reads_it_is_told_that_spark_does():
    with pytest.raises(HoldfastError, match="is read by Spark"):
        source_of(Session()).read(SplitRead("dataframe", None, None))


def test_an_enumerator_without_a_session_is_refused():
    source = DataFrameSource(lambda *_: None, lambda _: {}, "id INT")
    with pytest.raises(JobRefused, match="has no session"):
        enumerator(source)


@pytest.mark.parametrize("offset", [{"a": {"b": 1}}, {1: 1}, {"a": [1]}, 5, {"a": 2**70}])
def test_offsets_that_are_not_flat_are_refused(offset):
    source = DataFrameSource(lambda *_: None, lambda _: offset, "id INT")
    source.bind(Session())
    with pytest.raises(JobRefused, match=r"latest_offset.*expected"):
        enumerator(source).latest()
