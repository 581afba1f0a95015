"""Timers of functions by batch: fired once, in order for each key, over undo, rewind and restarts; refusals."""

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import SettingsError, UserFunctionError
from holdfast.functions.operator import BatchContext, EventTime, NewTable, Operator, OperatorInput, OperatorResult
from holdfast.functions.process.declared import ProcessSpec
from holdfast.settings import HashMapState, RocksDBState
from holdfast.state.backends import tables_of
from holdfast.watermarks import END_US
from sampling import some

SECOND = 1_000_000
INPUT = pa.schema([("k", pa.string()), ("t", pa.int64()), ("wanted", pa.bool_())])
OUTPUT = pa.schema([("k", pa.string()), ("t", pa.int64()), ("n", pa.int64())])
BACKENDS = {"hashmap": HashMapState(), "cache": RocksDBState(cache_max_entries=3)}
Row = tuple[str, int, bool]


@pytest.fixture(params=["hashmap", "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


class Bells(hf.BatchFunction):
    """Registers and deletes timers as rows say, and counts those that fired of each key."""

    n = hf.ValueState(pa.int64(), default=0)

    def process(self, batch: Any, keys: Any, groups: Any, ctx: Any) -> None:
        wanted = batch.column("wanted").to_numpy(zero_copy_only=False)
        times = batch.column("t").to_numpy() * SECOND
        for row in range(len(times)):  # singly: a later row may take back the change of an earlier row
            change = ctx.timers.register_event_time if wanted[row] else ctx.timers.delete_event_time
            change(pa.array([int(times[row])], pa.timestamp("us", "UTC")), groups[row : row + 1])

    def on_timers(self, keys: Any, timestamps: Any, ctx: Any) -> Any:
        n = self.n.values().to_numpy() + 1
        self.n.update(n)
        seconds = timestamps.cast(pa.int64()).to_numpy() // SECOND
        if -5 in seconds:
            raise ValueError("bad bell")
        later = [None if second % 7 else (int(second) + 1) * SECOND for second in seconds]
        again = pa.array(later, pa.timestamp("us", "UTC"))
        ctx.timers.register_event_time(again)
        yield pa.record_batch([keys["k"], pa.array(seconds), pa.array(n)], names=["k", "t", "n"])


def operator_of(new_table: NewTable, function: Any = None, bad_records: Any = "fail", time: Any = True) -> Operator:
    declared = OperatorInput(INPUT, ("k",), EventTime(("at",), None) if time else None)
    return ProcessSpec("bells", declared, function or Bells(), OUTPUT, bad_records).create(0, 128, new_table)


def run(operator: Operator, batch: int, rows: list[Row], watermark: int | None) -> OperatorResult:
    for table in operator.tables.values():
        table.begin(batch)
    arrow = pa.RecordBatch.from_pylist([dict(zip(INPUT.names, row, strict=True)) for row in rows], INPUT)
    watermark_us = None if watermark is None else watermark * SECOND
    return operator.process([(0, arrow)], BatchContext(batch, 0, "bells", 0, watermark_us))


def each(operator: Operator, method: str, *arguments: Any) -> None:
    for table in operator.tables.values():
        getattr(table, method)(*arguments)


def shown(result: OperatorResult) -> list[tuple[str, int]]:
    return [(row["k"], row["t"]) for batch in result.output for row in batch.to_pylist()]


def model(timers: set[tuple[str, int]], rows: list[Row], watermark: int | None) -> list[tuple[str, int]]:
    for key, second, wanted in rows:
        (timers.add if wanted else timers.discard)((key, second))
    fired: list[tuple[str, int]] = []
    while due := sorted(timer for timer in timers if watermark is not None and timer[1] <= watermark):
        earliest = dict(reversed(due))
        fired += earliest.items()
        timers -= set(earliest.items())
        timers |= {(key, second + 1) for key, second in earliest.items() if second % 7 == 0}
    return fired


@pytest.mark.parametrize("attempt", some(range(3), 0))
def test_they_fire_as_the_model_says_over_undo_rewind_and_restart(attempt: int, tables: NewTable) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    operator, timers = operator_of(tables), set[tuple[str, int]]()
    after: dict[int, set[tuple[str, int]]] = {0: set()}
    watermark, kept_from = 0, 0
    for batch in range(1, 50):
        watermark += chance.choice([0, 0, 2, 5])
        rows = [
            (chance.choice(["a", "b", "", "dd"]), watermark + chance.randrange(-2, 15), chance.random() < 0.8)
            for _ in range(chance.choice([0, 1, 6]))
        ]
        if chance.random() < 0.2:
            run(operator, batch, rows[::-1], watermark + 3)
            each(operator, "undo")
        result = run(operator, batch, rows, watermark)
        assert sorted(shown(result)) == sorted(model(timers, rows, watermark)), f"batch {batch}"
        for key in {key for key, _ in shown(result)}:
            seconds = [second for other, second in shown(result) if other == key]
            assert seconds == sorted(seconds), "in order for each key"
        assert result.timers is not None
        if timers:
            assert result.timers.event_us is not None
            assert result.timers.event_us <= min(second for _, second in timers) * SECOND
        each(operator, "commit")
        after[batch] = set(timers)
        if chance.random() < 0.1:
            made = operator_of(tables)
            for name, table in operator.tables.items():
                made.tables[name].apply(table.snapshot(), 0, 128)
                table.close()
            operator, kept_from = made, batch
        elif chance.random() < 0.1 and batch > kept_from + 1:
            back = chance.randrange(kept_from, batch)
            each(operator, "rewind", back)
            timers, kept_from = set(after[back]), batch
            after[batch] = set(timers)
            each(operator, "release", batch)


def test_a_timer_that_fails_is_bad_alone_and_leaves_no_trace() -> None:
    rows: list[Row] = [("a", 3, True), ("b", -5, True), ("c", 4, True)]
    operator = operator_of(tables_of(HashMapState(), None))
    with pytest.raises(UserFunctionError, match=r"on_timers\(\) raised ValueError: bad bell"):
        run(operator, 1, rows, 10)
    operator = operator_of(tables_of(HashMapState(), None), bad_records="dead_letter")
    result = run(operator, 1, rows, 10)
    assert sorted(shown(result)) == [("a", 3), ("c", 4)]
    assert len(result.bad) == 1 and '"k":"b"' in result.bad[0].payload
    each(operator, "commit")
    found = {row["k"]: row["n"] for row in operator.tables["state"].snapshot().to_pylist()}
    assert found == {"a": 1, "c": 1}


def test_complete_input_fires_what_there_is_once() -> None:
    operator = operator_of(tables_of(HashMapState(), None))
    for table in operator.tables.values():
        table.begin(1)
    arrow = pa.RecordBatch.from_pylist([{"k": "a", "t": 7, "wanted": True}], INPUT)
    result = operator.process([(0, arrow)], BatchContext(1, 0, "bells", 0, END_US))
    assert shown(result) == [("a", 7)], "the next one, eight, is not kept"
    assert result.timers is not None and result.timers.event_us is None


class Odd(hf.BatchFunction):
    def __init__(self, *timestamps: Any) -> None:
        self.timestamps = timestamps

    def process(self, batch: Any, keys: Any, groups: Any, ctx: Any) -> None:
        ctx.timers.register_event_time(*self.timestamps)

    def on_timers(self, keys: Any, timestamps: Any, ctx: Any) -> None:
        return None


def test_what_is_refused() -> None:
    tables = tables_of(HashMapState(), None)
    moment = datetime.fromtimestamp(0, UTC)
    with pytest.raises(UserFunctionError, match="2 timestamps, expected a time for each of 1 distinct keys"):
        run(operator_of(tables, Odd([moment, moment])), 1, [("a", 1, True)], None)
    with pytest.raises(UserFunctionError, match="expected an array of timestamps"):
        run(operator_of(tables, Odd(["soon"])), 1, [("a", 1, True)], None)
    for group in (1, -1):
        with pytest.raises(
            UserFunctionError, match=f"groups from {group} to {group}, expected indexes of the 1 distinct"
        ):
            run(operator_of(tables, Odd([moment], np.array([group]))), 1, [("a", 1, True)], None)
    with pytest.raises(UserFunctionError, match="needs a watermark"):
        run(operator_of(tables, Odd([moment]), time=False), 1, [("a", 1, True)], None)
    assert run(operator_of(tables, Odd(np.array([0], "M8[us]"))), 1, [("a", 1, True)], None).output == []

    class Wrong(Odd):
        def on_timer(self, timestamp: Any, ctx: Any) -> None:
            return None

    with pytest.raises(SettingsError, match="a BatchFunction has on_timers"):
        operator_of(tables, Wrong([]))
