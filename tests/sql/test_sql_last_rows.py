"""Aggregates over rows: each value with those before it of its key, as plain Python computes them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.sql.last_rows import AGGREGATES_OVER_ROWS, VALUE, _LastRows, last_rows

KEYS = [0, 0, 0, 0, 1, 2, 2, 2, 2, 2]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int64(), [3, None, -1, 7, None, 5, 5, None, 2, 9]),
    "large": (pa.int64(), [2**62, -(2**62), 2**62, None, 2**62, 1, -(2**62), 0, 2**61, 1]),
    "double": (pa.float64(), [0.5, None, float("inf"), 1.0, None, 2.0, 1.5, None, None, -3.0]),
    "time": (pa.timestamp("us"), [5, 4, None, 9, 1, 2, 8, 7, 3, 2]),
}


def plain(aggregate: str, values: list[Any]) -> Any:
    known = [each for each in values if each is not None]
    if aggregate == "count":
        return len(known)
    if not known:
        return None
    return sum(known) / len(known) if aggregate == "mean" else {"sum": sum, "min": min, "max": max}[aggregate](known)


@pytest.mark.parametrize("before", [0, 1, 3, 100])
@pytest.mark.parametrize(
    ("aggregate", "kind"),
    [(each, kind) for each in AGGREGATES_OVER_ROWS for kind in VALUES if kind != "time" or each not in ("mean", "sum")],
)
def test_each_value_is_aggregated_with_those_before_it(aggregate: str, kind: str, before: int) -> None:
    of, given = VALUES[kind]
    array = pa.array(given, pa.int64() if kind == "time" else of).cast(of)
    function = last_rows(pa.schema([(VALUE, of)]), pa.schema([]), aggregate, before)
    assert isinstance(function, _LastRows)
    places = [
        [place for place in range(row + 1) if KEYS[place] == KEYS[row]][-1 - before :] for row in range(len(KEYS))
    ]
    wanted = [plain(aggregate, [given[place] for place in each]) for each in places]
    if any(isinstance(each, int) and abs(each) > 2**63 for each in wanted) and aggregate == "sum":
        with pytest.raises(OverflowError):
            function._aggregated(array, np.array(KEYS))
        return
    assert function._aggregated(array, np.array(KEYS)).cast(pa.array(wanted).type).to_pylist() == wanted


def test_of_equal_values_the_earlier_counts_and_nan_is_above_all() -> None:
    given = pa.array([-0.0, float("nan"), 0.0, -0.0, float("inf"), float("nan")])
    found = {}
    for aggregate in ("min", "max"):
        function = last_rows(pa.schema([(VALUE, pa.float64())]), pa.schema([]), aggregate, 1)
        assert isinstance(function, _LastRows)
        found[aggregate] = [str(each) for each in function._aggregated(given, np.zeros(6, np.int64)).to_pylist()]
    assert found["min"] == ["-0.0", "-0.0", "0.0", "0.0", "-0.0", "inf"]
    assert found["max"] == ["-0.0", "nan", "nan", "0.0", "inf", "nan"]
