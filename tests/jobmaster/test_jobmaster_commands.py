"""Commands of the execution machine, as they are carried out: a failover is a single value all the way."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

from holdfast.execution import events as ev
from holdfast.execution.failover import Cause, Failover, Why
from holdfast.ids import Incarnation, JournalNumber, ProcessId, Role, RunNumber
from holdfast.jobmaster.checkpoints.promises import RestartCheckpoint
from holdfast.jobmaster.commands import Commands

RECORDS = {JournalNumber(3): "older", JournalNumber(5): "newest"}
LOST = Failover((Cause(Why.LOST, "killed", ProcessId(Role.TASK_MANAGER, 1, Incarnation(4))),))


def parts_with(promise: "Future[RestartCheckpoint]") -> Any:
    """Parts that note what they are told, and do work at once."""

    def begin(work: Callable[[], Any]) -> None:
        work()

    parts = Mock()
    parts.taken.base_number = JournalNumber(5)
    parts.conductor.begin = begin
    parts.control.record = RECORDS.get
    parts.control.begin_failover = Mock(return_value=promise)
    return parts


def test_a_deployment_restores_the_base_that_its_command_names() -> None:
    parts = parts_with(Future())
    commands = Commands(parts, Future(), Mock())
    deploy = ev.Deploy(RunNumber(2), JournalNumber(3), {1: Incarnation(5)}, (1,), LOST)
    commands.execute(deploy)
    parts.work.deploy.assert_called_once_with(deploy, RestartCheckpoint(JournalNumber(3), RECORDS[JournalNumber(3)]))  # type: ignore[arg-type]
    assert commands.base == 3


def test_the_coordinator_gets_the_failover_and_the_machine_its_base() -> None:
    promise: Future[RestartCheckpoint] = Future()
    parts = parts_with(promise)
    Commands(parts, Future(), Mock()).execute(ev.AskBase(LOST))
    parts.control.begin_failover.assert_called_once_with(LOST)
    promise.set_result(RestartCheckpoint(JournalNumber(5), None))
    [told] = parts.facts.tell.call_args.args
    assert isinstance(told, ev.BaseChosen) and told.base == 5


def test_a_loss_is_explained_later_only_if_it_is_the_loss_of_that_process() -> None:
    [cause] = LOST.causes
    other = ProcessId(Role.TASK_MANAGER, 1, Incarnation(5))
    assert str(cause.explained(other, "out of memory")) == str(cause) == "TaskManager 1 ended: killed"
    assert cause.process is not None
    assert str(cause.explained(cause.process, "out of memory")) == "TaskManager 1 ended: out of memory"
    said = Cause(Why.FAILED, "TaskManager 1 ended: killed")
    assert said.explained(cause.process, "out of memory") is said
