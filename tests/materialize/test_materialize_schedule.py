"""The schedule of a table's materializations, over times that are given to it."""

from holdfast.changelog.writer import LogSize
from holdfast.formats.log_objects import LogId
from holdfast.ids import NO_BATCH
from holdfast.materialize.base import Base
from holdfast.materialize.policy import HURRIED, PATIENT, MaterializationPolicy
from holdfast.materialize.schedule import Schedule

POLICY = MaterializationPolicy(log_handles_max=4, interval_s=60.0, failures_max=2, retry_delay_s=5.0)
LONG_LOG = LogSize(pieces=4, stored_bytes=0, pending_sets=0)
SHORT_LOG = LogSize(pieces=1, stored_bytes=0, pending_sets=0)


def schedule() -> Schedule:
    return Schedule(POLICY, LogId("op", "state", 0, 4), 0.0)


def due(made: Schedule, log: LogSize, now_s: float) -> bool:
    return made.due(log, Base(0, NO_BATCH), False, now_s)


def test_after_one_was_stored_the_next_is_due_after_the_interval_or_after_the_pause_by_the_size_of_the_log() -> None:
    made = schedule()
    assert due(made, LONG_LOG, 0.0)
    made.stored(0.0, 10.0, PATIENT)
    assert not due(made, LONG_LOG, 11.9), "a fifth of ten seconds is the pause"
    assert due(made, LONG_LOG, 12.0)
    assert not due(made, SHORT_LOG, 69.9)
    assert due(made, SHORT_LOG, 70.0)


def test_a_log_is_compared_with_the_stored_table_or_with_the_present_one_if_that_is_larger() -> None:
    made = Schedule(MaterializationPolicy(log_bytes_min=1, log_ratio_max=1.0), LogId("op", "state", 0, 4), 0.0)
    log = LogSize(pieces=1, stored_bytes=500, pending_sets=0, shrinks_to=0.5)
    for rows_bytes, is_due in [(0, True), (998, True), (1000, False)]:
        assert made.due(log, Base(0, NO_BATCH), False, 0.0, rows_bytes=rows_bytes) == is_due


def test_as_many_failures_in_a_row_as_are_tolerated_end_it_and_others_are_tried_again_after_the_delay() -> None:
    made = schedule()
    assert not made.failed(1.0)
    assert not due(made, SHORT_LOG, 5.9)
    assert due(made, SHORT_LOG, 6.0)
    made.stored(6.0, 7.0, PATIENT)
    assert not made.failed(8.0), "the count began anew"
    made.cancelled(9.0)
    assert made.failed(10.0), "a cancelled materialization counts as nothing"


def test_it_hurries_at_first_and_while_the_log_grows_fast_meanwhile() -> None:
    made = schedule()
    assert made.pace(0.0) is HURRIED
    made.stored(100.0, 110.0, HURRIED)
    assert made.pace(120.0) is HURRIED, "ten of twenty seconds"
    assert made.pace(200.0) is PATIENT, "ten of a hundred"


def test_an_owner_waits_for_a_follower_s_table_for_its_patience_and_for_three_cuts() -> None:
    policy = MaterializationPolicy(log_handles_max=4, interval_s=3600.0, patience_s=60.0)
    made = Schedule(policy, LogId("op", "state", 0, 4), 0.0)
    for cuts in range(3):
        assert not due(made, LONG_LOG, 300.0 * cuts), f"{cuts} cuts"
        made.cut()
    assert due(made, LONG_LOG, 900.0)
    made.taken(900.0)
    assert not due(made, LONG_LOG, 901.0)
    for _ in range(3):
        made.cut()
    assert not due(made, LONG_LOG, 960.0) and due(made, LONG_LOG, 961.0)
