"""Truncations in a stream: a row for each part, at the place of the truncation; and keys as bytes."""

import pyarrow as pa

from holdfast.sources.truncations import KEY, PART, PARTS, key_bytes, parted, told_schema


def test_a_truncation_goes_to_every_part_between_the_changes_around_it():
    kinds = ["insert", "insert", "truncate", "insert"]
    rows = pa.table({"id": [1, 2, None, 1], "_change_type": kinds, "_lsn": [5, 5, 6, 7]})
    found = parted(rows, ["id"])
    assert found.column("_lsn").to_pylist() == [5, 5] + [6] * PARTS + [7]
    assert found.column(PART).to_pylist()[2:-1] == list(range(PARTS))
    assert set(found.column(KEY).to_pylist()[2:-1]) == {None}
    assert found.column(PART)[0] == found.column(PART)[-1]
    assert told_schema(found.schema) == rows.schema


def test_keys_of_several_columns_are_never_mixed_up():
    rows = pa.table({"a": ["x", "x:1", "", "x"], "b": [b"1:y", b"y", b"x1:y", b"y"], "n": [1, 11, 1, 1]})
    assert len(set(key_bytes(rows, ["a", "b", "n"]).to_pylist())) == 4
    assert len(set(key_bytes(rows, ["n"]).to_pylist())) == 2
