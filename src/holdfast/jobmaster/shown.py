"""The processes of a job as people are shown them."""

from collections.abc import Mapping
from typing import Any

from holdfast.ids import ProcessId
from holdfast.jobmaster.processes import Processes
from holdfast.jobmaster.taskmanagers import TaskManagers
from holdfast.observe.view import ProcessView


def processes_now(
    task_managers: TaskManagers, senders: Processes[Any], reported: Mapping[int, Mapping[str, float]]
) -> tuple[ProcessView, ...]:
    """Processes that serve now, with the last metrics of each TaskManager that holds a place."""
    holders = {each.task_manager for each in task_managers.deployed()}

    def shown(process: ProcessId, address: str, is_standby: bool, metrics: Mapping[str, float]) -> ProcessView:
        return ProcessView(process.role.value, process.number, process.incarnation, address, metrics, is_standby)

    views = [
        shown(process, address, process.number not in holders, reported.get(process.number, {}))
        for process, address in task_managers.addresses()
    ]
    return (*views, *(shown(process, address, False, {}) for process, address in senders.addresses()))
