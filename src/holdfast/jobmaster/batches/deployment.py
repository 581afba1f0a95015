"""Assignment of subtasks to TaskManagers, with the state that each subtask is restored from."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.execution.places import owners_of
from holdfast.formats.handles import TableHandle
from holdfast.graph.keygroups import key_group_range
from holdfast.graph.program import Program
from holdfast.protocol.taskmanager import SubtaskDeployment
from holdfast.recovery.restore import select
from holdfast.recovery.spans import GroupBounds, shared_objects


@dataclass(frozen=True)
class Layout:
    """Shape of the job. Subtask i of every operator lives in the TaskManager that holds place `owners[i]`."""

    parallelism: int
    max_parallelism: int
    task_managers: int
    """Number of TaskManagers that hold subtasks."""
    standby: int = 0
    """Number of TaskManagers that hold no place until another is lost."""
    standby_state: bool = False
    """True: standbys follow the logs of places."""
    holders: tuple[int, ...] = ()
    """The TaskManager of each place; empty before the first deployment."""

    @property
    def processes(self) -> int:
        return self.task_managers + self.standby

    @property
    def owners(self) -> list[int]:
        return owners_of(self.parallelism, self.task_managers)

    def share(self, place: int) -> tuple[int, ...]:
        """The numbers of the subtasks of a place."""
        return tuple(subtask for subtask, owner in enumerate(self.owners) if owner == place)

    @property
    def hosts(self) -> list[int]:
        """The TaskManager that hosts each subtask; empty before the first deployment."""
        return [self.holders[place] for place in self.owners] if self.holders else []

    def subtasks_of(self, task_managers: Collection[int]) -> list[int]:
        """The numbers of the subtasks that these TaskManagers hold, the same for each operator."""
        return [subtask for subtask, host in enumerate(self.hosts) if host in task_managers]


class DeployedLayout:
    """The layout that was deployed last, or that is being deployed. Any thread may read it."""

    def __init__(self, layout: Layout) -> None:
        self.now = layout

    def deploying(self, holders: tuple[int, ...], parallelism: int) -> None:
        """Note the places of a deployment that begins."""
        self.now = replace(self.now, task_managers=len(holders), parallelism=parallelism, holders=holders)


def subtasks_of(place: int, layout: Layout, program: Program, handles: list[TableHandle]) -> list[SubtaskDeployment]:
    """Subtasks of a place, each with its part of a checkpoint's `handles` to restore from."""
    return share_of(layout.share(place), layout, program, handles)


def share_of(
    share: Sequence[int], layout: Layout, program: Program, handles: list[TableHandle]
) -> list[SubtaskDeployment]:
    """Subtasks by their numbers, of every operator, each with its part of a checkpoint's `handles` to restore from."""
    return [
        _subtask(operator, subtask, layout, program, handles) for operator in program.operators for subtask in share
    ]


def whole_tables(program: Program, handles: list[TableHandle]) -> list[TableHandle]:
    """Handles of the tables that every subtask loads in full when it opens."""
    wanted = {(name, table) for name, operator in program.operators.items() for table in operator.tables_read_whole}
    return [each for each in handles if (each.operator, each.table) in wanted]


def shared_objects_of(
    subtasks: Sequence[SubtaskDeployment], whole: Iterable[TableHandle], bounds: Mapping[str, GroupBounds]
) -> list[str]:
    """Return the objects that a place reads for its subtasks and for the `whole` tables, and that other places read
    too.

    `bounds` are those of all handles of the checkpoint. The key groups of a place are contiguous.
    """
    start = min((each.key_group_start for each in subtasks), default=0)
    stop = max((each.key_group_stop for each in subtasks), default=0)
    own = [handle for each in subtasks for handle in each.restore]
    return shared_objects([*own, *whole], bounds, start, stop)


def _subtask(
    operator: str, subtask: int, layout: Layout, program: Program, handles: list[TableHandle]
) -> SubtaskDeployment:
    start, stop = key_group_range(subtask, layout.parallelism, layout.max_parallelism)
    tables = program.operators[operator].table_schemas()
    restore = []
    for table in tables:
        groups = program.key_groups(operator, table, (start, stop), layout.max_parallelism)
        restore += select(handles, operator, table, *groups)
    return SubtaskDeployment(operator, subtask, start, stop, restore)
