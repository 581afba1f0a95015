"""Stored state fits the declared state, or is refused."""

import pyarrow as pa
import pytest

from holdfast.errors import JobRefused
from holdfast.recovery.schema import check_kinds, check_schema
from holdfast.state.table import StateTable, stored_schema

KEYS = pa.schema([("carrier", pa.string()), ("day", pa.date32())])
VALUES = pa.schema([("n", pa.int64()), ("x", pa.float64())])
STORED = stored_schema(KEYS, VALUES)


@pytest.mark.parametrize(
    "values",
    [
        VALUES,
        pa.schema([*VALUES, ("late", pa.int64())]),
        pa.schema([("x", pa.float64())]),
        pa.schema(reversed(list(VALUES))),
    ],
)
def test_the_same_columns_an_added_and_a_dropped_one_are_allowed(values):
    check_schema(STORED, stored_schema(KEYS, values), "delays", "state")


def test_another_type_of_a_value_is_refused_with_both_types():
    declared = stored_schema(KEYS, pa.schema([("n", pa.int32()), ("x", pa.float64())]))
    with pytest.raises(JobRefused, match=r"'delays', state 'n': stored as int64, declared as int32.*drop_state"):
        check_schema(STORED, declared, "delays", "state")


@pytest.mark.parametrize(
    "keys",
    [
        pa.schema([("carrier", pa.string())]),
        pa.schema([("day", pa.date32()), ("carrier", pa.string())]),
        pa.schema([("carrier", pa.large_string()), ("day", pa.date32())]),
    ],
)
def test_other_key_columns_are_refused_with_both_lists(keys):
    with pytest.raises(JobRefused, match=r"'delays'.*stored with the key columns \(carrier string, day date32"):
        check_schema(STORED, stored_schema(keys, VALUES), "delays", "state")


WIDENED = [
    (pa.int8(), pa.int64()),
    (pa.uint16(), pa.uint32()),
    (pa.float16(), pa.float64()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(10, 2), pa.decimal128(20, 4)),
]


@pytest.mark.parametrize(("stored", "declared"), WIDENED)
def test_a_type_with_more_room_is_allowed_and_less_is_refused(stored, declared):
    narrow, wide = (stored_schema(KEYS, pa.schema([("x", kind)])) for kind in (stored, declared))
    check_schema(narrow, wide, "delays", "state")
    with pytest.raises(JobRefused, match=r"'delays', state 'x': stored as .*, declared as"):
        check_schema(wide, narrow, "delays", "state")


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (pa.int32(), pa.float64()),
        (pa.uint8(), pa.int64()),
        (pa.decimal128(10, 2), pa.decimal128(10, 4)),
        (pa.int64(), pa.string()),
    ],
)
def test_another_kind_of_type_is_refused_even_with_room(stored, declared):
    with pytest.raises(JobRefused, match="'x': stored as"):
        check_schema(
            stored_schema(KEYS, pa.schema([("x", stored)])),
            stored_schema(KEYS, pa.schema([("x", declared)])),
            "delays",
            "state",
        )


@pytest.mark.parametrize(("stored", "declared"), WIDENED)
def test_stored_rows_are_read_with_the_wider_type(stored, declared):
    key = pa.schema([("k", pa.int64())])
    old = StateTable(key, pa.schema([("x", stored)]), 16)
    old.begin(1)
    slots = old.lookup(pa.record_batch([pa.array([1, 2])], schema=key))
    array = pa.array([7, None], stored)
    old.column("x").scatter(slots, *old.column("x").from_arrow(array))
    old.present[slots] = True
    old.commit()
    new = StateTable(key, pa.schema([("x", declared)]), 16)
    new.apply(old.snapshot(), 0, 16)
    assert sorted(new.snapshot().select(["k", "x"]).to_pylist(), key=lambda row: row["k"]) == [
        {"k": 1, "x": 7},
        {"k": 2, "x": None},
    ]


def test_a_state_that_changes_its_kind_is_refused_by_name():
    value = {"state": stored_schema(KEYS, pa.schema([("seen", pa.int64())]))}
    many = {
        "state": stored_schema(KEYS, pa.schema([("seen.size", pa.int64())])),
        "seen.entries": stored_schema(KEYS, VALUES),
        "seen.order": stored_schema(KEYS, VALUES),
    }
    check_kinds(many, many, "delays")
    check_kinds(many, {"state": stored_schema(KEYS, VALUES)}, "delays")
    with pytest.raises(JobRefused, match="'delays', state 'seen': stored as a value, declared as a map"):
        check_kinds(value, many, "delays")
    with pytest.raises(JobRefused, match="'delays', state 'seen': stored as a map, declared as a value"):
        check_kinds(many, value, "delays")
