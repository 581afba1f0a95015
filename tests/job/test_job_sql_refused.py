"""Queries in SQL that cannot run are refused by name, with the place in the text."""

import pytest
from job_sql_kit import WITHIN, rows_of

import holdfast as hf


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT auction FROM bids ORDER BY auction", "ORDER BY auction at line 1, column 41: ORDER is not supported"),
        ("SELECT auction FROM bids LIMIT 3", "LIMIT is not supported"),
        ("SELECT a FROM nope", "there is no stream 'nope'; there are bids"),
        ("SELECT b.price FROM bids b LEFT JOIN people p ON b.bidder = p.id", "a join needs a bound of event time"),
        (f"SELECT b.price FROM bids b JOIN people p ON {WITHIN}", "a join needs an equality"),
        (
            f"SELECT at FROM bids b JOIN people p ON b.bidder = p.id AND {WITHIN}",
            "line 1, column 9: at is a column of b and of p; name its table",
        ),
        (
            f"SELECT x FROM bids b JOIN people p ON bidder = id AND {WITHIN}",
            "no column 'x'; b has auction, .*; p has id",
        ),
        ("SELECT auction FROM bids WHERE bidder NOT IN (SELECT id FROM people)", "NOT IN .* write NOT EXISTS"),
        (
            "SELECT auction FROM bids WHERE EXISTS (SELECT 1 FROM people WHERE id = bidder GROUP BY name)",
            "EXISTS takes SELECT … FROM a table WHERE",
        ),
        (
            "SELECT b.price FROM bids b ASOF JOIN people p ON b.bidder = p.id AND b.at >= p.at AND b.price > p.id",
            "conditions on a single side, .* AS OF, which asks it of the row that it finds",
        ),
        (f"SELECT b.price FROM bids b JOIN people b ON b.bidder = b.id AND {WITHIN}", "two tables have the same name"),
        (
            "SELECT b.price FROM bids b JOIN (SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY at DESC) n "
            "FROM people) p ON b.bidder = p.id",
            "ROW_NUMBER needs n <= a number",
        ),
        (
            "SELECT auction FROM (SELECT *, RANK() OVER (PARTITION BY auction ORDER BY price) r FROM bids) "
            "WHERE r <= 2",
            "RANK gives ties, which need a window",
        ),
        (
            "SELECT * FROM (SELECT *, RANK() OVER (PARTITION BY window_start ORDER BY price) r FROM "
            "TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL 1 MINUTE)) WHERE r <= 2",
            "behind a window the rows have no r",
        ),
        (
            "SELECT auction FROM (SELECT *, DENSE_RANK() OVER (PARTITION BY auction ORDER BY price) r FROM bids) "
            "WHERE r <= 2",
            "a single ROW_NUMBER or RANK is supported",
        ),
        (
            "SELECT auction FROM TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL 1 MINUTE)",
            "GROUP BY, PARTITION BY or a join",
        ),
        (
            "SELECT count(*) FROM TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL 1 MINUTE)",
            "GROUP BY has to name window_start",
        ),
        (
            "SELECT auction, count(*) FROM SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(at), INTERVAL 1 MINUTE) "
            "GROUP BY auction, window_start",
            "SESSION makes its windows within PARTITION BY bidder",
        ),
        (
            "SELECT count(*) FROM CUMULATE(TABLE bids, DESCRIPTOR(at), INTERVAL 1 DAY)",
            "not Spark SQL|TUMBLE, HOP, SESSION",
        ),
        (
            "SELECT b.price FROM bids b JOIN people FOR SYSTEM_TIME AS OF b.price p ON b.bidder = p.id",
            "AS OF takes the event time of the left side",
        ),
        (
            "SELECT auction, avg(price) OVER (PARTITION BY auction ORDER BY at) m FROM bids",
            "expected ROWS n PRECEDING",
        ),
        (
            "SELECT b.price FROM bids b JOIN people p ON b.bidder = p.id AND p.id BETWEEN b.price - INTERVAL 1 DAY "
            "AND b.price",
            "expected the columns of with_watermark",
        ),
        ("SELECT rank() OVER (PARTITION BY auction ORDER BY price) FROM bids", "ROW_NUMBER needs a query around it"),
        ("SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price) AS n FROM bids", "needs a query around it"),
        ("SELECT auction FROM bids UNION SELECT id FROM people", "UNION ALL is supported"),
        ("INSERT INTO x SELECT 1", "expected SELECT"),
        ("SELECT auction FROM bids TABLESAMPLE (50 PERCENT)", "line 1, column 24: SAMPLE is not supported"),
        ("SELECT * FROM bids PIVOT (sum(price) FOR auction IN (1, 2))", "PIVOTS is not supported"),
        ("SELECT auction FROM db.bids", "DB is not supported"),
        ("(SELECT auction FROM bids) LIMIT 1", "LIMIT is not supported"),
        ("SELECT price FROM bids VERSION AS OF 3", "AS OF is supported for the table of a JOIN alone"),
        ("SELECT DISTINCT count(*) n FROM bids GROUP BY auction", "DISTINCT is not supported with GROUP BY"),
        (
            "SELECT b.price FROM bids b JOIN people VERSION AS OF b.at AS p ON b.bidder = p.id",
            "expected JOIN … FOR SYSTEM_TIME AS OF",
        ),
        ("SELECT x FROM (SELECT auction FROM bids) AS t(x)", "COLUMNS is not supported"),
        ("SELECT * EXCEPT (at) FROM bids", "EXCEPT is not supported"),
        ("SELECT auction, (SELECT max(price) FROM bids) m FROM bids", "line 1, column 27: of queries in a condition"),
        ("SELECT auction, count(*) FROM bids GROUP BY auction WITH ROLLUP", "ROLLUP"),
        (
            "SELECT auction, max(price) OVER (PARTITION BY auction ORDER BY at, price NULLS LAST ROWS 2 PRECEDING) m "
            "FROM bids",
            "nulls and the least first",
        ),
        (
            "SELECT auction FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC NULLS FIRST) n "
            "FROM bids) WHERE n = 1",
            "NULLS FIRST is not supported",
        ),
        ("SELECT price,\n  upper(auction, 1) AS u FROM bids", "upper got 2 arguments; .* at line 2, column 7"),
        ("SELECT price FROM bids WHERE price BETWEEN SYMMETRIC 5 AND 1", "SYMMETRIC is not supported in expressions"),
        ("SELECT sum(DISTINCT price) FROM bids", "DISTINCT is supported in count"),
        (
            "SELECT auction FROM bids WHERE price > 3 OR bidder IN (SELECT id FROM people)",
            "line 1, column 64: of queries in a condition or a column, EXISTS and IN",
        ),
        ("SELECT auction, count(*) FROM bids GROUP BY CUBE (auction)", "CUBE"),
        ("SELECT count(*) FROM bids GROUP BY window(at, '1 month')", "months and years have no fixed length"),
        ("SELECT auction FROM", "is not Spark SQL"),
        ("SELECT nope FROM bids", "there is no column 'nope'"),
    ],
)
def test_a_query_that_cannot_run_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(hf.JobRefused, match=reason):
        rows_of(text)
