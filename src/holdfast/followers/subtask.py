"""A subtask's operator whose tables have the state of a checkpoint, and are advanced to later checkpoints.

    SubtaskFollower ──follow(handles of n)──► as of n ──follow(handles of n+1)──► as of n+1 … ──► a subtask

It writes nothing, and does not know batches or the changelog: `taskmanager.hosting` adds the durable side before the
subtask processes. Tables that every subtask loads in full when it opens are filled only then, since they are small.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.failpoints import hit
from holdfast.formats.handles import MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.functions.operator import Operator
from holdfast.graph.program import Program
from holdfast.protocol.taskmanager import BaseCheckpoint, SubtaskDeployment
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import TableFollower, select
from holdfast.recovery.spans import StoredRange
from holdfast.recovery.whole import TableName
from holdfast.state.table import StateTable


@dataclass(frozen=True)
class FollowedTable:
    """A table with the state of a checkpoint, and its handle in this checkpoint."""

    log: LogId
    subtask: int
    follower: TableFollower
    handle: TableHandle

    @property
    def table(self) -> StateTable:
        return self.follower.table

    @property
    def files(self) -> dict[str, MaterializedPart]:
        """See `TableFollower.files`."""
        return self.follower.files()

    def stored(self, files: Mapping[str, MaterializedPart]) -> None:
        """See `TableFollower.stored`."""
        self.follower.stored(files)


class SubtaskFollower:
    """Used by a single thread at a time.

    Parameters
    ----------
    subtask
        The operator, its number and its key groups; the handles in it are not used.
    new_table
        Makes the operator's tables.
    """

    def __init__(
        self,
        program: Program,
        subtask: SubtaskDeployment,
        max_parallelism: int,
        new_table: Callable[..., StateTable],
        local_dir: str | None = None,
    ) -> None:
        self.subtask = subtask
        self._program = program
        self._spec = program.operators[subtask.operator]
        self._max_parallelism = max_parallelism
        self._new_table = new_table
        self._local_dir = local_dir
        self._operator: Operator | None = None
        self._tables: dict[str, TableFollower] = {}
        self.made = 0
        """Number of times that the operator was made."""

    @property
    def operator(self) -> Operator:
        """The operator, once `follow` was called."""
        assert self._operator is not None, "nothing was followed yet"
        return self._operator

    @property
    def memory_bytes(self) -> int:
        """Memory that the tables take."""
        return sum(each.table.memory_bytes for each in self._tables.values())

    def key_groups(self, table: str) -> tuple[int, int]:
        """The key groups of a table: the subtask's own, or all of them."""
        own = (self.subtask.key_group_start, self.subtask.key_group_stop)
        return self._program.key_groups(self.subtask.operator, table, own, self._max_parallelism)

    def select(self, handles: Sequence[TableHandle]) -> list[TableHandle]:
        """Choose the subtask's handles among all handles of a checkpoint. Raises `CorruptObject` if some are
        missing."""
        return [
            handle
            for table in self._spec.table_schemas()
            for handle in select(handles, self.subtask.operator, table, *self.key_groups(table))
        ]

    def ranges(self, handles: Sequence[TableHandle]) -> list[StoredRange]:
        """Return the ranges that `follow` would read now, in its order; without tables that every subtask loads in
        full."""
        found = self._missing(handles)
        if found is None:  # made anew
            found = [each.narrow(*self.key_groups(each.table)) for each in self._own(handles)]
        return [range_ for each in found for range_ in each.ranges()]

    def follow(
        self,
        handles: Sequence[TableHandle],
        fetch: ObjectCache,
        whole: Mapping[TableName, pa.RecordBatch] | None = None,
        base: BaseCheckpoint | None = None,
    ) -> None:
        """Advance all tables to the state that the handles of the checkpoint `base` describe.

        If the new log does not continue from a table's state, the operator and its tables are made anew. `whole`: the
        rows of the tables that every subtask loads in full; the caller that lets the operator process gives them, once.

        Raises
        ------
        StorageError, CorruptObject
            An object is missing or damaged; the error names the table and the object. `follow` may be called again.
        JobRefused
            A stored column has another type than declared.
        """
        if self._operator is None or self._missing(handles) is None:
            self._create()
        for name, table in self._tables.items():
            own = [each for each in self._own(handles) if each.table == name]
            rows = (whole or {}).get((self.subtask.operator, name))
            try:
                if rows is not None:
                    table.table.apply(rows, *self.key_groups(name))
                elif name not in self._spec.tables_read_whole:
                    table.follow(own, fetch)
            except (ObjectNotFound, CorruptObject) as error:
                raise type(error)(self._cannot_restore(name, base, error)) from error
            hit("taskmanager.deploy.table")

    def tables(self, handles: Sequence[TableHandle]) -> list["FollowedTable"]:
        """Return the followed tables that this subtask's owner stores, each with its handle among those of `select`.
        Tables whose state comes from several handles, or from a wider one, are left out."""
        own = self.subtask.key_group_start, self.subtask.key_group_stop
        found = []
        for name, follower in self._tables.items():
            groups = self.key_groups(name)
            of_table = [each for each in self._own(handles) if each.table == name]
            if len(of_table) != 1 or (groups != own and self.subtask.subtask):
                continue
            if (of_table[0].key_group_start, of_table[0].key_group_stop) == groups:
                log = LogId(self.subtask.operator, name, *groups)
                found.append(FollowedTable(log, self.subtask.subtask, follower, of_table[0]))
        return found

    def files(self, table: str) -> dict[str, MaterializedPart]:
        """See `TableFollower.files`."""
        return self._tables[table].files()

    def close(self) -> None:
        """Close the tables and delete their files."""
        if self._operator is not None:
            for table in self._operator.tables.values():
                table.close()
        self._operator, self._tables = None, {}

    def _own(self, handles: Sequence[TableHandle]) -> list[TableHandle]:
        """The handles of the tables that are followed, by table."""
        read_whole = self._spec.tables_read_whole
        names = [name for name in self._spec.table_schemas() if name not in read_whole]
        return [
            each for name in names for each in handles if (each.operator, each.table) == (self.subtask.operator, name)
        ]

    def _missing(self, handles: Sequence[TableHandle]) -> list[TableHandle] | None:
        """Return the handles with the ranges that must still be read; None if the operator must be made (anew)."""
        found: list[TableHandle] = []
        if self._operator is None:
            return None
        for name, table in self._tables.items():
            if name not in self._spec.tables_read_whole:
                missing = table.missing([each for each in self._own(handles) if each.table == name])
                if missing is None:
                    return None
                found += missing
        return found

    def _create(self) -> None:
        self.close()
        made = self._spec.create(self.subtask.subtask, self._max_parallelism, self._new_table)
        self._operator = made
        self.made += 1
        self._tables = {
            name: TableFollower(table, *self.key_groups(name), self._local_dir) for name, table in made.tables.items()
        }

    def _cannot_restore(self, table: str, base: BaseCheckpoint | None, error: Exception) -> str:
        """Word the error for a damaged or missing object: who needs it, and what the user can do."""
        operator = self.subtask.operator
        checkpoint = "the checkpoint" if base is None else f"checkpoint {base.checkpoint_id} (batch {base.batch})"
        return (
            f"operator {operator!r}, subtask {self.subtask.subtask}: the state table {table!r} of {checkpoint} cannot "
            f"be restored: {error}. Restore the object from a backup or the bucket's older versions (`holdfast verify` "
            f"lists all that is wrong); or give up this operator's state with job.start(drop_state=[{operator!r}])"
        )
