"""Distinct values, exact and by sketches: types, the error that is promised, combining, restarts, the cost of a key."""

import random
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from typing import Any

import functions_windows_kit as windows
import numpy as np
import pyarrow as pa
import pytest
from functions_windows_kit import commit, restored

import holdfast as hf
from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates import large_sets
from holdfast.functions.aggregates.declared import Aggregate
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import BatchContext, EventTime, Operator, OperatorInput
from holdfast.functions.windows.aggregate import WindowSpec
from holdfast.state.table import StateTable

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "timestamps": (pa.timestamp("us", "UTC"), [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 9)]),
    "days": (pa.date32(), [date(2026, 1, day) for day in range(1, 9)]),
    "times": (pa.time64("us"), [time(hour) for hour in range(8)]),
    "booleans": (pa.bool_(), [True, False]),
    "unsigned": (pa.uint64(), [0, 1, 2**64 - 1, 2**63]),
    "floats": (pa.float32(), [1.5, -0.5, 0.0, 7.0]),
}


def spec_of(schema: pa.Schema = SCHEMA, emit: Any = "changes", **aggregates: Aggregate) -> AggregateSpec:
    return AggregateSpec("distinct", OperatorInput(schema, ("k",)), aggregates, emit)


def batch_of(pairs: Iterable[tuple[int, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    keys, values = zip(*pairs, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.int64()), pa.array(values, schema.field("v").type)], schema=schema
    )


def ran(operator: Operator, number: int, inputs: list[tuple[int, pa.RecordBatch]]) -> dict[int, dict[str, Any]]:
    """Process and commit a batch; the last output of each key."""
    for table in operator.tables.values():
        table.begin(number)
    output = operator.process(inputs, BatchContext(number, 0, "distinct", 0)).output
    for table in operator.tables.values():
        table.changes()
    commit(operator)
    return {row["k"]: row for batch in output for row in batch.to_pylist()}


def combined(spec: AggregateSpec, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    combiner = spec.combiner()
    assert combiner is not None
    return [*combiner.take(rows), *combiner.finish()]


@pytest.mark.parametrize("kind", TYPES)
def test_sets_of_each_type_survive_combining_and_restarts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.functions.aggregates.combining.SAMPLE_ROWS", 4)
    chance, (value_type, values) = random.Random(kind), TYPES[kind]
    schema = pa.schema([("k", pa.int64()), ("v", value_type)])
    spec = spec_of(schema, some=hf.collect_set("v"), n=hf.count_distinct("v"))
    operator, known = spec.create(0, 128), dict[int, set[Any]]()
    for number in range(1, 7):
        pairs = [(chance.randrange(4), chance.choice([*values, None])) for _ in range(chance.choice([3, 30]))]
        rows = batch_of(pairs, schema)
        found = ran(operator, number, combined(spec, rows) if number % 2 else [(0, rows)])
        for key, value in pairs:
            known.setdefault(key, set()).update({value} - {None})
        for key, row in found.items():
            assert (set(row["some"]), len(row["some"]), row["n"]) == (known[key], len(known[key]), len(known[key]))
        operator = restored(operator, spec, type(operator.tables["state"]))


def test_a_full_sender_sends_the_pairs_it_has_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.functions.aggregates.combining.KEYS_MAX", 50)
    monkeypatch.setattr("holdfast.functions.aggregates.combining.ROWS_AT_ONCE_MAX", 1_000)
    chance = np.random.default_rng(5)
    keys, values = chance.integers(0, 60, 9_000), chance.integers(0, 700, 9_000)
    spec = spec_of(n=hf.count_distinct("v"))
    sent = combined(spec, batch_of(zip(keys.tolist(), values.tolist(), strict=True)))
    assert len(sent) > 2
    found = ran(spec.create(0, 128), 1, sent)
    assert {key: row["n"] for key, row in found.items()} == {
        key: len(set(values[keys == key].tolist())) for key in range(60)
    }


@pytest.mark.parametrize("rsd", [0.05, 0.01])
@pytest.mark.parametrize("strings", [False, True])
def test_sketches_are_as_exact_as_promised(rsd: float, strings: bool) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string() if strings else pa.int64())])
    spec = spec_of(schema, n=hf.approx_count_distinct("v", rsd))
    sizes = [0, 1, 2, 10, 100, 450, 600, 3_000, 20_000] * 3
    keys = np.repeat(np.arange(len(sizes)), sizes)
    values = [f"user-{number}" for number in range(len(keys))] if strings else np.arange(len(keys)).tolist()
    rows = batch_of([*zip(keys.tolist(), values, strict=True), *((key, None) for key in range(len(sizes)))], schema)
    found = ran(spec.create(0, 128), 1, [(0, rows), (0, rows)])
    errors = [found[key]["n"] / size - 1 for key, size in enumerate(sizes) if size]
    assert all(found[key]["n"] == size for key, size in enumerate(sizes) if size <= 2)
    assert max(map(abs, errors)) < 3.5 * rsd
    assert np.sqrt(np.mean(np.square(errors))) < rsd


def test_sketches_of_senders_and_of_earlier_batches_make_the_sketch_of_all_rows() -> None:
    chance = np.random.default_rng(1)
    pairs = list(zip(chance.integers(0, 9, 40_000).tolist(), chance.integers(0, 5_000, 40_000).tolist(), strict=True))
    spec = spec_of(n=hf.approx_count_distinct("v"))
    whole = ran(spec.create(0, 128), 1, [(0, batch_of(pairs))])
    operator, found = spec.create(0, 128), dict[int, dict[str, Any]]()
    for number, start in enumerate(range(0, 40_000, 10_000), 1):
        parts = [batch_of(pairs[start : start + 5_000]), batch_of(pairs[start + 5_000 : start + 10_000])]
        found |= ran(operator, number, [each for part in parts for each in combined(spec, part)])
        operator = restored(operator, spec, type(operator.tables["state"]))
    assert found == whole
    every = spec_of(emit="every", n=hf.approx_count_distinct("v")).create(0, 128)
    assert ran(every, 1, [(0, batch_of(pairs[:500]))]) == ran(spec.create(0, 128), 1, [(0, batch_of(pairs[:500]))])


def test_a_sketch_takes_few_bytes_for_few_values_and_never_more_than_its_registers() -> None:
    spec = spec_of(n=hf.approx_count_distinct("v"))
    operator = spec.create(0, 128)
    ran(operator, 1, [(0, batch_of([(0, 1), (0, 2), *((1, number) for number in range(50_000))]))])
    state = {row["k"]: row["n.approx_count_distinct(9)"] for row in operator.tables["state"].snapshot().to_pylist()}
    assert [len(state[0]), len(state[1])] == [1 + 2 * 3, 1 + 512]


def test_the_stored_form_of_a_sketch_is_read_for_ever() -> None:
    operator = spec_of(n=hf.approx_count_distinct("v")).create(0, 128)
    ran(operator, 1, [(0, batch_of([(0, 1), (0, 2), (0, 3)]))])
    (row,) = operator.tables["state"].snapshot().to_pylist()
    assert row["n.approx_count_distinct(9)"].hex() == GOLDEN


GOLDEN = "003a00042201042e0101"


def test_what_sketches_refuse() -> None:
    for wrong in (0, 0.9, 0.001, "5%", None, True):
        with pytest.raises(SettingsError, match=r"from 0\.0043 to 0\.277"):
            hf.approx_count_distinct("v", wrong)  # type: ignore[arg-type]
    nested = pa.schema([("k", pa.int64()), ("v", pa.list_(pa.int64()))])
    with pytest.raises(JobRefused, match=r"approx_count_distinct\(v, rsd=0.05\), and column 'v' has type list"):
        spec_of(nested, n=hf.approx_count_distinct("v"))


@pytest.mark.parametrize("size, slide", [("4s", "4s"), ("6s", "2s")])
def test_windows_put_distinct_values_together_from_their_panes(size: str, slide: str) -> None:
    window, chance = hf.window("at", size, slide), random.Random(size)
    given = OperatorInput(windows.SCHEMA, ("k",), EventTime(("at",), "at"), window, 1)
    spec = WindowSpec("w", given, {"n": hf.count_distinct("v"), "about": hf.approx_count_distinct("v", 0.01)})
    operator, all_rows, found = spec.create(0, 128), list[windows.Row](), dict[tuple[str, int], tuple[int, int]]()
    for number in range(1, 12):
        rows = [(chance.choice("ab"), 2 * number + chance.randrange(3), chance.randrange(9)) for _ in range(20)]
        all_rows += rows
        marks = (2 * number - 1 if number < 11 else 1_000, 2 * number - 3)
        for batch in windows.run_batch(operator, spec, number, rows, marks).output:
            for row in batch.to_pylist():
                found[row["k"], round(row["window_start"].timestamp())] = row["n"], row["about"]
        commit(operator)
    wanted: dict[tuple[str, int], set[int | None]] = {}
    width, step = window.size_us // 1_000_000, window.slide_us // 1_000_000
    for key, at, value in all_rows:
        for start in range(at // step * step, at - width, -step):
            wanted.setdefault((key, start), set()).add(value)
    assert found == {place: (len(values), len(values)) for place, values in wanted.items()}


KINDS = {"integers": pa.int64(), "texts": pa.string(), "floats": pa.float64()}
ODD = {"integers": [None, -1, 2**40], "texts": [None, "", "é"], "floats": [None, float("nan"), -0.0, 0.0]}


@pytest.mark.parametrize("emit", ["changes", "every"])
@pytest.mark.parametrize("kind", KINDS)
def test_sets_that_outgrow_a_cell_count_as_before(kind: str, emit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_sets, "SET_MAX", 5)
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    schema = pa.schema([("k", pa.int64()), ("v", KINDS[kind])])
    spec = spec_of(schema, emit, n=hf.count_distinct("v"), few=hf.count_distinct("v"))
    operator: Operator = spec.create(0, 128)
    seen: dict[int, set[Any]] = {}
    values = [*ODD[kind], *(pa.array(range(20), pa.int64()).cast(KINDS[kind]).to_pylist())]
    for number in range(1, 40):
        rows = [(chance.randrange(4), chance.choice(values)) for _ in range(chance.choice([1, 5, 20]))]
        if chance.random() < 0.2:
            for table in operator.tables.values():
                table.begin(number)
            operator.process([(0, batch_of(rows, schema))], BatchContext(number, 0, "distinct", 0))
            windows.undo(operator)
        inputs = [(0, batch_of(rows, schema))]
        if emit == "changes" and chance.random() < 0.5:
            inputs = combined(spec, batch_of(rows * 1_000, schema))
        found = ran(operator, number, inputs)
        for key, value in rows:
            seen.setdefault(key, set()).update([] if value is None else ["nan" if value != value else value])
        assert {key: (row["n"], row["few"]) for key, row in found.items()} == {
            key: (len(seen[key]), len(seen[key])) for key, _ in rows
        }
        if chance.random() < 0.2:
            operator = restored(operator, spec, StateTable)
    table = operator.tables["n.count_distinct.values"]
    assert len(table) == sum(len(each) for each in seen.values() if len(each) > 5)


def test_a_running_count_grows_with_each_new_value_of_a_large_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_sets, "SET_MAX", 2)
    operator = spec_of(emit="every", n=hf.count_distinct("v")).create(0, 128)
    ran(operator, 1, [(0, batch_of([(1, value) for value in range(5)]))])
    for table in operator.tables.values():
        table.begin(2)
    rows = batch_of([(1, 4), (2, 7), (1, 9), (1, None), (2, 8), (1, 9), (1, 10)])
    (output,) = operator.process([(0, rows)], BatchContext(2, 0, "distinct", 0)).output
    assert output["n"].to_pylist() == [5, 1, 6, 6, 2, 6, 7]


def test_a_state_that_was_stored_with_a_large_set_is_read_and_its_values_become_rows() -> None:
    spec = spec_of(n=hf.count_distinct("v"))
    before = StateTable(spec.key_schema, pa.schema([spec.value_schema.field(0)]), 128)
    before.begin(1)
    slots = before.lookup(batch_of([(1, 0)]))
    column = before.column("n.count_distinct")
    column.scatter(slots, *column.from_arrow(pa.array([list(range(5_000))], column.field.type)))
    before.present[slots] = True
    before.commit()
    operator = spec.create(0, 128)
    operator.tables["state"].apply(before.snapshot(), 0, 128)
    assert ran(operator, 1, [(0, batch_of([(1, 7), (1, 5_001)]))])[1]["n"] == 5_001
    assert len(operator.tables["n.count_distinct.values"]) == 5_001
    assert ran(operator, 2, [(0, batch_of([(1, 8), (1, 5_002)]))])[1]["n"] == 5_002


@pytest.mark.parametrize("values", [8_000, 32_000])
def test_a_row_touches_its_own_value_however_many_its_key_has(values: int) -> None:
    operator = spec_of(n=hf.count_distinct("v")).create(0, 128)
    ran(operator, 1, [(0, batch_of([(1, value) for value in range(values)]))])
    for table in operator.tables.values():
        table.begin(2)
    operator.process([(0, batch_of([(1, values)]))], BatchContext(2, 0, "distinct", 0))
    state, rows = operator.tables["state"], operator.tables["n.count_distinct.values"]
    assert (len(rows.touched()), len(state.touched())) == (1, 1)
    assert sum(table.changes().nbytes for table in operator.tables.values()) < 1_000
