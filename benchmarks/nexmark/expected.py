"""The same queries in the SQL of DuckDB, over the same files: columns and names as `queries` gives them.

Ties that the query does not settle (q18, q19) are settled here as Holdfast does: by the order in the files.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa

WINNING = """winning AS (
    SELECT id, seller, category, expires, max(price) AS final FROM auctions JOIN bids ON auction = id
    WHERE bids.date_time BETWEEN auctions.date_time AND expires GROUP BY ALL)"""
HOPS = """hops AS (
    SELECT auction, count(*) AS num, window_start FROM (
        SELECT auction, unnest([time_bucket(INTERVAL 2 second, date_time) - INTERVAL 2 second * n FOR n IN range(5)])
        AS window_start FROM bids) GROUP BY ALL)"""
BANDS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
FILTERS = [("", ""), *((f"{band}_", f" FILTER ({where})") for band, where in BANDS.items())]
BID_COUNTS = ", ".join(f"count(*){only} AS {band}bids" for band, only in FILTERS)
DISTINCT_COUNTS = ", ".join(
    f"count(DISTINCT {column}){only} AS {band}{column}s" for column in ("bidder", "auction") for band, only in FILTERS
)
_DAY = "time_bucket(INTERVAL 1 day, date_time)"
DAY = f"{_DAY} AS window_start, {_DAY} + INTERVAL 1 day AS window_end"
TUMBLE = "time_bucket(INTERVAL 10 second, date_time)"

SQL = {
    "q0": "SELECT * FROM bids",
    "q1": "SELECT auction, bidder, date_time, extra, price * 0.908::DOUBLE AS price FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    "q3": """SELECT p.id, name, city, state, seller, a.id AS auction FROM auctions a JOIN persons p ON seller = p.id
        WHERE category = 10 AND state IN ('OR', 'ID', 'CA')""",
    "q4": f"WITH {WINNING} SELECT category, avg(final) AS mean FROM winning GROUP BY ALL",
    "q5": f"""WITH {HOPS} SELECT window_start, auction, window_start + INTERVAL 10 second AS window_end, num FROM hops
        QUALIFY num = max(num) OVER (PARTITION BY window_start)""",
    "q6": f"""WITH {WINNING}, ended AS (
        SELECT seller, final FROM winning
        QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) <= 10)
        SELECT seller, avg(final) AS mean FROM ended GROUP BY ALL""",
    "q7": f"""SELECT {TUMBLE} AS window_start, {TUMBLE} + INTERVAL 10 second AS window_end,
        auction, price, bidder, date_time, extra
        FROM bids QUALIFY price = max(price) OVER (PARTITION BY {TUMBLE})""",
    "q8": f"""SELECT id, name, date_time, {TUMBLE} AS window_start, {TUMBLE} + INTERVAL 10 second AS window_end
        FROM persons WHERE (id, {TUMBLE}) IN (SELECT (seller, {TUMBLE}) FROM auctions)""",
    "q9": """SELECT id, item_name, description, initial_bid, reserve, a.date_time AS date_time_of_auction, expires,
        seller, category, a.extra AS extra_of_auction, auction, bidder, price,
        b.date_time AS date_time, b.extra AS extra
        FROM auctions a JOIN bids b ON auction = id AND b.date_time BETWEEN a.date_time AND expires
        QUALIFY row_number() OVER (PARTITION BY id ORDER BY price DESC, b.date_time) = 1""",
    "q10": """SELECT auction, bidder, price, date_time, extra, strftime(date_time, '%Y-%m-%d') AS day,
        strftime(date_time, '%H:%M') AS minute FROM bids""",
    "q11": """WITH gaps AS (SELECT bidder, date_time, date_time - lag(date_time) OVER (
            PARTITION BY bidder ORDER BY date_time) > INTERVAL 10 second AS gap FROM bids),
        sessions AS (SELECT *, count(*) FILTER (gap) OVER (PARTITION BY bidder ORDER BY date_time) AS n FROM gaps)
        SELECT bidder, min(date_time) AS window_start, max(date_time) + INTERVAL 10 second AS window_end,
        count(*) AS bids FROM sessions GROUP BY bidder, n""",
    "q12": "SELECT bidder, count(*) AS bids FROM bids GROUP BY ALL",
    "q13": "SELECT auction, bidder, price, date_time, value FROM bids JOIN side ON auction % 10000 = key",
    "q14": """SELECT auction, bidder, date_time, extra, price * 0.908::DOUBLE AS euro, CASE
        WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS part,
        length(extra) - length(replace(extra, 'c', '')) AS cs FROM bids
        WHERE price * 0.908::DOUBLE > 1000000 AND price * 0.908::DOUBLE < 50000000""",
    "q15": f"SELECT {DAY}, {BID_COUNTS}, {DISTINCT_COUNTS} FROM bids GROUP BY 1, 2",
    "q16": f"""SELECT channel, {DAY}, max(date_time) AS newest, {BID_COUNTS}, {DISTINCT_COUNTS}
        FROM bids GROUP BY 1, 2, 3""",
    "q17": f"""SELECT auction, {DAY}, {BID_COUNTS}, min(price) AS min, max(price) AS max, avg(price) AS mean,
        sum(price)::BIGINT AS sum FROM bids GROUP BY 1, 2, 3""",
    "q18": """SELECT * EXCLUDE (filename, file_row_number) FROM placed_bids QUALIFY row_number() OVER (
        PARTITION BY bidder, auction ORDER BY date_time DESC, filename DESC, file_row_number DESC) = 1""",
    "q19": """SELECT auction, rank, * EXCLUDE (auction, rank, filename, file_row_number) FROM (
        SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, filename, file_row_number) AS rank
        FROM placed_bids) WHERE rank <= 10""",
    "q20": """SELECT b.*, a.* RENAME (date_time AS date_time_of_auction, extra AS extra_of_auction)
        FROM bids b JOIN auctions a ON auction = id WHERE category = 10""",
    "q21": """SELECT * FROM (SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0'
        WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
        ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM bids) WHERE channel_id <> ''""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bids""",
}

WHATEVER_THE_WINDOW = {"q12": "SELECT bidder, sum(bids)::BIGINT AS bids FROM found GROUP BY ALL"}
"""Results of windows of processing time, added up: when a run happens decides in which window a row is counted."""


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """A database takes 30 ms of processor time to make, a cursor next to none."""
    return duckdb.connect()


def expected(query: str, folder: Path) -> pa.Table:
    """Return the results of a query over all events below `folder`."""
    with _database().cursor() as database:
        database.execute("SET TimeZone = 'UTC'")
        for kind in ("persons", "auctions", "bids", "side"):
            database.execute(f"CREATE TEMP VIEW {kind} AS SELECT * FROM '{folder}/{kind}/*.parquet'")
        database.execute(
            "CREATE TEMP VIEW placed_bids AS SELECT * FROM "
            f"read_parquet('{folder}/bids/*.parquet', filename = true, file_row_number = true)"
        )
        return database.sql(SQL[query]).to_arrow_table()


def difference(query: str, found: pa.Table, folder: Path, keys: Sequence[str] = ()) -> str:
    """Compare results with those of the database, in any order; empty where they are equal.

    `keys`: of results with the same values in these columns the last counts. Doubles are compared to
    nine digits, since they are added up in another order.
    """
    with _database().cursor() as database:
        wanted = expected(query, folder)
        found = found.append_column("place", pa.array(range(found.num_rows), pa.int64()))
        last = f"QUALIFY row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY place DESC) = 1" if keys else ""
        columns = ", ".join(
            f"format('{{:.8e}}', {field.name})" if pa.types.is_floating(field.type) else field.name
            for field in wanted.schema
        )
        ours = f"SELECT {columns} FROM ({WHATEVER_THE_WINDOW.get(query, f'SELECT * FROM found {last}')})"
        theirs = f"SELECT {columns} FROM wanted"
        ((missing, surplus),) = database.sql(
            f"SELECT (SELECT count(*) FROM ({theirs} EXCEPT ALL {ours})), "
            f"(SELECT count(*) FROM ({ours} EXCEPT ALL {theirs}))"
        ).fetchall()
    return f"{query}: {missing} results are missing, {surplus} are too many" if missing or surplus else ""
