"""Joins of a simulated job: even numbers with odd ones of the same key, the expected pairs, and the kept rows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import simulation_oracle as oracle
from simulation_invariants import require, require_equal
from simulation_windows import DELAY_S, SECOND, time_of, watermark_of

import holdfast as hf
from holdfast.functions.joins.bounds import LEFT, RIGHT, SIDES
from holdfast.functions.joins.kept_rows import NUMBER, head_columns
from holdfast.graph.program import Program
from holdfast.journal.records import CheckpointRecord
from holdfast.sinks.base import Sink
from holdfast.storage.store import ObjectStore

KINDS = ("inner", "outer", "asof")
EARLIEST_US, LATEST_US, TOLERANCE_US = -4 * SECOND, 6 * SECOND, 9 * SECOND
SIDE = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())])
PAIRS = "value BIGINT, other BIGINT"

Pair = tuple[int | None, int | None]


def at_of(value: int) -> int:
    """The time of a row; no two rows have the same."""
    return time_of(value) + value


def key_of(value: int, keys: int) -> int:
    return value // 2 % keys


def of_side(parity: int, keys: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a side, with keys and times."""
    chosen = [value for value in batch.column("value").to_pylist() if value % 2 == parity]
    columns = [[key_of(value, keys) for value in chosen], [at_of(value) for value in chosen], chosen]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SIDE.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SIDE)


def pairs_alone(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column("value"), batch.column("value_other")], names=["value", "other"])


def write_joined(numbers: hf.Stream, others: hf.Stream | None, kind: Any, keys: int, sink: Sink) -> None:
    """`others`: the stream of odd numbers, if they do not come from `numbers`."""
    timed = [numbers.with_watermark("at", DELAY_S)]
    timed.append(timed[0] if others is None else others.with_watermark("at", DELAY_S))
    left, right = (
        side.map_batches(partial(of_side, parity, keys), SIDE).key_by("k") for parity, side in enumerate(timed)
    )
    if kind == "asof":
        found = left.join(right, how=kind, tolerance=TOLERANCE_US / SECOND, suffix="_other", name="joined")
    else:
        within = (EARLIEST_US / SECOND, LATEST_US / SECOND)
        found = left.join(right, within, how=kind, suffix="_other", name="joined")
    found.map_batches(pairs_alone, PAIRS).write(sink)


def _sides(positions: Mapping[str, Mapping[str, Any]]) -> tuple[list[int], list[int]]:
    known = sorted(oracle.values(positions["numbers"]))
    odd = [value for value in known if value % 2]
    if "others" in positions:
        odd = sorted(2 * value + 1 for value in oracle.values(positions["others"]))
    return [value for value in known if value % 2 == 0], odd


def _newest(value: int, others: Iterable[int], keys: int) -> int | None:
    met = [
        other
        for other in others
        if key_of(other, keys) == key_of(value, keys) and 0 <= at_of(value) - at_of(other) <= TOLERANCE_US
    ]
    return max(met, key=at_of, default=None)


def expected(kind: str, keys: int, positions: Mapping[str, Mapping[str, Any]], until_us: int) -> Counter[Pair]:
    """All that must have come out once the watermark is there. `positions`: by source."""
    left, right = _sides(positions)
    if kind == "asof":
        return Counter((value, _newest(value, right, keys)) for value in left if at_of(value) < until_us)
    pairs: list[Pair] = [
        (value, other)
        for value in left
        for other in right
        if key_of(value, keys) == key_of(other, keys) and EARLIEST_US <= at_of(other) - at_of(value) <= LATEST_US
    ]
    if kind == "outer":
        met = {value for pair in pairs for value in pair}
        pairs += [(value, None) for value in left if value not in met and at_of(value) + LATEST_US < until_us]
        pairs += [(None, value) for value in right if value not in met and at_of(value) - EARLIEST_US < until_us]
    return Counter(pairs)


def check_joined(found: oracle.Rows, kind: str, keys: int, record: CheckpointRecord) -> None:
    """Every pair came out once, and every row that met no other where the join gives these; nothing else did.

    Output of batches without rows, after all that a start was waited for, may still be unpublished.
    """
    given = Counter((row["value"], row["other"]) for row in found)
    wanted = expected(kind, keys, record.offsets, watermark_of(record))
    if record.groups.get("joined-out"):
        require(given <= wanted, f"pairs that are no pairs, or came twice: {given - wanted}")
        return
    require_equal(sorted(given.items(), key=str), sorted(wanted.items(), key=str), "pairs")


def kept(kind: str, keys: int, positions: Mapping[str, Mapping[str, Any]], until_us: int) -> tuple[set[int], set[int]]:
    """The rows of both sides that have not left."""
    left, right = _sides(positions)
    if kind != "asof":
        return (
            {value for value in left if at_of(value) + LATEST_US >= until_us},
            {value for value in right if at_of(value) - EARLIEST_US >= until_us},
        )
    after = {value for value in right if at_of(value) >= until_us}
    newest = {key_of(value, keys): value for value in sorted(set(right) - after, key=at_of)}
    before = {value for value in newest.values() if at_of(value) + TOLERANCE_US >= until_us}
    return {value for value in left if at_of(value) >= until_us}, after | before


def check_kept(store: ObjectStore, record: CheckpointRecord, program: Program, kind: str, keys: int) -> None:
    """The state has the rows that others may meet, and nothing else."""
    tables = oracle.restored_tables(store, record, program, "joined")
    wanted = kept(kind, keys, record.offsets, watermark_of(record))
    found = tuple({row["value"] for row in tables[side]} for side in ("left", "right"))
    require_equal(found, wanted, f"rows kept of a join at batch {record.batch}")
    heads = {row["k"]: row for row in tables["heads"]}
    for number, side in enumerate(SIDES):
        rows = Counter(key_of(row["value"], keys) for row in tables[side])
        counted = {key: row[head_columns(number)[2]] or 0 for key, row in heads.items()}
        several = {key: count for key, count in rows.items() if counted.get(key) or count > 1}
        require_equal({key: count for key, count in counted.items() if count}, several, f"{side} rows by their heads")
        alone = {row[NUMBER] for row in tables[side] if key_of(row["value"], keys) not in several}
        require(alone <= {0}, f"numbers of {side} rows that have no head: {alone}")
    empty = [row for row in heads.values() if not any(row[head_columns(number)[2]] for number in (LEFT, RIGHT))]
    require_equal(empty, [], "heads of keys without rows")
