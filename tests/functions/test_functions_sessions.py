"""Aggregates by session against a recomputation from the rows, over undo, restarts and lateness."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from functions_windows_kit import (
    AGGREGATES,
    BACKENDS,
    SCHEMA,
    SECOND,
    Row,
    aggregated,
    commit,
    restored,
    run_batch,
    shown,
    undo,
)

import holdfast as hf
from holdfast.errors import SettingsError
from holdfast.functions.operator import EventTime, NewTable, OperatorInput, OperatorResult, OperatorSpec
from holdfast.functions.ranking.window_top import TopSpec
from holdfast.functions.windows import session_chains
from holdfast.functions.windows.process import WindowProcessSpec
from holdfast.functions.windows.session import SessionSpec
from holdfast.functions.windows.session_rows_operator import FIRST, PLACE
from holdfast.functions.windows.windowed import Windowing
from holdfast.schema import to_arrow_schema
from holdfast.state.backends import tables_of
from holdfast.state.table import StateTable

GAP = 10


@pytest.fixture(params=["hashmap", pytest.param("rocksdb", marks=pytest.mark.long), "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


def spec_of(lateness: int = 0, keys: tuple[str, ...] = ("k",), **aggregates: Any) -> SessionSpec:
    declared = OperatorInput(SCHEMA, keys, EventTime(("at",), "at"), hf.session_window("at", GAP), len(keys))
    return SessionSpec("sessions", declared, aggregates or AGGREGATES, Windowing(lateness_us=lateness * SECOND))


class Model:
    """The open sessions of each key: lists of rows, in no order. `of` makes the output of a session's rows."""

    def __init__(self, lateness: int, keyed: bool, of: Callable[[list[Row]], Any] = aggregated) -> None:
        self.lateness, self.keyed, self.of = lateness, keyed, of
        self.open: dict[str, list[list[Row]]] = {}
        self.late = 0

    def batch(self, rows: list[Row], watermark: int | None, closed: int | None) -> dict[tuple[str, int, int], Any]:
        for row in rows:
            if closed is not None and row[1] + GAP <= closed - self.lateness:
                self.late += 1
                continue
            key = row[0] if self.keyed else ""
            meeting = [
                session
                for session in self.open.get(key, [])
                if min(at for _, at, _ in session) <= row[1] + GAP and row[1] <= max(at for _, at, _ in session) + GAP
            ]
            others = [session for session in self.open.get(key, []) if session not in meeting]
            self.open[key] = [*others, [*(each for session in meeting for each in session), row]]
        closing: dict[tuple[str, int, int], Any] = {}
        for key, sessions in self.open.items():
            for session in list(sessions):
                end = max(at for _, at, _ in session) + GAP
                if watermark is not None and end <= watermark - self.lateness:
                    closing[key, min(at for _, at, _ in session), end] = self.of(session)
                    sessions.remove(session)
        return closing


def some_rows(chance: random.Random, now: int, behind: int) -> list[Row]:
    rows: list[Row] = []
    for _ in range(chance.choice([0, 1, 3, 12])):
        value = None if chance.random() < 0.2 else chance.randrange(-50, 50)
        rows.append((chance.choice("abcdefg"), now + chance.randrange(-behind, 30), value))
    return rows


@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.parametrize("keys", [("k",), ()], ids=["keyed", "alone"])
def test_sessions_are_what_the_model_recomputes(keys: tuple[str, ...], attempt: int, tables: NewTable) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance, lateness = random.Random(seed), seed % 3 * 4
    follow(chance, spec_of(lateness, keys), Model(lateness, bool(keys)), shown, tables)


def follow(
    chance: random.Random,
    spec: OperatorSpec,
    model: Model,
    shown: Callable[..., Any],
    tables: NewTable,
    behind: int = 25,
) -> None:
    """Compare an operator's output with the model's, over undo and restarts, until all sessions are closed.

    `behind`: the seconds by which rows may be behind the newest ones, about.
    """
    operator = spec.create(0, 128, tables)
    now, late = 100, 0
    watermark: int | None = None
    closed: int | None = None
    for number in range(1, 50):
        now += chance.choice([0, 1, 5, 15, 40])
        watermark = chance.choice([watermark, max(watermark or 0, now - chance.randrange(behind + 5))])
        rows = some_rows(chance, now, behind)
        if chance.random() < 0.2:
            run_batch(operator, spec, number, some_rows(chance, now, behind), (watermark, closed))
            undo(operator)
        result = run_batch(operator, spec, number, rows, (watermark, closed))
        assert shown(result) == model.batch(rows, watermark, closed), f"batch {number}"
        late += result.late
        commit(operator)
        closed = watermark
        if chance.random() < 0.1:
            operator = restored(operator, spec, tables)
    assert late == model.late
    run_batch(operator, spec, 80, [], (10_000, closed))
    commit(operator)
    assert not any(len(table) for table in operator.tables.values()), "all sessions are closed, and nothing is left"


@pytest.mark.parametrize("entries_a_link", [1, 1_000_000], ids=["searched", "followed"])
def test_rows_far_out_of_order_join_the_sessions_of_their_keys_by_an_order_of_these(
    entries_a_link: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_chains, "LINKS_LEAST", 1)
    monkeypatch.setattr(session_chains, "LINKS_MOST", 2)
    monkeypatch.setattr(session_chains, "ENTRIES_A_LINK", entries_a_link)
    seed = random.randrange(1_000_000)
    print("seed", seed)
    keys = ("k",) if seed % 2 else ()
    follow(random.Random(seed), spec_of(0, keys), Model(0, bool(keys)), shown, StateTable, 300)
    whole = WindowProcessSpec("whole", spec_of(0, keys).input, Values(), to_arrow_schema(VALUES), Windowing())
    model = Model(0, bool(keys), sorted_values)
    follow(random.Random(seed), whole, model, listed("values", bool(keys)), StateTable, 600)


class Values(hf.ProcessFunction):
    """The rows of a session, with its bounds."""

    def process(self, rows: Any, ctx: Any) -> Any:
        bounds = (getattr(ctx.key, "k", ""), ctx.key.window_start, ctx.key.window_end)
        assert all(bounds[1] <= row.at < bounds[2] for row in rows)
        yield *bounds, sorted(-1000 if row.v is None else row.v for row in rows)


class InOrder(hf.ProcessFunction):
    """The values of a session's rows as they come, with its start."""

    def process(self, rows: Any, ctx: Any) -> Any:
        yield ctx.key.window_start, [row.v for row in rows]


VALUES = "k STRING, window_start TIMESTAMP, window_end TIMESTAMP, values ARRAY<BIGINT>"


def sorted_values(rows: list[Row]) -> list[int]:
    return sorted(-1000 if value is None else value for *_, value in rows)


def listed(column: str, keyed: bool) -> Callable[[OperatorResult], dict[Any, list[Any]]]:
    """Output by key and bounds: the values of a column of all rows, flat."""

    def found(result: OperatorResult) -> dict[tuple[str, int, int], list[Any]]:
        of: dict[tuple[str, int, int], list[Any]] = {}
        for row in (row for batch in result.output for row in batch.to_pylist()):
            bounds = (round(row[name].timestamp()) for name in ("window_start", "window_end"))
            value = row[column]
            of.setdefault((row["k"] if keyed else "", *bounds), []).extend(
                value if isinstance(value, list) else [value]
            )
        return of

    return found


@pytest.mark.parametrize("keys", [("k",), ()], ids=["keyed", "alone"])
def test_functions_get_the_rows_of_whole_sessions_and_top_their_greatest(
    keys: tuple[str, ...], tables: NewTable
) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    lateness = seed % 3 * 4
    sessions, windowing = spec_of(keys=keys).input, Windowing(lateness_us=lateness * SECOND)
    whole = WindowProcessSpec("whole", sessions, Values(), to_arrow_schema(VALUES), windowing)
    follow(random.Random(seed), whole, Model(lateness, bool(keys), sorted_values), listed("values", bool(keys)), tables)
    greatest = TopSpec("top", sessions, 2, "v", windowing=windowing)
    model = Model(lateness, bool(keys), lambda rows: [None if v == -1000 else v for v in sorted_values(rows)[:-3:-1]])
    follow(random.Random(seed), greatest, model, listed("v", bool(keys)), tables)


def test_rows_of_joined_sessions_are_in_order_of_these_then_of_arrival(tables: NewTable) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    schema = to_arrow_schema("start TIMESTAMP, values ARRAY<BIGINT>")
    spec = WindowProcessSpec("whole", spec_of().input, InOrder(), schema, Windowing())
    operator = spec.create(0, 128, tables)
    open_sessions: list[list[tuple[int, int]]] = []
    for number in range(1, 60):
        row = (chance.randrange(1_000, 1_400), number)
        run_batch(operator, spec, number, [("a", *row)], (None, None))
        commit(operator)
        meeting = [each for each in open_sessions if min(each)[0] - GAP <= row[0] <= max(each)[0] + GAP]
        joined = [pair for each in sorted(meeting, key=min) for pair in each]
        open_sessions = [*(each for each in open_sessions if each not in meeting), [*joined, row]]
        if chance.random() < 0.1:
            operator = restored(operator, spec, tables)
    result = run_batch(operator, spec, 60, [], (10_000, None))
    found = [row["values"] for batch in result.output for row in batch.to_pylist()]
    assert sorted(found) == sorted([value for _, value in each] for each in open_sessions)


@pytest.mark.parametrize("rows", [500, 4_000])
def test_a_row_that_comes_before_a_session_moves_none_of_its_rows(rows: int) -> None:
    spec = TopSpec("top", spec_of().input, 2, "v")
    operator = spec.create(0, 128)
    run_batch(operator, spec, 1, [("a", 10_000 + number, 1) for number in range(rows)], (None, None))
    commit(operator)
    for number in range(2, 6):
        run_batch(operator, spec, number, [("a", 10_000 - 5 * number, 1)], (None, None))
        assert len(operator.tables["rows"].touched()) <= 2
        commit(operator)
    run_batch(operator, spec, 6, [("a", 10_000 + rows + 15, 1)], (None, None))
    commit(operator)
    run_batch(operator, spec, 7, [("a", 10_000 + rows + 5, 1)], (None, None))
    assert len(operator.tables["rows"].touched()) <= 4, "of two sessions that join, the rows of the smaller move"


def test_rows_of_sessions_that_were_stored_without_a_place_are_found() -> None:
    spec = TopSpec("top", spec_of().input, 5, "v")
    operator, old = spec.create(0, 128), spec.create(0, 128)
    run_batch(old, spec, 1, [("a", 100, 1), ("a", 105, 2), ("a", 130, 3)], (None, None))
    commit(old)
    for name, table in old.tables.items():
        stored = table.snapshot()
        kept = [column for column in stored.schema.names if column not in (PLACE, FIRST)]
        operator.tables[name].apply(stored.select(kept), 0, 128)
    run_batch(operator, spec, 1, [("a", 95, 4), ("a", 118, 5), ("a", 112, 6)], (None, None))
    commit(operator)
    result = run_batch(operator, spec, 2, [], (1_000, None))
    assert sorted(row["v"] for batch in result.output for row in batch.to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_a_row_exactly_the_gap_later_is_in_the_same_session_as_in_spark() -> None:
    spec = spec_of()
    operator = spec.create(0, 128)
    rows: list[Row] = [("a", 100, 1), ("a", 110, 2), ("a", 121, 3)]
    result = run_batch(operator, spec, 1, rows, (1000, None))
    assert sorted(shown(result)) == [("a", 100, 120), ("a", 121, 131)]


def test_first_and_last_of_joined_sessions_go_by_time_of_the_sessions_then_by_arrival() -> None:
    spec = spec_of(first=hf.first("v"), last=hf.last("v"), **AGGREGATES)
    operator = spec.create(0, 128)
    run_batch(operator, spec, 1, [("a", 130, 3), ("a", 100, 1)], (None, None))
    commit(operator)
    run_batch(operator, spec, 2, [("a", 115, 9), ("a", 122, 7), ("a", 107, 8)], (None, None))
    commit(operator)
    (batch,) = run_batch(operator, spec, 3, [], (1000, None)).output
    (row,) = batch.to_pylist()
    assert (row["n"], row["first"]) == (5, 1)


def test_sessions_that_change_are_refused() -> None:
    declared = OperatorInput(SCHEMA, ("k",), EventTime(("at",), "at"), hf.session_window("at", GAP), 1)
    with pytest.raises(SettingsError, match="no sink could find the row to replace"):
        SessionSpec("sessions", declared, AGGREGATES, Windowing("changes"))
    with pytest.raises(SettingsError, match="longer than nothing"):
        hf.session_window("at", 0)


def test_a_key_named_like_the_count_of_rows_is_a_key_as_any_other() -> None:
    schema = SCHEMA.set(0, SCHEMA.field("k").with_name("rows"))
    declared = OperatorInput(schema, ("rows",), EventTime(("at",), "at"), hf.session_window("at", GAP), 1)
    assert set(TopSpec("top", declared, 1, "v").create(0, 128).tables) == {"state", "newest", "rows"}


@pytest.mark.parametrize("sessions", [100, 2_000])
@pytest.mark.parametrize("behind_s", [0, 7_000])
def test_a_row_touches_the_sessions_near_it_however_many_are_open(sessions: int, behind_s: int) -> None:
    spec = spec_of(n=hf.count())
    operator = spec.create(0, 128, StateTable)
    rows = [("a", number * 100, 1) for number in range(sessions)]
    run_batch(operator, spec, 1, rows, (None, None))
    commit(operator)
    touched = []
    for number in range(2, 6):
        run_batch(operator, spec, number, [("a", (sessions - 1) * 100 - behind_s + number, 1)], (None, None))
        touched.append(len(operator.tables["state"].touched()))
        commit(operator)
    assert max(touched[1:]) <= 4, "the first row that is far behind has the order made"
    assert len(operator.tables["state"]) == sessions


def counts(result: OperatorResult) -> dict[tuple[int, int], int]:
    """The number of rows of each session of a single key, by its bounds in seconds."""
    rows = [row for batch in result.output for row in batch.to_pylist()]
    return {(round(row["window_start"].timestamp()), round(row["window_end"].timestamp())): row["n"] for row in rows}


def test_an_order_knows_the_sessions_that_opened_joined_and_closed_since_it_was_made() -> None:
    spec = spec_of(n=hf.count())
    operator = spec.create(0, 128, StateTable)
    run_batch(operator, spec, 1, [("a", number * 20, 1) for number in range(200)], (None, None))
    commit(operator)
    for number in range(2, 100):
        run_batch(operator, spec, number, [("a", number * 20 + 10, 1), ("a", 4_000 + number * 20, 1)], (None, None))
        commit(operator)
    result = run_batch(operator, spec, 100, [("a", 110, 1)], (3_000, None))
    assert counts(result)[40, 2_010] == 98 + 99 + 1 and counts(result)[2_020, 2_030] == 1
    commit(operator)
    run_batch(operator, spec, 101, [("a", 3_010, 1)], (3_000, 3_000))
    assert len(operator.tables["state"].touched()) <= 4, "closed sessions left from the order"
    commit(operator)
    result = run_batch(operator, spec, 102, [], (100_000, 3_000))
    assert counts(result)[3_000, 3_030] == 3
