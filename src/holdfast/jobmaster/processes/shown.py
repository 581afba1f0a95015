"""The processes and the dead letters of a job, in the form that people see."""

from collections.abc import Mapping
from typing import Any

from holdfast.graph.program import DEAD_LETTERS, Program
from holdfast.hidden import hide
from holdfast.ids import ProcessId
from holdfast.jobmaster.processes.processes import Processes
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.observe.view import FollowerView, ProcessView, Restoring


def dead_letters_of(program: Program) -> str | None:
    """URL of the folder with the dead letters, without secrets; None if bad rows end the query."""
    return None if program.dead_letters is None else hide(str(getattr(program.dead_letters, "url", DEAD_LETTERS)))


def restoring_now(task_managers: TaskManagers) -> Restoring | None:
    """Add up the restores under way; None if there is none, or none has taken long enough to be reported."""
    restores = task_managers.restores()
    if not restores:
        return None
    return Restoring(
        sum(each.subtasks for each in restores),
        sum(each.restored for each in restores),
        sum(each.size_bytes for each in restores),
    )


def processes_now(
    task_managers: TaskManagers,
    senders: Processes[Any],
    reported: Mapping[int, Mapping[str, float]],
    followers: Mapping[ProcessId, FollowerView],
) -> tuple[ProcessView, ...]:
    """Processes that serve now, with the last metrics of each TaskManager that holds a place."""
    holders = {each.task_manager for each in task_managers.deployed()}
    leaving = {**task_managers.leaving(), **senders.leaving()}

    def shown(process: ProcessId, address: str, is_standby: bool, metrics: Mapping[str, float]) -> ProcessView:
        follower = followers.get(process) if is_standby else None
        return ProcessView(
            process.role.value,
            process.number,
            process.incarnation,
            address,
            metrics,
            is_standby,
            follower,
            leaving.get(process, ""),
        )

    views = [
        shown(process, address, process.number not in holders, reported.get(process.number, {}))
        for process, address in task_managers.addresses()
    ]
    return (*views, *(shown(process, address, False, {}) for process, address in senders.addresses()))
