"""A single process may register as a TaskManager: the process of the incarnation that was started last."""

from typing import Any

from holdfast.clock import ManualClock
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.processes.cluster import ProcessStarter
from holdfast.jobmaster.processes.shown import restoring_now
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.protocol.taskmanager import Registration, RestoreProgress


class NotingCluster:
    """Starts nothing."""

    senders = 1
    residents = 0
    heartbeats = False

    def __init__(self) -> None:
        self.started: list[ProcessStarter] = []

    def start(self, start: ProcessStarter) -> None:
        self.started.append(start)

    def gateway(self, route: object) -> Any:
        return None


def process(incarnation: int) -> ProcessId:
    return ProcessId(Role.TASK_MANAGER, 0, incarnation)


def started() -> tuple[NotingCluster, TaskManagers]:
    cluster: Any = NotingCluster()
    made = TaskManagers(cluster, 1, 1, ManualClock(), lambda event: None)
    made.start(process(1))
    return cluster, made


def test_a_registration_may_be_repeated_by_the_process_that_did_not_hear_the_answer() -> None:
    _, managers = started()
    registration = Registration(process(1), "grpc://here:1", "first")
    assert managers.register(registration)
    assert managers.register(registration)
    assert [route.incarnation for route in managers.routes()] == [1]


def test_another_process_with_the_same_number_is_refused_even_at_the_same_address() -> None:
    _, managers = started()
    assert managers.register(Registration(process(1), "grpc://here:1", "first"))
    assert not managers.register(Registration(process(1), "grpc://here:1", "second"))


def test_an_incarnation_that_has_ended_is_refused_whoever_comes() -> None:
    cluster, managers = started()
    registration = Registration(process(1), "grpc://here:1", "first")
    assert managers.register(registration)
    cluster.started[0].ended(process(1), "killed")
    assert not managers.register(registration)
    managers.start(process(2))
    assert not managers.register(registration)
    assert managers.register(Registration(process(2), "grpc://here:1", "next"))


def test_how_far_restores_are_is_told_until_they_end_or_their_process_does() -> None:
    cluster, managers = started()
    assert not managers.restoring(RestoreProgress(process(1), 4, 1, 100))  # it has not registered
    assert managers.register(Registration(process(1), "grpc://here:1", "first"))
    assert restoring_now(managers) is None
    assert managers.restoring(RestoreProgress(process(1), 4, 1, 1_200_000_000))
    assert str(restoring_now(managers)) == "1 of 4 subtasks, 1.2 GB"
    assert managers.restoring(RestoreProgress(process(1), 4, 4, 2_000_000_000))
    assert restoring_now(managers) is None
    assert managers.restoring(RestoreProgress(process(1), 4, 2, 100))
    cluster.started[0].ended(process(1), "killed")
    assert restoring_now(managers) is None
    assert not managers.restoring(RestoreProgress(process(1), 4, 3, 100))
