"""Queries in SQL give the rows that they would give over tables."""

from typing import Any

import pytest
from job_kit import new_job, script
from job_sql_kit import BIDS, PEOPLE, WITHIN, order_of, rows_of, second

import holdfast as hf
from holdfast.testing import Eof, run


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT auction, price * 2 AS twice FROM bids WHERE price > 15", [(1, 100), (1, 60), (2, 40)]),
        (
            "WITH x AS (SELECT price FROM bids WHERE auction = 1) SELECT b.price AS p FROM x b",
            [(10,), (30,), (50,)],
        ),
        ("SELECT t.price FROM (SELECT * FROM bids WHERE bidder = 8) AS t", [(30,)]),
        (
            "SELECT t.r.p AS a, T.r.q.b AS b FROM "
            "(SELECT named_struct('p', price, 'q', named_struct('b', bidder)) AS r FROM bids) AS t WHERE t.r.q.b = 8",
            [(30, 8)],
        ),
        ("SELECT auction AS k FROM bids WHERE price < 10 UNION ALL SELECT id FROM people", [(2,), (7,), (9,)]),
        (
            "SELECT auction, count(*) AS n, sum(price) FILTER (WHERE price > 10) s, count(DISTINCT bidder) d, "
            "avg(price) + 1 a FROM bids GROUP BY auction",
            [(1, 3, 80, 2, 31.0), (2, 2, 20, 2, 13.5)],
        ),
        (
            "SELECT auction, window(at, '10 seconds').end AS e, count(*) n FROM bids "
            "GROUP BY auction, window(at, '10 seconds') HAVING max(price) > 25",
            [(1, second(10), 2), (1, second(50), 1)],
        ),
        (
            "SELECT window.start AS s, max(price) FROM bids GROUP BY window(at, '10 seconds')",
            [(second(0), 30), (second(10), 5), (second(40), 50)],
        ),
        (
            "SELECT HOP_START(at, INTERVAL '20' SECONDS, INTERVAL '40' SECONDS) s, count(*) c FROM bids "
            "GROUP BY HOP(at, INTERVAL '20' SECONDS, INTERVAL '40' SECONDS)",
            [(second(-20), 4), (second(0), 4), (second(20), 1), (second(40), 1)],
        ),
        (
            "SELECT bidder, TUMBLE_START(at, INTERVAL '1' MINUTE) s, min(price) FROM bids "
            "GROUP BY bidder, TUMBLE(at, INTERVAL '1' MINUTE)",
            [(7, second(0), 10), (8, second(0), 30), (9, second(0), 5)],
        ),
        (
            "SELECT bidder, session_window.start s, count(*) FROM bids "
            "GROUP BY bidder, session_window(at, '6 seconds')",
            [(7, second(1), 2), (7, second(40), 1), (8, second(5), 1), (9, second(15), 1)],
        ),
        ("SELECT upper(name) u, count(*) c FROM people, bids", None),
        (
            "SELECT price % 3 AS r, count_if(auction = 1) FROM bids WHERE auction > 0 GROUP BY 1",
            [(0, 1), (1, 1), (2, 1)],
        ),
        ("SELECT DISTINCT bidder FROM bids", [(7,), (8,), (9,)]),
        (
            "SELECT auction, price, rn FROM "
            "(SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rn FROM bids) WHERE rn <= 2",
            [(1, 30, 2), (1, 50, 1), (2, 20, 1), (2, 5, 2)],
        ),
        (
            "SELECT t.auction, price FROM "
            "(SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY at) n FROM bids) t "
            "WHERE t.n = 1",
            [(1, 10), (2, 20)],
        ),
        (
            f"SELECT b.auction, p.name, b.at, p.at AS t FROM bids b JOIN people p ON b.bidder = p.id AND {WITHIN}",
            [(1, "ann", second(1), second(0)), (2, "ann", second(7), second(0)), (2, "bob", second(15), second(14))],
        ),
        (
            f"SELECT b.price, p.name FROM bids b LEFT JOIN people p ON b.bidder = p.id AND {WITHIN} "
            "WHERE b.auction = 1",
            [(10, "ann"), (30, None), (50, None)],
        ),
        (
            "SELECT p.name, count(*) n FROM bids b JOIN people p ON b.bidder = p.id AND b.at >= p.at "
            "AND b.at < p.at + INTERVAL 7 SECONDS GROUP BY p.name",
            [("ann", 1), ("bob", 1)],
        ),
        (
            f"SELECT b.price FROM bids b JOIN people p ON b.bidder = p.id AND {WITHIN} AND b.price > p.id AND p.id < 9",
            [(10,), (20,)],
        ),
        (
            f"SELECT b.price, p.name FROM bids b LEFT JOIN people p ON b.bidder = p.id AND {WITHIN} "
            "AND b.price > p.id AND b.auction = 1",
            [(10, "ann"), (20, None), (30, None), (5, None), (50, None)],
        ),
        (
            f"SELECT p.id, b.price FROM bids b RIGHT JOIN people p ON b.bidder = p.id AND {WITHIN} "
            "AND b.price > p.id + 5",
            [(7, 20), (9, None)],
        ),
        (
            f"SELECT b.price FROM bids b LEFT SEMI JOIN people p ON b.bidder = p.id AND {WITHIN} "
            "AND b.price > p.id + 5",
            [(20,)],
        ),
        (
            f"SELECT b.price FROM bids b WHERE NOT EXISTS (SELECT 1 FROM people p WHERE p.id = b.bidder AND {WITHIN} "
            "AND length(p.name) + b.price > 20 AND b.auction < 3)",
            [(10,), (30,), (5,), (50,)],
        ),
        (
            f"SELECT b.price FROM bids b WHERE EXISTS (SELECT 1 FROM people p WHERE p.id = b.bidder AND {WITHIN})",
            [(10,), (20,), (5,)],
        ),
        (
            f"SELECT b.price FROM bids b WHERE NOT EXISTS (SELECT 1 FROM people p WHERE p.id = b.bidder "
            f"AND {WITHIN}) AND b.auction = 1",
            [(30,), (50,)],
        ),
        (
            "SELECT name, price FROM bids b JOIN people ON bidder = id AND people.at BETWEEN b.at - INTERVAL "
            "10 SECONDS "
            "AND b.at",
            [("ann", 10), ("ann", 20), ("bob", 5)],
        ),
        ("SELECT price FROM bids WHERE bidder IN (SELECT id FROM people WHERE name <> 'bob')", [(10,), (20,), (50,)]),
        (
            "SELECT price FROM bids b WHERE (b.bidder, b.auction) IN (SELECT id, 2 FROM people) AND price > 1",
            [(20,), (5,)],
        ),
        (
            "SELECT price FROM bids WHERE bidder IN (SELECT bidder FROM bids x WHERE price > 20 GROUP BY bidder)",
            [(10,), (20,), (30,), (50,)],
        ),
        (
            f"SELECT price FROM bids b WHERE EXISTS (SELECT * FROM people p WHERE id = bidder AND {WITHIN}) "
            "AND NOT EXISTS (SELECT 1 FROM people q WHERE id + 2 = bidder AND q.at <= b.at "
            "AND q.at > b.at - INTERVAL 1 MINUTE)",
            [(10,), (20,)],
        ),
        ("SELECT name, price FROM bids, people WHERE bidder = id AND auction = 2", [("ann", 20), ("bob", 5)]),
        ("SELECT p.name, b.price FROM bids b JOIN people p ON b.bidder - 1 = p.id + 1 AND p.id = 7", [("ann", 5)]),
        (
            "SELECT p.name, q.name AS other, b.price FROM bids b JOIN people p ON b.bidder = p.id "
            "JOIN people q ON q.id = p.id + 2 WHERE b.auction = 2 AND q.name <> p.name",
            [("ann", "bob", 20)],
        ),
        (
            f"SELECT p.*, b.price FROM bids b JOIN people p ON b.bidder = p.id AND {WITHIN} JOIN bids c "
            "ON c.auction = b.auction AND c.at > b.at AND c.at <= b.at + INTERVAL 10 SECONDS",
            [(7, "ann", second(0), 10), (7, "ann", second(0), 20)],
        ),
        ("SELECT l.price, r.bidder FROM bids l JOIN bids r USING (price) WHERE price < 20", [(5, 9), (10, 7)]),
        (
            "SELECT b.price, p.name FROM bids b JOIN people FOR SYSTEM_TIME AS OF b.at AS p ON b.bidder = p.id",
            [(10, "ann"), (20, "ann"), (50, "ann"), (5, "bob")],
        ),
        (
            "SELECT b.price, p.name FROM bids b ASOF LEFT JOIN people p ON p.id = b.bidder AND b.at >= p.at "
            "AND b.at <= p.at + INTERVAL 10 SECONDS WHERE b.auction = 1",
            [(10, "ann"), (30, None), (50, None)],
        ),
        (
            "SELECT b.price, p.name FROM bids b LEFT JOIN people FOR SYSTEM_TIME AS OF b.at AS p ON b.bidder = p.id "
            "AND b.price > p.id AND p.name <> 'bob' AND b.auction < 3",
            [(10, "ann"), (20, "ann"), (30, None), (5, None), (50, "ann")],
        ),
        (
            "SELECT b.price, p.name FROM bids b JOIN people FOR SYSTEM_TIME AS OF b.at AS p ON b.bidder = p.id "
            "AND b.price > p.id AND p.name <> 'bob'",
            [(10, "ann"), (20, "ann"), (50, "ann")],
        ),
        (
            "WITH some AS (SELECT * FROM bids WHERE price <> 50) SELECT b.price, c.price AS before FROM bids b "
            "LEFT JOIN some FOR SYSTEM_TIME AS OF b.at AS c ON b.auction = c.auction AND c.price <> 30 "
            "AND b.price >= c.price",
            [(10, 10), (20, 20), (30, None), (5, 5), (50, None)],
        ),
        (
            "SELECT b.price, p.name FROM bids b ASOF LEFT JOIN people p ON b.bidder = p.id AND b.at >= p.at "
            "AND b.auction = 1 AND p.name <> 'bob'",
            [(10, "ann"), (20, None), (30, None), (5, None), (50, "ann")],
        ),
        (
            "SELECT b.auction AS of_bid, c.auction AS of_other, c.price FROM bids b LEFT JOIN "
            "(SELECT * FROM bids WHERE price > 20) c ON b.auction = c.auction AND c.at BETWEEN b.at AND b.at + "
            "INTERVAL 4 SECONDS",
            [(1, 1, 30), (1, 1, 30), (1, 1, 50), (2, None, None), (2, None, None)],
        ),
        (
            "SELECT b.price FROM bids b LEFT JOIN (SELECT * FROM bids WHERE price > 20) c ON b.auction = c.auction "
            "AND c.at BETWEEN b.at AND b.at + INTERVAL 4 SECONDS WHERE c.auction IS NULL",
            [(20,), (5,)],
        ),
        (
            "SELECT b.price, c.price AS p FROM (SELECT * FROM bids WHERE price > 20) b RIGHT JOIN bids c "
            "ON b.auction = c.auction AND b.at BETWEEN c.at AND c.at + INTERVAL 4 SECONDS WHERE b.auction IS NULL",
            [(None, 20), (None, 5)],
        ),
        ("SELECT b.* FROM bids b WHERE b.price > 30", [(1, 7, 50, second(40))]),
        ("SELECT auction, approx_count_distinct(bidder, 0.1) d FROM bids GROUP BY auction", [(1, 2), (2, 2)]),
        (
            "SELECT auction, bidder FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY nothing NULLS "
            "LAST) n FROM (SELECT *, nullif(bidder, 7) AS nothing FROM bids)) WHERE n = 1",
            [(1, 8), (2, 9)],
        ),
        (
            "SELECT auction, window_start, count(*) n FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL "
            "'10' SECOND)) "
            "GROUP BY auction, window_start, window_end",
            [(1, second(0), 2), (1, second(40), 1), (2, second(0), 1), (2, second(10), 1)],
        ),
        (
            "SELECT max(price) m, window_end e FROM HOP(DATA => TABLE bids, TIMECOL => DESCRIPTOR(at), "
            "SLIDE => INTERVAL 20 SECONDS, SIZE => INTERVAL 40 SECONDS) GROUP BY window_end",
            [(30, second(20)), (30, second(40)), (50, second(60)), (50, second(80))],
        ),
        (
            "SELECT bidder, window_start s, count(*) n FROM TABLE(SESSION(TABLE bids PARTITION BY bidder, "
            "DESCRIPTOR(at), INTERVAL 7 SECONDS)) GROUP BY window_start, window_end, bidder",
            [(7, second(1), 2), (7, second(40), 1), (8, second(5), 1), (9, second(15), 1)],
        ),
        (
            "SELECT b.price, p.name, b.window_start w FROM TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL 10 SECONDS) b "
            "JOIN TUMBLE(TABLE people, DESCRIPTOR(at), INTERVAL 10 SECONDS) p ON b.bidder = p.id "
            "AND b.window_start = p.window_start AND b.window_end = p.window_end",
            [(10, "ann", second(0)), (20, "ann", second(0)), (5, "bob", second(10))],
        ),
        (
            "SELECT price, auction, r FROM (SELECT *, RANK() OVER (PARTITION BY window_start ORDER BY bidder) r FROM "
            "TABLE(TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL 10 SECONDS))) WHERE r = 1",
            [(10, 1, 1), (20, 2, 1), (5, 2, 1), (50, 1, 1)],
        ),
        (
            "SELECT price, r FROM (SELECT price, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER "
            "BY bidder, "
            "price DESC) r FROM TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL 10 SECONDS)) WHERE r < 2",
            [(20, 1), (5, 1), (50, 1)],
        ),
        (
            "SELECT * FROM (SELECT auction, price * 2 AS twice, ROW_NUMBER() OVER (PARTITION BY auction ORDER "
            "BY price) n "
            "FROM bids) WHERE n <= 2 AND auction = 2",
            [(2, 10, 1), (2, 40, 2)],
        ),
        (
            "SELECT auction, at, avg(price) OVER (PARTITION BY auction ORDER BY at ROWS 1 PRECEDING) m FROM bids",
            [
                (1, second(1), 10.0),
                (1, second(5), 20.0),
                (1, second(40), 40.0),
                (2, second(7), 20.0),
                (2, second(15), 12.5),
            ],
        ),
        (
            "SELECT auction, min(price) OVER (PARTITION BY auction ORDER BY minute, nothing, at ROWS 1 PRECEDING) m, "
            "n FROM (SELECT *, date_trunc('minute', at) AS minute, nullif(bidder, 8) AS nothing, at AS n FROM bids)",
            [
                (1, 10, second(1)),
                (1, 30, second(5)),
                (1, 10, second(40)),
                (2, 20, second(7)),
                (2, 5, second(15)),
            ],
        ),
        (
            "SELECT max(n) m, window_start s FROM (SELECT auction, window_start, window_end, count(*) n FROM bids "
            "GROUP BY auction, window(at, '10 seconds')) GROUP BY window_start",
            [(1, second(10)), (1, second(40)), (2, second(0))],
        ),
    ],
)
def test_a_query_gives_its_rows(text: str, expected: Any) -> None:
    if expected is None:
        with pytest.raises(hf.JobRefused, match=r"CROSS JOIN|expected"):
            rows_of(text)
        return
    assert rows_of(text) == sorted(expected, key=order_of)


@pytest.mark.parametrize(
    ("on", "how", "expected"),
    [
        (f"bidder = id AND {WITHIN.replace('p.', 'right.').replace('b.', 'left.')}", "inner", ["ann", "ann", "bob"]),
        ("left.bidder = right.id AND price > id AND auction = 2", "inner", ["ann"]),
        ("left.bidder = right.id", "semi", [10, 20, 5, 50]),
        ("bidder + 1 = id + 1 AND left.at >= right.at", "asof", ["ann", "ann", "ann", "bob", None]),
    ],
)
def test_streams_are_joined_by_a_condition(on: str, how: Any, expected: list[Any]) -> None:
    job, sink = new_job(), hf.MemorySink()
    bids = script(
        BIDS, Eof(drain=True), schema="auction BIGINT, bidder BIGINT, price BIGINT, at TIMESTAMP", name="bids"
    )
    people = script(PEOPLE, schema="id BIGINT, name STRING, at TIMESTAMP", name="people")
    left, right = (job.read(each).with_watermark("at", "0s") for each in (bids, people))
    left.join(right, on, how=how, suffix="_of_person").write(sink)
    run(job)
    column = "price" if how == "semi" else "name"
    assert sorted((row[column] for row in sink.rows()), key=str) == sorted(expected, key=str)


def test_streams_are_joined_by_columns_of_the_same_names() -> None:
    job, sink = new_job(), hf.MemorySink()
    rows = job.read(script([{"k": 1, "v": 2}], [{"k": 1, "v": 3}], [{"k": 2, "v": 3}]))
    rows.join(rows.select("k", "v"), ["k"], suffix="_2").write(sink)
    run(job)
    assert sorted((row["k"], row["v"], row["v_2"]) for row in sink.rows()) == [
        (1, 2, 2), (1, 2, 3), (1, 3, 2), (1, 3, 3), (2, 3, 3)
    ]  # fmt: skip
    with pytest.raises(hf.JobRefused, match="a join needs an equality"):
        rows.join(rows, "left.k > right.k")
    with pytest.raises(hf.JobRefused, match="v is a column of left and of right"):
        rows.join(rows, "v = 3 and left.k = right.k")
    with pytest.raises(hf.SettingsError, match="expected a stream"):
        rows.join(rows.key_by("k"), "k")  # type: ignore[arg-type]


def test_groups_give_what_emit_says() -> None:
    text = "SELECT auction, count(*) n FROM bids GROUP BY auction"
    assert rows_of(text, emit="every") == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    kept = f"{text} HAVING count(*) > 2"
    assert rows_of(kept, emit="every") == [(1, 3)]
    with pytest.raises(hf.JobRefused, match=r"HAVING .* line 1, column"):
        rows_of(kept)


def test_misuse_is_refused_when_declared() -> None:
    job = new_job()
    bids = job.read(script(BIDS, schema="auction BIGINT, bidder BIGINT, price BIGINT, at TIMESTAMP"))
    for wrong in (
        lambda: job.sql("", bids=bids),
        lambda: job.sql("SELECT 1 FROM bids", bids=3),  # type: ignore[arg-type]
        lambda: job.sql("SELECT 1 FROM bids", emit="no", bids=bids),  # type: ignore[arg-type]
        lambda: new_job().sql("SELECT 1 FROM bids", bids=bids),
    ):
        with pytest.raises(hf.SettingsError):
            wrong()
