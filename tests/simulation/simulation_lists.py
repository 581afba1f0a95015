"""A simulated operator with lists of its subtasks, and its invariants.

Each value is in a single entry of a single subtask. Subtasks see, when they open, the entries of a
recorded checkpoint.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import simulation_oracle as oracle
from simulation_invariants import require, require_equal

import holdfast as hf
from holdfast.graph.program import Program
from holdfast.journal.records import CheckpointRecord
from holdfast.storage.store import ObjectStore

DROPPED = 3
"""Values that it divides leave the share as soon as another value comes."""
OPENED: list[tuple[int, ...]] = []
"""The union that each subtask saw when it opened, since the last look."""
FAULTS: list[str] = []
"""Entries that a subtask should not have had, since the last look."""


class Listed(hf.ProcessFunction):
    seen = hf.UnionListState(pa.int64())
    share = hf.SplitListState(pa.int64())

    def open(self, ctx: Any) -> None:
        union, own = self.seen.union(), self.seen.get()
        OPENED.append(tuple(sorted(union)))
        if not set(own) <= set(union):
            FAULTS.append(f"subtask {ctx.subtask} opened with {own}, the union is {union}")

    def process(self, row: Any, ctx: Any) -> Iterable[tuple[int]]:
        self.seen.add(row.value)
        self.share.update([*(each for each in self.share.get() if each % DROPPED), row.value])
        own = self.seen.get()
        if len(set(own)) < len(own):
            FAULTS.append(f"subtask {ctx.subtask} has an entry twice: {own}")
        return ()


class ListChecks:
    """Recorded lists, and the comparison with them."""

    def __init__(self) -> None:
        self._recorded: set[tuple[int, ...]] = {()}
        OPENED.clear()
        FAULTS.clear()

    def recorded(self, positions: Mapping[str, Any]) -> None:
        self._recorded.add(tuple(sorted(oracle.values(positions))))

    def check(self, store: ObjectStore, record: CheckpointRecord, program: Program) -> None:
        """Lists are restored as the input says; subtasks have opened with recorded ones alone."""
        tables = oracle.restored_tables(store, record, program, "lists")
        values = sorted(oracle.values(record.offsets["numbers"]))
        require_equal(sorted(_entries(tables["seen.list"])), values, f"the union at batch {record.batch}")
        share = Counter(_entries(tables["share.list"]))
        stays = {value for value in values if value % DROPPED}
        require(stays <= share.keys() <= set(values), f"the shares at batch {record.batch} are {share}")
        require(max(share.values(), default=1) == 1, f"two shares have the same entry at batch {record.batch}: {share}")
        require(not FAULTS, "; ".join(FAULTS))
        unknown = [union for union in OPENED if union not in self._recorded]
        require(not unknown, f"subtasks have opened with entries of no checkpoint: {unknown}")
        OPENED.clear()


def _entries(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    return [row["__value"] for row in rows]


def write_lists(rows: hf.Stream) -> None:
    rows.key_by("k").process(Listed(), "k BIGINT", name="lists").write(hf.NoopSink(name="lists-out"))
