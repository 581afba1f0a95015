"""The axes of growth in short: counts of reads, calls and rows touched, never times."""

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from benchmarks.growth.__main__ import main
from benchmarks.growth.axes import AXES
from benchmarks.growth.axis import BOUNDS, REST, WORK, Axis, Measured
from holdfast.functions.timing.time_index import TimeBuckets
from holdfast.jobmaster.batches.runner import BatchRunner
from holdfast.taskmanager.subtask import Subtask
from holdfast.testing import TestSource, start

ROWS = pa.RecordBatch.from_pydict({"k": list(range(10))})


def test_there_are_axes_of_all_kinds_with_sizes_far_apart() -> None:
    assert len(AXES) >= 40
    assert {axis.kind for axis in AXES.values()} == set(BOUNDS)
    assert all(axis.sizes[-1] >= 16 * axis.sizes[0] for axis in AXES.values())
    for name, axis in AXES.items():
        least, middle, most = axis.sizes
        assert most * least == middle * middle, f"{name}: the exponent needs sizes the same factor apart"


@pytest.mark.parametrize(
    ("kind", "fixed_s", "power", "is_within"),
    [(WORK, 0.0, 1.0, True), (WORK, 500.0, 1.0, True), (WORK, 500.0, 1.5, False), (REST, 0.0, 0.0, True)],
)
def test_an_exponent_is_the_power_with_which_the_cost_grows(
    kind: str, fixed_s: float, power: float, is_within: bool
) -> None:
    sizes = (100, 1_000, 10_000)
    costs = tuple(fixed_s + 100.0 * (size / 100) ** power for size in sizes)
    found = Measured(Axis("drawn", kind, sizes, float), costs, (), 0.0)
    assert found.exponent == pytest.approx(power, abs=0.01)
    assert found.is_within == is_within


@pytest.mark.parametrize(("peak_mb", "is_within"), [(150.0, True), (250.0, False)])
def test_memory_far_above_its_setting_is_beyond_the_bound(peak_mb: float, is_within: bool) -> None:
    axis = Axis("drawn", REST, (1, 10, 100), float, memory_bound_mb=64)
    assert Measured(axis, (1.0, 1.0, 1.0), (10.0, peak_mb, 20.0), 0.0).is_within == is_within


def test_the_benchmark_gives_each_axis_that_is_asked_for() -> None:
    drawn = mock.patch.dict(AXES, {"drawn": Axis("drawn", REST, (1, 2, 4), lambda size: 0.5)})
    # A collection goes through all objects that other tests have left, and an axis of constants needs none.
    with drawn, mock.patch("benchmarks.growth.axis.gc"):
        facts = main(["--axes", "drawn", "--json"])
    assert facts["axes"]["drawn"]["exponent"] == 0.0
    assert facts["beyond"] == []


def test_each_operator_of_a_chain_processes_once_a_batch_and_its_level_alone_is_measured() -> None:
    def calls(length: int) -> tuple[int, int]:
        job = hf.Job(None, name="chain", storage=f"memory://growth-chain-{length}")
        source = TestSource([ROWS, ROWS], "k BIGINT")
        source.length = 1
        stream = job.read(source)
        for number in range(length):
            stream = stream.key_by("k").aggregate(n=hf.count(), name=f"o{number}").select("k")
        stream.write(hf.NoopSink())
        query = start(job, hf.processing_time("0s"))
        query.processAllAvailable()
        source.length = 2
        sizes = mock.PropertyMock(return_value=0)
        with (
            mock.patch.object(BatchRunner, "_process", autospec=True, side_effect=BatchRunner._process) as levels,
            mock.patch.object(Subtask, "undo_in_flight_bytes", sizes),
        ):
            query.processAllAvailable()
        query.stop()
        return levels.call_count, sizes.call_count

    assert calls(5) == (5, 9)
    assert calls(20) == (20, 39), "all at the first level, then each level its own"


def test_entries_far_apart_share_buckets_and_each_is_found() -> None:
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64())])
    buckets = TimeBuckets(schema, "at", 10)
    times = np.arange(2_000) * 1_000
    for part in np.array_split(times, 7):
        buckets.add(pa.RecordBatch.from_arrays([pa.array(part), pa.array(part)], schema=schema))
    assert len(buckets._order) <= 2_000 // 8
    assert len(buckets) == 2_000
    found = buckets.between(500_000, 600_000)
    assert sorted(at for batch in found for at in batch["at"].to_pylist()) == list(range(500_000, 600_000, 1_000))
    buckets.drop(1_999_000)
    assert (len(buckets), buckets.earliest()) == (1, 1_999_000)
