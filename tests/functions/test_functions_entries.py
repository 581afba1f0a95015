"""`ListState` and `MapState`, by row and by batch, against plain dicts; their rows; undo, restore, expiry."""

import random
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from functions_kit import end

from holdfast.errors import SettingsError, UserFunctionError
from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorInput, OperatorResult
from holdfast.functions.process.by_row import entry_cells, row_operator
from holdfast.functions.process.declared import BatchFunction, Context, ProcessFunction, ProcessSpec
from holdfast.functions.process.shared.entries import ListEntries, MapEntries
from holdfast.functions.process.shared.states import ListState, MapState, ReducingState, ValueState
from holdfast.settings import RocksDBState
from holdfast.state.backends import tables_of
from holdfast.state.table import StateTable
from sampling import some

INPUT = pa.schema([("k", pa.string()), ("op", pa.string()), ("m", pa.int64()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("seen", pa.string())])
Row = tuple[str, str, Any, Any]
NewOperator = Callable[..., Operator]


@pytest.fixture(autouse=True, params=[0, entry_cells.SMALL_MAX], ids=["single", "together"])
def entries_read_singly_or_together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small maps and lists are read with their keys; here also as large ones are."""
    monkeypatch.setattr(entry_cells, "SMALL_MAX", request.param)


@pytest.fixture(params=["hashmap", "rocksdb", "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    if request.param == "hashmap":
        return StateTable
    return tables_of(RocksDBState(cache_max_entries=3 if request.param == "cache" else 0), str(tmp_path))


def operator_of(function: Any, tables: NewTable = StateTable, bad_records: Any = "fail") -> Operator:
    spec = ProcessSpec("carts", OperatorInput(INPUT, ("k",)), function, OUTPUT, bad_records)
    return spec.create(0, 128, tables)


def begin(operator: Operator, rows: list[Row], second: int = 0) -> OperatorResult:
    for table in operator.tables.values():
        table.begin(1)
    batch = pa.RecordBatch.from_pylist([dict(zip(INPUT.names, row, strict=True)) for row in rows], INPUT)
    return operator.process([(0, batch)], BatchContext(1, second * 1_000_000, "carts", 0))


def run(operator: Operator, rows: list[Row], second: int = 0) -> list[Any]:
    result = begin(operator, rows, second)
    end(operator)
    return [row["seen"] for batch in result.output for row in batch.to_pylist()]


def restored(operator: Operator, new: Operator) -> Operator:
    for name, table in operator.tables.items():
        new.tables[name].apply(table.snapshot(), 0, 128)
        table.close()
    return new


def counts(operator: Operator) -> dict[str, int]:
    return {name: len(table) for name, table in operator.tables.items()}


class Script(ProcessFunction):
    """Carries out the operation `op`."""

    items = MapState(pa.int64(), pa.int64(), default=-1)
    log = ListState(pa.int64())

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
        if row.op == "put":
            self.items.put(row.m, row.v)
        elif row.op == "remove":
            self.items.remove(row.m)
        elif row.op == "get":
            yield row.k, repr(self.items.get(row.m))
        elif row.op == "contains":
            yield row.k, repr(self.items.contains(row.m))
        elif row.op == "items":
            yield row.k, repr(self.items.items())
        elif row.op == "clear":
            self.items.clear()
        elif row.op == "add":
            self.log.add(row.v)
        elif row.op == "log":
            yield row.k, repr(self.log.get())
        elif row.op == "set":
            self.log.update([row.v] * row.m)
        if row.op == "fail" or row.v == 13:
            raise ValueError("unlucky")


class Model:
    """The output that `Script` should give."""

    def __init__(self) -> None:
        self.items: dict[str, dict[int, Any]] = {}
        self.log: dict[str, list[Any]] = {}

    def copy(self) -> "Model":
        copied = Model()
        copied.items = {key: dict(items) for key, items in self.items.items()}
        copied.log = {key: list(log) for key, log in self.log.items()}
        return copied

    def take(self, row: Row) -> list[str]:
        key, op, map_key, value = row
        items, log = self.items.setdefault(key, {}), self.log.setdefault(key, [])
        if value == 13 or op == "fail":
            return []
        answers: dict[str, Callable[[], Any]] = {
            "get": lambda: items.get(map_key, -1),
            "contains": lambda: map_key in items,
            "items": lambda: sorted(items.items()),
            "log": lambda: log,
        }
        changes: dict[str, Callable[[], Any]] = {
            "put": lambda: items.update({map_key: value}),
            "remove": lambda: items.pop(map_key, None),
            "clear": items.clear,
            "add": lambda: log.append(value),
            "set": lambda: self.log.update({key: [value] * map_key}),
        }
        if op in answers:
            return [repr(answers[op]())]
        changes[op]()
        return []


OPS = ["put"] * 6 + ["remove"] * 4 + ["get", "contains", "items", "add", "add", "add", "log", "set"]


def some_rows(chance: random.Random) -> list[Row]:
    rows: list[Row] = []
    for _ in range(chance.randrange(1, 25)):
        op = "clear" if chance.random() < 0.03 else chance.choice(OPS)
        value = None if chance.random() < 0.1 else chance.randrange(20)
        rows.append((chance.choice("abc"), op, chance.randrange(8), value))
    return rows


@pytest.mark.parametrize("seed", some(range(6), 0, 1, 2))
def test_lists_and_maps_are_those_of_a_plain_dict_over_batches_undo_and_restore(
    seed: int, tables: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_operator, "SLICE_ROWS", 4)
    monkeypatch.setattr(row_operator, "CAREFUL_BATCHES", 2)
    print("seed", seed)
    chance = random.Random(seed)
    operator, model = operator_of(Script(), tables, "dead_letter"), Model()
    for _ in range(25):
        rows, after = some_rows(chance), model.copy()
        expected = [answer for row in rows for answer in after.take(row)]
        result = begin(operator, rows)
        assert [row["seen"] for batch in result.output for row in batch.to_pylist()] == expected
        undo = chance.random() < 0.25
        end(operator, undo=undo)
        model = model if undo else after
        if chance.random() < 0.2:
            operator = restored(operator, operator_of(Script(), tables, "dead_letter"))
    entries, elements = sum(map(len, model.items.values())), sum(map(len, model.log.values()))
    found = counts(operator)
    assert (found["items.entries"], found["items.order"], found["log.elements"]) == (entries, entries, elements)
    for table in operator.tables.values():
        table.close()


def test_writing_one_entry_changes_the_row_of_that_entry_alone() -> None:
    operator = operator_of(Script())
    run(operator, [("a", op, m, m + 100) for m in range(100) for op in ("put", "add")])
    begin(operator, [("a", "put", 7, 70), ("a", "add", None, 1)])
    changed = {name: table.changes() for name, table in operator.tables.items()}
    assert {name: rows.num_rows for name, rows in changed.items() if rows} == {
        "items.entries": 1,
        "log.elements": 1,
        "state": 1,
    }
    assert len(operator.tables["items.entries"].touched()) == 1
    end(operator)


@pytest.mark.parametrize("op", ["items", "log"])
def test_a_function_that_reads_whole_maps_or_lists_has_those_of_the_next_keys_read_together(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, keys = operator_of(Script()), [f"{number:02}" for number in range(60)]
    for key in keys:
        run(operator, [(key, change, m, 100 + m) for m in range(40) for change in ("put", "add")])
    reads: list[int] = []
    kind, method = (MapEntries, "items") if op == "items" else (ListEntries, "read")
    read = getattr(kind, method)

    def counted(entries: Any, keys: pa.RecordBatch, *more: Any) -> Any:
        reads.append(keys.num_rows)
        return read(entries, keys, *more)

    monkeypatch.setattr(kind, method, counted)
    first = ("00", "put", 7, -7)
    answers = run(operator, [first, *((key, op, None, None) for key in keys)])
    whole = [(m, 100 + m) for m in range(40)] if op == "items" else list(range(100, 140))
    changed = [(m, -7 if m == 7 else 100 + m) for m in range(40)] if op == "items" else whole
    assert answers == [repr(changed), *[repr(whole)] * 59]
    assert sum(reads) == 60 and len(reads) <= 8, reads
    reads.clear()
    run(operator, [(key, "get", 1, None) for key in keys] + [("05", op, None, None)])
    assert reads == [1], "the first whole read of a batch reads no other key"


def test_entries_are_in_the_key_group_of_their_key() -> None:
    operator = operator_of(Script())
    run(operator, [(key, "put", m, 1) for key in "abcdef" for m in range(20)])
    groups: dict[str, set[int]] = {}
    for table in operator.tables.values():
        for row in table.snapshot().to_pylist():
            groups.setdefault(row["k"], set()).add(row["__key_group"])
    assert all(len(found) == 1 for found in groups.values()) and len(groups) == 6


def test_a_key_whose_entries_are_gone_takes_no_room() -> None:
    operator = operator_of(Script())
    run(operator, [("a", "put", 1, 1), ("a", "put", 2, 2), ("a", "add", None, 1)])
    run(operator, [("a", "remove", 1, None), ("a", "clear", None, None), ("a", "set", 0, 0)])
    assert counts(operator) == {"state": 0, "items.entries": 0, "items.order": 0, "log.elements": 0}


TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["b", "", "a"]),
    (pa.binary(), [b"x", b""]),
    (pa.date32(), [date(2026, 1, 2), date(1969, 1, 1)]),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-3.00")]),
    (pa.timestamp("us"), [datetime(2026, 1, 1)]),
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127]),
]


@pytest.mark.parametrize(("kind", "map_keys"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_map_keys_of_every_type_come_back_in_ascending_order(kind: pa.DataType, map_keys: list[Any]) -> None:
    class Keep(ProcessFunction):
        of = MapState(kind)

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
            if row.op == "put":
                self.of.update({map_key: {"at": [1, None]} for map_key in map_keys})
            yield row.k, repr((self.of.keys(), self.of.values(), self.of.is_empty()))

    operator = operator_of(Keep())
    run(operator, [("a", "put", 1, 1)])
    assert run(operator, [("a", "see", 1, 1), ("b", "see", 1, 1)]) == [
        repr((sorted(map_keys), [{"at": [1, None]}] * len(map_keys), False)),
        repr(([], [], True)),
    ]


def test_what_is_read_is_a_copy() -> None:
    class Change(ProcessFunction):
        notes = MapState(pa.string())
        log = ListState(pa.list_(pa.int64()))

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
            self.notes.put("n", [1])
            self.notes.get("n").append(2)
            self.log.add([1])
            self.log.get()[0].append(2)
            yield row.k, repr((self.notes.get("n"), self.log.get()))

    assert run(operator_of(Change()), [("a", "", 1, 1)]) == ["([1], [[1]])"]


def test_what_does_not_fit_names_operator_state_and_type() -> None:
    class Wrong(ProcessFunction):
        items = MapState(pa.int64(), pa.int64())

        def process(self, row: Any, ctx: Context) -> None:
            if row.op == "key":
                self.items.put("one", 1)
            self.items.put(1, "one")

    with pytest.raises(UserFunctionError, match=r"'carts': state 'items', map key 1: found 'one' .*expected int64"):
        begin(operator_of(Wrong()), [("a", "value", 1, 1)])
    with pytest.raises(UserFunctionError, match=r"'carts': state 'items', a map key: found 'one' .*expected int64"):
        begin(operator_of(Wrong()), [("a", "key", 1, 1)])
    with pytest.raises(SettingsError, match="MapState key_type is double"):
        MapState(pa.float64())
    with pytest.raises(SettingsError, match="ttl"):
        MapState(pa.int64(), ttl="soon")


class Batches(BatchFunction):
    """Carries out the first row's operation `op`, for all rows."""

    items = MapState(pa.int64(), pa.int64(), default=-1)
    log = ListState(pa.int64())

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Context) -> pa.RecordBatch:
        op, m, v = batch["op"][0].as_py(), batch["m"], batch["v"]
        seen: Any = [""] * len(groups)
        if op == "put":
            self.items.put(m, v, groups)
        elif op == "remove":
            self.items.remove(m, groups)
        elif op == "get":
            seen = list(map(repr, self.items.get(m, groups).to_pylist()))
        elif op == "contains":
            seen = list(map(repr, self.items.contains(m, groups).tolist()))
        elif op == "items":
            found = self.items.items().to_pylist()
            seen = [
                repr([(each["key"], each["value"]) for each in found if each["group"] == group]) for group in groups
            ]
        elif op == "clear":
            self.items.clear()
        elif op == "add":
            self.log.append(v, groups)
        elif op == "log":
            lists = self.log.get().to_pylist()
            seen = [repr(lists[group]) for group in groups]
        elif op == "set":
            last = dict(zip(groups.tolist(), batch.to_pylist(), strict=True))
            self.log.update([[last[group]["v"]] * last[group]["m"] for group in range(keys.num_rows)])
        if 13 in v.to_pylist():
            raise ValueError("unlucky")
        return pa.record_batch([batch["k"], pa.array(seen, pa.string())], schema=OUTPUT)


@pytest.mark.parametrize("seed", some(range(6), 0, 1, 2))
def test_arrays_of_lists_and_maps_are_those_of_a_plain_dict(seed: int, tables: NewTable) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    operator, model = operator_of(Batches(), tables, "dead_letter"), Model()
    for _ in range(40):
        op = "clear" if chance.random() < 0.05 else chance.choice(OPS)
        rows = [(k, op, m, v) for k, _, m, v in some_rows(chance)]
        after = model.copy()
        expected = [answer for row in rows for answer in after.take(row)]
        result = begin(operator, rows)
        seen = [row["seen"] for batch in result.output for row in batch.to_pylist()]
        assert [each for each in seen if each] == expected
        assert len(result.bad) == sum(row[3] == 13 for row in rows)
        undo = chance.random() < 0.25
        end(operator, undo=undo)
        model = model if undo else after
        if chance.random() < 0.2:
            operator = restored(operator, operator_of(Batches(), tables, "dead_letter"))
    for table in operator.tables.values():
        table.close()


def test_without_groups_arrays_are_over_the_distinct_keys() -> None:
    class Each(BatchFunction):
        items = MapState(pa.string())
        log = ListState()

        def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Context) -> pa.RecordBatch:
            count = keys.num_rows
            self.items.put(["n"] * count, [[number] for number in range(count)])
            self.log.append([["x"] * number for number in range(count)])
            seen = pa.array([repr(pair) for pair in zip(self.items.get(["n"] * count), self.log.get(), strict=True)])
            return pa.record_batch([keys["k"], seen], schema=OUTPUT)

    rows: list[Row] = [("a", "", 1, 1), ("b", "", 1, 1), ("a", "", 1, 1)]
    assert run(operator_of(Each()), rows) == ["([0], [])", "([1], ['x'])"]


class Expiring(ProcessFunction):
    """`m` names a state; `v` is put, None only reads."""

    created = ValueState(pa.int64(), ttl="10s", ttl_on="create")
    written = ReducingState(lambda kept, value: kept + value, pa.int64(), ttl="10s")
    read = ValueState(pa.int64(), default=0, ttl=10, ttl_on="read")
    items = MapState(pa.int64(), pa.int64(), ttl="10s")
    log = ListState(pa.int64(), ttl="10s")

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
        if row.v is not None:
            self.created.update(row.v)
            self.written.add(row.v)
            self.read.update(row.v)
            self.items.put(row.m, row.v)
            self.log.add(row.v)
        found = self.created.value(), self.written.get(), self.read.value(), self.items.items(), self.log.get()
        yield row.k, repr(found)


def test_expired_values_entries_and_elements_are_invisible_by_the_time_of_the_plan(tables: NewTable) -> None:
    operator = operator_of(Expiring(), tables)
    read: Row = ("a", "", None, None)
    assert run(operator, [("a", "", 1, 5)], 0) == [repr((5, 5, 5, [(1, 5)], [5]))]
    assert run(operator, [("a", "", 2, 6)], 6) == [repr((6, 11, 6, [(1, 5), (2, 6)], [5, 6]))]
    assert run(operator, [read], 9) == [repr((6, 11, 6, [(1, 5), (2, 6)], [5, 6]))]
    assert run(operator, [read], 10) == [repr((None, 11, 6, [(2, 6)], [6]))]
    operator = restored(operator, operator_of(Expiring(), tables))
    assert run(operator, [read], 16) == [repr((None, None, 6, [], []))]
    assert run(operator, [("b", "", None, None)], 25) == [repr((None, None, 0, [], []))]
    assert run(operator, [read], 25) == [repr((None, None, 6, [], []))]
    assert run(operator, [read, ("a", "", 1, 7)], 35) == [
        repr((None, None, 0, [], [])),
        repr((7, 7, 7, [(1, 7)], [7])),
    ]
    for table in operator.tables.values():
        table.close()


def test_expired_entries_go_when_the_whole_map_is_read_or_cleared() -> None:
    class Hold(ProcessFunction):
        items = MapState(pa.int64(), pa.int64(), ttl="10s")

        def process(self, row: Any, ctx: Context) -> None:
            if row.op == "put":
                self.items.put(row.m, row.v)
            elif row.op == "read":
                assert self.items.items() == []
            else:
                self.items.clear()

    for op in ("read", "clear"):
        operator = operator_of(Hold(), StateTable, "dead_letter")
        run(operator, [("a", "put", 1, 1), ("a", "put", 2, 2)])
        run(operator, [("b", "put", 1, 1)], 9)
        run(operator, [], 10)
        assert counts(operator) == {"state": 2, "items.entries": 3, "items.order": 3}, "no round over the table is due"
        run(operator, [("a", op, 1, 1)], 10)
        assert counts(operator) == {"state": 1, "items.entries": 1, "items.order": 1}


def test_arrays_expire_alike() -> None:
    class Expire(BatchFunction):
        n = ValueState(pa.int64(), default=0, ttl="10s")
        items = MapState(pa.int64(), pa.int64(), ttl="10s", ttl_on="create")

        def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Context) -> pa.RecordBatch:
            n = self.n.values().to_numpy(zero_copy_only=False)
            held = self.items.contains(np.zeros(len(n), np.int64))
            if batch["v"][0].as_py() is not None:
                self.n.update(n + 1)
                self.items.put(np.zeros(len(n), np.int64), n)
            seen = pa.array([repr(pair) for pair in zip(n.tolist(), held.tolist(), strict=True)])
            return pa.record_batch([keys["k"], seen], schema=OUTPUT)

    operator = operator_of(Expire())
    seen = [run(operator, [("a", "", 1, 1)], second)[0] for second in (0, 6, 12, 30)]
    assert seen == ["(0, False)", "(1, True)", "(2, False)", "(0, False)"]
