"""Bytes that are stored for each changed byte of a table in memory, whatever the checkpoint interval and its size.

    python -m benchmarks.space --json

A real table with its `LoggedTable` and uploader, on a store in memory and in manual time. A share of the table's rows,
`CHANGED`, chosen at random, changes each minute, and each interval with changes has a batch and a checkpoint that
completes. A row has a key and `ROW_BYTES` bytes of JSON: 40 fields, whose names repeat and whose numbers are random.

*Changed bytes* are the bytes of the changed rows as the table holds them, a row once for each checkpoint. *Stored
bytes* are those of all objects that are put: log pieces, merged pieces and materializations. Manifests are left out,
which are those of the job's other tables too.

Large tables are extrapolated: the table has only the rows that changed, on top of a base whose size is that of all rows
(their number times the stored bytes of a row in a materialization). If the table is materialized, that size is counted.
The log at the end is charged with its share of the next materialization: its size, divided by the size at which the
table is materialized.

JSON: for each table size and interval the stored bytes for each changed byte by kind, the pieces that a handle names at
the most, checkpoints, merges; and `stored_per_changed_byte_max`. `--unmerged` stores tables in place of merges.
"""

import argparse
import json
import random
from typing import Any
from unittest import mock

import pyarrow as pa
from obstore.store import MemoryStore

from holdfast.formats.handles import MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.formats.snapshots import encode_part
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.policy import LOG_RATIO_WHOLE, MaterializationPolicy
from holdfast.state.table import StateTable
from holdfast.storage.names import SHARED
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.testing.scheduler import ManualScheduler
from holdfast.uploads.uploader import Uploader

CHANGED = 0.01
"""Share of a table's rows that change in a minute."""
ROW_BYTES = 1_000
KEY_GROUPS = 128
FIELDS = [f'"{name}_{unit}":%d' for name in ("turnover", "visits", "returns", "reviews") for unit in "abcdefghij"]
KEYS, VALUES = pa.schema([("k", pa.int64())]), pa.schema([("v", pa.binary())])
SAMPLE_ROWS = 2_000


class CountingStore(ObstoreStore):
    """A store in memory that counts the bytes that are put, by folder."""

    def __init__(self) -> None:
        super().__init__("memory://", MemoryStore())
        self.put_bytes = {True: 0, False: 0}
        """The bytes, by whether they are of materialized tables."""

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self.put_bytes[name.startswith(SHARED)] += len(data)
        super().put(name, data)


class CountingUploader(Uploader):
    """An uploader that counts the bytes of merged pieces."""

    merged_bytes = 0

    def put_merged(self, data: bytes) -> str:
        self.merged_bytes += len(data)
        return super().put_merged(data)


class SchedulersClock:
    """The clock of a scheduler in manual time."""

    def __init__(self, scheduler: ManualScheduler) -> None:
        self.now = self.monotonic = scheduler.monotonic


class Table:
    """A table of that number of rows, of which `change` changes some."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.random = random.Random(rows)
        self.scheduler = ManualScheduler()
        self.store = CountingStore()
        self.uploader = CountingUploader(self.store, 1, 1, scheduler=self.scheduler, persist_delay_s=0.0)
        self.policy = MaterializationPolicy()
        self.table = StateTable(KEYS, VALUES, KEY_GROUPS)
        log, clock = LogId("benchmark", "table", 0, KEY_GROUPS), SchedulersClock(self.scheduler)
        self.keyed = LoggedTable(log, self.table, self.uploader, self.policy, clock)
        self.base_bytes = int(rows * _stored_row_bytes(log, self.random))
        schema = self.table.stored_schema().serialize().to_pybytes()
        base = MaterializedPart("shared/base", 0, self.base_bytes, 0, KEY_GROUPS)
        self.keyed.restored([TableHandle("benchmark", "table", 0, KEY_GROUPS, schema, [base], [])])
        self.batch = -1
        self.changed_bytes = 0
        self.pieces_max = 0
        self.named: set[str] = set()

    def change(self, count: int) -> None:
        """Change that number of rows, and take a checkpoint."""
        self.batch += 1
        keys = pa.array(self.random.sample(range(self.rows), count), pa.int64())
        _fill(self.table, self.batch, keys, self.random)
        self.keyed.commit(self.batch)
        self.changed_bytes += count * (ROW_BYTES + 8)
        handle = self.scheduler.result(self.keyed.checkpoint(self.batch, self.batch))
        self.uploader.acknowledge(handle.objects())
        self.keyed.completed(self.batch)
        self.pieces_max = max(self.pieces_max, len(handle.log))
        if self.batch % 64 == 0:  # as the JobMaster does
            used = {*handle.objects(), *self.keyed.held()}
            self.store.delete([info.name for info in self.store.list("") if info.name not in used])

    def figures(self) -> dict[str, Any]:
        log_bytes = sum(piece.length for each in self.keyed._log._ranges() for piece in each.pieces or ())
        made = self.uploader.metrics().get("completedMaterialization", 0.0)
        due_bytes = max(self.policy.log_bytes_min, LOG_RATIO_WHOLE * self.base_bytes)
        merged = self.uploader.merged_bytes
        stored = {
            "log": self.store.put_bytes[False] - merged,
            "merged": merged,
            "materialized": self.base_bytes * (made + log_bytes / due_bytes),
        }
        by_kind = {f"{kind}_per_changed_byte": round(each / self.changed_bytes, 3) for kind, each in stored.items()}
        return {
            "stored_per_changed_byte": round(sum(stored.values()) / self.changed_bytes, 3),
            **by_kind,
            "materializations": int(made),
            "merges": self.keyed._log.merges,
            "checkpoints": self.batch + 1,
            "pieces_max": self.pieces_max,
        }


def _text(drawn: random.Random) -> bytes:
    return (
        ("{" + ",".join(FIELDS) % tuple(drawn.randrange(10**9) for _ in FIELDS))
        .ljust(ROW_BYTES - 1)[:ROW_BYTES]
        .encode()
    )


def _fill(table: StateTable, batch: int, keys: pa.Array, drawn: random.Random) -> None:
    table.begin(batch)
    slots = table.lookup(pa.record_batch({"k": keys}))
    table.column("v").put_objects(slots, [_text(drawn) for _ in slots])
    table.present[slots] = True


def _stored_row_bytes(log: LogId, drawn: random.Random) -> float:
    """Return the bytes of a row in a materialization."""
    table = StateTable(KEYS, VALUES, KEY_GROUPS)
    _fill(table, 0, pa.array(range(SAMPLE_ROWS), pa.int64()), drawn)
    table.commit()
    data, _ = encode_part(log, table.snapshot(), 0, 0)
    return len(data) / SAMPLE_ROWS


def measure(table_mb: float, interval_s: float, minutes: float) -> dict[str, Any]:
    """Let a table change for that time."""
    table = Table(int(table_mb * 1e6 / ROW_BYTES))
    per_interval = table.rows * CHANGED * interval_s / 60.0
    left = 0.0
    for _ in range(int(minutes * 60.0 / interval_s)):
        table.scheduler.advance(interval_s)
        left += per_interval
        if left >= 1.0:
            table.change(int(left))
            left -= int(left)
    return {"table_mb": table_mb, "interval_s": interval_s, **table.figures()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table-mb", type=float, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--interval-s", type=float, nargs="+", default=[0.05, 1.0, 10.0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--unmerged", action="store_true", help="materialize whenever a log has too many pieces")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    frees = 0 if options.unmerged else MaterializationPolicy().merge_frees_min
    with mock.patch.object(MaterializationPolicy, "merge_frees_min", frees):
        found = [measure(mb, each, options.minutes) for mb in options.table_mb for each in options.interval_s]
    result = {"stored_per_changed_byte_max": max(each["stored_per_changed_byte"] for each in found), "tables": found}
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
