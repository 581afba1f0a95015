"""Joins against DuckDB over the same rows: random batches, undo, restarts, late rows, each kind of join and bound."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from functions_joins_kit import (
    CLICKS,
    EVERYTHING_US,
    TIME,
    VISITS,
    Feed,
    Rows,
    batch_of,
    order_short_keys,
    restored,
    run_batch,
    settings,
    shown,
)
from functions_windows_kit import BACKENDS, commit, undo
from sqlglot import exp

import duckdb_kit
import holdfast as hf
from holdfast.errors import JobRefused, SettingsError
from holdfast.expressions.declared import SqlExpression
from holdfast.expressions.parse import parsed
from holdfast.functions.joins import meeting
from holdfast.functions.joins.bounds import RIGHT
from holdfast.functions.joins.declared import JoinSpec
from holdfast.functions.joins.join_operator import JoinOperator
from holdfast.functions.joins.meeting import Intervals, Points, SortedPoints
from holdfast.functions.operator import BatchContext, EventTime, NewTable, OperatorInput
from holdfast.state.backends import tables_of
from holdfast.state.table import StateTable

HOWS = ["inner", "left", "right", "outer", "semi", "anti"]
BOUNDS: dict[str, dict[str, Any]] = {
    "around": {"within": ("-5s", "10s")},
    "after": {"within": ("3s", "8s")},
    "before": {"within": (-20, -4)},
    "ttl": {"ttl": "8s"},
    "between": {"between": ("begun", "ended")},
    "window": {},
}
MEET = {
    "around": "epoch_us(begun) - epoch_us(clicked) between -5000000 and 10000000",
    "after": "epoch_us(begun) - epoch_us(clicked) between 3000000 and 8000000",
    "before": "epoch_us(begun) - epoch_us(clicked) between -20000000 and -4000000",
    "ttl": "abs(visit_came - click_came) < 8000000",
    "between": "clicked between begun and ended",
    "window": "epoch_us(begun) // 10000000 = epoch_us(clicked) // 10000000",
}


@pytest.fixture(params=["hashmap", "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


CONDITIONS = {
    "": None,
    "left.n % 3 <> 0 AND (right.agent IS NULL OR left.page = '/')": "n % 3 <> 0 and (agent is null or page = '/')",
}
"""Conditions on pairs, here and in DuckDB."""


def spec_of(how: str, bounds: str, condition: str = "") -> JoinSpec:
    left, right = (hf.window("clicked", 10), hf.window("begun", 10)) if bounds == "window" else (None, None)
    inputs = (
        OperatorInput(CLICKS, ("user",), EventTime(("clicked",), "clicked"), left, 1),
        OperatorInput(VISITS, ("id",), EventTime(("begun",), "begun"), right, 1),
    )
    given = {"condition": pair_condition(condition)} if condition else {}
    return settings(how, **BOUNDS[bounds], **given).spec("joined", inputs)


def pair_condition(text: str) -> SqlExpression:
    """A condition over columns such as `left.n`, each of which is one name in pairs of rows."""

    def change(node: Any) -> Any:
        return exp.column(f"{node.table}.{node.name}", quoted=True) if isinstance(node, exp.Column) else node

    return SqlExpression(text, given=parsed(text).transform(change))


def expected(
    how: str, bounds: str, clicks: Rows, visits: Rows, condition: str | None = None
) -> Counter[tuple[Any, ...]]:
    """The same join by DuckDB, over all rows that were not late; the last value of a row is the time of its batch."""
    came = [pa.field(name, pa.int64()) for name in ("click_came", "visit_came")]
    left, right = (
        pa.Table.from_batches([batch_of(rows, schema.append(field))])
        for rows, schema, field in zip((clicks, visits), (CLICKS, VISITS), came, strict=True)
    )
    with duckdb_kit.connection() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("clicks", left)
        connection.register("visits", right)
        kind = "full outer" if how == "outer" else how
        time, hidden = "coalesce(clicked, begun)", "click_came, visit_came"
        if how in ("semi", "anti"):
            time, hidden = "clicked", "click_came"
        window = f", to_timestamp(floor(epoch({time}) / 10) * 10) s, s + interval 10 seconds"
        columns = f"* exclude ({hidden}){window if bounds == 'window' else ''}"
        sql = f"select {columns} from clicks {kind} join visits on clicks.user = visits.id and {MEET[bounds]}"
        sql += f" and {condition}" if condition else ""
        found = connection.sql(sql).to_arrow_table()
    return Counter(tuple(row.values()) for row in found.to_pylist())


def is_late(bounds: str, time_us: int, closed: int | None) -> bool:
    if closed is None or bounds == "ttl":
        return False
    return time_us // 10_000_000 * 10_000_000 + 10_000_000 <= closed if bounds == "window" else time_us < closed


@pytest.fixture(params=["few", "many"])
def rows_of_a_key(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys with few rows, or (`many`) each key with two rows counts as a key with very many."""
    if request.param == "many":
        order_short_keys(monkeypatch)


@pytest.mark.usefixtures("rows_of_a_key")
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("condition", CONDITIONS, ids=["", "condition"])
def test_joins_are_what_duckdb_gives_over_the_same_rows(
    condition: str, bounds: str, how: str, tables: NewTable
) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    feed, spec = Feed(seed), spec_of(how, bounds, condition)
    operator = spec.create(0, 128, tables)
    all_clicks: Rows = []
    all_visits: Rows = []
    found: Counter[tuple[Any, ...]] = Counter()
    late = came = 0
    due: int | None = None
    for number in range(1, 60):
        marks = feed.move()
        if feed.chance.random() < 0.2:
            run_batch(operator, number, *feed.rows(), marks, feed.now_us)
            undo(operator)
        clicks, visits = feed.rows()
        result = run_batch(operator, number, clicks, visits, marks, feed.now_us)
        commit(operator)
        timers, until = result.timers, feed.now_us if bounds == "ttl" else marks[0]
        assert timers is not None
        assert not timers.fired or (due is not None and until is not None and due <= until), (
            "rows left, and no timer said so"
        )
        due = timers.processing_us if bounds == "ttl" else timers.event_us
        found += shown(result.output)
        late, came = late + result.late, came + len(clicks) + len(visits)
        all_clicks += [(*row, feed.now_us) for row in clicks if not is_late(bounds, row[1], marks[1])]
        all_visits += [(*row, feed.now_us) for row in visits if not is_late(bounds, row[1], marks[1])]
        if feed.chance.random() < 0.1:
            operator = restored(operator, spec, tables)
    found += shown(run_batch(operator, 60, [], [], (EVERYTHING_US, feed.watermark), EVERYTHING_US).output)
    commit(operator)
    assert found == expected(how, bounds, all_clicks, all_visits, CONDITIONS[condition])
    assert late == came - len(all_clicks) - len(all_visits)
    assert not any(len(table) for table in operator.tables.values()), "nothing is kept once all rows have left"


def pair_of(left: pa.Schema, right: pa.Schema, keys: tuple[str, str] = ("user", "id"), **given: Any) -> JoinSpec:
    times = (EventTime(("clicked",), "clicked"), EventTime(("begun",), "begun"))
    inputs = [OperatorInput(schema, (key,), time) for schema, key, time in zip((left, right), keys, times, strict=True)]
    return settings(**({"within": (0, 1)} | given)).spec("joined", tuple(inputs))


def test_both_schemas_stay_as_they_are() -> None:
    spec = pair_of(CLICKS, VISITS)
    assert spec.output_schema.equals(pa.schema([*CLICKS, *VISITS]))
    nullable = pa.schema([field.with_nullable(False) for field in VISITS])
    assert pair_of(CLICKS, nullable).output_schema.field("agent").nullable is False
    assert pair_of(CLICKS, nullable, how="left").output_schema.field("agent").nullable is True
    assert pair_of(CLICKS, VISITS, how="semi").output_schema.equals(CLICKS)


def test_columns_of_the_same_name_are_refused_with_their_names_or_get_the_suffix() -> None:
    other = pa.schema([("user", pa.string()), ("begun", TIME), ("page", pa.string()), ("n", pa.string())])
    with pytest.raises(JobRefused, match=r"the name 'n', 'page': rename them, or give join\(\) suffix="):
        pair_of(CLICKS, other, ("user", "user"))
    spec = pair_of(CLICKS, other, ("user", "user"), suffix="_then")
    assert spec.output_schema.names == ["user", "clicked", "page", "n", "begun", "page_then", "n_then"]
    once_more = CLICKS.append(pa.field("page_then", pa.string()))
    with pytest.raises(JobRefused, match=r"'page_then': give join\(\) another suffix"):
        pair_of(once_more, other, ("user", "user"), suffix="_then")


def test_keys_of_different_types_or_numbers_are_refused() -> None:
    with pytest.raises(JobRefused, match=r"keyed by \(n int64\) and \(id string\)"):
        pair_of(CLICKS, VISITS, ("n", "id"))


def test_joins_that_would_never_end_are_refused() -> None:
    for how in ("left", "right", "outer", "anti"):
        with pytest.raises(JobRefused, match="without a bound of time that is never known"):
            pair_of(CLICKS, VISITS, within=None, how=how)
    assert "keeps every row" in pair_of(CLICKS, VISITS, within=None).grows
    assert not pair_of(CLICKS, VISITS, within=None, ttl="1h", how="left").grows
    with pytest.raises(JobRefused, match="the first has to be the column of the other side's watermark, 'begun'"):
        pair_of(CLICKS, VISITS, within=None, between=("ended", "begun"))
    with pytest.raises(JobRefused, match="column 'agent' of the other side has type string"):
        pair_of(CLICKS, VISITS, within=None, between=("begun", "agent"))


def test_what_join_refuses_to_be_told() -> None:
    for wrong, match in [
        ({"how": "cross"}, "allowed are 'inner', 'left'"),
        ({"within": ("1s", "-1s")}, "the first bound is above the second"),
        ({"within": "5min"}, "expected two durations"),
        ({"within": (0, 1), "ttl": 5}, "within and ttl: give only a single bound"),
        ({"ttl": 0}, "longer than nothing"),
        ({"tolerance": "1s"}, "it belongs to how='asof'"),
        ({"how": "asof", "within": (0, 1)}, "its bound of time is tolerance=, or none"),
        ({"suffix": ""}, "expected the end of names"),
        ({"late": "wait"}, "'drop' .counted., 'dead_letter' and 'stream'"),
    ]:
        with pytest.raises(SettingsError, match=match):
            settings(**wrong)


def test_rows_without_a_bound_meet_whenever_they_come_and_for_as_long_as_they_live() -> None:
    spec = pair_of(CLICKS, VISITS, within=None, ttl="10s", how="left")
    operator = spec.create(0, 128)

    def batch(number: int, second: int, clicks: Rows, visits: Rows) -> list[tuple[int, Any]]:
        for table in operator.tables.values():
            table.begin(number)
        rows = [(0, batch_of(clicks, CLICKS)), (1, batch_of(visits, VISITS))]
        result = operator.process(rows, BatchContext(number, second * 1_000_000, "joined", 0))
        commit(operator)
        return sorted((row["n"], row["agent"]) for part in result.output for row in part.to_pylist())

    assert batch(1, 100, [("a", 5, "/", 1), ("b", 5, "/", 2)], []) == []
    assert batch(2, 109, [], [("a", 900, None, "x")]) == [(1, "x")]
    assert batch(3, 110, [("a", 5, "/", 3)], [("b", 5, None, "y")]) == [(2, None), (3, "x")]
    assert batch(4, 119, [("a", 5, "/", 4), ("b", 5, "/", 5)], []) == [(5, "y")]
    assert batch(5, 200, [], []) == [(4, None)]
    assert not any(len(table) for table in operator.tables.values())


def test_a_key_whose_rows_leave_out_of_turn_gets_new_numbers(tables: NewTable) -> None:
    spec = spec_of("inner", "between")
    operator = spec.create(0, 128, tables)
    second = 1_000_000
    for number in range(1, 60):
        visits = [("a", number * second, (number + (1000 if number % 20 == 0 else 3)) * second, str(number))]
        result = run_batch(operator, number, [("a", number * second, "/", number)], visits, (number * second, None))
        commit(operator)
        alive = set(range(max(1, number - 3), number + 1)) | set(range(20, number + 1, 20))
        assert {int(row["agent"]) for part in result.output for row in part.to_pylist()} == alive
    (head,) = operator.tables["heads"].snapshot().to_pylist()
    assert head["__right_first"] > 0
    assert head["__right_next"] - head["__right_first"] <= 2 * 16 + head["__right_count"]


def test_event_times_that_are_keys_and_in_milliseconds_are_found_again_after_a_restart(tables: NewTable) -> None:
    kind = pa.timestamp("ms", "UTC")
    left, right = pa.schema([("user", pa.string()), ("at", kind)]), pa.schema([("id", pa.string()), ("seen", kind)])
    inputs = (
        OperatorInput(left, ("user", "at"), EventTime(("at",), "at"), None, 1),
        OperatorInput(right, ("id", "seen"), EventTime(("seen",), "seen"), None, 1),
    )
    spec = settings("left", within=("-1s", "1s")).spec("joined", inputs)

    def run(operator: Any, number: int, side: int, rows: Rows, watermark: int | None) -> Counter[tuple[Any, ...]]:
        for table in operator.tables.values():
            table.begin(number)
        batch = batch_of(rows, (left, right)[side])
        result = operator.process([(side, batch)], BatchContext(number, 0, "joined", 0, watermark, None))
        return shown([output.cast(output.schema) for output in result.output])

    operator = spec.create(0, 128, tables)
    assert not run(operator, 1, 0, [("a", 10_000), ("b", 20_000)], 5_000_000)
    commit(operator)
    operator = restored(operator, spec, tables)
    first, second = (pa.scalar(at, kind).as_py() for at in (10_000, 20_000))
    assert run(operator, 2, 1, [("a", 10_000)], 5_000_000) == Counter([("a", first, "a", first)])
    commit(operator)
    assert run(operator, 3, 1, [], 21_000_000) == Counter([])
    commit(operator)
    assert run(operator, 4, 1, [], 21_000_001) == Counter([("b", second, None, None)])


def test_keys_have_a_head_once_they_have_several_rows_of_a_side(tables: NewTable) -> None:
    operator = spec_of("inner", "around").create(0, 128, tables)
    heads = operator.tables["heads"]
    one_second = 1_000_000

    def click(user: str, second: int) -> tuple[Any, ...]:
        return (user, second * one_second, "/", second)

    visit = ("a", 101 * one_second, None, "curl")
    assert len(run_batch(operator, 1, [click("a", 100), click("b", 100)], [visit], (None, None)).output) == 1
    commit(operator)
    assert len(heads) == 0
    pairs = run_batch(operator, 2, [click("a", 102), click("b", 102), click("b", 103)], [visit], (None, None)).output
    assert sum(batch.num_rows for batch in pairs) == 3, "two clicks meet the new visit, one the old visit"
    commit(operator)
    assert len(heads) == 2
    run_batch(operator, 3, [], [], (EVERYTHING_US, None))
    commit(operator)
    assert len(heads) == len(operator.tables["left"]) == len(operator.tables["right"]) == 0


def test_rows_are_found_where_a_state_of_before_has_heads_for_single_rows(tables: NewTable) -> None:
    spec = spec_of("inner", "around")
    operator = spec.create(0, 128, tables)
    run_batch(operator, 1, [("a", 100_000_000, "/", 1)], [], (None, None))
    heads = operator.tables["heads"]
    slots = heads.lookup(pa.record_batch({"user": ["a"]}))
    for name, value in {"__left_first": 0, "__left_next": 1, "__left_count": 1}.items():
        heads.column(name).scatter(slots, np.array([value]), np.ones(1, np.bool_))
    heads.present[slots] = True
    commit(operator)
    operator = restored(operator, spec, tables)
    visits: Rows = [("a", 101_000_000, None, "curl")]
    assert sum(batch.num_rows for batch in run_batch(operator, 2, [], visits, (None, None)).output) == 1
    commit(operator)
    run_batch(operator, 3, [("a", 102_000_000, "/", 2)], [], (None, None))
    commit(operator)
    assert sum(batch.num_rows for batch in run_batch(operator, 4, [], visits, (None, None)).output) == 2


def test_stored_rows_from_before_the_mark_need_a_column_of_the_name_of_their_event_time() -> None:
    spec = spec_of("inner", "around")
    schemas = {name: pa.schema([*table.keys, *table.values]) for name, table in spec.table_schemas().items()}
    unmarked = {name: pa.schema([pa.field(each.name, each.type) for each in of]) for name, of in schemas.items()}
    for stored in (schemas, unmarked):
        spec.check_stored(stored)
    renamed = pa.schema(
        [pa.field("t" if each.name == "clicked" else each.name, each.type) for each in unmarked["left"]]
    )
    with pytest.raises(
        JobRefused, match=r"left rows is the column 'clicked', .* none of the columns user, __number, t,"
    ):
        spec.check_stored({**unmarked, "left": renamed})


def test_pairs_are_listed_in_pieces_of_bounded_size_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    points = Points(rng.integers(0, 5, 200), rng.integers(0, 50, 200))
    froms = rng.integers(0, 50, 90)
    intervals = Intervals(rng.integers(0, 5, 90), froms, froms + rng.integers(-3, 30, 90))
    whole = list(SortedPoints(points, 5).meet(intervals))
    assert len(whole) == 1 and len(whole[0].left) > 500
    for pairs_max in (1, 7, len(whole[0].left) - 1):
        monkeypatch.setattr(meeting, "PAIRS_MAX", pairs_max)
        pieces = list(SortedPoints(points, 5).meet(intervals))
        assert max(len(piece.left) for piece in pieces) == pairs_max
        assert np.array_equal(np.concatenate([piece.left for piece in pieces]), whole[0].left)
        assert np.array_equal(np.concatenate([piece.right for piece in pieces]), whole[0].right)


@pytest.mark.parametrize("rows", [1_000, 16_000])
@pytest.mark.parametrize("bounds", ["around", "between"])
def test_a_row_touches_the_kept_rows_that_it_may_meet_however_many_its_key_has(bounds: str, rows: int) -> None:
    operator = spec_of("inner", bounds).create(0, 128, StateTable)
    assert isinstance(operator, JoinOperator)
    visits = [("a", at * 1_000_000, (at + 5) * 1_000_000, str(at)) for at in range(100, 100 + rows)]
    run_batch(operator, 1, [], visits, (None, None))
    commit(operator)
    touched, ordered = [], []
    for number, late_s in enumerate((1, 1, 1, rows // 2), 2):
        result = run_batch(operator, number, [("a", (100 + rows - late_s) * 1_000_000, "x", 1)], [], (None, None))
        touched.append(len(operator.tables["right"].touched()))
        ordered.append(bool(operator._kept[RIGHT]._orders))
        assert 0 < sum(batch.num_rows for batch in result.output) < 20
        commit(operator)
    assert max(touched[2:]) < 25, "the second row has the order made"
    assert ordered == [False, True, True, True], "a key that is asked for only once needs no order"


@pytest.mark.parametrize("how", ["semi", "anti"])
@pytest.mark.parametrize("rows", [100, 4_000])
def test_a_row_that_asks_whether_there_is_any_other_touches_one_of_its_key(how: str, rows: int) -> None:
    operator = spec_of(how, "ttl").create(0, 128, StateTable)
    visits = [("a", at * 1_000_000, (at + 5) * 1_000_000, str(at)) for at in range(100, 100 + rows)]
    run_batch(operator, 1, [], visits, (None, None))
    commit(operator)
    result = run_batch(operator, 2, [("a", 100_000_000, "x", 1), ("b", 100_000_000, "x", 1)], [], (None, None))
    assert sum(batch.num_rows for batch in result.output) == (how == "semi")
    assert len(operator.tables["right"].touched()) <= 2
