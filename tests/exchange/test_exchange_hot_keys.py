"""Hot keys: what a unit finds in its rows, and what becomes of it over many units."""

from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.exchange.hot_keys import KeySample, sample
from holdfast.jobmaster.batches.hot_keys import REMEMBERED, SAMPLED_MIN, TRACKED_MAX, HotKeys
from holdfast.testing import run


def test_a_key_with_many_rows_is_found_and_rare_ones_are_not() -> None:
    numbers = np.arange(50_000)
    rows = pa.record_batch({"user": np.where(numbers % 2, 7, numbers), "item": np.zeros(50_000, np.int64)})
    found = sample("counts", rows, ("user",))
    assert found is not None and [key for key, _ in found.keys] == ["user=7"]
    assert 0.4 < found.keys[0][1] / found.rows < 0.6
    both = sample("counts", rows, ("user", "item"))
    assert both is not None and [key for key, _ in both.keys] == ["user=7, item=0"]


def test_keys_that_cannot_be_compared_or_are_made_later_are_left_out() -> None:
    lists = pa.record_batch({"k": pa.array([[1]] * 5_000, pa.list_(pa.int64()))})
    assert sample("counts", lists, ("k",)) is None
    assert sample("counts", lists, ("__pane",)) is None


def test_a_share_is_told_once_there_are_enough_rows_and_named_once_in_the_log() -> None:
    hot = HotKeys()
    each = KeySample("counts", 256, (("user=7", 128), ("user=8", 20)))
    assert hot.note([each]) == [] and hot.shares() == {}
    assert hot.note([each] * (SAMPLED_MIN // 256)) == [("counts", "user=7", 0.5)]
    assert hot.note([each]) == []
    assert hot.shares()["counts"] == (("user=7", 0.5), ("user=8", pytest.approx(20 / 256)))


def test_a_key_that_is_hot_no_more_is_forgotten_and_memory_is_bounded() -> None:
    hot = HotKeys()
    hot.note([KeySample("counts", 256, (("user=7", 256),))] * 4)
    for number in range(8 * REMEMBERED // 256):
        hot.note([KeySample("counts", 256, tuple((f"user={number}-{key}", 8) for key in range(32)))])
    assert hot.shares() == {"counts": ()}
    assert len(hot._keys["counts"]) <= TRACKED_MAX


def skewed(rows: pa.RecordBatch) -> pa.RecordBatch:
    numbers = rows.column(0).to_numpy()
    return pa.record_batch({"k": np.where(numbers % 3, numbers, -1)})


def test_a_running_job_names_the_key_that_a_third_of_its_rows_have(caplog: pytest.LogCaptureFixture) -> None:
    job = hf.Job(None, name="skewed", storage=f"memory://hot/{uuid4().hex}", max_rows_per_batch=8_192)
    numbers = job.read(hf.SequenceSource(stop=100_000)).map_batches(skewed, "k BIGINT")
    numbers.key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
    query = run(job)
    [(key, share)] = query._master.progress.hot_keys()["counts"]
    assert key == "k=-1" and 0.2 < share < 0.5
    assert "operator 'counts' have the key k=-1" in caplog.text
