import numpy as np
import pyarrow as pa
import pytest
from exchange_kit import divided
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.exchange.partition import null_keys, without
from holdfast.graph.keygroups import key_group_range
from holdfast.state.keys import encode_keys, key_groups

MAX_PARALLELISM = 128


def rows_of_many_types(keys: list[int]) -> pa.RecordBatch:
    n = len(keys)
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.int64()),
            "number": pa.array(range(n), pa.int32()),
            "flag": pa.array([i % 3 == 0 for i in range(n)], pa.bool_()),
            "text": pa.array([None if i % 5 == 0 else "x" * (i % 7) for i in range(n)], pa.string()),
            "time": pa.array(range(n), pa.timestamp("us", tz="UTC")),
            "money": pa.array(range(n), pa.decimal128(20, 0)),
            "gap": pa.array([None if i % 4 == 0 else float(i) for i in range(n)], pa.float64()),
            "list": pa.array([[i, i + 1] for i in range(n)], pa.list_(pa.int64())),
        }
    )


@settings(max_examples=15, deadline=None)
@given(
    keys=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60),
    parallelism=st.integers(1, 9),
    offset=st.integers(0, 5),
)
def test_every_row_goes_to_the_subtask_that_owns_its_key_group_and_order_is_kept(keys, parallelism, offset):
    rows = rows_of_many_types(keys).slice(offset)
    parts = divided(rows, ["key"], parallelism, MAX_PARALLELISM)
    assert [subtask for subtask, _ in parts] == sorted({subtask for subtask, _ in parts})
    groups = key_groups(encode_keys(rows, ["key"]), MAX_PARALLELISM)
    for subtask in range(parallelism):
        start, stop = key_group_range(subtask, parallelism, MAX_PARALLELISM)
        expected = rows.filter(pa.array((groups >= start) & (groups < stop)))
        found = [part for number, part in parts if number == subtask]
        assert found == ([expected] if expected.num_rows else [])


def test_one_subtask_gets_the_rows_themselves_without_a_copy():
    rows = rows_of_many_types([3, 1, 2])
    [(subtask, part)] = divided(rows, ["key"], 1, MAX_PARALLELISM)
    assert subtask == 0
    assert part.column("key").buffers()[1].address == rows.column("key").buffers()[1].address


def test_a_batch_whose_rows_all_belong_to_one_subtask_is_not_copied():
    rows = rows_of_many_types([5] * 10)
    [(_, part)] = divided(rows, ["key"], 4, MAX_PARALLELISM)
    assert part.column("key").buffers()[1].address == rows.column("key").buffers()[1].address


def test_composite_keys_go_where_the_state_looks_for_them():
    rows = pa.record_batch({"a": ["x", "y", "x", "z"] * 50, "b": list(range(200))})
    groups = key_groups(encode_keys(rows, ["a", "b"]), MAX_PARALLELISM)
    for subtask, part in divided(rows, ["a", "b"], 3, MAX_PARALLELISM):
        start, stop = key_group_range(subtask, 3, MAX_PARALLELISM)
        assert part.column("b").to_pylist() == np.flatnonzero((groups >= start) & (groups < stop)).tolist()


def test_rows_with_a_null_in_any_key_column_are_found():
    rows = pa.record_batch(
        {"a": ["x", None, "y", None], "b": pa.array([1, 2, None, None], pa.int64()), "c": [None] * 4}
    )
    assert null_keys(rows, ["a"]).tolist() == [1, 3]
    assert null_keys(rows, ["a", "b"]).tolist() == [1, 2, 3]
    assert without(rows, null_keys(rows, ["a", "b"])) == rows.slice(0, 1)


@pytest.mark.parametrize("columns", [["a"], ["a", "b"]])
def test_rows_without_null_keys_have_none_found(columns):
    rows = pa.record_batch({"a": ["x"], "b": [1]})
    assert len(null_keys(rows, columns)) == 0
