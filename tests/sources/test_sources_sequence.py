"""SequenceSource: which values, divided how, and from where after a restart."""

import random

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import JobRefused, SettingsError
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets
from holdfast.sources.sequence import CHUNK_ROWS_MAX, VALUE_MAX, SequenceSource, divide_evenly
from holdfast.storage.store import open_store


def enumerator(source: SequenceSource, clock: ManualClock | None = None) -> Enumerator:
    return source.enumerator(EnumeratorContext(open_store("memory://sequence"), "numbers", 1, clock or ManualClock()))


def values(source: SequenceSource, plan_reads) -> list[int]:
    return [value for read in plan_reads for batch in source.read(read) for value in batch.rows["value"].to_pylist()]


def read_all(source: SequenceSource, rows_max: int, start: Offsets | None = None) -> list[int]:
    planner = enumerator(source)
    at = planner.initial() if start is None else start
    until, found = planner.latest(), []
    while at != until:
        plan = planner.plan(at, until, rows_max, 10**9)
        assert plan.reads
        found += values(source, plan.reads)
        at = plan.to
    return found


@pytest.mark.parametrize("splits", [1, 2, 3, 7])
def test_every_value_is_read_exactly_once_however_the_range_is_split(splits):
    assert sorted(read_all(SequenceSource(start=-5, stop=996, splits=splits), 100)) == list(range(-5, 996))


def test_a_plan_divides_the_rows_over_the_splits_and_keeps_to_its_limits():
    source = SequenceSource(10_000, splits=4)
    planner = enumerator(source)
    plan = planner.plan(planner.initial(), planner.latest(), 1_000, 10**9)
    assert [read.rows for read in plan.reads] == [250] * 4
    assert sum(read.rows for read in planner.plan(planner.initial(), planner.latest(), 1_000, 800).reads) == 100


def test_a_short_split_leaves_its_share_to_the_others():
    assert divide_evenly({"a": 1, "b": 100, "c": 100}, 21) == {"a": 1, "b": 10, "c": 10}


def test_nothing_new_is_an_empty_plan_that_stays_where_it_is():
    planner = enumerator(SequenceSource(10))
    end = planner.latest()
    assert planner.plan(end, end, 10, 100).reads == []
    assert planner.plan(end, end, 10, 100).to == end


def test_rows_come_into_being_with_the_clock():
    clock = ManualClock()
    planner = enumerator(SequenceSource(splits=2, rows_per_second=10), clock)
    assert planner.latest() == {"0": 0, "1": 0}
    clock.advance(1.5)
    assert planner.latest() == {"0": 8, "1": 7}
    assert planner.lag({"0": 8, "1": 0}) == {"0": 0, "1": 7}


def test_the_rate_goes_on_from_the_restored_offsets():
    clock = ManualClock()
    planner = enumerator(SequenceSource(splits=2, rows_per_second=10), clock)
    planner.restore({"0": 50, "1": 50}, [])
    assert planner.latest() == {"0": 50, "1": 50}
    clock.advance(1)
    assert planner.latest() == {"0": 55, "1": 55}


def test_a_sequence_without_an_end_is_read_in_batches():
    planner = enumerator(SequenceSource(splits=2))
    plan = planner.plan({"0": 10**12, "1": 0}, planner.latest(), 10, 10**9)
    assert values(SequenceSource(splits=2), plan.reads) == [2 * (10**12 + i) for i in range(5)] + [1, 3, 5, 7, 9]


def test_a_restart_at_any_batch_reads_the_rest():
    seed = random.randrange(10**9)
    print("seed", seed)
    draw = random.Random(seed)
    source = SequenceSource(5_000, splits=3)
    planner = enumerator(source)
    at, until, before = planner.initial(), planner.latest(), []
    while at != until:
        plan = planner.plan(at, until, draw.randint(1, 1_000), 10**9)
        before += values(source, plan.reads)
        at = plan.to
        restarted = enumerator(source)
        restarted.restore(at, [])
        assert sorted(before + read_all(source, 700, at)) == list(range(5_000))


def test_rows_of_one_read_come_in_chunks_with_their_positions():
    whole, rest = CHUNK_ROWS_MAX, 500
    source = SequenceSource(2 * whole + rest)
    planner = enumerator(source)
    [read] = planner.plan(planner.initial(), planner.latest(), 10**9, 10**10).reads
    batches = list(source.read(read))
    assert [batch.position for batch in batches] == [0, whole, 2 * whole]
    assert [batch.rows.num_rows for batch in batches] == [whole, whole, rest]
    assert batches[1].rows["value"][0].as_py() == whole


def test_the_last_values_there_can_be_are_read():
    source = SequenceSource(start=VALUE_MAX - 7, stop=VALUE_MAX, splits=2)
    assert sorted(read_all(source, 100)) == list(range(VALUE_MAX - 7, VALUE_MAX))


def test_a_later_end_keeps_every_value_in_its_split():
    first, longer = SequenceSource(100, splits=3), SequenceSource(200, splits=3)
    done = enumerator(first).latest()
    assert sorted(read_all(first, 30) + read_all(longer, 30, done)) == list(range(200))


def test_starting_positions_are_applied():
    assert read_all(SequenceSource(10, starting={"0": 7}), 100) == [7, 8, 9]


def test_another_number_of_splits_is_refused_at_restart():
    with pytest.raises(JobRefused, match=r"'numbers'.*\['0', '1'\].*\['0'\].*splits=2"):
        enumerator(SequenceSource(10)).restore({"0": 1, "1": 1}, [])


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": -1},
        {"rows": 1, "stop": 1},
        {"splits": 0},
        {"rows_per_second": 0},
        {"start": 5, "stop": 4},
        {"rows": 10, "starting": {"1": 0}},
        {"rows": 10, "starting": {"0": 11}},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(SettingsError, match="SequenceSource"):
        SequenceSource(**settings)


def test_only_a_sequence_without_an_end_and_without_a_rate_is_endless() -> None:
    assert SequenceSource().endless
    assert not SequenceSource(10).endless
    assert not SequenceSource(stop=10).endless
    assert not SequenceSource(rows_per_second=5).endless
