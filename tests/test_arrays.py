"""Arrays in other layouts, taken apart into the plain layout that every operator has."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.arrays import plain_rows, plain_schema, plain_type, rebuilt

TEXTS = pa.dictionary(pa.int8(), pa.string())
OTHER = [
    (pa.array(["a", None, "b"]).dictionary_encode(), pa.string()),
    (pa.array(["a", None, "b"], pa.string_view()), pa.string()),
    (pa.array([b"a", None, b"b"], pa.binary_view()), pa.binary()),
    (pa.array([[1], None, [2, 3]], pa.list_view(pa.int64())), pa.list_(pa.int64())),
    (pa.array([["x"], None, ["y"]], pa.large_list_view(pa.string_view())), pa.large_list(pa.string())),
    (pc.run_end_encode(pa.array(["a", "a", None, "b"])), pa.string()),
    (pa.array([{"a": "x"}, None, {"a": None}], pa.struct([("a", TEXTS)])), pa.struct([("a", pa.string())])),
    (pa.array([[("k", "x")], None, []], pa.map_(pa.string(), TEXTS)), pa.map_(pa.string(), pa.string())),
    (pa.array([["a"], ["b"], ["a"]], pa.list_(TEXTS, 1)), pa.list_(pa.string(), 1)),
    (pa.array([[["a"]], [], None], pa.list_(pa.list_view(TEXTS))), pa.list_(pa.list_(pa.string()))),
]


@pytest.mark.parametrize(("array", "kind"), OTHER, ids=[str(array.type) for array, _ in OTHER])
def test_other_layouts_become_the_plain_layout_with_the_same_values_in_slices_too(
    array: pa.Array, kind: pa.DataType
) -> None:
    assert plain_type(array.type) == kind
    for part in (array, array.slice(1), array.slice(1, 1), array.slice(0, 0)):
        batch = pa.record_batch([part], names=["v"])
        schema = plain_schema(batch.schema)
        made = plain_rows(batch, schema)
        made.validate(full=True)
        assert (made.schema, made.column(0).to_pylist()) == (schema, part.to_pylist())


def test_plain_rows_are_returned_themselves() -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([["a"]])], names=["n", "l"])
    assert plain_schema(batch.schema) is batch.schema
    assert plain_rows(batch, batch.schema) is batch


def test_leaves_at_every_depth_are_replaced() -> None:
    array = pa.array(
        [[{"a": 1, "b": [2]}], None], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))]))
    )
    assert rebuilt(array, lambda leaf: pc.add(leaf, 1)).to_pylist() == [[{"a": 2, "b": [3]}], None]
