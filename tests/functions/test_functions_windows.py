"""Aggregates by window against a recomputation from the rows, over undo, rewind, restarts and lateness."""

import math
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from functions_windows_kit import (
    AGGREGATES,
    BACKENDS,
    SCHEMA,
    SECOND,
    Row,
    Shown,
    aggregated,
    batch_of,
    commit,
    restored,
    run_batch,
    shown,
    undo,
)

import holdfast as hf
from holdfast.errors import BadRecord, JobRefused, SettingsError
from holdfast.functions.operator import COMBINED_INPUT, EventTime, NewTable, OperatorInput
from holdfast.functions.windows.aggregate import WindowSpec
from holdfast.functions.windows.declared import Window
from holdfast.functions.windows.windowed import Windowing
from holdfast.state.backends import tables_of
from holdfast.state.table import StateTable


@pytest.fixture(params=["hashmap", pytest.param("rocksdb", marks=pytest.mark.long), "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


def spec_of(window: Window, emit: Any = "final", lateness: int = 0, keys: tuple[str, ...] = ("k",)) -> WindowSpec:
    declared = OperatorInput(SCHEMA, keys, EventTime(("at",), "at"), window, len(keys))
    return WindowSpec("windows", declared, AGGREGATES, Windowing(emit, lateness_us=lateness * SECOND))


def starts_of(window: Window, second: int) -> list[int]:
    size, slide, start = (each // SECOND for each in (window.size_us, window.slide_us, window.start_us))
    last = (second - start) // slide * slide + start
    return [begin for begin in range(last, last - size - slide, -slide) if begin <= second < begin + size]


class Model:
    """Recomputes windows from the rows on time; `final` is the output at their close."""

    def __init__(self, window: Window, lateness: int, keyed: bool = True) -> None:
        self.window, self.lateness, self.keyed = window, lateness, keyed
        self.rows: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
        self.late = 0

    def batch(self, rows: list[Row], watermark: int | None, closed: int | None) -> tuple[Shown, Shown]:
        """The windows that close, and those that changed."""
        closed_by = -math.inf if closed is None else closed - self.lateness
        until = -math.inf if watermark is None else watermark - self.lateness
        size, changed = self.window.size_us // SECOND, set()
        for row in rows:
            open_windows = [begin for begin in starts_of(self.window, row[1]) if begin + size > closed_by]
            self.late += not open_windows
            for begin in open_windows:
                key = (row[0] if self.keyed else "", begin, begin + size)
                self.rows[key].append(row)
                changed.add(key)
        closing = {key for key in self.rows if closed_by < key[2] <= until}
        return self._shown(closing), self._shown(changed)

    def _shown(self, keys: set[tuple[str, int, int]]) -> Shown:
        return {key: aggregated(self.rows[key]) for key in keys}


WINDOWS = {
    "tumbling": hf.window("at", "10s"),
    "shifted": hf.window("at", "7s", start="3s"),
    "sliding": hf.window("at", "10s", slide="2s"),
    "uneven": hf.window("at", "10s", slide="4s", start="1s"),
}


def some_rows(chance: random.Random, now: int) -> list[Row]:
    rows: list[Row] = []
    for _ in range(chance.choice([0, 1, 12, 40])):
        value = None if chance.random() < 0.2 else chance.randrange(-50, 50)
        rows.append((chance.choice(["a", "b", "c", "dd"]), now + chance.randrange(-12, 15), value))
    return rows


@pytest.mark.parametrize("keys", [("k",), ()], ids=["keyed", "alone"])
@pytest.mark.parametrize("emit", ["final", "changes"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_windows_are_what_the_model_recomputes(
    window: Window, emit: str, keys: tuple[str, ...], tables: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.functions.windows.window_operator.ROWS_AT_ONCE_MAX", 7)
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance, lateness = random.Random(seed), seed % 3 * 4
    spec = spec_of(window, emit, lateness, keys)
    operator, model = spec.create(0, 128, tables), Model(window, lateness, bool(keys))
    now, late = 100, 0
    watermark: int | None = None
    closed: int | None = None
    for number in range(1, 50):
        now += chance.choice([0, 1, 3, 9])
        watermark = chance.choice([watermark, max(watermark or 0, now - chance.randrange(12))])
        rows = some_rows(chance, now)
        if chance.random() < 0.2:
            run_batch(operator, spec, number, some_rows(chance, now), (watermark, closed))
            undo(operator)
        result = run_batch(operator, spec, number, rows, (watermark, closed))
        final, changed = model.batch(rows, watermark, closed)
        assert shown(result) == (final if emit == "final" else changed), f"batch {number}"
        assert result.timers is not None
        late += result.late
        commit(operator)
        closed = watermark
        if chance.random() < 0.1:
            operator = restored(operator, spec, tables)
    assert late == model.late
    run_batch(operator, spec, 50, [], (10_000, closed))
    commit(operator)
    assert not len(operator.tables["state"]), "all windows are closed, and nothing is left"


def test_a_rewound_index_is_that_of_the_rows_that_are_left() -> None:
    spec = spec_of(WINDOWS["sliding"])
    operator = spec.create(0, 128)
    for number, second in enumerate((1, 12, 25), 1):
        run_batch(operator, spec, number, [("a", second, 1)], (None, None))
        commit(operator)
    for table in operator.tables.values():
        table.rewind(1)
    result = run_batch(operator, spec, 9, [], (1000, None))
    assert sorted(begin for _, begin, _ in shown(result)) == [-8, -6, -4, -2, 0]


def test_the_next_batch_for_time_alone_is_when_the_next_window_ends() -> None:
    for window, ends in ((WINDOWS["tumbling"], [110, 120]), (WINDOWS["sliding"], [104, 106])):
        spec = spec_of(window)
        operator = spec.create(0, 128)
        result = run_batch(operator, spec, 1, [("a", 103, 1), ("a", 117, 1)], (None, None))
        assert result.timers is not None and result.timers.event_us == ends[0] * SECOND
        commit(operator)
        result = run_batch(operator, spec, 2, [], (ends[0], None))
        assert result.timers is not None and result.timers.event_us == ends[1] * SECOND


def test_late_rows_become_bad_records_by_choice() -> None:
    declared = OperatorInput(SCHEMA, ("k",), EventTime(("at",), "at"), WINDOWS["tumbling"], 1)
    spec = WindowSpec("windows", declared, AGGREGATES, Windowing(bad_records="dead_letter", late="dead_letter"))
    operator = spec.create(0, 128)
    result = run_batch(operator, spec, 1, [("a", 103, 1), ("b", 93, 2)], (100, 100))
    assert result.late == 1
    (bad,) = result.bad
    assert "late: the watermark 1970-01-01T00:01:40+00:00 says that its time was complete" in bad.reason
    assert bad.payload == '{"k":"b","at":"1970-01-01T00:01:33Z","v":2}'


def test_a_sum_that_only_a_whole_window_overflows_is_bad() -> None:
    rows: list[Row] = [("a", 101, 2**63 - 1), ("a", 103, 2**62), ("b", 101, 1)]
    spec = spec_of(WINDOWS["sliding"])
    operator = spec.create(0, 128)
    with pytest.raises(BadRecord, match="aggregate 'total' = sum"):
        run_batch(operator, spec, 1, rows, (200, None))
    declared = OperatorInput(SCHEMA, ("k",), EventTime(("at",), "at"), WINDOWS["sliding"], 1)
    spec = WindowSpec("windows", declared, AGGREGATES, Windowing(bad_records="dead_letter"))
    operator = spec.create(0, 128)
    result = run_batch(operator, spec, 1, rows, (200, None))
    assert len(result.bad) == 4, "of the five windows with both rows, one begins between them"
    assert all(count == 1 for count, *_ in shown(result).values())


def test_senders_combine_what_is_on_time_and_send_late_rows_as_they_are() -> None:
    spec = spec_of(WINDOWS["tumbling"])
    rows: list[Row] = [("a", second, 1) for second in [105, 93] * 5000]
    sender = spec.combiner(True, 100 * SECOND)
    parts = [*sender.take(batch_of(rows)), *sender.finish()]
    assert [(number, part.num_rows) for number, part in parts] == [(0, 5000), (COMBINED_INPUT, 1)]
    sender = spec.combiner(True, 90 * SECOND)
    parts = [*sender.take(batch_of(rows)), *sender.finish()]
    assert [(number, part.num_rows) for number, part in parts] == [(COMBINED_INPUT, 2)], "none is late"


def test_windows_are_refused_where_they_make_no_sense() -> None:
    with pytest.raises(SettingsError, match="rows would fall between windows"):
        hf.window("at", "10s", slide="11s")
    with pytest.raises(SettingsError, match="longer than nothing"):
        hf.window("at", 0)
    with pytest.raises(JobRefused, match="'v' has type int64; give a timestamp"):
        spec_of(hf.window("v", "10s"))
    with pytest.raises(JobRefused, match="'z' is not among k, at, v"):
        spec_of(hf.window("z", "10s"))
    with pytest.raises(JobRefused, match="no window would ever close"):
        WindowSpec("w", OperatorInput(SCHEMA, ("k",), None, WINDOWS["tumbling"], 1), AGGREGATES)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_batch_touches_what_came_and_what_closes_however_many_windows_are_open(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(window)
    operator = spec.create(0, 128)
    size = window.size_us // SECOND
    rows: list[Row] = [(str(key), 1000 + size * number, 1) for key in range(5) for number in range(400)]
    run_batch(operator, spec, 1, rows, (None, None))
    commit(operator)
    monkeypatch.setattr(StateTable, "survey", lambda *_: pytest.fail("all keys were looked at"))
    closed = None
    for number, watermark in enumerate(range(1000, 1000 + 6 * size, size), 2):
        run_batch(operator, spec, number, [("a", 5000, 1)], (watermark, closed))
        assert len(operator.tables["state"].touched()) <= 5 * 3 + 1
        commit(operator)
        closed = watermark
    run_batch(operator, spec, 99, [], (closed, closed))
    assert len(operator.tables["state"].touched()) == 0, "no window ends at a watermark that stands still"
