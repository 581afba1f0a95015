"""Sinks that finish parts of their output by event time: when a watermark alone is progress."""

import pytest

from holdfast.checkpoint.finishing import Finishing
from holdfast.ids import BatchNumber


@pytest.fixture
def finishing() -> Finishing:
    """One sink, published at watermark 10, which awaits 20."""
    found = Finishing()
    found.recorded({"out": 10}, ["out"])
    found.published("out", 20)
    return found


def test_a_watermark_is_progress_once_it_reaches_the_awaited_time_and_until_a_record_has_it(finishing):
    finishing.committed(BatchNumber(3), {"out": 19})
    assert finishing.progress({}) is None and finishing.due({"out": 19}) == set()
    finishing.committed(BatchNumber(4), {"out": 20})
    assert finishing.progress({}) == 4 and finishing.due({"out": 20}) == {"out"}
    finishing.recorded({"out": 20}, ["out"])
    assert finishing.progress({}) is None and finishing.due({"out": 20}) == set()


def test_a_time_that_is_not_known_is_told_by_the_next_record_and_is_progress_once_nothing_waits(finishing):
    finishing.recorded({"out": 12}, ["out"])
    finishing.committed(BatchNumber(5), {"out": 13})
    assert finishing.due({"out": 13}) == {"out"}
    assert finishing.progress({"out": 1}) is None and finishing.progress({"out": 0}) == 5
    finishing.published("out", None)
    assert finishing.due({"out": 13}) == set(), "nothing is left to finish"


def test_a_sink_is_due_at_the_first_watermark_of_a_start():
    finishing = Finishing()
    finishing.committed(BatchNumber(1), {"out": 5})
    assert finishing.progress({}) == 1
    finishing.dropped()
    assert finishing.progress({}) is None
