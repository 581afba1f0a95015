"""Time to live against a model, on every backend: which values are seen, and that expired values go in time."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorInput, OperatorResult
from holdfast.functions.process.declared import BatchFunction, Context, ProcessFunction, ProcessSpec
from holdfast.functions.process.shared.states import AggregatingState, ListState, MapState, ReducingState, ValueState
from holdfast.functions.process.shared.sweeping import ROUNDS, ROWS_MAX, SweepPace
from holdfast.settings import HashMapState, RocksDBState
from holdfast.state.backends import tables_of

INPUT = pa.schema([("k", pa.string()), ("op", pa.string()), ("m", pa.int64()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("seen", pa.string())])
TTL = 20
ROUND = TTL // ROUNDS
Row = tuple[str, str, Any, Any]
BACKENDS = {"hashmap": HashMapState(), "rocksdb": RocksDBState(), "cache": RocksDBState(cache_max_entries=3)}


@pytest.fixture(params=["hashmap", pytest.param("rocksdb", marks=pytest.mark.long), "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


class Running:
    """An operator on which batches are run in sequence."""

    def __init__(self, function: Any, tables: NewTable) -> None:
        self._spec = ProcessSpec("ageing", OperatorInput(INPUT, ("k",)), function, OUTPUT)
        self._new_table = tables
        self.operator: Operator = self._spec.create(0, 128, tables)
        self.batch = 0

    def begin(self, rows: list[Row], second: int) -> OperatorResult:
        self.batch += 1
        for table in self.operator.tables.values():
            table.begin(self.batch)
        batch = pa.RecordBatch.from_pylist([dict(zip(INPUT.names, row, strict=True)) for row in rows], INPUT)
        return self.operator.process([(0, batch)], BatchContext(self.batch, second * 1_000_000, "ageing", 0))

    def commit(self) -> None:
        for table in self.operator.tables.values():
            table.commit()

    def undo(self) -> None:
        for table in self.operator.tables.values():
            table.undo()

    def run(self, rows: list[Row], second: int) -> list[Any]:
        result = self.begin(rows, second)
        self.commit()
        return seen(result)

    def rewind(self, to_batch: int) -> None:
        for table in self.operator.tables.values():
            table.rewind(to_batch)

    def restart(self) -> None:
        before, self.operator = self.operator, self._spec.create(0, 128, self._new_table)
        for name, table in before.tables.items():
            self.operator.tables[name].apply(table.snapshot(), 0, 128)
            table.close()

    def sizes(self) -> dict[str, int]:
        return {name: len(table) for name, table in self.operator.tables.items()}

    def close(self) -> None:
        for table in self.operator.tables.values():
            table.close()


def seen(result: OperatorResult) -> list[Any]:
    return [row["seen"] for batch in result.output for row in batch.to_pylist() if row["seen"]]


def by_row(on: Any) -> ProcessFunction:
    class ByRow(ProcessFunction):
        value = ValueState(pa.int64(), default=-1, ttl=TTL, ttl_on=on)
        items = MapState(pa.int64(), pa.int64(), default=-1, ttl=TTL, ttl_on=on)
        log = ListState(pa.int64(), ttl=TTL, ttl_on=on)

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
            if row.op == "update":
                self.value.update(row.v)
            elif row.op == "clear":
                self.value.clear()
            elif row.op == "put":
                self.items.put(row.m, row.v)
            elif row.op == "add":
                self.log.add(row.v)
            elif row.op == "set":
                self.log.update([row.v] * row.m)
            elif row.op == "value":
                yield row.k, repr(self.value.value())
            elif row.op == "get":
                yield row.k, repr(self.items.get(row.m))
            elif row.op == "items":
                yield row.k, repr(self.items.items())
            elif row.op == "log":
                yield row.k, repr(self.log.get())

    return ByRow()


def by_batch(on: Any) -> BatchFunction:
    class ByBatch(BatchFunction):
        """Carries out the first row's operation, for all rows."""

        value = ValueState(pa.int64(), default=-1, ttl=TTL, ttl_on=on)
        items = MapState(pa.int64(), pa.int64(), default=-1, ttl=TTL, ttl_on=on)
        log = ListState(pa.int64(), ttl=TTL, ttl_on=on)

        def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Context) -> pa.RecordBatch:
            op, m, v = batch["op"][0].as_py(), batch["m"], batch["v"]
            last = dict(zip(groups.tolist(), batch.to_pylist(), strict=True))
            rows = [last[group] for group in range(keys.num_rows)]
            found: Any = [""] * len(groups)
            if op == "update":
                self.value.update([row["v"] for row in rows])
            elif op == "clear":
                self.value.clear()
            elif op == "put":
                self.items.put(m, v, groups)
            elif op == "add":
                self.log.append(v, groups)
            elif op == "set":
                self.log.update([[row["v"]] * row["m"] for row in rows])
            elif op == "value":
                found = list(map(repr, self.value.values().take(pa.array(groups)).to_pylist()))
            elif op == "get":
                found = list(map(repr, self.items.get(m, groups).to_pylist()))
            elif op == "items":
                items = self.items.items().to_pylist()
                found = [repr([(each["key"], each["value"]) for each in items if each["group"] == g]) for g in groups]
            elif op == "log":
                lists = self.log.get().to_pylist()
                found = [repr(lists[group]) for group in groups]
            return pa.record_batch([batch["k"], pa.array(found, pa.string())], schema=OUTPUT)

    return ByBatch()


class Model:
    """Plain dicts of (value, since when it lives). Entries of `values` and `items` are by name, elements in order."""

    def __init__(self, on: str) -> None:
        self.on = on
        self.values: dict[Any, tuple[Any, int]] = {}
        self.lists: dict[str, list[tuple[Any, int]]] = {}

    def copy(self) -> "Model":
        copied = Model(self.on)
        copied.values, copied.lists = dict(self.values), {key: list(found) for key, found in self.lists.items()}
        return copied

    def put(self, name: Any, value: Any, now: int) -> None:
        lives = name in self.values and self.values[name][1] + TTL > now
        self.values[name] = (value, self.values[name][1] if lives and self.on == "create" else now)

    def get(self, name: Any, now: int) -> Any:
        """(value,) or ()."""
        value, since = self.values.get(name, (None, -TTL))
        if since + TTL <= now:
            return ()
        if self.on == "read":
            self.values[name] = (value, now)
        return (value,)

    def take(self, row: Row, now: int) -> list[str]:
        key, op, map_key, value = row
        if op == "update":
            self.put(key, value, now)
        elif op == "clear":
            self.values.pop(key, None)
        elif op == "put":
            self.put((key, map_key), value, now)
        elif op == "add":
            self.lists.setdefault(key, []).append((value, now))
        elif op == "set":
            self.lists[key] = [(value, now)] * map_key
        return self.answer(key, op, map_key, now)

    def answer(self, key: str, op: str, map_key: int, now: int) -> list[str]:
        if op == "value":
            return [repr((*self.get(key, now), -1)[0])]
        if op == "get":
            return [repr((*self.get((key, map_key), now), -1)[0])]
        if op == "items":
            names = sorted(name for name in self.values if isinstance(name, tuple) and name[0] == key)
            return [repr([(name[1], found[0]) for name in names if (found := self.get(name, now))])]
        if op == "log":
            lives = [(value, since) for value, since in self.lists.get(key, []) if since + TTL > now]
            self.lists[key] = [(value, now if self.on == "read" else since) for value, since in lives]
            return [repr([value for value, _ in lives])]
        return []


WRITES = ["update", "put", "put", "add", "add", "set", "clear"]
READS = ["value", "get", "items", "log"]


def some_rows(chance: random.Random, one_op: bool) -> list[Row]:
    rows: list[Row] = []
    op = chance.choice(WRITES + READS)
    for _ in range(chance.randrange(8)):
        op = op if one_op else chance.choice(WRITES + READS)
        rows.append((chance.choice("abcdef"), op, chance.randrange(4), chance.randrange(100)))
    return rows


@pytest.mark.parametrize("on", ["create", "write", "read"])
@pytest.mark.parametrize("kind", [by_row, by_batch], ids=["row", "batch"])
def test_what_is_seen_is_the_models_over_undo_rewind_and_restart_and_all_of_it_goes(
    kind: Any, on: str, tables: NewTable
) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    running, model, now = Running(kind(on), tables), Model(on), 0
    after: dict[int, Model] = {0: model}
    for _ in range(40):
        now += chance.choice([0, 0, 1, 1, 2, 5, 12])
        rows = some_rows(chance, one_op=kind is by_batch)
        before, model = model, model.copy()
        expected = [answer for row in rows for answer in model.take(row, now)]
        assert seen(running.begin(rows, now)) == expected
        if chance.random() < 0.2:
            running.undo()
            model = before
            continue
        running.commit()
        after[running.batch] = model
        if chance.random() < 0.1:
            to = chance.choice(sorted(after))
            running.rewind(to)
            after = {batch: found for batch, found in after.items() if batch <= to}
            model = after[to]
        elif chance.random() < 0.1:
            running.restart()
            after = {running.batch: model}
    for step in range(1, ROUNDS + 5):
        running.run([], now + step * ROUND)
    assert set(running.sizes().values()) == {0}
    running.close()


class Everything(ProcessFunction):
    value = ValueState(pa.string(), ttl=TTL)
    least = ReducingState(min, pa.int64(), ttl=TTL)
    total = AggregatingState(lambda kept, added: kept + added, 0, type=pa.int64(), ttl=TTL)
    items = MapState(pa.int64(), ttl=TTL)
    log = ListState(ttl=TTL)

    def process(self, row: Any, ctx: Context) -> None:
        self.value.update("x" * row.v)
        self.least.add(row.v)
        self.total.add(row.v)
        self.items.put(row.m, {"of": row.v})
        self.log.add([row.v])


def test_state_shrinks_to_nothing_though_no_key_comes_again_and_the_next_batch_is_told(tables: NewTable) -> None:
    running = Running(Everything(), tables)
    running.run([(f"key {n}", "", n % 3, 5) for n in range(300)], 0)
    assert set(running.sizes().values()) == {300}
    now, batches = 0, 0
    while set(running.sizes().values()) != {0}:
        timers = running.begin([], now).timers
        running.commit()
        assert timers is not None and timers.fired == 0
        batches += 1
        if timers.processing_us is None:
            break
        now = -(-timers.processing_us // 1_000_000)
    assert set(running.sizes().values()) == {0}
    assert now <= TTL + 2 * ROUND and batches < 4 * ROUNDS
    assert running.begin([], now + 1).timers is None
    running.undo()
    running.close()


def test_what_was_removed_comes_back_with_undo_and_rewind_and_goes_again(tables: NewTable) -> None:
    running = Running(Everything(), tables)
    running.run([(f"key {n}", "", n % 3, 5) for n in range(40)], 0)
    kept = running.sizes()
    first = running.begin([], TTL + ROUND)
    assert first.timers is not None and first.timers.expired == 5 * 40
    running.undo()
    assert running.sizes() == kept
    for second in range(TTL + 2 * ROUND, TTL + 6 * ROUND, ROUND):
        running.run([], second)
    assert set(running.sizes().values()) == {0}
    running.rewind(1)
    assert running.sizes() == kept
    running.run([("key 1", "", 1, 6)], TTL + 6 * ROUND)
    for second in range(TTL + 7 * ROUND, TTL + 9 * ROUND, ROUND):
        running.run([], second)
    assert set(running.sizes().values()) == {1}
    running.close()


def test_removal_is_a_change_of_the_batch_and_so_in_the_log() -> None:
    running = Running(Everything(), tables_of(HashMapState(), None))
    running.run([("a", "", 1, 5), ("b", "", 1, 5)], 0)
    running.begin([], TTL + ROUND)
    for table in running.operator.tables.values():
        changes = table.changes()
        assert changes is not None and changes.column("__deleted").to_pylist() == [True, True]
    running.commit()


def test_a_state_that_lives_keeps_its_key_though_others_of_it_expired(tables: NewTable) -> None:
    class Mixed(ProcessFunction):
        lasting = ValueState(pa.int64())
        passing = ValueState(pa.string(), ttl=TTL)

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
            if row.v is not None:
                self.lasting.update(row.v)
                self.passing.update("passing")
            yield row.k, repr((self.lasting.value(), self.passing.value()))

    running = Running(Mixed(), tables)
    running.run([("a", "", 1, 5)], 0)
    assert running.begin([], TTL + ROUND).timers is not None
    running.commit()
    table = running.operator.tables["state"]
    row = {name: value for name, value in table.snapshot().to_pylist()[0].items() if not name.startswith("__")}
    assert row == {"k": "a", "lasting": 5, "passing": None, "passing.time": None}
    assert running.run([("a", "", None, None)], TTL + ROUND) == ["(5, None)"]
    running.close()


def test_a_list_that_is_added_to_for_ever_holds_what_lives_and_little_more(tables: NewTable) -> None:
    class Last(ProcessFunction):
        log = ListState(pa.int64(), ttl=TTL)

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
            self.log.add(row.v)
            yield row.k, repr(self.log.get())

    running = Running(Last(), tables)
    for second in range(6 * TTL):
        expected = list(range(max(0, second - TTL + 1), second + 1))
        assert running.run([("a", "", 1, second)], second) == [repr(expected)]
        assert running.sizes()["log.elements"] <= TTL + 2 * ROUND
    running.restart()
    assert running.run([("a", "", 1, -1)], 6 * TTL) == [repr([*range(5 * TTL + 1, 6 * TTL), -1])]
    running.close()


def test_values_written_before_their_state_had_a_time_to_live_begin_it_when_they_are_met(tables: NewTable) -> None:
    def function(ttl: int | None) -> ProcessFunction:
        class Changed(ProcessFunction):
            value = ValueState(pa.int64(), ttl=ttl)
            items = MapState(pa.int64(), pa.int64(), ttl=ttl)
            log = ListState(pa.int64(), ttl=ttl)

            def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
                if row.op == "put":
                    self.value.update(row.v)
                    self.items.put(row.m, row.v)
                    self.log.add(row.v)
                yield row.k, repr((self.value.value(), self.items.items(), self.log.get()))

        return Changed()

    before, after = Running(function(None), tables), Running(function(TTL), tables)
    before.run([("a", "put", 1, 5), ("b", "put", 1, 5)], 0)
    for name, table in before.operator.tables.items():
        after.operator.tables[name].apply(table.snapshot(), 0, 128)
    before.close()
    read: Row = ("a", "read", None, None)
    assert after.run([read], 100) == [repr((5, [(1, 5)], [5]))]
    assert after.run([read], 100 + TTL - 1) == [repr((5, [(1, 5)], [5]))]
    assert after.run([read], 100 + TTL) == [repr((None, [], []))]
    for second in range(100 + TTL, 100 + 2 * TTL, ROUND):
        after.run([], second)
    assert set(after.sizes().values()) == {0}
    after.close()


def test_a_round_takes_its_time_whatever_batches_come() -> None:
    for size, step_us in ((10_000, 1000), (10_000, 70_000), (5_000_000, 100_000), (3, 1000)):
        pace, looked, now_us = SweepPace(40_000_000), 0, 0
        while looked < size:
            rows = pace.rows(size, now_us)
            assert rows <= ROWS_MAX
            looked += rows
            pace.seen(rows, over=looked >= size)
            now_us += step_us
        assert now_us <= 80 * step_us, "the first round is made at once"
        looked, start_us, batches_with_work = 0, now_us, 0
        while looked < size:
            rows = pace.rows(size, now_us)
            looked += rows
            batches_with_work += rows > 0
            pace.seen(rows, over=False)
            now_us += step_us
        assert 0.9 * 10_000_000 <= now_us - start_us <= 1.1 * 10_000_000 + step_us
        assert batches_with_work <= max(size // 1024 + 1, 10_000_000 // step_us + 1)


def test_a_great_table_is_gone_round_in_parts_and_each_part_only_once(tmp_path: Path) -> None:
    class Hold(BatchFunction):
        value = ValueState(pa.int64(), ttl=TTL)

        def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Context) -> None:
            self.value.update(np.zeros(keys.num_rows, np.int64))

    for backend in BACKENDS.values():
        running = Running(Hold(), tables_of(backend, str(tmp_path)))
        rows: list[Row] = [(f"key {n}", "", 1, 1) for n in range(40_000)]
        running.run(rows, 0)
        removed = []
        while running.sizes()["state"]:
            timers = running.begin([], 10 * TTL + len(removed)).timers
            running.commit()
            assert timers is not None
            removed.append(timers.expired)
        assert sum(removed) == 40_000 and len(removed) <= 8
        running.close()
