"""Lists that belong to a subtask and not to a key, as a user declares them.

    class Numbered(hf.ProcessFunction):
        ranges = hf.UnionListState(pa.int64())     # open() sees the entries of all subtasks
        claims = hf.SplitListState(pa.string())    # each subtask has a share, at any parallelism

Each entry is a row of the table `<state>.list`: (seat, position) → value. The key group of an entry is that of its seat
(`seats`), and the subtask that owns the key group owns the entry: no entry has two owners, and none is lost by a
rescale. The methods here only say that no operator runs; the running lists are in `subtask_list.py`.
"""

from typing import Any, NoReturn

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.functions.operator import TableSchema
from holdfast.functions.process.shared.entries import POSITION, VALUE
from holdfast.functions.process.shared.states import State
from holdfast.state.keys import grouped_by
from holdfast.state.seats import SEAT

LIST_KEYS = grouped_by(pa.schema([(SEAT, pa.int64()), (POSITION, pa.int64())]), 1)


def list_table(state: str) -> str:
    """Name the table with the entries of a list state."""
    return f"{state}.list"


class SubtaskListState(State):
    """A list that each subtask keeps; declare a `UnionListState` or a `SplitListState`."""

    def __init__(self, type: pa.DataType | None = None) -> None:
        super().__init__(type)

    def schema(self) -> TableSchema:
        """The schema of its table."""
        return TableSchema(LIST_KEYS, pa.schema([self.codec().field(VALUE)]))

    def get(self) -> list[Any]:
        """Return the subtask's own entries, in order. Also allowed in `open`."""
        self._not_running()

    def add(self, value: Any) -> None:
        """Append an entry."""
        self._not_running()

    def update(self, values: Any) -> None:
        """Put a list in place of all own entries. An entry that stays at its place as it was is not stored again."""
        self._not_running()

    def clear(self) -> None:
        """Forget all own entries."""
        self._not_running()

    def _not_running(self) -> NoReturn:
        raise HoldfastError(
            f"a {self.kind} was used outside of its function's calls; it can be read in open(ctx), and read and "
            "changed while the operator processes its rows"
        )


class UnionListState(SubtaskListState):
    """A list that each subtask keeps, and whose entries all subtasks see when they open.

    `open(ctx)` reads the entries of all subtasks by `union()`, as of the checkpoint from which the subtask starts,
    whatever the parallelism was then. Each entry stays with a single subtask (`get()`), which alone can change it.
    After a rescale the entries are with the owners of their key groups, about equally many with each.

    Parameters
    ----------
    type : pyarrow.DataType or None
        Type of the entries, which may be null. None: any msgpack-able object.
    """

    def union(self) -> list[Any]:
        """Return the entries of all subtasks as of the checkpoint, the same list in each; only allowed in `open`.

        Empty where the job starts without a checkpoint. A subtask's entries are in their order, but entries of
        different subtasks are mixed.
        """
        self._not_running()


class SplitListState(SubtaskListState):
    """A list of which each subtask keeps a share.

    After a rescale the entries of all subtasks are dealt to the new ones, about equally many to each, and `get()` is
    the share. At the same parallelism each subtask has its own entries again.

    Parameters
    ----------
    type : pyarrow.DataType or None
        The type of the entries, which may be null. None: any msgpack-able object.
    """
