"""Plans: work divided among senders, and splits that are left where they were."""

import random

from holdfast.graph.plan import PIECES_PER_UNIT_MAX, ROWS_PER_UNIT_MIN, Plan, divide, group_reads
from holdfast.ids import BatchNumber
from holdfast.sources.base import SplitRead

MANY = 10 * ROWS_PER_UNIT_MIN


def test_pieces_are_divided_without_gaps_in_order_and_into_no_more_units_than_allowed() -> None:
    for seed in range(500):
        rng = random.Random(seed)
        rows = [rng.choice([0, 1, MANY, rng.randrange(10_000)]) for _ in range(rng.randrange(60))]
        units = rng.randrange(1, 12)
        parts = divide(rows, units)
        assert [place for part in parts for place in part] == list(range(len(rows))), f"seed {seed}"
        assert len(parts) <= units and all(len(part) for part in parts), f"seed {seed}"


def test_units_have_about_equal_rows() -> None:
    parts = divide([MANY] * 12, 4)
    assert [len(part) for part in parts] == [3, 3, 3, 3]


def test_few_rows_make_a_single_unit_however_many_senders_there_are() -> None:
    assert divide([1] * 4, 4) == [range(4)]
    assert len(divide([ROWS_PER_UNIT_MIN] * 2, 4)) == 2


def test_many_small_pieces_are_shared_since_each_takes_time_to_begin() -> None:
    assert len(divide([1] * (3 * PIECES_PER_UNIT_MAX), 4)) == 3


def test_nothing_to_read_makes_no_unit() -> None:
    assert divide([], 4) == []
    assert group_reads([], 4) == []


def test_reads_of_unknown_size_count_as_a_unit_each() -> None:
    reads = [SplitRead(str(split), 0, None) for split in range(4)]
    assert group_reads(reads, 2) == [reads[:2], reads[2:]]


def plan(**facts: object) -> Plan:
    start, to = {"in": {"a": 1, "b": 2}}, {"in": {"a": 5, "b": 2, "new": 3}}
    given: dict = {"start": start, "to": to, "reads": {}, **facts}
    return Plan(BatchNumber(1), 0, **given)


def test_a_split_that_failed_stays_where_it_was_and_a_new_one_is_not_there() -> None:
    assert plan().without([("in", "a"), ("in", "new")]).to == {"in": {"a": 1, "b": 2}}
    assert plan().without([("in", "a")]).to == {"in": {"a": 1, "b": 2, "new": 3}}


def test_a_batch_is_progress_if_a_source_moves_or_the_input_is_declared_complete() -> None:
    assert plan().progress
    still = plan().without([("in", "a"), ("in", "new")])
    assert not still.progress
    assert plan(to={"in": {"a": 1, "b": 2}}, drained=True).progress
