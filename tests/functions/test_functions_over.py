"""Aggregates over the last rows of a key, as plain Python computes them: over undo, restarts and pieces of batches."""

import itertools
import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from functions_kit import divided
from functions_windows_kit import BACKENDS, SCHEMA, SECOND, Row, batch_of, commit, restored, undo

import holdfast as hf
from holdfast.errors import BadRecord, JobRefused, SettingsError
from holdfast.functions.aggregates.declared import Aggregate
from holdfast.functions.operator import ALL_TIMES_US, BatchContext, EventTime, NewTable, OperatorInput
from holdfast.functions.over import operator as over_operator
from holdfast.functions.over.declared import OverSettings, OverSpec
from holdfast.functions.rows.policies import BadRecords
from holdfast.state.backends import tables_of

TIME = EventTime(("at",), "at")
AGGREGATES = {
    "n": hf.count(),
    "values": hf.count("v"),
    "total": hf.sum("v"),
    "least": hf.min("v"),
    "most": hf.max("v"),
    "mean": hf.mean("v"),
}


def spec_of(
    rows: int,
    schema: pa.Schema = SCHEMA,
    by: tuple[str, ...] = ("at",),
    bad_records: BadRecords = "fail",
    **aggregates: Aggregate,
) -> OverSpec:
    settings = OverSettings(by, rows, aggregates or AGGREGATES, bad_records)
    return OverSpec("over", OperatorInput(schema, ("k",), TIME), settings)


def recomputed(rows: list[Row], last: int) -> list[tuple[Any, ...]]:
    """Each row of a key, in order, with the aggregates of its frame."""
    found = []
    for place, row in enumerate(rows):
        frame = rows[max(0, place + 1 - last) : place + 1]
        values = [value for *_, value in frame if value is not None]
        some = (sum(values), min(values), max(values), sum(values) / len(values)) if values else (None,) * 4
        found.append((*row, len(frame), len(values), *some))
    return found


@pytest.fixture(params=["hashmap", "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


@pytest.mark.parametrize(("last", "at_once"), [(1, 1 << 18), (4, 1 << 18), (4, 5), (40, 1 << 18)])
def test_each_row_has_the_aggregates_of_the_last_rows(
    last: int, at_once: int, tables: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_operator, "ROWS_AT_ONCE_MAX", at_once)
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    spec = spec_of(last)
    operator = spec.create(0, 128, tables)
    came: dict[str, list[Row]] = {}
    given: dict[str, list[tuple[Any, ...]]] = {}
    mark: int | None = None
    for number in range(1, 50):
        least = mark or 0
        rows = [
            (chance.choice("abc"), least + chance.randrange(20), chance.choice([None, *range(-5, 30)]))
            for _ in range(chance.choice([0, 1, 3, 40]))
        ]
        following = None if mark is None and chance.random() < 0.5 else least + chance.choice([0, 1, 9])
        marks = [None if each is None else each * SECOND for each in (following, mark)]
        if number == 49:
            marks[0] = ALL_TIMES_US
        for table in operator.tables.values():
            table.begin(number)
        sent = divided(operator, number, [(0, batch_of(part)) for part in (rows[:7], rows[7:])])
        result = operator.process(sent, BatchContext(number, 0, "over", 0, *marks))
        if number < 49 and chance.random() < 0.2:
            undo(operator)
            continue
        commit(operator)
        mark = following
        for row in rows:
            came.setdefault(row[0], []).append(row)
        for row in (row for batch in result.output for row in batch.to_pylist()):
            shown = (row["k"], round(row["at"].timestamp()), *list(row.values())[2:])
            given.setdefault(row["k"], []).append(shown)
        due = [at for each in came.values() for _, at, _ in each if marks[0] is None or at * SECOND >= marks[0]]
        assert result.timers is not None
        assert result.timers.event_us == (min(due) * SECOND + 1 if due else None)
        passed = {key: [row for row in each if row[1] not in due] for key, each in came.items()}
        for key, each in passed.items():
            assert given.get(key, []) == recomputed(sorted(each, key=lambda row: row[1]), last)
        if chance.random() < 0.2:
            operator = restored(operator, spec, tables)
    assert len(operator.tables["rows"]) == 0
    assert len(operator.tables["last"]) == sum(min(len(each), last - 1) for each in came.values())


def given_by(spec: OverSpec, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    """The output for batches whose times the watermark passes at once."""
    operator, found = spec.create(0, 128), []
    for number, rows in enumerate(batches, 1):
        for table in operator.tables.values():
            table.begin(number)
        result = operator.process([(0, rows)], BatchContext(number, 0, "over", 0, ALL_TIMES_US))
        found += [row for batch in result.output for row in batch.to_pylist()]
        found += [{"bad": bad.reason} for bad in result.bad]
        commit(operator)
    return found


DAY, HOUR = datetime(2026, 1, 1), timedelta(hours=1)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [3, None, -128, 127, None, 5, 5, None, 2, 9]),
    "uint32": (pa.uint32(), [3, None, 2**32 - 1, 7, None, 5, 5, None, 2**32 - 1, 9]),
    "large": (pa.int64(), [2**62, -(2**62), 2**62, None, -(2**63), 1, 2**62, 0, 2**61, 1]),
    "float": (pa.float32(), [0.5, None, float("inf"), 1.0, None, 2.0, 1.5, None, None, -3.0]),
    "double": (pa.float64(), [0.5, None, float("inf"), 1.0, None, 2.0, 1.5, None, None, -3.0]),
    "time": (pa.timestamp("us"), [DAY, None, DAY + 4 * HOUR, DAY - HOUR, None, DAY, DAY, None, DAY + HOUR, DAY]),
    "date": (pa.date32(), [DAY.date(), None, *[(DAY + day * 24 * HOUR).date() for day in (4, -1, 0, 0, 3, 2, 9, 1)]]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_each_type_keep_it(kind: str) -> None:
    of, values = VALUES[kind]
    schema = SCHEMA.set(2, pa.field("v", of))
    rows = pa.record_batch([["a"] * 10, [datetime.fromtimestamp(at, UTC) for at in range(10)], values], schema=schema)
    numbers = kind not in ("time", "date")
    functions = ("count", "min", "max", *(("sum", "mean") if numbers else ()))
    spec = spec_of(3, schema, **{each: getattr(hf, each)("v") for each in functions})
    given = given_by(spec, rows.slice(0, 4), rows.slice(4, 1), rows.slice(5))
    for place, row in enumerate(given):
        frame = [value for value in values[max(0, place - 2) : place + 1] if value is not None]
        wanted = {"count": len(frame), "min": min(frame, default=None), "max": max(frame, default=None)}
        if numbers:
            wanted |= (
                {"sum": sum(frame), "mean": float(sum(frame)) / len(frame)} if frame else {"sum": None, "mean": None}
            )
        assert {name: row[name] for name in wanted} == wanted


def test_of_equal_values_the_earlier_counts_and_nan_is_above_all() -> None:
    schema = SCHEMA.set(2, pa.field("v", pa.float64()))
    values = [-0.0, math.nan, 0.0, -0.0, math.inf, math.nan]
    rows = pa.record_batch([["a"] * 6, [datetime.fromtimestamp(at, UTC) for at in range(6)], values], schema=schema)
    given = given_by(spec_of(2, schema, least=hf.min("v"), most=hf.max("v")), rows)
    assert [str(row["least"]) for row in given] == ["-0.0", "-0.0", "0.0", "0.0", "-0.0", "inf"]
    assert [str(row["most"]) for row in given] == ["-0.0", "nan", "nan", "0.0", "inf", "nan"]


def test_a_sum_that_does_not_fit_is_a_bad_row_and_the_frames_of_later_rows_have_its_value() -> None:
    rows = batch_of([("a", 1, 2**62), ("a", 2, 2**62), ("a", 3, -(2**62))])
    given = given_by(spec_of(2, bad_records="dead_letter", total=hf.sum("v")), rows)
    assert [row["total"] for row in given if "total" in row] == [2**62, 0]
    (bad,) = (row["bad"] for row in given if "bad" in row)
    assert "'total' = sum(v) does not fit int64 (batch 1, k a, at 1970-01-01T00:00:02Z)" in bad
    with pytest.raises(BadRecord, match=r"does not fit int64 \(batch 1, k a, at 1970.*use bad_records.*aside; a cast"):
        given_by(spec_of(2, total=hf.sum("v")), rows)


def test_a_bad_row_behind_another_has_its_own_place() -> None:
    schema, times = SCHEMA, pa.array([None, 5, None], pa.int64()).cast(SCHEMA.field("at").type)
    rows = pa.record_batch([["a"] * 3, times, [1, 2, 3]], schema=schema)
    operator = spec_of(2, bad_records="dead_letter", n=hf.count()).create(0, 128)
    for table in operator.tables.values():
        table.begin(1)
    result = operator.process([(0, rows), (0, rows)], BatchContext(1, 0, "over", 0, ALL_TIMES_US))
    assert [bad.position.split(" of ")[0] for bad in result.bad] == ["row 0", "row 2", "row 3", "row 5"]


def test_rows_whose_time_the_watermark_passed_before_are_counted_as_late() -> None:
    operator, counts, marks = spec_of(2, n=hf.count()).create(0, 128), [], (None, 5 * SECOND, 5 * SECOND, 9 * SECOND)
    for number, (before, mark) in enumerate(itertools.pairwise(marks), 1):
        for table in operator.tables.values():
            table.begin(number)
        rows = batch_of([("a", 4, 1), ("b", 5, 1), ("a", 9, 1)])
        counts.append(operator.process([(0, rows)], BatchContext(number, 0, "over", 0, mark, before)).late)
        commit(operator)
    assert counts == [0, 1, 1]


def test_the_kept_values_of_many_keys_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class CountedFrames(over_operator.Frames):
        def __init__(self, kept: Any, new: Any, count: int, before: int) -> None:
            sizes.append(len(kept) + len(new))
            super().__init__(kept, new, count, before)

    monkeypatch.setattr(over_operator, "Frames", CountedFrames)
    monkeypatch.setattr(over_operator, "ROWS_AT_ONCE_MAX", 50)
    keys = [f"k{number}" for number in range(20)]
    batches = [batch_of([(key, at, at) for key in keys for at in times]) for times in (range(10), (10,))]
    given = given_by(spec_of(10, total=hf.sum("v")), *batches)
    assert {row["total"] for row in given[-20:]} == {sum(range(1, 11))}
    assert len(given) == 220
    assert max(sizes) <= 50 + 10 + 20


def test_rows_of_the_same_time_are_in_order_of_further_columns_with_nulls_first() -> None:
    rows = batch_of([("a", 1, 7), ("a", 1, None), ("a", 0, 9), ("a", 1, 3)])
    given = given_by(spec_of(2, SCHEMA, ("at", "v"), n=hf.count("v"), total=hf.max("v")), rows)
    assert [(row["v"], row["n"], row["total"]) for row in given] == [(9, 1, 9), (None, 1, 9), (3, 1, 3), (7, 2, 7)]


def test_a_row_without_a_time_is_bad_and_one_that_comes_late_is_the_last_so_far() -> None:
    rows = batch_of([("a", 5, 1), ("a", 6, 2)])
    timeless = pa.record_batch([["a"], pa.array([None], SCHEMA.field("at").type), [3]], schema=SCHEMA)
    given = given_by(spec_of(2, bad_records="dead_letter", total=hf.sum("v")), rows, timeless, batch_of([("a", 1, 10)]))
    assert [row["total"] for row in given if "total" in row] == [1, 3, 12]
    assert "the time 'at' is null (row 0 of batch 2" in next(row["bad"] for row in given if "bad" in row)
    with pytest.raises(BadRecord, match="'at' is null"):
        given_by(spec_of(2, n=hf.count()), timeless)


def test_a_bad_row_has_the_columns_of_the_input_without_those_that_were_computed() -> None:
    settings = OverSettings(("at",), 2, {"n": hf.count(where="large")}, "dead_letter", hidden=("large",))
    schema = SCHEMA.append(pa.field("large", pa.bool_()))
    operator = OverSpec("over", OperatorInput(schema, ("k",), TIME), settings).create(0, 128)
    for table in operator.tables.values():
        table.begin(1)
    rows = pa.record_batch([["a"], pa.array([None], SCHEMA.field("at").type), [3], [True]], schema=schema)
    (bad,) = operator.process([(0, rows)], BatchContext(1, 0, "over", 0, ALL_TIMES_US)).bad
    assert bad.payload == '{"k":"a","at":null,"v":3}'


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rows": 0}, "from 1 to 10,001"),
        ({"rows": True}, "from 1 to 10,001"),
        ({"by": ()}, "name of a timestamp column"),
        ({"aggregates": {}}, "nothing to compute"),
        ({"aggregates": {"d": hf.count_distinct("v")}}, "count, sum, mean, min, max"),
        ({"by": ("nothing",)}, "no such column"),
        ({"by": ("v",)}, "expected a timestamp first"),
        ({"by": ("k",)}, "expected a timestamp first"),
        ({"aggregates": {"v": hf.count()}}, "name of a column"),
        ({"aggregates": {"n": hf.min("k")}}, "type string"),
        ({"aggregates": {"n": hf.sum("at")}}, "over rows it takes"),
        ({"aggregates": {"n": hf.count(where="v")}}, "expected boolean"),
    ],
)
def test_what_it_does_not_take_is_refused_by_name(settings: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"by": ("at",), "rows": 3, "aggregates": {"n": hf.count()}, "bad_records": "fail"}
    with pytest.raises((SettingsError, JobRefused), match=problem):
        OverSpec("over", OperatorInput(SCHEMA, ("k",), TIME), OverSettings(**{**given, **settings}))


def test_a_stream_without_a_watermark_and_a_key_as_time_are_refused() -> None:
    settings = OverSettings(("at",), 3, {"n": hf.count()}, "fail")
    with pytest.raises(JobRefused, match="with_watermark"):
        OverSpec("over", OperatorInput(SCHEMA, ("k",)), settings)
    with pytest.raises(JobRefused, match="is a key"):
        OverSpec("over", OperatorInput(SCHEMA, ("at",), TIME), settings)
