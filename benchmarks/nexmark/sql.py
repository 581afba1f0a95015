"""Nexmark's queries in SQL, as `job.sql` takes them: those of `queries` that need nothing beyond it.

Missing: 4, 6, 8 (joins of intervals and of windows), 5, 7 (ties). Times are days and windows as in `queries`.
"""

from dataclasses import dataclass

import holdfast as hf
from benchmarks.nexmark.queries import Events

BANDS = {
    "": "",
    "rank1_": "price < 10000",
    "rank2_": "price >= 10000 AND price < 1000000",
    "rank3_": "price >= 1000000",
}


def in_bands(aggregate: str, name: str) -> str:
    """Write an aggregate for all bids, and for those in each band of prices."""
    filters = {band: f" FILTER (WHERE {where})" if where else "" for band, where in BANDS.items()}
    return ", ".join(f"{aggregate}{only} AS {band}{name}" for band, only in filters.items())


BIDS = in_bands("count(*)", "bids")
DISTINCT = f"{in_bands('count(DISTINCT bidder)', 'bidders')}, {in_bands('count(DISTINCT auction)', 'auctions')}"
DAY = "window(date_time, '1 day')"


@dataclass(frozen=True)
class SqlQuery:
    """A query; `emit`: of its groups."""

    text: str
    reads: tuple[str, ...] = ("bids",)
    emit: str | None = None
    by_batch_time: bool = False


SQL_QUERIES = {
    "q0": SqlQuery("SELECT * FROM bids"),
    "q1": SqlQuery("SELECT auction, bidder, date_time, extra, CAST(0.908 * price AS DOUBLE) AS price FROM bids"),
    "q2": SqlQuery("SELECT auction, price FROM bids WHERE auction % 123 = 0"),
    "q3": SqlQuery(
        """SELECT p.id, p.name, p.city, p.state, a.seller, a.id AS auction
        FROM persons p JOIN auctions a ON p.id = a.seller
        AND a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
        ("persons", "auctions"),
    ),
    "q11": SqlQuery(
        "SELECT bidder, window_start, window_end, count(*) AS bids FROM bids "
        "GROUP BY bidder, session_window(date_time, '10 seconds')"
    ),
    "q12": SqlQuery(
        "SELECT bidder, window_start, window_end, count(*) AS bids FROM bids "
        "GROUP BY bidder, window(taken, '10 seconds')",
        by_batch_time=True,
    ),
    "q14": SqlQuery(
        """SELECT auction, bidder, CAST(0.908 * price AS DOUBLE) AS euro,
        CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
             WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS part,
        date_time, extra, regexp_count(extra, 'c') AS cs
        FROM bids WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000"""
    ),
    "q15": SqlQuery(f"SELECT window_start, window_end, {BIDS}, {DISTINCT} FROM bids GROUP BY {DAY}", emit="changes"),
    "q16": SqlQuery(
        f"""SELECT channel, window_start, window_end, max(date_time) AS newest, {BIDS}, {DISTINCT} FROM bids
        GROUP BY channel, {DAY}""",
        emit="changes",
    ),
    "q17": SqlQuery(
        f"""SELECT auction, window_start, window_end, {BIDS}, min(price) AS min, max(price) AS max, avg(price) AS mean,
        sum(price) AS sum FROM bids GROUP BY auction, {DAY}""",
        emit="changes",
    ),
    "q18": SqlQuery(
        """SELECT auction, bidder, price, channel, url, date_time, extra FROM
        (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS n FROM bids)
        WHERE n = 1"""
    ),
    "q19": SqlQuery(
        """SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank FROM bids)
        WHERE rank <= 10"""
    ),
    "q20": SqlQuery(
        """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra, a.id, a.item_name,
        a.description, a.initial_bid, a.reserve, a.date_time AS date_time_of_auction, a.expires, a.seller, a.category,
        a.extra AS extra_of_auction FROM bids b JOIN auctions a ON b.auction = a.id AND a.category = 10""",
        ("auctions", "bids"),
    ),
    "q22": SqlQuery(
        """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
        split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bids"""
    ),
}


def built(name: str, job: hf.Job, events: Events) -> hf.Stream:
    """Return the results of a query."""
    query = SQL_QUERIES[name]
    if query.by_batch_time:
        streams = {"bids": events.source("bids").with_batch_time("taken")}
    else:
        streams = {kind: getattr(events, kind) for kind in query.reads}
    return job.sql(query.text, emit=query.emit, **streams)  # type: ignore[arg-type]
