"""Nexmark's queries in Flink's SQL, after the original's, over the files of `events`."""

from pathlib import Path

COLUMNS = {
    "persons": "id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING",
    "auctions": "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT",
    "bids": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING",
}
MORE = {"auctions": ", expires TIMESTAMP(3), seller BIGINT, category BIGINT"}

WINNING = """(SELECT A.id, A.seller, A.category, MAX(B.price) AS final FROM auctions A JOIN bids B ON A.id = B.auction
    WHERE B.date_time BETWEEN A.date_time AND A.expires GROUP BY A.id, A.seller, A.category)"""
BANDS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
FILTERS = [("all", ""), *((band, f" FILTER (WHERE {where})") for band, where in BANDS.items())]
BID_COUNTS = ", ".join(f"COUNT(*){only} AS {band}_bids" for band, only in FILTERS)
DISTINCT_COUNTS = ", ".join(
    f"COUNT(DISTINCT {column}){only} AS {band}_{column}s" for column in ("bidder", "auction") for band, only in FILTERS
)
DAY = "DATE_FORMAT(date_time, 'yyyy-MM-dd')"
TEN = "TUMBLE(TABLE {}, DESCRIPTOR(date_time), INTERVAL '10' SECOND)"

QUERIES = {
    "q0": "SELECT auction, bidder, price, channel, url, date_time, extra FROM bids",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0",
    "q3": """SELECT P.name, P.city, P.state, A.id FROM auctions A JOIN persons P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT Q.category, AVG(Q.final) AS mean FROM {WINNING} Q GROUP BY Q.category",
    "q5": """SELECT C.auction, C.num FROM (
            SELECT auction, COUNT(*) AS num, window_start, window_end FROM TABLE(
            HOP(TABLE bids, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end) C
        JOIN (SELECT MAX(num) AS most, window_start, window_end FROM (
            SELECT COUNT(*) AS num, window_start, window_end FROM TABLE(
            HOP(TABLE bids, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end) GROUP BY window_start, window_end) M
        ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num >= M.most""",
    "q7": f"""SELECT B.auction, B.price, B.bidder, B.date_time, B.extra FROM bids B
        JOIN (SELECT MAX(price) AS most, window_end FROM TABLE({TEN.format("bids")})
            GROUP BY window_start, window_end) M
        ON B.price = M.most AND B.date_time BETWEEN M.window_end - INTERVAL '10' SECOND AND M.window_end""",
    "q8": f"""SELECT P.id, P.name, P.window_start FROM (
            SELECT id, name, window_start, window_end FROM TABLE({TEN.format("persons")})
            GROUP BY id, name, window_start, window_end) P
        JOIN (SELECT seller, window_start, window_end FROM TABLE({TEN.format("auctions")})
            GROUP BY seller, window_start, window_end) A
        ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end""",
    "q11": """SELECT bidder, COUNT(*) AS bids, window_start, window_end FROM TABLE(
        SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q12": """SELECT bidder, COUNT(*) AS bids, window_start, window_end FROM TABLE(
        TUMBLE(TABLE bids, DESCRIPTOR(taken), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q14": """SELECT auction, bidder, 0.908 * price AS price, CASE
        WHEN HOUR(date_time) >= 8 AND HOUR(date_time) <= 18 THEN 'dayTime'
        WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS part,
        date_time, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS cs FROM bids
        WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {DAY} AS d, {BID_COUNTS}, {DISTINCT_COUNTS} FROM bids GROUP BY {DAY}",
    "q16": f"""SELECT channel, {DAY} AS d, MAX(DATE_FORMAT(date_time, 'HH:mm')) AS m, {BID_COUNTS}, {DISTINCT_COUNTS}
        FROM bids GROUP BY channel, {DAY}""",
    "q17": f"""SELECT auction, {DAY} AS d, {BID_COUNTS}, MIN(price) AS p1, MAX(price) AS p2, AVG(price) AS p3,
        SUM(price) AS p4 FROM bids GROUP BY auction, {DAY}""",
    "q18": """SELECT auction, bidder, price, channel, url, date_time, extra FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS r FROM bids)
        WHERE r <= 1""",
    "q19": """SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS r FROM bids)
        WHERE r <= 10""",
    "q20": """SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.date_time, B.extra, A.item_name, A.description,
        A.initial_bid, A.reserve, A.date_time AS begun, A.expires, A.seller, A.category, A.extra AS more
        FROM bids B JOIN auctions A ON B.auction = A.id WHERE A.category = 10""",
    "q22": """SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4)
        AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3 FROM bids""",
}
"""Query 6 is missing: Flink's SQL has no OVER on rows that may be retracted."""

COMPUTED = {"q12": ", taken AS PROCTIME()"}
"""Columns that the tables of a query have besides those of the files. `TUMBLE` takes a table, not a subquery."""


def script(query: str, folder: Path) -> str:
    """Return the statements that run a query over the files into a sink that discards its rows."""
    tables = [
        f"""CREATE TABLE {kind} ({columns}, date_time TIMESTAMP(3){MORE.get(kind, "")},
        extra STRING{COMPUTED.get(query, "")},
        WATERMARK FOR date_time AS date_time - INTERVAL '1' SECOND)
        WITH ('connector' = 'filesystem', 'path' = '{(folder / kind).as_uri()}', 'format' = 'parquet',
        'parquet.utc-timezone' = 'true')"""
        for kind, columns in COLUMNS.items()
    ]
    sink = f"CREATE TABLE discarded WITH ('connector' = 'blackhole') AS {QUERIES[query]}"
    return ";\n".join([*tables, sink])
