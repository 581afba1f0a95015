"""Arrays in other layouts, taken apart into the plain layout that every operator has."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.arrays import invalid_rows, plain_rows, plain_schema, plain_type, rebuilt

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
    (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8())), pa.int8()),
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


def test_extension_types_of_arrow_itself_become_their_storage_at_any_depth() -> None:
    assert plain_type(pa.uuid()) == pa.binary(16)
    assert plain_type(pa.list_(pa.json_())) == pa.list_(pa.string())


def test_plain_rows_are_returned_themselves() -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([["a"]])], names=["n", "l"])
    assert plain_schema(batch.schema) is batch.schema
    assert plain_rows(batch, batch.schema) is batch


def test_leaves_at_every_depth_are_replaced() -> None:
    array = pa.array(
        [[{"a": 1, "b": [2]}], None], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))]))
    )
    assert rebuilt(array, lambda leaf: pc.add(leaf, 1)).to_pylist() == [[{"a": 2, "b": [3]}], None]


TEXTS_OF_BYTES = pa.array([b"a", b"\xff", None, b"b"]).view(pa.string())
DECIMALS = pa.Array.from_buffers(
    pa.decimal128(5, 2), 4, [None, pa.array([1, 10**18, 3, 4]).cast(pa.decimal128(38, 0)).buffers()[1]]
)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (TEXTS_OF_BYTES, "column 'v' holds a text that is not UTF-8"),
        (pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), TEXTS_OF_BYTES), "a text that is not UTF-8"),
        (pa.StructArray.from_arrays([TEXTS_OF_BYTES], ["a"]), "a text that is not UTF-8"),
        (pa.array([1, 86_400_000_000, None, 0]).view(pa.time64("us")), r"holds no time64\[us\]: "),
        (pa.array([1, -5, None, 0], pa.int32()).view(pa.time32("s")), r"holds no time32\[s\]: "),
        (pa.array([0, 5, None, 86_400_000]).view(pa.date64()), "a whole number of days"),
        (DECIMALS, r"holds no decimal128\(5, 2\): "),
    ],
    ids=lambda each: str(getattr(each, "type", "")),
)
def test_values_that_their_type_does_not_have_are_found_by_row(column: pa.Array, reason: str) -> None:
    rows = pa.record_batch([pa.array([0, 1, 2, 3]), column], names=["k", "v"])
    found = invalid_rows(rows)
    assert list(found) == [1] and re.search(reason, found[1])
    assert invalid_rows(rows.slice(1)).keys() == {0} and invalid_rows(rows.slice(2)) == {} == invalid_rows(rows[:1])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_texts_of_ascii_whose_places_are_wrong_are_no_rows(kind: pa.DataType) -> None:
    """A column whose bytes are all ASCII is damaged all the same if a value ends before it begins or outside them."""
    width = np.int32 if kind == pa.string() else np.int64
    for places in ([0, 3, 1, 4], [0, 1, 2, 40]):
        buffers = [None, pa.py_buffer(np.array(places, width)), pa.py_buffer(b"abcd")]
        with pytest.raises(pa.ArrowInvalid):
            invalid_rows(pa.record_batch([pa.Array.from_buffers(kind, 3, buffers)], ["v"]))
    for good in (pa.array(["a", None, "é", ""], kind), pa.nulls(3, kind), pa.array(["", ""], kind), pa.array([], kind)):
        assert invalid_rows(pa.record_batch([good], ["v"])) == {}
