"""Deviations, values by another column, collections and conditions: against a recomputation, running and combined."""

import math
import random
import statistics
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from functions_kit import divided

import holdfast as hf
from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import BatchContext, OperatorInput

NAN = math.nan
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "doubles": (pa.float64(), [1.5, -2.0, 0.0, 7.25, None]),
    "odd doubles": (pa.float64(), [NAN, -0.0, 0.0, math.inf, 1.0, None]),
    "integers": (pa.int32(), [5, -3, 0, 2**30, None]),
    "strings": (pa.string(), ["b", "a", "", "cc", None]),
    "decimals": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-2.25"), Decimal("0.00"), None]),
}
NUMBERS = ("doubles", "odd doubles", "integers", "decimals")


def spec_of(kind: pa.DataType, by: pa.DataType, numbers: bool, emit: Any = "changes") -> AggregateSpec:
    fields = [("k", pa.int64()), ("v", kind), ("by", by), ("yes", pa.bool_())]
    aggregates = {
        "most": hf.max_by("v", "by"),
        "least": hf.min_by("v", "by"),
        "all": hf.collect_list("v"),
        "some": hf.collect_set("v"),
        "distinct": hf.count_distinct("v"),
        "yes": hf.count(where="yes"),
        "yes_v": hf.count("v", where="yes"),
    }
    if numbers:
        aggregates |= {"dev": hf.stddev("v"), "var": hf.variance("v")}
    return AggregateSpec("more", OperatorInput(pa.schema(fields), ("k",)), aggregates, emit)


def order(value: Any) -> tuple[bool, Any]:
    """NaN is above everything."""
    return (value != value, 0 if value != value else value)


def recomputed(rows: list[dict[str, Any]], numbers: bool) -> dict[str, Any]:
    chosen = [row for row in rows if row["by"] is not None]
    values = [row["v"] for row in rows if row["v"] is not None]
    distinct = list({"NaN" if value != value else value: value for value in reversed(values)}.values())
    found = {
        "most": max(chosen, key=lambda row: order(row["by"]))["v"] if chosen else None,
        "least": min(chosen, key=lambda row: order(row["by"]))["v"] if chosen else None,
        "all": values,
        "some": sorted(map(order, distinct)),
        "distinct": len(distinct),
        "yes": sum(row["yes"] is True for row in rows),
        "yes_v": sum(row["yes"] is True and row["v"] is not None for row in rows),
    }
    if numbers:
        floats = [float(value) for value in values]
        if len(floats) < 2:
            found["var"] = None
        elif all(map(math.isfinite, floats)):
            found["var"] = statistics.variance(floats)
        else:
            found["var"] = NAN
        found["dev"] = None if found["var"] is None else math.sqrt(found["var"])
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        given = sorted(map(order, found[name])) if name == "some" else found[name]
        if isinstance(value, float) and given is not None:
            assert (math.isnan(value) and math.isnan(given)) or given == pytest.approx(value, rel=1e-9), name
        elif name == "all":
            assert repr(given) == repr(value), name
        else:
            assert given == value, name


def some_rows(chance: random.Random, values: list[Any], bys: list[Any], count: int) -> list[dict[str, Any]]:
    return [
        {
            "k": chance.randrange(5),
            "v": chance.choice(values),
            "by": chance.choice(bys),
            "yes": chance.choice([True, False, None]),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("mode", ["changes", "combined", "every"])
@pytest.mark.parametrize("by", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_what_a_recomputation_says(kind: str, by: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.functions.aggregates.combining.SAMPLE_ROWS", 4)
    chance = random.Random(f"{kind} {by} {mode}")
    spec = spec_of(KINDS[kind][0], KINDS[by][0], kind in NUMBERS, "every" if mode == "every" else "changes")
    operator, all_rows = spec.create(0, 128), list[dict[str, Any]]()
    for number in range(1, 5):
        rows = some_rows(chance, KINDS[kind][1], KINDS[by][1], chance.choice([1, 9, 30]))
        batch = pa.RecordBatch.from_pylist(rows, spec.input.schema)
        inputs = [(0, batch)]
        if mode == "combined":
            combiner = spec.combiner(True, None)
            assert combiner is not None
            inputs = [*combiner.take(batch), *combiner.finish()]
        for table in operator.tables.values():
            table.begin(number)
        output = [
            row
            for made in operator.process(divided(operator, number, inputs), BatchContext(number, 0, "more", 0)).output
            for row in made.to_pylist()
        ]
        for table in operator.tables.values():
            table.changes()
            table.commit()
        for place, row in enumerate(rows):
            all_rows.append(row)
            if mode == "every":
                of_key = [each for each in all_rows if each["k"] == row["k"]]
                assert_same(output[place], recomputed(of_key, kind in NUMBERS))
        if mode != "every":
            for row in output:
                assert_same(row, recomputed([each for each in all_rows if each["k"] == row["k"]], kind in NUMBERS))


def test_what_they_refuse() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    for aggregate, message in (
        (hf.stddev("v"), "has type string; expected an integer"),
        (hf.count(where="v"), "count\\(where=v\\), and column 'v' has type string; expected boolean"),
        (hf.max_by("v", "z"), "there is no such column"),
    ):
        with pytest.raises(JobRefused, match=message):
            AggregateSpec("more", OperatorInput(schema, ("k",)), {"x": aggregate})
    with pytest.raises(SettingsError, match="needs a second column"):
        hf.max_by("v", None)  # type: ignore[arg-type]
