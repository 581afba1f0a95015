"""When failed checkpoints make the job restart."""

from holdfast.checkpoint.failures import FailureManager
from holdfast.ids import CheckpointId
from holdfast.settings import CheckpointConfig


def test_one_checkpoint_counts_once() -> None:
    failures = FailureManager()
    failures.failed(CheckpointId(1), "cannot", counted=True)
    failures.failed(CheckpointId(1), "cannot", counted=True)
    assert failures.verdict(0, CheckpointConfig(tolerable_failed_checkpoints=1)) is None
    failures.failed(CheckpointId(2), "cannot", counted=True)
    assert "2 checkpoints failed in a row" in str(failures.verdict(0, CheckpointConfig(tolerable_failed_checkpoints=1)))


def test_none_is_tolerated_by_default() -> None:
    failures = FailureManager()
    assert failures.verdict(0, CheckpointConfig()) is None
    failures.failed(CheckpointId(1), "cannot", counted=True)
    assert failures.verdict(0, CheckpointConfig()) is not None


def test_ids_at_or_below_the_last_success_do_not_count() -> None:
    failures = FailureManager()
    failures.completed(CheckpointId(5))
    failures.failed(CheckpointId(4), "cannot", counted=True)
    failures.failed(CheckpointId(5), "cannot", counted=True)
    assert failures.verdict(0, CheckpointConfig()) is None


def test_a_success_starts_the_count_anew() -> None:
    failures = FailureManager()
    failures.failed(CheckpointId(1), "cannot", counted=True)
    failures.completed(CheckpointId(2))
    failures.failed(CheckpointId(3), "cannot", counted=True)
    assert failures.verdict(0, CheckpointConfig(tolerable_failed_checkpoints=1)) is None
    assert "1 checkpoints failed" in str(failures.verdict(0, CheckpointConfig()))


def test_no_success_within_the_time_limit_counts_whatever_the_reason() -> None:
    config = CheckpointConfig(tolerable_failed_checkpoints=99, tolerable_failure_timeout="1min")
    failures = FailureManager()
    assert failures.verdict(1000, config) is None
    failures.triggered(100)
    failures.triggered(140)
    assert failures.verdict(159, config) is None
    assert "no checkpoint completed for 60 s" in str(failures.verdict(160, config))


def test_a_job_that_has_nothing_to_checkpoint_does_not_run_out_of_time() -> None:
    config = CheckpointConfig(tolerable_failure_timeout="1min")
    failures = FailureManager()
    failures.triggered(0)
    failures.completed(CheckpointId(1))
    assert failures.verdict(1e6, config) is None
