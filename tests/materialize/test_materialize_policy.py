"""When a table is materialized."""

import pytest

from holdfast.changelog.writer import LogSize
from holdfast.formats.log_objects import LogId
from holdfast.materialize.policy import HURRIED, PATIENT, MaterializationPolicy

POLICY = MaterializationPolicy(log_handles_max=4, log_ratio_max=2.0, log_bytes_min=100, interval_s=60.0)


def due(
    pieces: int = 1,
    stored_bytes: int = 0,
    pending: int = 0,
    table_bytes: int = 0,
    now_s: float = 0.0,
    policy: MaterializationPolicy = POLICY,
    incremental: bool = False,
    growth: float = 0.0,
    settled: bool = False,
) -> bool:
    return policy.due(LogSize(pieces, stored_bytes, pending), table_bytes, incremental, now_s, 60.0, growth, settled)


def test_nothing_new_is_never_materialized():
    assert not due(pieces=0, now_s=1e9)


def test_it_is_due_by_the_number_of_handles():
    assert not due(pieces=3)
    assert due(pieces=4)


def test_it_is_due_by_the_ratio_of_log_to_table_but_not_for_a_small_log():
    assert not due(stored_bytes=100)
    assert due(stored_bytes=101)
    assert not due(stored_bytes=400, table_bytes=200)
    assert due(stored_bytes=401, table_bytes=200)


def test_it_is_due_as_early_as_a_log_that_goes_on_growing_needs_to_keep_to_the_ratio():
    assert not due(stored_bytes=100, table_bytes=100, growth=1.0)
    assert due(stored_bytes=101, table_bytes=100, growth=1.0)


def test_it_is_due_a_little_earlier_when_files_have_just_been_merged_but_not_for_a_small_log():
    assert not due(stored_bytes=301, table_bytes=200)
    assert due(stored_bytes=301, table_bytes=200, settled=True)
    assert not due(stored_bytes=300, table_bytes=200, settled=True)
    assert not due(stored_bytes=100, settled=True)


def test_a_materialization_hurries_only_where_the_log_grows_fast_meanwhile():
    assert POLICY.pace(0.0, PATIENT) == POLICY.pace(0.5, PATIENT) == PATIENT
    assert POLICY.pace(0.6, PATIENT) == HURRIED


def test_materializations_hurry_until_the_log_grows_slowly_by_how_long_hurried_ones_take():
    assert POLICY.pace(0.3, HURRIED) == HURRIED
    assert POLICY.pace(0.2, HURRIED) == PATIENT


def test_the_first_materialization_hurries():
    assert POLICY.pace(0.0, None) == HURRIED


def test_a_table_of_which_only_new_files_are_stored_is_due_earlier_than_one_that_is_stored_whole():
    policy = MaterializationPolicy(log_bytes_min=10)
    assert not due(stored_bytes=1000, table_bytes=1000, policy=policy)
    assert due(stored_bytes=1001, table_bytes=1000, policy=policy)
    assert not due(stored_bytes=90, table_bytes=1000, policy=policy, incremental=True)
    assert due(stored_bytes=91, table_bytes=1000, policy=policy, incremental=True)


def test_a_materialization_that_took_long_is_followed_by_a_longer_pause_but_not_longer_than_the_interval():
    assert POLICY.pause_s(0.5, PATIENT) == pytest.approx(0.1)
    assert POLICY.pause_s(1000.0, PATIENT) == 60.0
    assert POLICY.pause_s(1000.0, HURRIED) == 0.0


def test_it_is_due_by_time_also_for_what_was_never_persisted():
    assert not due(now_s=59.0)
    assert due(now_s=60.0)
    assert due(pieces=0, pending=1, now_s=60.0, table_bytes=0)


def test_a_table_that_is_stored_whole_is_due_by_time_once_its_log_is_as_large():
    policy = MaterializationPolicy(interval_s=60.0)
    assert not due(stored_bytes=999, table_bytes=1000, policy=policy, now_s=60.0)
    assert due(stored_bytes=1000, table_bytes=1000, policy=policy, now_s=60.0)
    assert not due(stored_bytes=1000, table_bytes=1000, policy=policy, now_s=59.0)
    assert not due(pieces=0, pending=1, table_bytes=1000, policy=policy, now_s=60.0)
    assert due(stored_bytes=10, table_bytes=1000, policy=policy, now_s=60.0, incremental=True)


def test_the_number_of_pieces_is_no_reason_while_they_are_merged():
    assert due(pieces=4)
    assert not POLICY.due(LogSize(4, 10, 0), 1000, False, 0.0, 60.0, 0.0, False, merges=True)
    assert POLICY.merge_frees_min == 1
    assert MaterializationPolicy(log_handles_max=3).merge_frees_min == 0


def test_first_ones_are_spread_over_the_interval_and_the_same_at_each_start():
    logs = [LogId("op", "state", start, start + 1) for start in range(200)]
    first = [POLICY.first_s(log, 10.0) for log in logs]
    assert first == [POLICY.first_s(log, 10.0) for log in logs]
    assert 10.0 < min(first) < 20.0
    assert 60.0 < max(first) <= 70.0
