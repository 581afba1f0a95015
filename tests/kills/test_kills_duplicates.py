"""Tasks that run twice, are retried, or are left over from a run that is no more: they change nothing. In process."""

import random
from pathlib import Path
from unittest import mock

import pytest
from kills_in_process import Driver
from kills_pipelines import Shape, check

from holdfast import failpoints
from holdfast.exchange.task import UnitResult
from holdfast.jobmaster.processes.cluster import LevelRun, ProcessStarter
from holdfast.protocol.taskmanager import Registration
from holdfast.testing.local import LocalCluster
from sampling import some

SHAPES = [
    Shape("every", "delta", rows=1200, rows_per_batch=60, interval_s=0.005),
    Shape("every", "parquet", rows=1200, rows_per_batch=60, interval_s=0.005),
    Shape("chain", "delta", rows=1200, rows_per_batch=60, interval_s=0.005),
]


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


class TwiceCluster(LocalCluster):
    """Every unit runs two or three times, as under speculation; any of the attempts may be the attempt that counts."""

    rng = random.Random(7)

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        attempts = [super(TwiceCluster, self).run_level(run) for _ in range(self.rng.randint(2, 3))]
        return [self.rng.choice(results) for results in zip(*attempts, strict=True)]


class HauntedCluster(LocalCluster):
    """Before each level, the tasks of all earlier ones that are left over run once more."""

    left_over_max = 6

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.left_over: list[LevelRun] = []
        self.failures: list[str] = []

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        for old in self.left_over:
            for result in super().run_level(old):
                self.failures += [result.failure.kind] if result.failure is not None else []
        self.left_over = [*self.left_over[-self.left_over_max :], run]
        return super().run_level(run)


def run_on(cluster: type[LocalCluster], shape: Shape, folder: Path) -> list[LocalCluster]:
    made: list[LocalCluster] = []

    def make(*args: object) -> LocalCluster:
        made.append(cluster(*args))
        return made[-1]

    with mock.patch("holdfast.testing.run.LocalCluster", make):
        Driver(shape, folder).start().finish()
    return made


@pytest.mark.parametrize("shape", some(SHAPES, 1), ids=lambda shape: f"{shape.emit}-{shape.sink}")
def test_a_unit_that_runs_several_times_side_by_side_counts_once(shape, tmp_path):
    run_on(TwiceCluster, shape, tmp_path)
    check(shape, tmp_path)


@pytest.mark.parametrize("shape", some(SHAPES, 0, 2), ids=lambda shape: f"{shape.emit}-{shape.sink}")
def test_tasks_left_over_from_earlier_batches_and_runs_change_nothing(shape, tmp_path):
    failpoints.arm("taskmanager.process.after", "raise:TaskManagerLost@9")
    failpoints.arm("jobmaster.process.after", "raise:StorageError@21")
    [cluster] = run_on(HauntedCluster, shape, tmp_path)
    check(shape, tmp_path)
    assert "StaleCall" in cluster.failures, "nothing was left over"


class RetryingCluster(LocalCluster):
    """Spark may start the task of a TaskManager again, with the same number: the JobMaster refuses that."""

    refused = 0

    def start(self, start: ProcessStarter) -> None:
        super().start(start)
        again = self._gateway.register(Registration(start.process, "in process", "again"))
        RetryingCluster.refused += not again


def test_a_task_manager_whose_spark_task_was_retried_is_refused(tmp_path):
    failpoints.arm("taskmanager.process.after", "raise:TaskManagerLost@9")
    run_on(RetryingCluster, SHAPES[0], tmp_path)
    check(SHAPES[0], tmp_path)
    assert RetryingCluster.refused >= 3, "each start was to be tried twice"
