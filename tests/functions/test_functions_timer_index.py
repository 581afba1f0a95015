"""Timers against a model on every backend: fired once and in order, whatever is undone, rewound or restored."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.functions.operator import BatchContext, EventTime, NewTable, Operator, OperatorInput, OperatorResult
from holdfast.functions.process.by_row.row_operator import ProcessOperator
from holdfast.functions.process.declared import Context, ProcessFunction, ProcessSpec
from holdfast.functions.timing import timers as timers_module
from holdfast.functions.timing.timer_index import RUNS_MAX, TIME_KEY, TimerRuns
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


def index_of(operator: Operator) -> list[TimerRuns]:
    assert isinstance(operator, ProcessOperator) and operator._timers is not None
    return list(operator._timers._index.values())


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
    batches = [run for runs in index_of(operator) for run in runs._runs]
    assert sum(run.nbytes for run in batches) <= (8 + 8 + 5) * count, "a time, a key of 8 bytes, its offset"
    for table in operator.tables.values():
        table.close()


def test_deleted_timers_do_not_pile_up(tables: NewTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "DELETED_LEAST", 20)
    operator = SPEC.create(0, 128, tables)
    for batch in range(1, 300):
        rows = [("a", "delete_event_time", 1_000_000 + batch - 1), ("a", "register_event_time", 1_000_000 + batch)]
        begin(operator, batch, rows, 0, 10)
        commit(operator)
        assert len(operator.tables["timers"]) == 1
        assert sum(map(len, index_of(operator))) <= 25
    assert fired(begin(operator, 300, [], 0, 2_000_000)) == [("a", "processing" if 299 % 2 else "event", 1_000_299)]
    commit(operator)
    for table in operator.tables.values():
        table.close()


def test_runs_stay_few_and_in_order_and_let_go_of_what_is_dropped() -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    schema = pa.schema([("k", pa.int64()), (TIME_KEY, pa.int64())])
    runs, held = TimerRuns(schema), list[tuple[int, int]]()
    until = 0
    for _ in range(200):
        new = [(chance.randrange(100), until + 1 + chance.randrange(1000)) for _ in range(chance.randrange(30))]
        runs.add(pa.RecordBatch.from_pylist([{"k": k, TIME_KEY: time_us} for k, time_us in new], schema))
        held = sorted([*held, *new], key=lambda each: (each[1], each[0]))
        until += chance.randrange(20)
        due = [each for each in held if each[1] <= until]
        assert [tuple(row.values()) for row in runs.due(until).to_pylist()] == due
        later = [time_us for _, time_us in held if time_us > until]
        assert runs.earliest(until) == min(later, default=None)
        if chance.random() < 0.7:
            runs.drop(until)
            held = held[len(due) :]
        assert len(runs) == len(held) and len(runs._runs) <= RUNS_MAX
        assert sum(run.get_total_buffer_size() for run in runs._runs) <= 3 * 16 * max(1, len(held)) + 1024
