"""A subtask: an operator's instance, its state tables, and the transaction of a batch on them.

    idle ──process──► in batch ──commit──► idle          process raised: undone at once, waits for undo
                         └──────undo─────► idle

Invariants: a batch is committed once or not at all. A commit that fails half way makes the subtask broken, and a broken
subtask does nothing more. A single thread at a time processes, commits or undoes; `checkpoint` may come from another
thread meanwhile, for a batch that was committed before. The TaskManager decides when any of that happens.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

import pyarrow as pa

from holdfast.availability import Refusal, ask
from holdfast.errors import StateBroken, TaskManagerLost
from holdfast.failpoints import hit
from holdfast.formats.handles import MadeBase, TableHandle
from holdfast.functions.operator import (
    UNBOUNDED,
    BatchContext,
    BatchRoom,
    Opening,
    Operator,
    OperatorResult,
    OutputRows,
)
from holdfast.functions.rows.pieces import sliced
from holdfast.ids import BatchNumber, CheckpointId
from holdfast.materialize.keyed_state import KeyedState
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.replica import Replica
from holdfast.state.table import StateTable
from holdfast.taskmanager.key_group_skew import KeyGroupSkew
from holdfast.taskmanager.row_counts import SubtaskRowCounts


class Subtask:
    """An operator's instance with its tables. `states` keeps each table durably, or knows that another subtask does.

    `skew`: the skew of the subtask's own table. `key_groups`: the key groups that the subtask owns.
    """

    def __init__(
        self,
        name: str,
        subtask: int,
        operator: Operator,
        states: dict[str, KeyedState | Replica],
        skew: KeyGroupSkew | None = None,
        key_groups: range = range(0),
    ) -> None:
        self.name = name
        self.subtask = subtask
        self.counted = SubtaskRowCounts()
        self._operator = operator
        self._states = states
        self._skew = skew
        self._key_groups = key_groups
        self._in_batch = False
        self._busy_s = 0.0
        self._committed: int | None = None
        self._broken: str | None = None

    @property
    def tables(self) -> list[StateTable]:
        return list(self._operator.tables.values())

    def table_at(self, batch: BatchNumber, name: str) -> StateTable:
        """The table of that name, whose last committed batch is `batch`. Raises `HoldfastError`."""
        self._check()
        if self._committed is not None and self._committed > batch:
            raise TaskManagerLost(
                f"operator {self.name!r}, subtask {self.subtask}: a commit failed half way; ask again"
            )
        return self._operator.tables[name]

    @property
    def memory_bytes(self) -> int:
        """Memory that the tables take, and that the operator takes beside them; without undo."""
        return sum(table.memory_bytes for table in self.tables) + self._operator.memory_bytes

    @property
    def undo_in_flight_bytes(self) -> int:
        """Memory that undo of the batch in flight takes."""
        return sum(table.undo_in_flight_bytes for table in self.tables)

    @property
    def cache_gauges(self) -> dict[str, float]:
        """The gauge `stateCacheHitRatio` over all look-ups of its tables, and their number; empty without any."""
        found = [table.recent_cache_accesses for table in self._operator.tables.values()]
        hits, accesses = sum(hits for hits, _ in found), sum(accesses for _, accesses in found)
        if not accesses:
            return {}
        return {"stateCacheHitRatio": hits / accesses, "stateCacheAccesses": float(accesses)}

    @property
    def copies_of_a_row(self) -> int:
        """Bound on the number of copies that the operator keeps of each input row."""
        return self._operator.copies_of_a_row

    def measure_added(self) -> None:
        """Measure the rows that the batch in flight has added to the tables so far."""
        for table in self._operator.tables.values():
            table.measure(added=True)

    @property
    def rows_in_state(self) -> int:
        return sum(len(table) for table in self._operator.tables.values())

    def metrics(self) -> dict[str, float]:
        """The operator's own gauges and counters, by name."""
        sizes: dict[str, float] = {}
        for state in self._states.values():
            for name, value in state.sizes.gauges().items():
                longest = name == "lastDurationOfMaterialization"
                sizes[name] = max(value, sizes.get(name, 0.0)) if longest else value + sizes.get(name, 0.0)
        return (
            sizes
            | self.cache_gauges
            | ({} if self._skew is None or self._skew.value is None else {"stateKeyGroupSkew": self._skew.value})
            | {
                "numRecordsIn": float(self.counted.committed.rows_in),
                "numRecordsOut": float(self.counted.committed.rows_out),
                "numLateRecordsDropped": float(self.counted.committed.late),
                "accumulateBusyTimeMs": self._busy_s * 1000.0,
                "stateRows": float(self.rows_in_state),
                "stateBytes": float(self.memory_bytes),
                "stateUndoBytes": float(sum(table.undo_bytes for table in self.tables)),
            }
        )

    def open(self, whole: Mapping[tuple[str, str], pa.RecordBatch]) -> None:
        """Open the operator: the tables have the state of a checkpoint. `whole` has the rows that every subtask loads
        in full, by operator and table.

        Raises `UserFunctionError`.
        """
        own = {table: rows for (operator, table), rows in whole.items() if operator == self.name}
        self._operator.open(Opening(self._key_groups, own))

    def process(
        self,
        context: BatchContext,
        inputs: list[tuple[int, pa.RecordBatch]],
        new_output: Callable[[], OutputRows] = list,
        room: BatchRoom = UNBOUNDED,
    ) -> OperatorResult:
        """Begin the batch and process all of its rows. On an error the tables are as they were before.

        `new_output` makes a collection for output. `room`: the memory for the batch.
        """
        self._check()
        hit("taskmanager.process.subtask")
        for table in self._operator.tables.values():
            table.begin(context.batch)
        self._in_batch = True
        made: list[OutputRows] = []
        self._operator.new_output = partial(_noted, new_output, made)
        self._operator.room = room
        try:
            result = self._operator.process(list(sliced(inputs, room)), context)
            for table in self._operator.tables.values():
                table.measure()
        except BaseException:
            for output in made:
                output.clear()
            self.undo()
            raise
        self.counted.note(rows_in=sum(rows.num_rows for _, rows in inputs), late=result.late)
        return result

    def was_busy(self, seconds: float) -> float:
        """Note the time for which the subtask has worked on rows, and return it."""
        self._busy_s += seconds
        return seconds

    def commit(self, batch: BatchNumber) -> None:
        """Make the batch part of the state and of the log; a repeated call for the same batch does nothing.

        Raises
        ------
        StateBroken
            The commit failed: the state is unusable from now on.
        """
        self._check()
        if self._committed == batch:
            return
        try:
            self._commit(batch)
        except Exception as error:
            self._broken = f"operator {self.name!r}, subtask {self.subtask}: commit of batch {batch} failed: {error}"
            raise StateBroken(self._broken) from error

    def _commit(self, batch: BatchNumber) -> None:
        for state in self._states.values():
            state.commit(batch)
        self._in_batch = False
        self._committed = batch
        if self._skew is not None:
            self._skew.look()
        self.counted.commit(batch)

    def refusal(self) -> Refusal | None:
        """The operator's refusal of a cut after the last committed batch; None: it allows the cut."""
        return ask(f"operator {self.name!r}, subtask {self.subtask}", self._operator.is_snapshot_available)

    def undo(self) -> None:
        """Undo the batch in flight, if any. Raises `StateBroken` as `commit` does."""
        if not self._in_batch:
            return
        self.counted.undo()
        try:
            for table in self._operator.tables.values():
                table.undo()
        except Exception as error:
            self._broken = f"operator {self.name!r}, subtask {self.subtask}: undo failed: {error}"
            raise StateBroken(self._broken) from error
        self._in_batch = False

    def rewind(self, to_batch: BatchNumber) -> None:
        """Go back to the state after a batch that is in a completed checkpoint; undo the batch in flight as well.

        Raises
        ------
        HoldfastError
            The rewind failed: some tables may have gone back, so the subtask is unusable.
        """
        self._check()
        self.undo()
        for state in self._states.values():
            state.rewind(to_batch)
            hit("taskmanager.rewind.between")
        self.counted.rewind(to_batch)
        self._committed = to_batch

    def checkpoint(self, checkpoint_id: CheckpointId, batch: BatchNumber) -> list[Future[TableHandle]]:
        """Start to persist the state as of `batch`, committed before."""
        self._check()
        self.counted.cut(checkpoint_id, batch)
        handles = [state.checkpoint(checkpoint_id, batch) for state in self._states.values()]
        return [handle for handle in handles if handle is not None]

    def take_base(self, base: MadeBase) -> None:
        """Offer a table the base that a follower has made."""
        state = self._states.get(base.table)
        if isinstance(state, LoggedTable):
            state.take_base(base)

    def completed(self, checkpoint_id: CheckpointId) -> None:
        self.counted.completed(checkpoint_id)
        for state in self._states.values():
            state.completed(checkpoint_id)

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        for state in self._states.values():
            state.aborted(checkpoint_id)

    def held(self) -> list[str]:
        """Objects that its live logs and materializations hold."""
        return [name for state in self._states.values() for name in state.held()]

    def close(self) -> None:
        """Close the operator and free its tables. Stored objects stay."""
        self._operator.close()
        for state in self._states.values():
            state.close()
        for table in self._operator.tables.values():
            table.close()

    def _check(self) -> None:
        if self._broken is not None:
            raise TaskManagerLost(self._broken)


def _noted(new_output: Callable[[], OutputRows], made: list[OutputRows]) -> OutputRows:
    """Make another output, and note it among those made."""
    made.append(new_output())
    return made[-1]
