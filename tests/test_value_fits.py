"""Python values in Arrow columns: as they are, or not at all."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.python_values import finite
from holdfast.value_fits import Misfit, fit_for, fitted_array

EAST = timezone(timedelta(hours=2))
INFINITY = float("inf")
HALF_OF_A_PAIR = "\ud800"
LISTS, MAPS = pa.list_(pa.float32()), pa.map_(pa.string(), pa.float32())
STRUCTS = pa.struct([("a", pa.float32()), ("b", pa.string())])


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    return fitted_array(values, pa.field("v", kind), fit_for(kind))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), Decimal("1.5")),
        (pa.int64(), np.float64(1.5)),
        (pa.int64(), True),
        (pa.int8(), 300),
        (pa.bool_(), 1),
        (pa.float32(), 1e300),
        (pa.float32(), 2**200),
        (pa.float16(), 70_000),
        (pa.float64(), 10**400),
        (pa.float64(), True),
        (LISTS, [1.0, 1e300]),
        (MAPS, {"a": 1e300}),
        (STRUCTS, {"a": 1e300}),
        (STRUCTS, ("a", "b", "c")),
        (STRUCTS, {"c": 1}),
        (pa.string(), HALF_OF_A_PAIR),
        (pa.large_string(), f"é{HALF_OF_A_PAIR}"),
        (pa.list_(pa.string()), [HALF_OF_A_PAIR]),
        (pa.string(), b"bytes"),
        (pa.binary(), "text"),
        (pa.timestamp("us", "UTC"), 5),
        (pa.timestamp("us"), datetime(2026, 1, 1, tzinfo=EAST)),
        (pa.time64("us"), time(1, tzinfo=EAST)),
        (pa.date32(), datetime(2026, 1, 1, 5)),
        (pa.date32(), 5),
        (pa.decimal128(5, 2), Decimal("1.005")),
    ],
    ids=repr,
)
def test_a_value_that_a_type_does_not_have_is_refused_with_its_place(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(Misfit) as refused:
        array_of([None, value, None], kind)
    assert refused.value.place == 1


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (pa.float32(), INFINITY, INFINITY),
        (pa.float32(), 0.5, 0.5),
        (pa.float64(), 2**63 + 1, float(2**63)),
        (pa.string(), "é€😀", "é€😀"),
        (pa.string(), np.str_("x"), "x"),
        (STRUCTS, (0.5, "x"), {"a": 0.5, "b": "x"}),
        (STRUCTS, {"b": "x"}, {"a": None, "b": "x"}),
        (LISTS, (0.5, None), [0.5, None]),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, 2, tzinfo=EAST), datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1)),
        (pa.timestamp("s"), datetime(1969, 12, 31, 23, 59, 59, 5), datetime(1969, 12, 31, 23, 59, 59)),
        (pa.date32(), date(2026, 1, 1), date(2026, 1, 1)),
    ],
    ids=repr,
)
def test_a_value_that_a_type_has_is_kept(kind: pa.DataType, value: Any, kept: Any) -> None:
    assert array_of([value, None], kind).to_pylist() == [kept, None]


def test_keys_and_numbers_that_json_does_not_have_are_shown_as_text() -> None:
    assert finite({None: INFINITY, True: [float("nan")], 2: "x"}) == {"null": "Infinity", "true": ["NaN"], 2: "x"}
