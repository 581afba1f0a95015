"""Batches of a target duration: the model by itself, with noise and jumps, and in a job."""

import random
import time

import pyarrow as pa
import pytest
from job_kit import new_job

import holdfast as hf
from holdfast.errors import JobRefused, SettingsError
from holdfast.jobmaster.batches.sizing import GROWTH_MAX, ROWS_FIRST, BatchSizer
from holdfast.testing import start
from waiting import until

SEEDS = range(100)
TARGET_S = 1.0


class Machine:
    """A machine on which batches take a fixed time and a time for each row, give or take 8 %."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.fixed_s = self._random.uniform(0, 0.3)
        self.slope_s = 10 ** self._random.uniform(-7, -4)

    def durations(self, sizer: BatchSizer, batches: int, available: float = float("inf")) -> list[float]:
        found = []
        for _ in range(batches):
            rows = int(min(sizer.rows, available))
            found.append((self.fixed_s + self.slope_s * rows) * self._random.uniform(0.92, 1.08))
            sizer.observe(rows, found[-1])
        return found


def settles(durations: list[float]) -> bool:
    """True if batches are within a quarter of the target after ten of them."""
    return all(abs(each - TARGET_S) <= 0.25 * TARGET_S for each in durations[10:])


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_settle_at_the_target(seed: int) -> None:
    found = Machine(seed).durations(BatchSizer(TARGET_S, 10**9), 40)
    assert settles(found[15:]) and max(found) <= 2 * TARGET_S * 1.1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tenfold_jump_of_the_load_overshoots_at_most_twofold(seed: int) -> None:
    machine, sizer = Machine(seed), BatchSizer(TARGET_S, 10**9)
    machine.durations(sizer, 30, available=0.1 * (TARGET_S - machine.fixed_s) / machine.slope_s)
    found = machine.durations(sizer, 20)
    assert settles(found) and max(found) <= 2 * TARGET_S


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_tenfold_jump_of_the_cost_of_a_row_is_followed(seed: int, factor: float) -> None:
    machine, sizer = Machine(seed), BatchSizer(TARGET_S, 10**9)
    machine.durations(sizer, 30)
    machine.slope_s *= factor
    found = machine.durations(sizer, 20)
    assert settles(found) and sum(each > 2 * TARGET_S for each in found) <= 1


def test_growth_and_bounds() -> None:
    sizer = BatchSizer(TARGET_S, 50_000)
    assert sizer.rows == ROWS_FIRST
    sizer.observe(ROWS_FIRST, 0.001)
    assert sizer.rows == GROWTH_MAX * ROWS_FIRST
    sizer.observe(40_000, 0.001)
    assert sizer.rows == 50_000
    sizer.observe(0, 100.0)
    assert sizer.rows == 50_000, "a batch without rows says nothing"
    sizer.observe(50_000, 10**9)
    assert sizer.rows == 1


class Slow:
    """A step that takes a time for each row, which may change while the job runs."""

    row_s = 0.0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(batch.num_rows * Slow.row_s)
        return batch


def test_a_job_has_batches_of_about_that_duration_also_after_rows_cost_ten_times_as_much() -> None:
    Slow.row_s = 4e-6
    job = new_job(target_batch_duration="200ms", max_rows_per_batch=10_000_000)
    rows = job.read(hf.SequenceSource(name="numbers"))
    rows.map_batches(Slow(), "value BIGINT").write(hf.NoopSink())
    query = start(job, hf.processing_time("0s"))

    def settled_ms(first: int) -> float:
        until(lambda: query.totals.batches >= first + 4)
        return sorted(query.totals.batch_ms[first : first + 4])[1]

    try:
        assert 100 < settled_ms(8) < 400
        assert query.totals.batch_rows[0] == ROWS_FIRST
        Slow.row_s *= 10
        jumped = query.totals.batches
        assert 100 < settled_ms(jumped + 10) < 400
        assert max(query.totals.batch_rows[jumped + 10 :]) < max(query.totals.batch_rows[:jumped]) / 2
    finally:
        query.stop()


def test_sources_that_read_all_there_is_are_refused_by_name() -> None:
    job = new_job(target_batch_duration="1s")
    source = hf.DataFrameSource(lambda start, end: None, lambda: {"n": 1}, "v BIGINT", name="by-spark")
    job.read(source).write(hf.NoopSink())
    with pytest.raises(JobRefused, match="source 'by-spark' reads everything that is there"):
        job.checked(hf.processing_time(), {})


@pytest.mark.parametrize("duration", [0, "-1s", "soon"])
def test_durations_that_are_none_are_refused(duration: object) -> None:
    with pytest.raises(SettingsError, match="target_batch_duration"):
        new_job(target_batch_duration=duration)
