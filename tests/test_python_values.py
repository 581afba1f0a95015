"""Values of Arrow become Python objects in one of three ways, none of which an odd time in another row can disturb."""

import json
import random
from datetime import UTC, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.python_values import exact_values, payload_of, python_values, shown_rows, shown_values, unrepresentable

YEAR_10000 = 253_402_300_800_000_000
YEAR_1 = -62_135_596_800_000_000
INT64 = [-(2**63), -(2**63) + 1, 2**62, 2**63 - 1]
EDGES = [0, -1, 999, 1001, YEAR_1 - 1, YEAR_1, YEAR_10000 - 1, YEAR_10000, 1_764_100_000_123_456_789, *INT64]
ZONES = [None, "UTC", "Asia/Kolkata", "America/New_York", "+05:30"]
KINDS = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ZONES),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.time64("us"),
    pa.time64("ns"),
]


def array_of(kind: pa.DataType, draw: random.Random) -> pa.Array:
    numbers = [*EDGES, *(draw.randrange(-(2 ** draw.randrange(64)), 2 ** draw.randrange(64)) for _ in range(20)), None]
    return pa.array(numbers, pa.int64()).view(kind)


def arrow_gives(value: pa.Scalar) -> Any:
    """Python's object as Arrow makes it of a value without nanoseconds; None if it raises."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return None


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_becomes_an_object_or_its_row_is_found(kind: pa.DataType) -> None:
    array = array_of(kind, random.Random(7))
    odd = unrepresentable(pa.record_batch([array], names=["v"]))
    for row, value in enumerate(array):
        one = array.slice(row, 1)
        if row in odd:
            with pytest.raises((ValueError, OverflowError)):
                python_values(one)
            continue
        (found,) = python_values(one)
        if getattr(kind, "unit", "") != "ns":
            assert found == arrow_gives(value)
        elif value.is_valid and pa.types.is_timestamp(kind):
            assert pa.scalar(found, pa.timestamp("us", kind.tz)).value == value.value // 1000


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_exact_values_are_taken_back_by_arrow_bit_by_bit(kind: pa.DataType) -> None:
    array = array_of(kind, random.Random(8))
    assert pa.array(exact_values(array), kind).equals(array)
    nested = pa.StructArray.from_arrays([array, array], names=["a", "b"])
    assert pa.array(exact_values(nested), nested.type).equals(nested)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(len(array) + 1), pa.int32()), array)
    assert pa.array(exact_values(lists), lists.type).equals(lists)


def test_days_outside_of_the_calendar_are_found() -> None:
    days = pa.array([0, 2_932_896, 2_932_897, -719_162, -719_163, None], pa.int32()).cast(pa.date32())
    assert list(unrepresentable(pa.record_batch([days], names=["v"]))) == [2, 4]
    assert pa.array(exact_values(days), pa.date32()).equals(days)


def test_an_odd_time_inside_of_another_value_makes_its_row_odd() -> None:
    lists = pa.array([[0], [YEAR_10000], None, [1]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us")))
    for column in (lists, pa.StructArray.from_arrays([lists], ["l"])):
        odd = unrepresentable(pa.record_batch([pa.array(range(4)), column], names=["n", "v"]))
        assert list(odd) == [1]
        assert "column 'v' is" in odd[1] and str(YEAR_10000) in odd[1]


def test_nanoseconds_are_rounded_down_for_functions_and_kept_elsewhere() -> None:
    times = pa.array([-1, 1500], pa.int64()).view(pa.timestamp("ns"))
    assert python_values(times) == [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1970, 1, 1, 0, 0, 0, 1)]
    assert exact_values(times) == [-1, 1500]
    assert shown_values(times) == ["1969-12-31T23:59:59.999999999", "1970-01-01T00:00:00.000001500"]


SHOWN = [
    (pa.timestamp("us", "Asia/Kolkata"), 1, "1970-01-01T00:00:00.000001Z"),
    (pa.timestamp("s"), 0, "1970-01-01T00:00:00"),
    (pa.timestamp("us"), YEAR_10000, str(YEAR_10000)),
    (pa.timestamp("us"), -(2**63), str(-(2**63))),
    (pa.time64("ns"), 3_600_000_000_001, "01:00:00.000000001"),
    (pa.duration("us"), -1_500_000, "-PT1.500000S"),
    (pa.date64(), 86_400_000, "1970-01-02"),
]


@pytest.mark.parametrize(("kind", "number", "text"), SHOWN, ids=[f"{kind} {number}" for kind, number, _ in SHOWN])
def test_times_are_shown_in_a_single_form_at_every_depth(kind: pa.DataType, number: int, text: str) -> None:
    array = pa.array([number, None], pa.int64()).view(kind)
    assert shown_values(array) == [text, None]
    assert shown_values(_listed(array)) == [[text], [None]]


def _listed(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), array)


def test_a_dead_letter_holds_numbers_that_json_does_not_have_bytes_and_broken_text() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"a\xff")]
    )
    columns = [
        pa.array([[float("nan"), float("-inf")]]),
        broken,
        pa.array([b"\xff"]),
        pa.array([2**64 - 1], pa.uint64()),
    ]
    (row,) = shown_rows(pa.record_batch(columns, names=["f", "s", "b", "u"]))
    assert json.loads(payload_of(row)) == {"f": ["NaN", "-Infinity"], "s": "a\\xff", "b": "/w==", "u": 2**64 - 1}


def test_a_time_of_python_beside_a_row_is_written_as_the_times_of_the_row_are() -> None:
    assert (
        payload_of({"t": datetime(1970, 1, 1, tzinfo=UTC), "c": time(1)})
        == '{"t":"1970-01-01T00:00:00Z","c":"01:00:00"}'
    )


LISTS = pa.list_(pa.list_(pa.string()))
PLAIN: dict[str, tuple[pa.DataType, list[Any]]] = {
    "texts": (pa.string(), ["a", None, "é" * 40, ""]),
    "large bytes": (pa.large_binary(), [b"", None, b"\0"]),
    "integers": (pa.uint64(), [2**64 - 1, None, 0]),
    "flags": (pa.bool_(), [True, None, False]),
    "doubles": (pa.float64(), [0.5, None, float("inf")]),
    "lists of lists": (LISTS, [[["a", None], None, []], None, [], [["b"]]]),
    "large lists": (pa.large_list(pa.int8()), [[1, None], None, []]),
}


@pytest.mark.parametrize(("kind", "values"), PLAIN.values(), ids=PLAIN)
def test_values_without_times_are_those_that_were_put_in_from_any_slice(kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, kind)
    for start in range(len(values) + 1):
        found = exact_values(array.slice(start))
        assert found == python_values(array.slice(start)) == values[start:]
        assert list(map(type, found)) == list(map(type, values[start:]))
