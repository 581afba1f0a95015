"""What a deployment makes: the subtasks with their restored tables, and everything that serves them.

Built whole or not at all; `Hosted.close` lets go of it. Restores run side by side, and an object is fetched
once for all subtasks. The program comes from the authenticated JobMaster: the only bytes unpickled here.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cloudpickle
import pyarrow as pa

from holdfast.changelog.uploader import Uploader
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, JobRefused
from holdfast.graph.program import Program
from holdfast.materialize.keyed_state import KeyedState
from holdfast.recovery.restore import ObjectCache, restore_table, select
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.checkpoints import CheckpointWork
from holdfast.taskmanager.protocol import Deployment, JobMasterGateway, SubtaskDeployment
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.subtask import Subtask


@dataclass
class Hosted:
    """The subtasks by (operator, subtask), and what they share."""

    program: Program
    subtasks: dict[tuple[str, int], Subtask]
    uploader: Uploader
    checkpoints: CheckpointWork

    def of_level(self, level: int) -> list[Subtask]:
        """Those whose operators process at `level`."""
        levels = self.program.operator_levels
        return [each for each in self.subtasks.values() if levels[each.name] == level]

    def output_schema(self, operator: str) -> pa.Schema:
        spec = self.program.operators.get(operator)
        if spec is None:
            raise HoldfastError(f"operator {operator!r} is not in this job; it has {sorted(self.program.operators)}")
        return spec.output_schema

    def held(self) -> list[str]:
        """Objects that live logs and materializations hold."""
        return [name for each in self.subtasks.values() for name in each.held()]

    def close(self) -> None:
        self.checkpoints.close()
        for each in self.subtasks.values():
            each.close()
        self.uploader.close()
