import datetime
import decimal
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.errors import JobRefused
from holdfast.state.index import new_index
from holdfast.state.keys import Keys, encode_keys

COMPILING = settings(deadline=None)
"""The first example may compile kernels."""

TEXTS = st.text(st.sampled_from("abcé\0"), max_size=9)
BLOBS = st.binary(max_size=9)
SMALL = st.integers(-3, 3)
KEY_TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), SMALL),
    (pa.int32(), st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1])),
    (pa.int64(), st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])),
    (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    (pa.float32(), st.sampled_from([0.0, -0.0, 1.5, -1.5, float("inf"), 1e-40])),
    (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, -1.5, float("-inf"), 5e-324])),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates(datetime.date(1969, 12, 30), datetime.date(1970, 1, 2))),
    (pa.timestamp("us", "UTC"), SMALL),
    (pa.time64("us"), st.integers(0, 3)),
    (pa.duration("ms"), SMALL),
    (pa.decimal128(20, 2), st.sampled_from([decimal.Decimal(text) for text in ("-1.10", "0.00", "0.01", "1.10")])),
    (pa.binary(3), st.sampled_from([b"abc", b"abd", b"\0\0\0"])),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.binary(), BLOBS),
    (pa.large_binary(), BLOBS),
]


def encoded(keys: Keys) -> list[object]:
    """Each row's encoding as a value that can be compared."""
    if keys.values is not None:
        plain: list[Any] = keys.values.tolist()
    else:
        data, offsets = keys.bytes.tobytes(), keys.byte_offsets.tolist()
        plain = [data[start:stop] for start, stop in itertools.pairwise(offsets)]
    nulls = [False] * len(plain) if keys.nulls is None else keys.nulls.tolist()
    return [None if null else value for value, null in zip(plain, nulls, strict=True)]


@st.composite
def key_rows(draw: st.DrawFn) -> pa.RecordBatch:
    kinds = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3))
    count = draw(st.integers(0, 12))
    before, after = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    arrays = []
    for arrow_type, values in kinds:
        cells = st.lists(st.none() | values, min_size=before + count + after, max_size=before + count + after)
        arrays.append(pa.array(draw(cells), arrow_type).slice(before, count))
    return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])


@COMPILING
@given(key_rows())
def test_encodings_are_equal_exactly_where_keys_are(rows: pa.RecordBatch) -> None:
    keys = [tuple(row.values()) for row in rows.to_pylist()]
    codes = encoded(encode_keys(rows, rows.schema.names))
    for i in range(len(keys)):
        for j in range(i):
            assert (codes[i] == codes[j]) == (keys[i] == keys[j]), (keys[i], keys[j])


@COMPILING
@given(key_rows())
def test_a_key_has_the_same_encoding_and_hash_in_every_batch(rows: pa.RecordBatch) -> None:
    together = encode_keys(rows, rows.schema.names)
    for i in range(rows.num_rows):
        alone = encode_keys(rows.slice(i, 1), rows.schema.names)
        assert encoded(alone) == encoded(together)[i : i + 1]
        assert alone.hashes[0] == together.hashes[i]


@COMPILING
@given(key_rows())
def test_keys_come_back_from_the_index_as_they_were(rows: pa.RecordBatch) -> None:
    names = rows.schema.names
    keys = encode_keys(rows, names)
    if keys.nulls is not None:
        rows = rows.filter(pa.array(~keys.nulls))
        keys = encode_keys(rows, names)
    index = new_index(rows.schema)
    slots, *_ = index.lookup(keys, 1)
    back = pa.RecordBatch.from_arrays(index.columns(slots), names=names)
    back.validate(full=True)
    assert back.to_pylist() == rows.to_pylist()
    assert index.key_groups(slots, 100).tolist() == (keys.hashes % np.uint64(100)).tolist()


@pytest.mark.parametrize(
    ("left", "right"),
    [(("a", "bc"), ("ab", "c")), (("", None), (None, "")), (("a\0", ""), ("a", "\0")), ((None, None), ("", ""))],
)
def test_composite_keys_that_run_together_differ(left: tuple[str | None, ...], right: tuple[str | None, ...]) -> None:
    rows = pa.table({"x": [left[0], right[0]], "y": [left[1], right[1]]}).to_batches()[0]
    rows = rows.cast(pa.schema([("x", pa.string()), ("y", pa.string())]))
    first, second = encoded(encode_keys(rows, ["x", "y"]))
    assert first != second


@COMPILING
@given(st.lists(st.none() | st.sampled_from([0, 1, -(2**63)]), min_size=1))
@example([None, 0])
def test_a_null_integer_key_is_told_apart_and_changes_no_other_hash(values: list[int | None]) -> None:
    keys = encode_keys(pa.record_batch({"k": pa.array(values, pa.int64())}), ["k"])
    assert encoded(keys) == values
    for value, found in zip(values, keys.hashes, strict=True):
        alone = encode_keys(pa.record_batch({"k": pa.array([value], pa.int64())}), ["k"])
        assert alone.hashes[0] == found


def test_an_int64_column_without_nulls_is_not_copied() -> None:
    column = pa.array(np.arange(1000))
    keys = encode_keys(pa.record_batch({"k": column.slice(100, 50)}), ["k"])
    assert keys.values is not None
    assert keys.values.__array_interface__["data"][0] == column.buffers()[1].address + 800


def test_string_data_is_not_copied() -> None:
    column = pa.array(["one", "two", "three"])
    assert encode_keys(pa.record_batch({"k": column}), ["k"]).bytes.ctypes.data == column.buffers()[2].address


@pytest.mark.parametrize("wrong", [pa.list_(pa.int64()), pa.float16(), pa.binary(0), pa.struct([("a", pa.int8())])])
def test_a_type_that_cannot_be_a_key_is_refused_by_name(wrong: pa.DataType) -> None:
    rows = pa.RecordBatch.from_arrays([pa.nulls(1, wrong)], names=["weight"])
    with pytest.raises(JobRefused, match=r"key column 'weight' has type .*Cast the column before key_by"):
        encode_keys(rows, ["weight"])


def test_no_key_column_at_all_is_refused() -> None:
    with pytest.raises(JobRefused, match="a key needs a column"):
        encode_keys(pa.record_batch({"k": [1]}), [])
