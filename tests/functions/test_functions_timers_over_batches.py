"""Timers against a model on every backend: fired once and in order, whatever is undone, rewound or restored."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.functions.operator import BatchContext, EventTime, NewTable, Operator, OperatorInput, OperatorResult
from holdfast.functions.process.by_array.batch_operator import BatchOperator
from holdfast.functions.process.by_row.row_operator import ProcessOperator
from holdfast.functions.process.declared import BatchFunction, Context, ProcessFunction, ProcessSpec
from holdfast.functions.timing import timers as timers_module
from holdfast.functions.timing.time_index import FollowedIndex
from holdfast.settings import HashMapState, RocksDBState
from holdfast.state.backends import tables_of

INPUT = pa.schema([("k", pa.string()), ("op", pa.string()), ("t", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("kind", pa.string()), ("t", pa.int64())])
BACKENDS = {"hashmap": HashMapState(), "rocksdb": RocksDBState(), "cache": RocksDBState(cache_max_entries=3)}
Row = tuple[str, str, int]


@pytest.fixture(params=["hashmap", pytest.param("rocksdb", marks=pytest.mark.long), "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


class Bells(ProcessFunction):
    """Carries out the operation `op` at second `t`. Processing times are odd seconds, to tell them apart."""

    def process(self, row: Any, ctx: Context) -> None:
        getattr(ctx.timers, row.op)(datetime.fromtimestamp(row.t, UTC))

    def on_timer(self, timestamp: datetime, ctx: Context) -> Iterator[tuple[str, str, int]]:
        second = round(timestamp.timestamp())
        yield ctx.key, "processing" if second % 2 else "event", second


SPEC = ProcessSpec("bells", OperatorInput(INPUT, ("k",), EventTime(("at",), None)), Bells(), OUTPUT)


def begin(operator: Operator, batch: int, rows: list[Row], now: int, watermark: int | None) -> OperatorResult:
    for table in operator.tables.values():
        table.begin(batch)
    arrow = pa.RecordBatch.from_pylist([dict(zip(INPUT.names, row, strict=True)) for row in rows], INPUT)
    watermark_us = None if watermark is None else watermark * 1_000_000
    return operator.process([(0, arrow)], BatchContext(batch, now * 1_000_000, "bells", 0, watermark_us))


def fired(result: OperatorResult) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in result.output for row in batch.to_pylist()]


def commit(operator: Operator) -> None:
    for table in operator.tables.values():
        table.commit()


def indexes_of(operator: Operator) -> list[FollowedIndex]:
    assert isinstance(operator, ProcessOperator | BatchOperator) and operator._timers is not None
    return list(operator._timers._indexes.values())


Timer = tuple[str, str, int]


def change(timers: set[Timer], row: Row) -> None:
    key, op, second = row
    verb, _, kind = op.removesuffix("_time").partition("_")
    (timers.add if verb == "register" else timers.discard)((key, kind, second))


def model_fires(timers: set[Timer], now: int, watermark: int) -> list[Timer]:
    until = {"event": watermark, "processing": now}
    found = [timer for timer in timers if timer[2] <= until[timer[1]]]
    timers -= set(found)
    return found


def some_rows(chance: random.Random, now: int) -> list[Row]:
    rows: list[Row] = []
    for _ in range(chance.randrange(12)):
        kind = chance.choice(["event", "processing"])
        second = 2 * chance.randrange(now // 2, now // 2 + 15) + (kind == "processing")
        verb = "delete" if chance.random() < 0.3 else "register"
        rows.append((chance.choice(["a", "b", "c", "dd", ""]), f"{verb}_{kind}_time", second))
    return rows


@pytest.mark.parametrize("attempt", range(3))
def test_timers_fire_as_the_models_over_undo_rewind_and_restart(
    attempt: int, tables: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "DELETED_LEAST", 5)
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    operator, timers, now, watermark = SPEC.create(0, 128, tables), set[Timer](), 1, 0
    after: dict[int, set[Timer]] = {0: set()}
    for batch in range(1, 60):
        now += chance.choice([0, 0, 1, 2, 4])
        watermark += chance.choice([0, 0, 1, 2, 4])
        before, timers = timers, set(timers)
        rows = some_rows(chance, min(now, watermark))
        for row in rows:
            change(timers, row)
        expected = model_fires(timers, now, watermark)
        result = begin(operator, batch, rows, now, watermark)
        assert sorted(fired(result)) == sorted(expected)
        for kind in ("event", "processing"):
            times = [each[2] for each in fired(result) if each[1] == kind]
            assert times == sorted(times)
        assert result.timers is not None and result.timers.fired == len(expected)
        left = min((timer[2] for timer in timers if timer[1] == "event"), default=None)
        if left is not None:
            assert result.timers.event_us is not None and result.timers.event_us <= left * 1_000_000
        if chance.random() < 0.2:
            for table in operator.tables.values():
                table.undo()
            timers = before
            continue
        commit(operator)
        after[batch] = timers
        if chance.random() < 0.1:
            to = chance.choice(sorted(after))
            for table in operator.tables.values():
                table.rewind(to)
            timers = after[to]
            after = {number: found for number, found in after.items() if number <= to}
        elif chance.random() < 0.1:
            old, operator = operator, SPEC.create(0, 128, tables)
            for name, table in old.tables.items():
                operator.tables[name].apply(table.snapshot(), 0, 128)
                table.close()
            after = {batch: timers}
    for table in operator.tables.values():
        table.close()


def test_timers_lie_in_the_backend_and_the_index_holds_times_and_keys(tmp_path: Path) -> None:
    count = 20_000
    operator = SPEC.create(0, 128, tables_of(RocksDBState(), str(tmp_path)))
    begin(operator, 1, [(f"{n:08}", "register_event_time", 2 * n) for n in range(count)], 0, None)
    commit(operator)
    assert len(operator.tables["timers"]) == count
    assert {table.rows_in_memory for table in operator.tables.values()} == {0}
    assert fired(begin(operator, 2, [], 0, 10)) == [(f"{n:08}", "event", 2 * n) for n in range(6)]
    commit(operator)
    assert operator.tables["timers"].rows_in_memory == 0
    assert fired(begin(operator, 3, [], 0, 12)) == [("00000006", "event", 12)]
    commit(operator)
    assert sum(map(len, indexes_of(operator))) == count - 6
    index_bytes = sum(index.memory_bytes for index in indexes_of(operator))
    assert index_bytes <= (8 + 1 + 8 + 5) * count, "a time, a kind, a key of 8 bytes, its offset"
    for table in operator.tables.values():
        table.close()


class ArrayBells(BatchFunction):
    """Moves the timer of each key from second `t` - 1 to second `t`."""

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Context) -> None:
        times = batch.column("t").to_numpy()
        ctx.timers.delete_event_time(seconds(times - 1))
        ctx.timers.register_event_time(seconds(times))

    def on_timers(self, keys: pa.RecordBatch, timestamps: pa.Array, ctx: Context) -> pa.RecordBatch:
        times = pa.array([round(each.timestamp()) for each in timestamps.to_pylist()])
        return pa.RecordBatch.from_arrays([keys.column("k"), pa.array(["event"] * len(times)), times], schema=OUTPUT)


def seconds(times: Any) -> pa.Array:
    return pa.array(times * 1_000_000).cast(pa.timestamp("us", tz="UTC"))


def move(function: ProcessFunction | BatchFunction, second: int) -> list[Row]:
    if isinstance(function, BatchFunction):
        return [("a", "", second)]
    return [("a", "delete_event_time", second - 1), ("a", "register_event_time", second)]


@pytest.mark.parametrize("function", [Bells(), ArrayBells()], ids=["by row", "by array"])
def test_deleted_timers_do_not_pile_up(
    function: ProcessFunction | BatchFunction, tables: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "DELETED_LEAST", 20)
    spec = ProcessSpec("bells", OperatorInput(INPUT, ("k",), EventTime(("at",), None)), function, OUTPUT)
    operator = spec.create(0, 128, tables)
    for batch in range(1, 100):
        begin(operator, batch, move(function, 1_000_000 + 2 * batch), 0, 10)
        commit(operator)
        assert len(operator.tables["timers"]) == 1
        assert sum(map(len, indexes_of(operator))) <= 25
        begin(operator, batch, move(function, 1_000_001 + 2 * batch), 0, 10)
        commit(operator)
    last = 1_000_001 + 2 * 99
    assert [(key, at) for key, _, at in fired(begin(operator, 100, [], 0, 2_000_000))] == [("a", last)]
    commit(operator)
    for table in operator.tables.values():
        table.close()
