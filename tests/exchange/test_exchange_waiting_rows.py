"""Rows for sinks whose turn has not come are kept once for places that get the same, in order, on the disk if many."""

import pyarrow as pa
import pytest

from holdfast.exchange import waiting_rows
from holdfast.exchange.waiting_rows import WaitingRows


def batch(first: int, count: int = 4, name: str = "k") -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(range(first, first + count), pa.int64())})


def values(batches):
    return [value for each in batches for value in each.column(0).to_pylist()]


@pytest.mark.parametrize("bytes_max", [waiting_rows.KEPT_BYTES_MAX, 40, 0], ids=["in memory", "partly", "on disk"])
def test_each_place_gets_its_rows_in_order_and_shared_batches_are_kept_once(tmp_path, monkeypatch, bytes_max):
    monkeypatch.setattr(waiting_rows, "KEPT_BYTES_MAX", bytes_max)
    shared, more, other = batch(0), batch(10), batch(100, name="x")
    without_a_row = shared.slice(1)
    rows = [(0, shared), (1, shared), (2, shared), (3, without_a_row), (4, other), (1, more), (3, more), (0, batch(20))]
    with WaitingRows({0: 7, 1: 7, 2: 7, 3: 7, 4: 8, 5: 8}, str(tmp_path)) as kept:
        assert values(kept.aside(iter(rows), 0)) == [0, 1, 2, 3, 20, 21, 22, 23]
        kept_bytes = kept._area.memory_bytes + kept._area.spilled_bytes
        assert kept_bytes == sum(each.nbytes for each in (shared, without_a_row, more, other))
        assert len(list(tmp_path.iterdir())) == (bytes_max < kept_bytes)
        found = {place: values(kept.of(place)) for place in range(1, 6)}
    assert found == {
        1: [0, 1, 2, 3, 10, 11, 12, 13],
        2: [0, 1, 2, 3],
        3: [1, 2, 3, 10, 11, 12, 13],
        4: [100, 101, 102, 103],
        5: [],
    }
    assert not list(tmp_path.iterdir())


def test_files_go_when_a_unit_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting_rows, "KEPT_BYTES_MAX", 0)
    with pytest.raises(OSError, match="staging"), WaitingRows({0: 0, 1: 0}, str(tmp_path)) as kept:
        assert values(kept.aside(iter([(1, batch(0))]), 0)) == []
        assert len(list(tmp_path.iterdir())) == 1
        raise OSError("staging")
    assert not list(tmp_path.iterdir())
