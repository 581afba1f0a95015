"""A broadcast stream of a simulated job: all numbers are rules and orders at once, and each order looks at all rules.

    number v = split + index * splits ──► rule (split, index mod SLOTS) → index; every third rule removes its key
                                     └──► rule (split, NEWEST) → index, never removed

From the newest rule of each split follows which numbers a subtask has got, and so the full set of its rules. Numbers
of the same key are in the same split, so that their order is that of the split.
"""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import pyarrow as pa
import simulation_oracle as oracle
from simulation_invariants import require, require_equal

import holdfast as hf
from holdfast.graph.program import Program
from holdfast.journal.records import CheckpointRecord
from holdfast.sinks.base import Sink
from holdfast.storage.store import ObjectStore

SLOTS, NEWEST, REMOVED_EVERY = 5, -1, 3
RULE = pa.schema([("split", pa.int64()), ("slot", pa.int64()), ("index", pa.int64())])

Rules = dict[tuple[int, int], int]


def of_rules(splits: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Two rules for each number."""
    rows = []
    for value in batch.column("value").to_pylist():
        split, index = value % splits, value // splits
        rows.append((split, index % SLOTS, None if index % REMOVED_EVERY == 0 else index))
        rows.append((split, NEWEST, index))
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=RULE)


@cache
def rules_of(lengths: tuple[tuple[int, int], ...]) -> Rules:
    """The rules after so many numbers of each split."""
    found: Rules = {}
    for split, length in lengths:
        for index in range(length):
            found[split, index % SLOTS] = index
        if length:
            found[split, NEWEST] = length - 1
    return {key: index for key, index in found.items() if key[1] == NEWEST or index % REMOVED_EVERY}


class Ruled(hf.ProcessFunction):
    """Gives each number, and whether all rules are those that they must be: at least those of its own batch."""

    rules = hf.BroadcastState()

    def __init__(self, splits: int) -> None:
        self.splits = splits

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, bool]]:
        found = {tuple(key): value.index for key, value in self.rules.items()}
        lengths = tuple((split, index + 1) for (split, slot), index in sorted(found.items()) if slot == NEWEST)
        split, index = row.value % self.splits, row.value // self.splits
        yield row.value, found == rules_of(lengths) and dict(lengths).get(split, 0) > index


def write_ruled(keyed: hf.Stream, numbers: hf.Stream, splits: int, sink: Sink) -> None:
    rules = numbers.map_batches(partial(of_rules, splits), RULE).key_by("split", "slot")
    ruled = keyed.key_by("k").process(
        Ruled(splits), "value BIGINT, right BOOLEAN", broadcast={"rules": rules}, name="ruled"
    )
    ruled.write(sink)


def check_ruled(found: oracle.Rows, positions: Mapping[str, Any]) -> None:
    """Each number came out once, and saw the rules that it had to see."""
    wrong = [row["value"] for row in found if not row["right"]]
    require(not wrong, f"numbers that saw other rules than they should: {wrong[:5]}")
    require_equal(sorted(row["value"] for row in found), sorted(oracle.values(positions)), "numbers that saw rules")


def check_rules(store: ObjectStore, record: CheckpointRecord, program: Program) -> None:
    """The state is that of the input, and is stored once."""
    positions = {int(split): int(position) for split, position in record.offsets["numbers"].items()}
    rows = oracle.restored_tables(store, record, program, "ruled")["rules.broadcast"]
    stored = {(row["split"], row["slot"]): row["index"] for row in rows}
    require_equal(stored, rules_of(tuple(sorted(positions.items()))), f"rules at batch {record.batch}")
