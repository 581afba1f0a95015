"""Nexmark's queries in SQL, as `job.sql` takes them. Times are days and windows as in `queries`."""

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
WINNING = """valid AS (
        SELECT a.id, a.seller, a.category, a.expires, b.price
        FROM bids b JOIN auctions a ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires),
    winning AS (
        SELECT id, seller, category, expires, max(price) AS final FROM valid
        GROUP BY id, seller, category, expires, window(expires, '1 second'))"""
TEN = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(date_time), INTERVAL 10 SECONDS))"
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
    "q1": SqlQuery("SELECT auction, bidder, date_time, extra, 0.908D * price AS price FROM bids"),
    "q2": SqlQuery("SELECT auction, price FROM bids WHERE auction % 123 = 0"),
    "q3": SqlQuery(
        """SELECT p.id, p.name, p.city, p.state, a.seller, a.id AS auction
        FROM persons p JOIN auctions a ON p.id = a.seller
        AND a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
        ("persons", "auctions"),
    ),
    "q4": SqlQuery(
        f"WITH {WINNING} SELECT category, avg(final) AS mean FROM winning GROUP BY category", ("auctions", "bids")
    ),
    "q5": SqlQuery(
        """WITH counts AS (
            SELECT auction, window_start, window_end, count(*) AS num
            FROM TABLE(HOP(TABLE bids, DESCRIPTOR(date_time), INTERVAL 2 SECONDS, INTERVAL 10 SECONDS))
            GROUP BY auction, window_start, window_end)
        SELECT window_start, auction, window_end, num
        FROM (SELECT *, RANK() OVER (PARTITION BY window_start ORDER BY num DESC) AS place FROM counts)
        WHERE place = 1"""
    ),
    "q6": SqlQuery(
        f"""WITH {WINNING} SELECT seller,
        avg(final) OVER (PARTITION BY seller ORDER BY expires, id ROWS 9 PRECEDING) AS mean FROM winning""",
        ("auctions", "bids"),
    ),
    "q7": SqlQuery(
        f"""SELECT window_start, window_end, auction, price, bidder, date_time, extra FROM (
            SELECT *, RANK() OVER (PARTITION BY window_start ORDER BY price DESC) AS place FROM {TEN.format("bids")})
        WHERE place = 1"""
    ),
    "q8": SqlQuery(
        f"""SELECT p.id, p.name, p.date_time, p.window_start, p.window_end FROM {TEN.format("persons")} p
        LEFT SEMI JOIN {TEN.format("auctions")} a ON a.seller = p.id AND a.window_start = p.window_start""",
        ("persons", "auctions"),
    ),
    "q9": SqlQuery(
        """WITH valid AS (
            SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS date_time_of_auction,
            a.expires, a.seller, a.category, a.extra AS extra_of_auction,
            b.auction, b.bidder, b.price, b.date_time, b.extra
            FROM bids b JOIN auctions a ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires)
        SELECT id, item_name, description, initial_bid, reserve, date_time_of_auction, expires, seller, category,
        extra_of_auction, auction, bidder, price, date_time, extra
        FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY id, window_start ORDER BY price DESC, date_time) AS place
              FROM TABLE(TUMBLE(TABLE valid, DESCRIPTOR(expires), INTERVAL 1 SECOND)))
        WHERE place = 1""",
        ("auctions", "bids"),
    ),
    "q10": SqlQuery(
        """SELECT auction, bidder, price, date_time, extra, date_format(date_time, 'yyyy-MM-dd') AS day,
        date_format(date_time, 'HH:mm') AS minute FROM bids"""
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
    "q13": SqlQuery(
        """SELECT b.auction, b.bidder, b.price, b.date_time, s.value
        FROM bids b JOIN side FOR SYSTEM_TIME AS OF b.date_time AS s ON b.auction % 10000 = s.key""",
        ("bids", "side"),
    ),
    "q14": SqlQuery(
        """SELECT auction, bidder, 0.908D * price AS euro,
        CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
             WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS part,
        date_time, extra, regexp_count(extra, 'c') AS cs
        FROM bids WHERE 0.908D * price > 1000000 AND 0.908D * price < 50000000"""
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
    "q21": SqlQuery(
        """SELECT * FROM (
            SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM bids)
        WHERE channel_id <> ''"""
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
