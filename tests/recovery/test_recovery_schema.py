"""Whether stored state fits the declared one."""

import pyarrow as pa
import pytest

from holdfast.errors import JobRefused
from holdfast.recovery.schema import check_schema
from holdfast.state.table import stored_schema

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
    with pytest.raises(JobRefused, match=r"'delays'.*'state'.*'n'.*stored as int64.*declared as int32.*drop_state"):
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
