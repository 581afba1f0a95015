"""Records that are retained cost nothing while none of them may expire."""

import math
from unittest import mock

import pytest

from holdfast.checkpoint.records import RetainedRecords
from holdfast.ids import JournalNumber


def written(count: int) -> RetainedRecords:
    records = RetainedRecords()
    for number in range(1, count + 1):
        records.written(JournalNumber(number), frozenset(), written_s=float(number))
    return records


@pytest.mark.parametrize(("count", "since_s"), [(100, math.inf), (1, 1.0)])
def test_no_record_is_looked_at_while_all_are_retained(count: int, since_s: float) -> None:
    records = written(100)
    with mock.patch.object(RetainedRecords, "retained", side_effect=AssertionError("looked at all records")):
        assert records.expire(1_000.0, count, since_s) == []


def test_a_record_that_another_repeats_expires_though_fewer_are_there_than_are_retained() -> None:
    records = written(3)
    records.repeated(JournalNumber(2))
    assert records.expire(1_000.0, 10) == [2]
    assert records.expired(JournalNumber(2))
    assert records.expire(1_000.0, 10) == []
    assert records.retained(10, math.inf) == [1, 3]


def test_records_past_the_number_or_the_time_expire_oldest_first() -> None:
    assert written(10).expire(1_000.0, 7) == [1, 2, 3]
    assert written(10).expire(1_000.0, 1, 4.0) == [1, 2, 3]
