"""Event times as rows are read: the newest, and rows whose time no calendar has."""

import json

import numpy as np
import pyarrow as pa
import pytest

from holdfast.exchange.event_times import newest_us, odd_times, pieces_between, rows_with_odd_times
from holdfast.sources.base import SourceBatch
from holdfast.watermarks import END_US, FIRST_US

LEAST, GREATEST = -(2**63), 2**63 - 1


def batch_of(unit: str, *times: int | None, position: object = 10) -> SourceBatch:
    array = pa.array(times, pa.int64()).cast(pa.timestamp(unit))
    return SourceBatch(pa.record_batch({"n": pa.array(range(len(times))), "at": array}), position)


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 1_000), ("us", 1_000_000)])
def test_times_outside_the_years_1_to_9999_are_odd_in_each_unit(unit: str, per_s: int) -> None:
    first, last = FIRST_US // 1_000_000 * per_s, END_US * per_s // 1_000_000
    times = batch_of(unit, first, first - 1, None, 0, last + 1, last, GREATEST, LEAST).rows.column("at")
    assert odd_times(times).tolist() == [1, 4, 6, 7]


def test_all_nanoseconds_have_a_year_and_so_have_no_rows_at_all() -> None:
    assert odd_times(batch_of("ns", LEAST, GREATEST).rows.column("at")).tolist() == []
    assert odd_times(batch_of("s").rows.column("at")).tolist() == []
    assert odd_times(batch_of("s", None).rows.column("at")).tolist() == []


def test_the_newest_time_is_in_microseconds_whatever_the_unit() -> None:
    assert newest_us(batch_of("ms", 5, None, 7).rows.column("at")) == 7_000
    assert newest_us(batch_of("ns", 5_999).rows.column("at")) == 5
    assert newest_us(batch_of("s", None).rows.column("at")) is None


def test_odd_rows_are_bad_records_with_their_place_and_the_others_keep_theirs() -> None:
    batch = batch_of("s", 1, GREATEST, GREATEST, 2, None, LEAST)
    odd = np.array([1, 2, 5])
    bad = rows_with_odd_times(batch, "at", odd, "split")
    assert [(row.position, json.loads(row.payload)["at"]) for row in bad] == [
        ("11", str(GREATEST)),
        ("12", str(GREATEST)),
        ("15", str(LEAST)),
    ]
    assert "'at' (timestamp[s]) is outside the years 1 to 9999" in bad[0].reason
    pieces = [(position, rows.column("n").to_pylist()) for position, rows in pieces_between(batch, odd)]
    assert pieces == [(10, [0]), (13, [3, 4])]
    assert [position for position, _ in pieces_between(batch_of("s", 1, position="x"), odd[:0])] == ["x"]
