"""Bytes stored for each byte that changes, at any interval between checkpoints and any size of the table.

    python -m benchmarks.space --json

A table in memory (a random int64 key and a count, 20 bytes a row in Arrow) of which 1 % of the rows change in a minute,
at random. Counted are bytes, in manual time: the rules that choose what is merged and when a table is materialized are
the real ones (`materialize.merging`, `materialize.schedule`), over sizes by a law that is measured from real objects
first (`encode_pieces`, `encode_part`, for some numbers of rows, and in between by interpolation). Merges and
materializations take no time. A run begins with a table that was just materialized, and ends with the next
materialization; where that does not come within `CHECKPOINTS_MAX` checkpoints, its share is added.

A changed byte is a byte of a change set as the log is given it: an Arrow stream before compression, with its head.

JSON: `stored_per_changed_byte_max`, and `runs`: for each table and interval the bytes of the log as first stored, of
merges and of materializations, each by changed byte; `by_row_byte`, all of them by a byte of the changed rows alone
(where a checkpoint has few rows, nearly all is the head of its piece); `pieces_max`; `restore_ratio`, the bytes that a
restore reads at most, over the stored table. `real` is one short run with a real table, log and uploader: its bytes
over those that are counted here.
"""

import argparse
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from obstore.store import MemoryStore

from holdfast.changelog.log_size import LogSize, small_pieces
from holdfast.changelog.ranges import Extent, Range
from holdfast.clock import ManualClock
from holdfast.formats.handles import LogPiece, MaterializedPart
from holdfast.formats.log_objects import ChangeSet, LogId, encode_pieces
from holdfast.formats.snapshots import PART_BYTES, encode_part
from holdfast.ids import BatchNumber, CheckpointId
from holdfast.materialize.base import Base
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.merging import group_to_merge
from holdfast.materialize.policy import LOG_RATIO_WHOLE, PATIENT, MaterializationPolicy
from holdfast.materialize.schedule import Schedule
from holdfast.state.table import StateTable
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.scheduler import ManualScheduler
from holdfast.uploads.uploader import Uploader

GROUPS = 128
ROW_BYTES = 20
CHANGED_A_MINUTE = 0.01
LOG = LogId("bench", "state", 0, GROUPS)
SIZES_MB = (1, 10, 100, 1000)
INTERVALS_S = (0.05, 0.1, 1.0, 10.0)
CHECKPOINTS_MAX = 150_000
LAW_ROWS = (1, 4, 16, 64, 256, 1024, 8192, 65_536, 524_288)
SCHEMA = pa.schema(
    [
        pa.field("__key_group", pa.int32(), False),
        pa.field("__deleted", pa.bool_(), False),
        pa.field("k", pa.int64(), False),
        pa.field("n", pa.int64()),
    ],
    {"holdfast.key_columns": "1"},
)
REAL_ROWS, REAL_CHANGED, REAL_CHECKPOINTS = 50_000, 40, 400


def rows(count: int, seed: int) -> pa.RecordBatch:
    """Rows of random keys, sorted by key group."""
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.integers(0, GROUPS, count)).astype(np.int32)
    keys, counts = rng.integers(-(2**63), 2**63 - 1, count), rng.integers(0, 10_000, count)
    return pa.record_batch([groups, np.zeros(count, bool), keys, counts], schema=SCHEMA)


@dataclass
class Law:
    """The sizes of objects by their number of rows, measured."""

    first: list[float] = field(default_factory=list)
    merged: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    def measure(self) -> "Law":
        for count in LAW_ROWS:
            made = rows(count, count)
            change = [ChangeSet(0, 1, 0, 1, made)]
            self.first.append(sum(each.length for each in encode_pieces(LOG, change)))
            self.merged.append(sum(each.length for each in encode_pieces(LOG, change, codec="zstd")))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, made.schema) as writer:
                writer.write_batch(made)
            self.plain.append(sink.getvalue().size)
        return self

    def of(self, sizes: list[float], count: float) -> float:
        """The size of an object with so many rows; beyond the law it grows by the row."""
        if count > LAW_ROWS[-1]:
            return sizes[-1] * count / LAW_ROWS[-1]
        return float(np.interp(count, LAW_ROWS, sizes))


@dataclass
class Run:
    """A table and its log in manual time, in bytes."""

    law: Law
    table_rows: int
    interval_s: float

    def __post_init__(self) -> None:
        self.log = self.merged = self.materialized = self.changed = self.row_bytes = 0.0
        self.pieces_max, self.restore_max = 0, 0.0
        self._policy = MaterializationPolicy()
        self._schedule = Schedule(self._policy, LOG, 0.0)
        self._schedule.stored(0.0, 0.0, PATIENT)
        self._ranges: list[Range] = []
        self._rows: dict[int, float] = {}
        """The number of rows of a range, by the SQN it begins with."""
        self._sizes = LogSize(0, 0, 0)
        part = rows(min(self.table_rows, PART_BYTES // ROW_BYTES), 1)
        share = self.table_rows / part.num_rows
        self.table_bytes = encode_part(LOG, part, 0, BatchNumber(0))[1].length * share
        base = MaterializedPart("shared/0", 0, int(self.table_bytes), 0, GROUPS)
        self._base = Base(0, BatchNumber(0), (base,))

    def run(self) -> "Run":
        due_rows, number = 0.0, 0
        for number in range(CHECKPOINTS_MAX):
            now_s = number * self.interval_s
            due_rows += self.table_rows * CHANGED_A_MINUTE / 60 * self.interval_s
            if due_rows >= 1:
                self._add(number, float(int(due_rows)))
                due_rows -= int(due_rows)
            if self._schedule.due(self._sizes, self._base, False, now_s):
                self.materialized = self.table_bytes
                break
            self._merge(now_s)
        else:
            bound = max(self._policy.log_bytes_min, LOG_RATIO_WHOLE * self.table_bytes)
            self.materialized = self.table_bytes * self._sizes.stored_bytes / bound
        return self

    def _add(self, number: int, count: float) -> None:
        size = self.law.of(self.law.first, count)
        self.log += size
        self.changed += self.law.of(self.law.plain, count)
        self.row_bytes += count * ROW_BYTES
        self._ranges.append(self._range(number, number + 1, size, 0))
        self._rows[number] = count
        self._measure()

    def _merge(self, now_s: float) -> None:
        late = self._schedule.late(self._base, now_s)
        # The rule looks no further back than to the last large piece.
        group = group_to_merge(self._ranges[-200:], self._policy.log_handles_max, late)
        if not group:
            return
        changed = sum(self._rows.pop(each.sqn_start) for each in group)
        distinct = self.table_rows * -np.expm1(-changed / self.table_rows)
        size = self.law.of(self.law.merged, distinct)
        self.merged += size
        at = self._ranges.index(group[0])
        first, last = group[0].sqn_start, group[-1].sqn_stop
        merges = 1 + max(each.merges for each in group)
        self._ranges[at : at + len(group)] = [self._range(first, last, size, merges)]
        self._rows[first] = distinct
        self._schedule.merged(self._base, now_s)
        self._measure()

    def _measure(self) -> None:
        pieces = [piece for each in self._ranges for piece in each.pieces or ()]
        stored = sum(piece.length for piece in pieces)
        self._sizes = LogSize(small_pieces(pieces), stored, 0)
        self.pieces_max = max(self.pieces_max, len(pieces))
        self.restore_max = max(self.restore_max, stored + self.table_bytes)

    @staticmethod
    def _range(start: int, stop: int, size: float, merges: int) -> Range:
        piece = LogPiece("dstl/0", 0, int(size), start, stop, 0, GROUPS)
        return Range(True, [], [Extent(start, stop, start, stop)], [piece], merges=merges)

    def facts(self, size_mb: int) -> dict[str, Any]:
        total = self.log + self.merged + self.materialized
        ratios = {
            "log": self.log / self.changed,
            "merged": self.merged / self.changed,
            "materialized": self.materialized / self.changed,
            "stored_per_changed_byte": total / self.changed,
            "by_row_byte": total / self.row_bytes,
            "restore_ratio": self.restore_max / self.table_bytes,
        }
        facts = {"table_mb": size_mb, "interval_s": self.interval_s, "pieces_max": self.pieces_max}
        return facts | {name: round(float(value), 3) for name, value in ratios.items()}


def real_run(law: Law) -> float:
    """Stored bytes of a real table and log over those that are counted, for the same checkpoints."""
    store = ObstoreStore("memory://", MemoryStore())
    scheduler, clock = ManualScheduler(), ManualClock()
    uploader = Uploader(store, 1, 1, persist_delay_s=0.0, scheduler=scheduler)
    table = StateTable(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]), GROUPS)
    keyed = LoggedTable(LOG, table, uploader, MaterializationPolicy(), clock)
    rng = np.random.default_rng(7)
    keys = rng.integers(-(2**63), 2**63 - 1, REAL_ROWS)
    counted = Run(law, REAL_ROWS, 1.0)
    stored = 0
    seen: set[str] = set()
    for number in range(REAL_CHECKPOINTS):
        change(table, number, rng.choice(keys, REAL_CHANGED, replace=False), rng.integers(0, 10_000, REAL_CHANGED))
        keyed.commit(BatchNumber(number))
        handle = scheduler.result(keyed.checkpoint(CheckpointId(number), BatchNumber(number)))
        uploader.acknowledge(handle.objects())
        keyed.completed(CheckpointId(number))
        scheduler.advance(1.0)
        clock.advance(1.0)
        new = [each for each in store.list("") if each.name not in seen]
        stored += sum(each.size for each in new)
        seen.update(each.name for each in new)
        counted._add(number, REAL_CHANGED)
        counted._merge(float(number))
    keyed.close()
    uploader.close()
    return stored / (counted.log + counted.merged)


def change(table: StateTable, batch: int, keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
    """Set these counts in a batch."""
    table.begin(BatchNumber(batch))
    slots = table.lookup(pa.record_batch({"k": pa.array(keys)}))
    column = table.column("n")
    column.values[slots] = counts
    column.valid[slots] = True
    table.present[slots] = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes-mb", type=int, nargs="+", default=SIZES_MB)
    parser.add_argument("--intervals-s", type=float, nargs="+", default=INTERVALS_S)
    arguments = parser.parse_args()
    law = Law().measure()
    runs = [
        Run(law, size_mb * 1_000_000 // ROW_BYTES, interval_s).run().facts(size_mb)
        for size_mb in arguments.sizes_mb
        for interval_s in arguments.intervals_s
    ]
    found = {
        "stored_per_changed_byte_max": max(each["stored_per_changed_byte"] for each in runs),
        "real": round(real_run(law), 3),
        "runs": runs,
    }
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for each in runs:
        print(each)
    print({key: value for key, value in found.items() if key != "runs"})


if __name__ == "__main__":
    main()
