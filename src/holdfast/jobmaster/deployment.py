"""Which TaskManager hosts which subtask, and what each is restored from."""

from dataclasses import dataclass

from holdfast.changelog.handles import Manifest, TableHandle
from holdfast.graph.keygroups import key_group_range
from holdfast.graph.program import Program
from holdfast.recovery.restore import select
from holdfast.taskmanager.protocol import BaseCheckpoint, ChangelogSettings, Deployment, SubtaskDeployment


@dataclass(frozen=True)
class Layout:
    """The job's shape. Subtask i of every operator lives in TaskManager `owners[i]`."""

    parallelism: int
    max_parallelism: int
    task_managers: int

    @property
    def owners(self) -> list[int]:
        if not self.task_managers:
            return []
        return [subtask * self.task_managers // self.parallelism for subtask in range(self.parallelism)]


def deployment_for(
    task_manager: int,
    incarnation: int,
    layout: Layout,
    program: Program,
    shipped: bytes,
    manifests: list[Manifest],
    job_id: str,
    epoch: int,
    run: int,
    first_batch: int,
    changelog: ChangelogSettings,
    base: BaseCheckpoint | None,
) -> Deployment:
    """What one TaskManager hosts from now on."""
    handles = [handle for manifest in manifests for handle in manifest.tables]
    own = [subtask for subtask, owner in enumerate(layout.owners) if owner == task_manager]
    return Deployment(
        job_id=job_id,
        epoch=epoch,
        run=run,
        task_manager=task_manager,
        incarnation=incarnation,
        program=shipped,
        parallelism=layout.parallelism,
        max_parallelism=layout.max_parallelism,
        subtasks=[_subtask(name, subtask, layout, program, handles) for name in program.operators for subtask in own],
        first_batch=first_batch,
        changelog=changelog,
        base=base,
    )


def _subtask(
    operator: str, subtask: int, layout: Layout, program: Program, handles: list[TableHandle]
) -> SubtaskDeployment:
    start, stop = key_group_range(subtask, layout.parallelism, layout.max_parallelism)
    tables = program.operators[operator].table_schemas()
    restore = [handle for table in tables for handle in select(handles, operator, table, start, stop)]
    return SubtaskDeployment(operator, subtask, start, stop, restore)
