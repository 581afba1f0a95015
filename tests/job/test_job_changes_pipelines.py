"""Pipelines of operators over changes, drawn at random: after each batch they are the query over the table."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from job_kit import new_job, new_storage, script

import holdfast as hf
from changes_kit import ChangingTable, Told
from holdfast.testing import Abort, run

ROWS = pa.schema([("k", pa.int64()), ("k2", pa.int64()), ("v", pa.int64())])
COLUMNS = "k BIGINT, k2 BIGINT, v BIGINT, _change_type STRING"
FIRST = """SELECT {columns} FROM (SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY {order}) r FROM ({q}))
    WHERE {is_first}"""


class Made(NamedTuple):
    """A stream with the columns a, b and c, and the query that it follows."""

    stream: hf.Stream
    query: str

    def known(self, *columns: str) -> "Made":
        """The rows that have values in these columns."""
        condition = " AND ".join(f"{column} IS NOT NULL" for column in columns)
        return Made(self.stream.where(condition), f"SELECT * FROM ({self.query}) WHERE {condition}")


def distinct(made: Made, base: Made, draw: random.Random) -> Made:
    stream, query = made.known("a", "b")
    stream = stream.select("a", "b").drop_duplicates("a", "b").select("a", "b", "a - b AS c")
    return Made(stream, f"SELECT a, b, a - b c FROM (SELECT DISTINCT a, b FROM ({query}))")


def first_rows(made: Made, base: Made, draw: random.Random) -> Made:
    stream, q = made.known("c")
    order = "a NULLS LAST, b NULLS LAST"
    query = FIRST.format(columns="a, b, c", key="c", order=order, q=q, is_first="r = 1")
    return Made(stream.drop_duplicates("c"), query)


def last(made: Made, base: Made, draw: random.Random) -> Made:
    stream, q = made.known("a")
    order = "c DESC NULLS LAST, b NULLS LAST"
    query = FIRST.format(columns="a, b, c", key="a", order=order, q=q, is_first="r = 1")
    return Made(stream.key_by("a").last(by="c", changes=True), query)


def top(made: Made, base: Made, draw: random.Random) -> Made:
    stream, q = made.known("b")
    least = draw.random() < 0.5
    order = f"a {'' if least else 'DESC'} NULLS LAST, c NULLS LAST"
    query = FIRST.format(columns="a, b, c - r c", key="b", order=order, q=q, is_first="r <= 2")
    stream = stream.key_by("b").top(2, by="a", least=least, changes=True)
    return Made(stream.select("a", "b", "c - rank AS c"), query)


def aggregate(made: Made, base: Made, draw: random.Random) -> Made:
    key, other = draw.choice([("a", "b"), ("c", "a"), ("b", "c")])
    stream, q = made.known(key)
    stream = stream.key_by(key).aggregate(s=hf.sum(other), n=hf.count(), most=hf.max(other), changes=True)
    query = f"SELECT {key} a, sum({other}) + count(*) b, max({other}) c FROM ({q}) GROUP BY {key}"
    return Made(stream.select(f"{key} AS a", "s + n AS b", "most AS c"), query)


def windows(made: Made, base: Made, draw: random.Random) -> Made:
    """Windows of eight seconds every four, or one after the other, which nothing closes."""
    stream, q = made.known("a", "b")
    slide = draw.choice([4, 8])
    timed = stream.select("timestamp_seconds(pmod(a, 60)) AS t", "pmod(b, 3) AS b", "c")
    keyed = timed.key_by("b", hf.window("t", "8s", slide=f"{slide}s"))
    found = keyed.aggregate(n=hf.count(), most=hf.max("c"), emit="changes", changes=True)
    a = "((a % 60) + 60) % 60"
    query = f"""SELECT s a, n b, most c FROM (SELECT s, b, count(*) n, max(c) most FROM (
        SELECT unnest(generate_series(({a} + 992) // {slide} * {slide} + {slide} - 1000, {a}, {slide})) s,
            ((b % 3) + 3) % 3 b, c FROM ({q})) GROUP BY s, b)"""
    return Made(found.select("unix_seconds(window_start) AS a", "n AS b", "most AS c"), query)


def join(made: Made, base: Made, draw: random.Random) -> Made:
    how: Any = draw.choice(["inner", "left", "right", "outer", "semi", "anti"])
    (left, q), (right, r) = made.known("a"), base.known("a")
    stream = left.key_by("a").join(right.key_by("a"), how=how, suffix="_r")
    if how in ("semi", "anti"):
        is_there = "EXISTS" if how == "semi" else "NOT EXISTS"
        return Made(stream, f"SELECT * FROM ({q}) l WHERE {is_there} (SELECT * FROM ({r}) r WHERE r.a = l.a)")
    shown = "full" if how == "outer" else how
    query = f"SELECT coalesce(l.a, r.a) a, l.b, r.c FROM ({q}) l {shown} JOIN ({r}) r ON l.a = r.a"
    return Made(stream.select("a", "b", "c_r AS c"), query)


Operator = Callable[[Made, Made, random.Random], Made]
OPERATORS: list[Operator] = [distinct, first_rows, last, top, aggregate, windows, join, join]


def pipeline(rows: hf.Stream, draw: random.Random) -> Made:
    """Two to four operators, one behind the other; each join has the table itself on its right side."""
    made = Made(rows.select("k AS a", "k2 AS b", "v AS c"), "SELECT k a, k2 b, v c FROM t")
    base = Made(rows.select("k2 AS a", "v AS b", "k AS c"), "SELECT k2 a, v b, k c FROM t")
    for operator in draw.choices(OPERATORS, k=draw.randint(2, 4)):
        made = operator(made, base, draw)
    return made


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 25))])
def test_a_random_pipeline_follows_its_table_over_failures_and_restarts(seed: int) -> None:
    table, told, draw = ChangingTable(seed, ROWS), Told(), random.Random(seed)
    storage, sink, seen, batches = new_storage(), hf.MemorySink(), 0, []
    state = hf.RocksDBState(cache_max_entries=8) if seed % 2 else hf.HashMapState()
    for size in (5, 2, 9, 3):
        batches.append(table.change(size))
        if draw.random() < 0.3:
            batches.append(Abort())
        job = new_job(storage, state=state, parallelism=draw.choice([1, 2]))
        made = pipeline(job.read(script(*batches, schema=COLUMNS, name="table")), random.Random(seed))
        made.stream.write(sink)
        run(job)
        rows = sink.rows()
        told.take(rows[seen:])
        seen = len(rows)
        assert told.now() == table.query(made.query), made.query
