"""Progress of a query: PySpark's keys for each batch, counts of checkpoints by outcome, and bounded lists."""

from typing import Any

import pytest
from jobmaster_kit import plan, summing_program

from holdfast.checkpoint.outcomes import Outcome
from holdfast.clock import ManualClock
from holdfast.formats.history import CheckpointStats, TaskManagerPart
from holdfast.ids import CheckpointId
from holdfast.jobmaster.batches.progress import CHECKPOINTS_MAX, RECENT_MAX, Progress, Standing
from holdfast.jobmaster.batches.runner import BatchOutcome


def made() -> tuple[ManualClock, Progress]:
    clock = ManualClock()
    return clock, Progress("parts", summing_program(), clock, dict)


def outcome(rows: int) -> BatchOutcome:
    return BatchOutcome(rows_in=rows, rows_by_source={"numbers": rows}, rows_by_sink={"raw": rows, "summed": 2})


def stats(outcome: Outcome, **facts: Any) -> CheckpointStats:
    return CheckpointStats(CheckpointId(1), 5, 1, 0.25, 10, 100, outcome=outcome.value, **facts)


def test_a_batch_is_shown_with_its_rows_and_positions_and_the_lag_after_it() -> None:
    clock, progress = made()
    clock.advance(2.0)
    progress.batch(plan(), outcome(20), 0.5, Standing({"numbers": {"0": 7, "1": 0}}, {}))
    last = progress.last()
    assert last is not None
    assert (last["batchId"], last["numInputRows"], last["batchDuration"]) == (1, 20, 500)
    assert last["processedRowsPerSecond"] == pytest.approx(40)
    (source,) = last["sources"]
    assert (source["endOffset"], source["lag"]) == ({"0": 10, "1": 10}, {"0": 7, "1": 0})
    assert last["sink"]["numOutputRows"] == 22
    assert progress.lag() == {"numbers": {"0": 7, "1": 0}}
    assert progress.sink_rows() == {"raw": 20, "summed": 2}


def test_input_rows_a_second_count_the_wait_between_batches() -> None:
    clock, progress = made()
    progress.batch(plan(1), outcome(20), 0.5, Standing({}, {}))
    clock.advance(4.0)
    progress.batch(plan(2), outcome(20), 0.5, Standing({}, {}))
    last = progress.last()
    assert last is not None and last["inputRowsPerSecond"] == pytest.approx(5)


def test_the_list_of_batches_is_bounded_and_the_totals_go_on() -> None:
    _, progress = made()
    for number in range(RECENT_MAX + 5):
        progress.batch(plan(number), outcome(1), 0.001, Standing({}, {}))
    assert [each["batchId"] for each in progress.recent()] == list(range(5, RECENT_MAX + 5))
    assert progress.totals().batches == progress.totals().rows == RECENT_MAX + 5


@pytest.mark.parametrize(
    ("found", "counted", "expected"),
    [
        (Outcome.REFUSED, False, (0, 0, 1)),
        (Outcome.DECLINED, True, (1, 0, 0)),
        (Outcome.EXPIRED, True, (1, 0, 0)),
        (Outcome.SUBSUMED, False, (0, 1, 0)),
        (Outcome.ENDED, False, (0, 1, 0)),
    ],
)
def test_checkpoints_that_do_not_complete_count_by_their_outcome(
    found: Outcome, counted: bool, expected: tuple[int, int, int]
) -> None:
    _, progress = made()
    progress.not_completed(stats(found, counted=counted))
    totals = progress.totals()
    assert (totals.failed_checkpoints, totals.aborted_checkpoints, totals.refused_checkpoints) == expected
    assert totals.completed_checkpoints == 0
    assert [each.outcome for each in progress.outcomes()] == [found.value]


def test_a_completed_checkpoint_gives_the_sizes_and_times_of_the_metrics() -> None:
    _, progress = made()
    progress.checkpoint(stats(Outcome.COMPLETED))
    values = progress.picture().summary()
    assert values["lastCheckpointDuration"] == 250 and values["lastCheckpointFullSize"] == 100
    assert values["numberOfCompletedCheckpoints"] == 1


def test_a_restart_is_noted_with_its_time_and_reason() -> None:
    clock, progress = made()
    clock.advance(3.0)
    progress.restarted("TaskManager 1 was killed", [0, 1], 4)
    (restart,) = progress.restarts()
    assert (restart.at_s, restart.reason) == (clock.now(), "TaskManager 1 was killed")
    assert progress.picture().summary()["numRestarts"] == 1


def test_the_figures_of_checkpoints_are_bounded_and_only_the_newest_have_those_of_each_task_manager() -> None:
    _, progress = made()
    done = stats(Outcome.COMPLETED, task_managers=(TaskManagerPart(0, "here", True),))
    for _ in range(CHECKPOINTS_MAX + 5):
        progress.checkpoint(done)
    totals = progress.totals()
    assert (len(totals.checkpoints), totals.completed_checkpoints) == (CHECKPOINTS_MAX, CHECKPOINTS_MAX + 5)
    assert {each.task_managers for each in totals.checkpoints} == {()}
    assert progress.outcomes() == [done] * RECENT_MAX
