"""Reads of a running job's state by key: a single call to the TaskManager that owns the key.

    key ──hash──► key group ──► subtask ──► the TaskManager that holds its place ──read_state──► rows, and their batch

Threads of users make these calls at any time; no thread of the JobMaster waits for a read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.graph.keygroups import subtask_of
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.batches.deployment import DeployedLayout
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.protocol.live_reads import StateRead, packed, unpacked
from holdfast.state.changes import stored_schema
from holdfast.state.keys import encode_keys, key_groups
from holdfast.stored_state.states import ReadableState, find_state, shown

BATCH = b"batch"
"""Key in the schema metadata of an answer: the number of the batch after which the rows had these values."""


class LiveReads:
    """Reads rows of a running job from the TaskManagers of the layout that is deployed."""

    def __init__(self, job: StartedJob, task_managers: TaskManagers, deployed: DeployedLayout) -> None:
        self._job, self._task_managers, self._deployed = job, task_managers, deployed

    def read(self, operator: str, state: str | None, key: Mapping[str, Any]) -> pa.Table:
        """Return the committed rows of a key.

        Raises
        ------
        HoldfastError
            There is no operator, state or key of that kind, or it cannot be read by key.
        TaskManagerLost
            The owner has ended, and the job goes back to a checkpoint: ask again.
        """
        spec = self._job.program.operators.get(operator)
        if spec is None:
            there = ", ".join(map(repr, self._job.program.operators)) or "none"
            raise HoldfastError(f"job {self._job.settings.name!r} has no operator {operator!r}; it has {there}")
        schemas = spec.table_schemas()
        found = find_state(operator, schemas, state)
        if not found.has_keys or found.kind == "broadcast":
            raise HoldfastError(
                f"state {found.name!r} of operator {operator!r} does not belong to single keys; read a checkpoint: "
                "hf.read_state(storage, operator, state)"
            )
        table = schemas[found.table]
        stored = stored_schema(table.keys, table.values)
        if not set(spec.declared_keys) <= set(stored.names):
            raise HoldfastError(
                f"operator {operator!r} keeps state for windows ({', '.join(spec.declared_keys)}); it cannot be read "
                "by key; read all of a checkpoint: hf.read_state(storage, operator)"
            )
        row = _key_row(operator, key, spec.declared_keys, stored)
        answer = self._ask(operator, found, row)
        rows = shown(unpacked(answer.rows), found)
        return pa.Table.from_batches([rows]).replace_schema_metadata({BATCH: str(answer.batch).encode()})

    def _ask(self, operator: str, state: ReadableState, row: pa.RecordBatch) -> Any:
        layout = self._deployed.now
        if not layout.holders:
            raise HoldfastError(f"job {self._job.settings.name!r} restores its state; ask again once it runs")
        group = int(key_groups(encode_keys(row, row.schema.names), layout.max_parallelism)[0])
        subtask = subtask_of(group, layout.parallelism, layout.max_parallelism)
        gateway = self._task_managers.gateway(layout.hosts[subtask])
        return gateway.read_state(StateRead(operator, subtask, state.table, packed(row)))


def _key_row(operator: str, key: Mapping[str, Any], columns: Sequence[str], stored: pa.Schema) -> pa.RecordBatch:
    """Make a row of the key columns, in their stored types."""
    if key.keys() != set(columns):
        raise HoldfastError(
            f"operator {operator!r} has the key columns {', '.join(columns)}; the key names {', '.join(key) or 'none'}"
        )
    try:
        arrays = [pa.array([key[name]]).cast(stored.field(name).type) for name in columns]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise HoldfastError(f"operator {operator!r}: the key {dict(key)!r} is none of its keys: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, list(columns))
