"""Casts that mark the rows whose values the wanted type cannot hold."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from holdfast.casts import UNITS_PER_SECOND, cast_in_range

US = pa.timestamp("us")
FAR = 2**62
"""Seconds that no time in microseconds holds."""
DECIMALS = pa.array([Decimal("1" * 20), Decimal("1" * 18), None, Decimal("9e37"), Decimal(7)], pa.decimal128(38, 0))


def times(values, unit, zone=None):
    return pa.array(values, pa.int64()).cast(pa.timestamp(unit, zone))


def outside(found):
    return [] if found.outside is None else np.flatnonzero(found.outside).tolist()


def test_the_first_time_past_either_end_of_a_unit_is_outside_and_the_last_within_is_exact():
    for unit, finer in (("s", "ms"), ("s", "us"), ("s", "ns"), ("ms", "us"), ("ms", "ns"), ("us", "ns")):
        factor = UNITS_PER_SECOND[finer] // UNITS_PER_SECOND[unit]
        high, low = (2**63 - 1) // factor, -(2**63 // factor)
        for kind in (pa.timestamp, pa.duration):
            given = pa.array([high, high + 1, None, low, low - 1], pa.int64()).cast(kind(unit))
            found = cast_in_range(given, kind(finer))
            assert outside(found) == [1, 4]
            expected = [high * factor, None, None, low * factor, None]
            assert found.values.cast(pa.int64()).to_pylist() == expected, (unit, finer)


@pytest.mark.parametrize("kind", [pa.timestamp, pa.duration])
def test_a_finer_time_is_cut_by_floor_before_1970_too(kind):
    given = pa.array([-1, -1000, -1001, None, 999, 1999], pa.int64()).cast(kind("ns"))
    for part, expected in ((given, [-1, -1, -2, None, 0, 1]), (given[4:], [0, 1])):
        found = cast_in_range(part, kind("us"))
        assert found.values.cast(pa.int64()).to_pylist() == expected
        assert found.outside is None


def test_a_null_is_never_outside_whatever_lies_below_it():
    far = times([FAR, FAR, 1], "s")
    masked = pa.Array.from_buffers(far.type, 3, [pa.py_buffer(b"\x04"), far.buffers()[1]])
    found = cast_in_range(masked, US)
    assert outside(found) == []
    assert found.values.to_pylist() == [None, None, dt.datetime(1970, 1, 1, 0, 0, 1)]


@pytest.mark.parametrize("begin", [0, 1, 2])
def test_a_row_is_outside_if_any_value_in_it_is(begin):
    rows = [[1], None, [3, FAR], [], [FAR], [4]]
    inner = pa.struct([("at", pa.timestamp("s"))])
    wanted_inner = pa.struct([("at", US)])
    nested = {
        (pa.list_(pa.timestamp("s")), pa.list_(pa.field("element", US))): rows,
        (pa.large_list(pa.timestamp("s")), pa.list_(US)): rows,
        (pa.map_(pa.int64(), pa.timestamp("s")), pa.map_(pa.int64(), US)): [
            row and list(enumerate(row)) for row in rows
        ],
        (pa.map_(pa.timestamp("s"), pa.int64()), pa.map_(US, pa.int64())): [
            row and [(value, 0) for value in row] for row in rows
        ],
        (pa.list_(inner), pa.list_(wanted_inner)): [row and [{"at": value} for value in row] for row in rows],
    }
    for (type_, wanted), values in nested.items():
        found = cast_in_range(pa.array(values, as_numbers(type_)).cast(type_)[begin:], wanted)
        found.values.validate(full=True)
        assert outside(found) == [row - begin for row in (2, 4) if row >= begin], type_
        assert found.values.type == wanted
        good = [row for row in range(len(found.values)) if row not in outside(found)]
        assert len(str(found.values.take(good).to_pylist())) > 10


def as_numbers(type_):
    """Return a type with numbers in the place of its times."""
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, as_numbers(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(as_numbers(type_.key_type), as_numbers(type_.item_type))
    if pa.types.is_large_list(type_):
        return pa.large_list(as_numbers(type_.value_type))
    return pa.list_(as_numbers(type_.value_type)) if pa.types.is_list(type_) else type_


@pytest.mark.parametrize(
    ("given", "wanted", "expected", "rows_outside"),
    [
        (pa.array([1, 300, None, -129, -128]), pa.int8(), [1, None, None, None, -128], [1, 3]),
        (pa.array([1.5, 2.0, float("nan")]), pa.int64(), [None, 2, None], [0, 2]),
        (pa.array([1.0, 1e300, None, float("inf")]), pa.float32(), [1.0, None, None, float("inf")], [1]),
        (pa.array([b"ab", b"abc", None]), pa.binary(2), [b"ab", None, None], [1]),
        (pa.array([[1, 2], [3], None]), pa.list_(pa.int64(), 2), [[1, 2], None, None], [1]),
        (pa.array(["7", "x"]).dictionary_encode(), pa.int64(), [7, None], [1]),
        (pa.array([dt.time(1, 2, 3, 4567)]), pa.time32("ms"), [dt.time(1, 2, 3, 4000)], []),
        (pa.array([], pa.timestamp("ns")), US, [], []),
        (pa.nulls(2), US, [None, None], []),
    ],
)
def test_a_value_that_a_type_cannot_hold_is_null_and_its_row_is_marked(given, wanted, expected, rows_outside):
    found = cast_in_range(given, wanted)
    assert found.values.type == wanted
    assert found.values.to_pylist() == expected
    assert outside(found) == rows_outside


def test_a_fixed_size_list_is_cut_like_any_list():
    given = pa.FixedSizeListArray.from_arrays(times([1999, -1, 2, 3], "ns"), 2)
    for wanted in (pa.list_(US), pa.large_list(US), pa.list_(US, 2)):
        found = cast_in_range(given, wanted)
        assert found.values.cast(pa.list_(pa.int64())).to_pylist() == [[1, -1], [0, 0]]
        assert found.outside is None


@pytest.mark.parametrize("given", [pa.array(["1" * 20, "1" * 18, None, "9e37", "1e-20"]), DECIMALS])
def test_a_decimal_that_gets_more_digits_than_its_type_is_outside_and_never_wraps_around(given):
    found = cast_in_range(given, pa.decimal128(38, 20))
    assert outside(found) == [0, 3]
    assert found.values[1].as_py() == int("1" * 18) and found.values.null_count == 3


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_text_of_a_number_beyond_the_range_is_outside_and_infinity_is_not(kind):
    found = cast_in_range(pa.array(["1e999", "inf", "-Infinity", None, "NaN", "x", "1e5"]), kind)
    assert outside(found) == [0, 5]
    assert found.values.to_pylist()[1:4] == [float("inf"), float("-inf"), None]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64()])
def test_an_integer_that_a_narrow_decimal_holds_is_cast_and_another_is_outside(kind):
    found = cast_in_range(pa.array([5, 100, None, 9], kind), pa.decimal128(4, 2))
    assert found.values.to_pylist() == [Decimal("5.00"), None, None, Decimal("9.00")]
    assert outside(found) == [1]
