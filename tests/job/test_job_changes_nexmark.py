"""Nexmark over tables that change: auctions are updated, bids are withdrawn, and each query follows, as in DuckDB."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from job_kit import new_job, new_storage

import duckdb_kit
import holdfast as hf
from benchmarks.nexmark.events import BEGIN_US, OF_ALL, auctions, bids, persons
from changes_kit import Told, in_order
from holdfast.testing import Abort, TestSource, run

COLUMNS = {
    "persons": ("id", "name", "city", "state"),
    "auctions": ("id", "seller", "category", "reserve", "date_time", "expires"),
    "bids": ("auction", "bidder", "price", "channel", "date_time"),
}
MADE = {"persons": persons, "auctions": auctions, "bids": bids}
OFFSETS = {"persons": (0, 1), "auctions": (1, 4), "bids": (4, OF_ALL)}
"""The numbers modulo `OF_ALL` of the events of each kind."""
HOP, SLIDE = 40_000, 20_000
BEGIN = datetime.fromtimestamp(BEGIN_US // 1_000_000, UTC)
Tables = dict[str, hf.Stream]


class Changing:
    """One of Nexmark's tables; `step` gives the changes that new events, updates and withdrawals make."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self._draw, self._chance = random.Random(seed), np.random.default_rng(seed)
        self.rows: list[dict[str, Any]] = []
        empty = MADE[kind](np.zeros(0, np.int64), self._chance).select(COLUMNS[kind])
        self.schema = empty.schema

    def step(self, first: int, stop: int) -> pa.RecordBatch:
        numbers = np.arange(first, stop)
        begin, end = OFFSETS[self.kind]
        chosen = numbers[(numbers % OF_ALL >= begin) & (numbers % OF_ALL < end)]
        changes = [] if self.kind == "persons" else self._changed()
        new = MADE[self.kind](chosen, self._chance).select(COLUMNS[self.kind]).to_pylist()
        self.rows += new
        changes += [{**row, "_change_type": "insert"} for row in new]
        return pa.RecordBatch.from_pylist(changes, self.schema.append(pa.field("_change_type", pa.string())))

    def _changed(self) -> list[dict[str, Any]]:
        """Withdraw a tenth of the bids; update a quarter of the auctions."""
        made = []
        for place in sorted(self._draw.sample(range(len(self.rows)), len(self.rows) // 8), reverse=True):
            row = self.rows[place]
            made.append({**row, "_change_type": "update_preimage" if self.kind == "auctions" else "delete"})
            if self.kind == "bids":
                del self.rows[place]
                continue
            moved = {"category": row["category"] % 12 + 1, "expires": row["expires"] + timedelta(milliseconds=1)}
            self.rows[place] = row | moved
            made.append({**self.rows[place], "_change_type": "update_postimage"})
        return made


def valid_bids(tables: Tables) -> hf.Stream:
    bid = tables["bids"].select("auction", "bidder", "price", "date_time AS at").key_by("auction")
    auction = tables["auctions"].select("id AS auction", "category", "date_time", "expires")
    return bid.join(auction.key_by("auction")).where("at BETWEEN date_time AND expires")


def q3(tables: Tables) -> hf.Stream:
    sellers = tables["persons"].where("state IN ('OR', 'ID', 'CA')").select("id AS seller", "name", "city", "state")
    chosen = tables["auctions"].where("category > 11").select("id", "seller")
    return sellers.key_by("seller").join(chosen.key_by("seller")).select("name", "city", "state", "id")


def q4(tables: Tables) -> hf.Stream:
    best = valid_bids(tables).key_by("auction", "category").aggregate(final=hf.max("price"), changes=True)
    return best.key_by("category").aggregate(mean=hf.mean("final"), changes=True)


def q5(tables: Tables) -> hf.Stream:
    window = hf.window("date_time", f"{HOP}us", slide=f"{SLIDE}us")
    counts = tables["bids"].key_by("auction", window).aggregate(n=hf.count(), emit="changes", changes=True)
    hottest = counts.key_by("window_start").aggregate(most=hf.max("n"), changes=True)
    joined = counts.select("window_start", "auction", "n").key_by("window_start").join(hottest.key_by("window_start"))
    return joined.where("n = most").select("window_start", "auction", "n")


def q9(tables: Tables) -> hf.Stream:
    first = valid_bids(tables).key_by("auction").top(1, by="price", changes=True)
    return first.select("auction", "price")


def q17(tables: Tables) -> hf.Stream:
    band = {"low": hf.count(where="low"), "n": hf.count(), "most": hf.max("price"), "mean": hf.mean("price")}
    bid = tables["bids"].select("auction", "price", "bidder", "price < 10000 AS low")
    return bid.key_by("auction").aggregate(**band, bidders=hf.count_distinct("bidder"), changes=True)


def q18(tables: Tables) -> hf.Stream:
    last = tables["bids"].key_by("bidder", "auction").last(by="date_time", changes=True)
    return last.select("bidder", "auction", "date_time")


def q19(tables: Tables) -> hf.Stream:
    return tables["bids"].key_by("auction").top(10, by="price", changes=True).select("auction", "rank", "price")


def q20(tables: Tables) -> hf.Stream:
    chosen = tables["auctions"].where("category = 10").select("id AS auction", "seller", "reserve")
    return tables["bids"].select("auction", "price").key_by("auction").join(chosen.key_by("auction"))


VALID = "bids JOIN auctions ON auction = id WHERE bids.date_time BETWEEN auctions.date_time AND expires"
RANKED = "SELECT auction, row_number() OVER (PARTITION BY auction ORDER BY price DESC) r, price FROM"
QUERIES = {
    q3: """SELECT name, city, state, auctions.id FROM auctions JOIN persons ON seller = persons.id
        WHERE category > 11 AND state IN ('OR', 'ID', 'CA')""",
    q4: f"SELECT category, avg(final) FROM (SELECT category, max(price) final FROM {VALID} GROUP BY id, category) "
    "GROUP BY category",
    q5: f"""WITH hops AS (SELECT auction, unnest(generate_series((epoch_us(date_time) - {HOP}) // {SLIDE} * {SLIDE}
        + {SLIDE}, epoch_us(date_time), {SLIDE})) w FROM bids), counts AS (SELECT w, auction, count(*) n FROM hops
        GROUP BY w, auction) SELECT w, auction, n FROM counts QUALIFY n = max(n) OVER (PARTITION BY w)""",
    q9: f"SELECT auction, max(price) FROM {VALID} GROUP BY auction",
    q17: """SELECT auction, count(*) FILTER (price < 10000), count(*), max(price), avg(price), count(DISTINCT bidder)
        FROM bids GROUP BY auction""",
    q18: "SELECT bidder, auction, max(date_time) FROM bids GROUP BY bidder, auction",
    q19: f"SELECT * FROM ({RANKED} bids) WHERE r <= 10",
    q20: "SELECT auction, price, seller, reserve FROM bids JOIN auctions ON auction = id WHERE category = 10",
}


def shown(rows: Any) -> list[tuple[Any, ...]]:
    """Rows with times as microseconds since 1970, and doubles to ten digits."""

    def value(each: Any) -> Any:
        if isinstance(each, datetime):
            return BEGIN_US + (each - BEGIN) // timedelta(microseconds=1)
        return float(f"{each:.10g}") if isinstance(each, float) else each

    return in_order(tuple(value(each) for each in row) for row in rows)


def compare(query: Any, told: Told, tables: list[Changing]) -> None:
    with duckdb_kit.connection() as connection:
        for table in tables:
            connection.register(table.kind, pa.Table.from_pylist(table.rows, table.schema))
        assert shown(told.now()) == shown(connection.execute(QUERIES[query]).fetchall()), query.__name__


@pytest.mark.parametrize("events", [150, pytest.param(2_000, marks=pytest.mark.long)])
def test_each_query_follows_its_tables_over_failures_and_restarts(events: int) -> None:
    tables = [Changing(kind, seed) for seed, kind in enumerate(MADE)]
    steps: dict[str, list[Any]] = {table.kind: [] for table in tables}
    told, seen = {query: Told() for query in QUERIES}, dict.fromkeys(QUERIES, 0)
    sinks, storage = {query: hf.MemorySink(name=query.__name__) for query in QUERIES}, new_storage()
    for number in range(3):
        for table in tables:
            steps[table.kind].append(table.step(number * events, (number + 1) * events))
        if number == 1:
            steps["bids"].append(Abort())
        job = new_job(storage, parallelism=1 + number % 2)
        streams = {
            table.kind: job.read(
                TestSource(
                    steps[table.kind], table.schema.append(pa.field("_change_type", pa.string())), name=table.kind
                )
            )
            for table in tables
        }
        for query, sink in sinks.items():
            query(streams).write(sink)
        run(job)
        for query, sink in sinks.items():
            rows = sink.rows()
            told[query].take(rows[seen[query] :])
            seen[query] = len(rows)
            compare(query, told[query], tables)
