"""A batch, level by level: its calls in order, its counts, and the facts that a failed batch leaves behind."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from jobmaster_kit import NotedTaskManagers, plan, processed, summing_program

from holdfast.availability import Refusal, SnapshotAvailability
from holdfast.clock import ManualClock
from holdfast.errors import BadRecord, CheckpointFailed, TaskManagerLost
from holdfast.exchange.task import OutputResult, UnitResult
from holdfast.failure import Failure
from holdfast.graph.plan import Unit
from holdfast.graph.program import DEAD_LETTERS, OperatorOrigin, OperatorTarget, SourceOrigin
from holdfast.ids import Epoch, RunNumber
from holdfast.jobmaster.batches.runner import BatchOutcome, BatchRunner
from holdfast.jobmaster.processes.cluster import LevelRun
from holdfast.protocol.streams import Sent
from holdfast.protocol.taskmanager import CommitAnswer, ExchangeRoutes, ProcessResult
from holdfast.sources.base import BadRow
from holdfast.storage.store import open_store

PROGRAM = summing_program()
Answer = Callable[[Unit], UnitResult]


def worked_off(unit: Unit) -> UnitResult:
    """Ten rows of each unit: sent to both TaskManagers, or staged as a committable that names the unit."""
    outputs = []
    for output in PROGRAM.legs[unit.leg].outputs:
        if isinstance(output.target, OperatorTarget):
            outputs.append(OutputResult(Sent.of([(0, 4, 7), (1, 6, 9)])))
        else:
            name = f"{output.target.sink}-{unit.unit}".encode()
            outputs.append(OutputResult(committables=(name,), staged=10))
    return UnitResult(unit.unit, unit.leg, f"attempt-{unit.unit}", rows=10, outputs=tuple(outputs))


class Running:
    """A runner with two TaskManagers, each with a subtask of `sums`, and senders that answer by `answer`."""

    def __init__(self, answer: Answer = worked_off, before_commit: Callable[[], None] = lambda: None) -> None:
        self.levels: list[LevelRun] = []
        self.task_managers = NotedTaskManagers(2)
        for number, gateway in self.task_managers.gateways.items():
            gateway.process.return_value = ProcessResult([processed(number, rows_out=3 + number)])
            gateway.commit.return_value = CommitAnswer({"rows": float(number)})
        self.answer = answer
        senders: Any = Mock(run_level=self._run_level, side_by_side=2)
        managers: Any = self.task_managers
        routes = ExchangeRoutes("0" * 32, managers.deployed(), [0, 1], 128)
        store = open_store("memory://batches")
        self.runner = BatchRunner(
            "0" * 32,
            Epoch(1),
            RunNumber(5),
            PROGRAM,
            senders,
            managers,
            routes,
            store,
            ManualClock(),
            True,
            before_commit,
        )
        self.outcome = BatchOutcome()

    def _run_level(self, run: LevelRun) -> list[UnitResult]:
        self.levels.append(run)
        return [self.answer(unit) for unit in run.units]


def test_level_0_reads_splits_and_level_1_pulls_the_rows_that_subtasks_put_out() -> None:
    running = Running()
    running.runner.execute(plan(), running.outcome)
    pushed, pulled = running.levels
    assert (pushed.request.level, pulled.request.level) == (0, 1)
    assert all(isinstance(PROGRAM.legs[unit.leg].origin, SourceOrigin) and unit.reads for unit in pushed.units)
    assert all(PROGRAM.legs[unit.leg].origin == OperatorOrigin("sums") for unit in pulled.units)
    assert sorted(subtask for unit in pulled.units for subtask in unit.subtasks) == [0, 1]
    assert {run.request.run for run in running.levels} == {5}


def test_each_task_manager_hears_of_the_attempts_that_sent_rows_to_it() -> None:
    running = Running()
    running.runner.execute(plan(), running.outcome)
    for number, gateway in running.task_managers.gateways.items():
        request = gateway.process.call_args.args[0]
        assert (request.run, request.batch, request.level) == (5, 1, 1)
        assert [stream.rows for stream in request.streams] == [(4, 6)[number]] * 2


def test_rows_of_a_source_that_two_branches_read_count_once() -> None:
    running = Running()
    running.runner.execute(plan(), running.outcome)
    assert running.outcome.rows_in == 20
    assert running.outcome.rows_by_sink == {"raw": 20, "summed": 10}


def test_files_of_a_batch_that_fails_are_known_so_that_they_can_be_dropped() -> None:
    def answer(unit: Unit) -> UnitResult:
        if unit.reads[0].split == "1":
            return UnitResult(unit.unit, unit.leg, "attempt", failure=Failure("BadRecord", "row 3 is null"))
        return worked_off(unit)

    running = Running(answer)
    with pytest.raises(BadRecord, match="row 3 is null"):
        running.runner.execute(plan(), running.outcome)
    assert running.outcome.committables["raw"] == [b"raw-0"]
    for gateway in running.task_managers.gateways.values():
        gateway.process.assert_not_called()


def test_bad_rows_of_operators_are_staged_as_dead_letters() -> None:
    running = Running()
    bad = BadRow("", "", "", "it raised", "{}", "sums")
    running.task_managers.gateways[1].process.return_value = ProcessResult([processed(1, 4, bad=[bad])])
    running.runner.execute(plan(), running.outcome)
    assert running.outcome.bad_rows == 1
    assert running.outcome.committables[DEAD_LETTERS]


def test_a_commit_collects_metrics_and_refusals_of_all_task_managers() -> None:
    running = Running()
    refusal = Refusal("operator 'sums'", SnapshotAvailability.SOFT_FAILURE)
    running.task_managers.gateways[1].commit.return_value = CommitAnswer({"rows": 1.0}, [refusal])
    running.runner.commit(plan(), running.outcome)
    assert running.outcome.metrics == {0: {"rows": 0.0}, 1: {"rows": 1.0}}
    assert running.outcome.refusals == [refusal]


def test_an_error_before_the_first_commit_leaves_the_batch_to_be_undone() -> None:
    def refused() -> None:
        raise CheckpointFailed("the tables were not captured")

    running = Running(before_commit=refused)
    with pytest.raises(CheckpointFailed):
        running.runner.commit(plan(), running.outcome)
    assert not running.outcome.committing
    for gateway in running.task_managers.gateways.values():
        gateway.commit.assert_not_called()


def test_an_error_in_a_commit_says_that_others_may_have_committed() -> None:
    running = Running()
    running.task_managers.gateways[1].commit.side_effect = TaskManagerLost("gone")
    with pytest.raises(TaskManagerLost):
        running.runner.commit(plan(), running.outcome)
    assert running.outcome.committing


def test_the_newest_event_time_of_a_split_counts_whatever_order_units_end_in() -> None:
    outcome = BatchOutcome()
    outcome.note_event_times("w", {"a": 5, "b": 1})
    outcome.note_event_times("w", {"a": 3, "c": 2})
    assert outcome.event_times == {"w": {"a": 5, "b": 1, "c": 2}}
