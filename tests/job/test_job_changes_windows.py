"""Aggregates by windows over changes: open windows follow the table, closed ones are final, and changes come late."""

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from job_kit import new_job, new_storage, script

import holdfast as hf
from changes_kit import ChangingTable, Told, in_order
from holdfast.testing import Abort, Eof, run

ROWS = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
COLUMNS = "k BIGINT, at TIMESTAMP, v BIGINT, _change_type STRING"
AGGREGATES = {
    "n": hf.count(),
    "total": hf.sum("v"),
    "most": hf.max("v"),
    "values": hf.count_distinct("v"),
    "all": hf.collect_list("v"),
}
WINDOWS: dict[str, tuple[Any, int]] = {
    "tumbling": (hf.window("at", "20s"), 20),
    "sliding": (hf.window("at", "20s", slide="5s"), 5),
}
QUERY = """
WITH w AS (SELECT {key} unnest(generate_series(
    (epoch("at")::BIGINT + 980) // {slide} * {slide} + {slide} - 1000, epoch("at")::BIGINT, {slide})) AS s, v FROM t)
SELECT {key} to_timestamp(s)::TIMESTAMPTZ, to_timestamp(s + 20)::TIMESTAMPTZ, count(*), sum(v), max(v),
    count(DISTINCT v), coalesce(list_sort(list(v) FILTER (v IS NOT NULL)), []) FROM w GROUP BY ALL
"""


def rows_of(query: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return in_order(
        tuple(v.astimezone(UTC) if isinstance(v, datetime) else tuple(v) if isinstance(v, list) else v for v in row)
        for row in query
    )


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("sliding", ""),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in [("sliding", "k"), ("tumbling", "k"), ("tumbling", "")]
        ),
    ],
)
def test_windows_follow_their_table_over_failures_and_restarts(kind: str, key: str) -> None:
    window, slide = WINDOWS[kind]
    table, told, draw = ChangingTable(len(kind), ROWS, keys=2), Told(), random.Random(len(kind + key))
    query = QUERY.format(slide=slide, key="k," if key else "")
    storage, changes, final, seen, steps = new_storage(), hf.MemorySink(), hf.MemorySink(), 0, []
    state = hf.RocksDBState(cache_max_entries=8) if key else hf.HashMapState()
    for size in (6, 3, 9):
        steps.append(table.change(size))
        if draw.random() < 0.5:
            steps.append(Abort())
        job = new_job(storage, state=state, parallelism=draw.choice([1, 2]))
        source = script(*steps, schema=COLUMNS, name="table")
        keyed = job.read(source).with_watermark("at", "1h").key_by(*([key] if key else []), window)
        keyed.aggregate(**AGGREGATES, emit="changes", changes=True, name="open").write(changes)
        keyed.aggregate(**AGGREGATES, name="closed").write(final)
        run(job)
        rows = changes.rows()
        told.take(rows[seen:])
        seen = len(rows)
        assert rows_of(told.now()) == rows_of(table.query(query))
    assert final.rows() == []
    job = new_job(storage, state=state)
    source = script(*steps, Eof(drain=True), schema=COLUMNS, name="table")
    keyed = job.read(source).with_watermark("at", "1h").key_by(*([key] if key else []), window)
    keyed.aggregate(**AGGREGATES, emit="changes", changes=True, name="open").write(changes)
    keyed.aggregate(**AGGREGATES, name="closed").write(final)
    run(job)
    assert rows_of([tuple(row.values()) for row in final.rows()]) == rows_of(table.query(query))


class Listed(hf.ProcessFunction):
    """Gives the values of a window in the order in which it sees them."""

    def process(self, rows: list[Any], ctx: Any) -> Any:
        yield {"k": ctx.key.k, "start": ctx.key.window_start, "all": [row.v for row in rows]}


IN_WINDOWS = """
WITH w AS (SELECT *, unnest(generate_series(
    (epoch("at")::BIGINT + 980) // 5 * 5 + 5 - 1000, epoch("at")::BIGINT, 5)) AS s FROM t),
r AS (SELECT *, row_number() OVER (PARTITION BY k, s ORDER BY v DESC NULLS LAST, "at") AS place FROM w)
"""
IN_SESSIONS = """
WITH m AS (SELECT *, coalesce(epoch("at") - lag(epoch("at")) OVER (PARTITION BY k ORDER BY "at") > 4, true) AS b
    FROM t),
n AS (SELECT *, sum(b::INT) OVER (PARTITION BY k ORDER BY "at" ROWS UNBOUNDED PRECEDING) AS s FROM m),
r AS (SELECT *, row_number() OVER (PARTITION BY k, s ORDER BY v DESC NULLS LAST, "at") AS place,
    min("at") OVER (PARTITION BY k, s) AS first, max("at") OVER (PARTITION BY k, s) + INTERVAL 4 SECOND AS until FROM n)
"""
BOUNDS = "to_timestamp(s)::TIMESTAMPTZ, to_timestamp(s + 20)::TIMESTAMPTZ"
WHOLE: dict[str, tuple[Any, str]] = {
    "top": (
        lambda rows: rows.key_by("k", WINDOWS["sliding"][0]).top(2, by="v", name="top"),
        f'{IN_WINDOWS} SELECT k, {BOUNDS}, "at", v FROM r WHERE place <= 2',
    ),
    "function": (
        lambda rows: rows.key_by("k", WINDOWS["sliding"][0]).process(
            Listed(), "k BIGINT, start TIMESTAMP, `all` ARRAY<BIGINT>", name="function"
        ),
        f"""{IN_WINDOWS} SELECT k, to_timestamp(s)::TIMESTAMPTZ, list(v ORDER BY "at", v NULLS LAST)
            FROM w GROUP BY k, s""",
    ),
    "sessions": (
        lambda rows: rows.key_by("k", hf.session_window("at", "4s")).aggregate(**AGGREGATES, name="sessions"),
        f"""{IN_SESSIONS} SELECT k, first, until, count(*), sum(v), max(v), count(DISTINCT v),
            coalesce(list_sort(list(v) FILTER (v IS NOT NULL)), []) FROM r GROUP BY k, first, until""",
    ),
    "top of sessions": (
        lambda rows: rows.key_by("k", hf.session_window("at", "4s")).top(1, by="v", name="sessions-top"),
        f'{IN_SESSIONS} SELECT k, first, until, "at", v FROM r WHERE place = 1',
    ),
}


def test_windows_that_keep_their_rows_end_with_those_of_the_table() -> None:
    table, draw, storage = ChangingTable(7, ROWS, keys=2), random.Random(7), new_storage()
    sinks, steps = {kind: hf.MemorySink() for kind in WHOLE}, []
    for size in (12, 25, 25, 0):
        steps += [table.change(size), Abort()] if size else [Eof(drain=True)]
        job = new_job(storage, parallelism=draw.choice([1, 2]))
        rows = job.read(script(*steps, schema=COLUMNS, name="table")).with_watermark("at", "1h")
        for kind, (made, _) in WHOLE.items():
            made(rows).write(sinks[kind])
        run(job)
    for kind, (_, query) in WHOLE.items():
        assert rows_of([tuple(row.values()) for row in sinks[kind].rows()]) == rows_of(table.query(query)), kind


def change(kind: str, second: int, v: int) -> dict[str, Any]:
    return {"k": 1, "at": datetime.fromtimestamp(second, UTC), "v": v, "_change_type": kind}


def test_a_change_in_a_closed_window_is_late_and_its_other_half_counts() -> None:
    final, late = hf.MemorySink(), hf.MemorySink()
    job = new_job()
    first = [change("insert", 1, 5), change("insert", 2, 7), change("insert", 11, 1), change("delete", 2, 7)]
    moves = [change("update_preimage", 1, 5), change("update_postimage", 25, 5), change("insert", 30, 0)]
    source = script(first, [change("insert", 21, 2)], moves, schema=COLUMNS)
    keyed = job.read(source).with_watermark("at", "0s").key_by("k", hf.window("at", "10s"))
    counts = keyed.aggregate(n=hf.count(), total=hf.sum("v"), most=hf.max("v"), late="stream", name="counts")
    counts.write(final)
    counts.late.write(late)
    run(job)
    found = [(row["window_start"].second, row["n"], row["total"], row["most"]) for row in final.rows()]
    assert found == [(0, 1, 5, 5), (10, 1, 1, 1), (20, 2, 7, 5)]
    assert [(row["v"], row["_change_type"]) for row in late.rows()] == [(5, "update_preimage")]


def test_a_session_that_a_delete_divides_gives_both_parts_when_its_last_part_closes() -> None:
    sink, job = hf.MemorySink(), new_job()
    rows = [change("insert", second, second) for second in (0, 5, 10)]
    later = [[change("insert", second, 1)] for second in (15, 40)]
    source = script([*rows, change("delete", 5, 5)], *later, schema=COLUMNS)
    sessions = job.read(source).with_watermark("at", "0s").key_by("k", hf.session_window("at", "6s"))
    sessions.aggregate(n=hf.count(), most=hf.max("v")).write(sink)
    run(job)
    found = [(row["window_start"].second, row["window_end"].second, row["n"], row["most"]) for row in sink.rows()]
    assert found == [(0, 6, 1, 0), (10, 21, 2, 10)]


def test_windows_that_cannot_take_rows_back_are_refused_by_name() -> None:
    def refused(match: str, made: Any) -> None:
        job = new_job()
        rows = job.read(script([], schema=COLUMNS)).with_watermark("at", "0s")
        with pytest.raises((hf.JobRefused, hf.SettingsError), match=match):
            made(rows).write(hf.MemorySink())
            run(job)

    tumbling = hf.window("at", "10s")
    session = hf.session_window("at", "5s")
    refused("no sink could find", lambda rows: rows.key_by("k", session).aggregate(n=hf.count(), emit="changes"))
    refused("depends on the order", lambda rows: rows.key_by("k", session).aggregate(n=hf.first("v")))
    refused("needs emit='changes'", lambda rows: rows.key_by("k", tumbling).aggregate(n=hf.count(), changes=True))
    refused("rows are final", lambda rows: rows.key_by("k", tumbling).top(1, by="v", changes=True))
    refused("no such column", lambda rows: rows.key_by("k", tumbling).top(1, by="_change_type"))
