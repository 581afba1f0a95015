"""Packed entries are the entries, in fewer bytes where their values are near each other."""

import random

import numpy as np
import pyarrow as pa
import pytest

from holdfast.functions.timing import packed_entries
from holdfast.functions.timing.packed_entries import pack

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
    packed = pack(entries, "n")
    assert packed.to_batch().equals(entries)
    assert packed.num_rows == 3
    assert packed.nbytes <= 3 * (bytes_each + 1)


def test_no_entries_are_no_entries() -> None:
    entries = pa.record_batch({"n": pa.array([], pa.int64())})
    assert pack(entries, "n").to_batch().equals(entries)


@pytest.mark.parametrize("packed_from", [1, 100])
@pytest.mark.parametrize("least", [LOW, -7, 0, HIGH - 70_000])
@pytest.mark.parametrize("spread", [3, 200, 60_000])
def test_entries_between_two_times_are_those_a_list_has(
    packed_from: int, least: int, spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_entries, "PACKED_FROM", packed_from)
    chance = random.Random(f"{least} {spread}")
    times = [least + chance.randrange(spread) for _ in range(20)]
    packed = pack(pa.record_batch({"at": pa.array(times), "n": pa.array([f"{i}" for i in range(20)])}), "at")
    limits = [None, *(max(LOW, min(HIGH, chance.choice(times) + chance.randint(-1, 1))) for _ in range(8))]
    for start in [*limits, max(LOW, least - 100_000), min(HIGH, least + 65_000)]:
        wanted = [time for time in times if start is None or time >= start]
        assert packed.earliest(start) == min(wanted, default=None)
        for stop in limits:
            found = packed.between(start, stop)
            rows = [(time, f"{i}") for i, time in enumerate(times) if time in wanted and (stop is None or time < stop)]
            assert [tuple(row.values()) for row in found.to_batch().to_pylist()] == rows
            assert found.earliest(None) == min((time for time, _ in rows), default=None)
