"""Packed entries are the entries, in fewer bytes where their values are near each other."""

import numpy as np
import pyarrow as pa
import pytest

from holdfast.functions.timing import packed_entries
from holdfast.functions.timing.packed_entries import PackedEntries

KIND = pa.timestamp("us", "UTC")
LOW, HIGH = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize(
    ("column", "bytes_each"),
    [
        (pa.array([HIGH - 255, HIGH, HIGH - 1]), 1),
        (pa.array([LOW + 256, LOW, LOW + 1]), 2),
        (pa.array([-5, (1 << 32) - 6, 0]), 4),
        (pa.array([-5, (1 << 32) - 5, 0]), 8),
        (pa.array([LOW, HIGH, 0]), 8),
        (pa.array([7, 65_542, 8], pa.int64()).cast(KIND), 2),
        (pa.array([1, None, 3]), 9),
        (pa.array([1, 2, 3], pa.int32()), 4),
        (pa.array(["a", "b", None]), 9),
    ],
)
def test_a_column_comes_back_as_it_was(column: pa.Array, bytes_each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = pa.record_batch([column, pa.array(np.arange(3))], names=["c", "n"])
    monkeypatch.setattr(packed_entries, "PACKED_FROM", 1)
    packed = PackedEntries(entries)
    assert packed.to_batch().equals(entries)
    assert packed.column("c").equals(column) and packed.num_rows == 3
    assert packed.nbytes <= 3 * (bytes_each + 1)


def test_no_entries_are_no_entries() -> None:
    entries = pa.record_batch({"n": pa.array([], pa.int64())})
    assert PackedEntries(entries).to_batch().equals(entries)
