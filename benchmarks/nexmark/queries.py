"""Nexmark's queries as users of Holdfast write them; the original's SQL is beside each, shortened.

`Events` reads the three streams. Each query takes it and returns the stream of its results. `QUERIES` has them by name.
Missing of the original's: none that runs in another engine's SQL.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from benchmarks.nexmark.earlier import LastTen

EURO = 0.908
PRICE = pc.field("price")
BANDS = {"rank1": PRICE < 10_000, "rank2": (PRICE >= 10_000) & (PRICE < 1_000_000), "rank3": PRICE >= 1_000_000}
CHANNEL = pc.field("channel_id")
TEXTS = find_spec("holdfast.expressions") is not None
"""Expressions may be texts: earlier commits, which are compared with this one, take those of PyArrow alone."""
TIME_OF_DAY = """CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
    WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END"""
SELLING = ("OR", "ID", "CA")


class Events:
    """The streams of a job that reads the files of `events.write_events`."""

    def __init__(self, job: hf.Job, folder: str) -> None:
        self._job = job
        self._folder = folder

    def source(self, kind: str) -> hf.Stream:
        """Read a stream without a watermark."""
        return self._job.read(hf.FileSource(f"{self._folder}/{kind}/*.parquet", name=kind))

    @cached_property
    def persons(self) -> hf.Stream:
        return self.source("persons").with_watermark("date_time", "1s")

    @cached_property
    def auctions(self) -> hf.Stream:
        return self.source("auctions").with_watermark("date_time", "1s")

    @cached_property
    def bids(self) -> hf.Stream:
        return self.source("bids").with_watermark("date_time", "1s")

    @cached_property
    def side(self) -> hf.Stream:
        return self.source("side").with_watermark("at", "0s")


def q0(events: Events) -> hf.Stream:
    """SELECT * FROM bid"""
    return events.bids


def q1(events: Events) -> hf.Stream:
    """SELECT auction, bidder, date_time, extra, 0.908 * price AS price FROM bid"""
    return events.bids.select("auction", "bidder", "date_time", "extra", price=PRICE * EURO)


def q2(events: Events) -> hf.Stream:
    """SELECT auction, price FROM bid WHERE auction % 123 = 0"""
    auction = pc.field("auction")
    return events.bids.where(auction / 123 * 123 == auction).select("auction", "price")


def q3(events: Events) -> hf.Stream:
    """SELECT p.id, name, city, state, a.id FROM auction a JOIN person p ON a.seller = p.id
    WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"""
    sellers = events.persons.where(pc.field("state").isin(SELLING)).select("id", "name", "city", "state")
    auctions = events.auctions.where(pc.field("category") == 10).select("seller", auction=pc.field("id"))
    return sellers.key_by("id").join(auctions.key_by("seller"))


def winning_bids(events: Events) -> hf.Stream:
    """SELECT id, seller, category, expires, max(price) AS final FROM auction, bid
    WHERE auction = id AND bid.date_time BETWEEN auction.date_time AND expires GROUP BY id, seller, category, expires

    All bids on an auction are in the window that its `expires` is in: so it closes when no more can come.
    """
    bids = events.bids.select("auction", "price", "date_time")
    auctions = events.auctions.select("id", "seller", "category", "date_time", "expires").key_by("id")
    valid = bids.key_by("auction").join(auctions, between=("date_time", "expires"), suffix="_of_auction")
    keyed = valid.key_by("id", "seller", "category", "expires", hf.window("expires", "1s"))
    return keyed.aggregate(final=hf.max("price"))


def q4(events: Events) -> hf.Stream:
    """SELECT category, avg(final) FROM winning_bids GROUP BY category"""
    return winning_bids(events).key_by("category").aggregate(mean=hf.mean("final"))


def q6(events: Events) -> hf.Stream:
    """SELECT seller, avg(final) OVER (PARTITION BY seller ORDER BY expires, id ROWS 9 PRECEDING) FROM winning_bids"""
    won = winning_bids(events).key_by("seller")
    if not hasattr(won, "over"):  # earlier commits
        return won.process(LastTen(), "seller BIGINT, mean DOUBLE")
    return won.over(by=("expires", "id"), rows=10, mean=hf.mean("final")).select("seller", "mean")


def q5(events: Events) -> hf.Stream:
    """SELECT auction, num FROM (SELECT auction, count(*) AS num, window_start FROM hop(bid, 2s, 10s) GROUP BY 1, 3)
    WHERE num = max(num) OVER (PARTITION BY window_start)"""
    counts = events.bids.key_by("auction", hf.window("date_time", "10s", "2s")).aggregate(num=hf.count())
    return counts.key_by("window_start").top(1, by="num", ties=True)


def q7(events: Events) -> hf.Stream:
    """SELECT auction, price, bidder, date_time FROM bid
    WHERE price = max(price) OVER (PARTITION BY tumble(date_time, 10s))"""
    bids = events.bids.select("auction", "price", "bidder", "date_time", "extra")
    return bids.key_by(hf.window("date_time", "10s")).top(1, by="price", ties=True)


def q8(events: Events) -> hf.Stream:
    """SELECT id, name, window_start FROM tumble(person, 10s) p
    WHERE EXISTS (SELECT * FROM tumble(auction, 10s) a WHERE a.seller = p.id AND a.window_start = p.window_start)"""
    window = hf.window("date_time", "10s")
    persons = events.persons.select("id", "name", "date_time").key_by("id", window)
    return persons.join(events.auctions.select("seller", "date_time").key_by("seller", window), how="semi")


def q9(events: Events) -> hf.Stream:
    """SELECT * FROM auction, bid WHERE auction = id AND bid.date_time BETWEEN auction.date_time AND expires
    QUALIFY row_number() OVER (PARTITION BY id ORDER BY price DESC, bid.date_time) = 1"""
    bids = events.bids.select("auction", "bidder", "price", "date_time", "extra").key_by("auction")
    valid = bids.join(events.auctions.key_by("id"), between=("date_time", "expires"), suffix="_of_auction")
    highest = valid.key_by("id", hf.window("expires", "1s")).top(1, by="price", ties=True)
    return highest.key_by("id", "window_start").top(1, by="date_time", least=True)


def q10(events: Events) -> hf.Stream:
    """INSERT INTO files SELECT auction, bidder, price, date_time, extra, date_format(date_time, 'yyyy-MM-dd'),
    date_format(date_time, 'HH:mm') FROM bid"""
    at = pc.field("date_time")
    parts = {"day": pc.strftime(at, "%Y-%m-%d"), "minute": pc.strftime(at, "%H:%M")}
    return events.bids.select("auction", "bidder", "price", "date_time", "extra", **parts)


def q11(events: Events) -> hf.Stream:
    """SELECT bidder, count(*) AS bids, window_start, window_end FROM session(bid, 10s) GROUP BY bidder"""
    return events.bids.key_by("bidder", hf.session_window("date_time", gap="10s")).aggregate(bids=hf.count())


def q12(events: Events) -> hf.Stream:
    """SELECT bidder, count(*) AS bids, window_start FROM tumble(bid, proctime, 10s) GROUP BY bidder, window_start"""
    bids = events.source("bids").with_batch_time("taken")
    return bids.key_by("bidder", hf.window("taken", "10s")).aggregate(bids=hf.count())


def q13(events: Events) -> hf.Stream:
    """SELECT auction, bidder, price, date_time, value
    FROM bid JOIN side FOR SYSTEM_TIME AS OF date_time ON mod(auction, 10000) = key"""
    auction = pc.field("auction")
    bids = events.bids.select("auction", "bidder", "price", "date_time", key=auction - auction / 10_000 * 10_000)
    return bids.key_by("key").join(events.side.key_by("key"), how="asof").where(pc.field("value").is_valid())


def q14(events: Events) -> hf.Stream:
    """SELECT auction, bidder, price * 0.908, CASE … hour(date_time) … END, date_time, extra, count_char(extra, 'c')
    FROM bid WHERE price * 0.908 > 1000000 AND price * 0.908 < 50000000"""
    if not TEXTS:
        return _q14_of_arrow(events)
    dear = events.bids.where("price * 0.908D > 1000000 AND price * 0.908D < 50000000")
    computed = ("price * 0.908D AS euro", f"{TIME_OF_DAY} AS part", "regexp_count(extra, 'c') AS cs")
    return dear.select("auction", "bidder", "date_time", "extra", *computed)


def _q14_of_arrow(events: Events) -> hf.Stream:
    hour = pc.hour(pc.field("date_time"))
    rest = pc.if_else((hour <= 6) | (hour >= 20), "nightTime", "otherTime")
    part = pc.if_else((hour >= 8) & (hour <= 18), "dayTime", rest)
    dear = events.bids.where((PRICE * EURO > 1_000_000) & (PRICE * EURO < 50_000_000))
    computed = {"euro": PRICE * EURO, "part": part, "cs": pc.count_substring(pc.field("extra"), "c")}
    return dear.select("auction", "bidder", "date_time", "extra", **computed)


def bid_counts() -> dict[str, Any]:
    """How many bids, also in each band of prices."""
    return {"bids": hf.count(), **{f"{band}_bids": hf.count(where=where) for band, where in BANDS.items()}}


def distinct_counts() -> dict[str, Any]:
    """How many bidders and auctions, also in each band of prices."""
    bands = [("", None), *((f"{band}_", where) for band, where in BANDS.items())]
    columns = [("bidders", "bidder"), ("auctions", "auction")]
    return {f"{band}{shown}": hf.count_distinct(name, where=where) for shown, name in columns for band, where in bands}


def q15(events: Events) -> hf.Stream:
    """SELECT day(date_time), count(*), count(*) FILTER (…) …, count(DISTINCT bidder), … FROM bid GROUP BY 1"""
    days = events.bids.key_by(hf.window("date_time", "1d"))
    return days.aggregate(emit="changes", **bid_counts(), **distinct_counts())


def q16(events: Events) -> hf.Stream:
    """SELECT channel, day(date_time), max(date_time), count(*), …, count(DISTINCT bidder), … FROM bid GROUP BY 1, 2"""
    days = events.bids.key_by("channel", hf.window("date_time", "1d"))
    return days.aggregate(emit="changes", newest=hf.max("date_time"), **bid_counts(), **distinct_counts())


def q17(events: Events) -> hf.Stream:
    """SELECT auction, day(date_time), count(*), count(*) FILTER (…) …, min(price), max(price), avg(price), sum(price)
    FROM bid GROUP BY 1, 2"""
    prices = {name: getattr(hf, name)("price") for name in ("min", "max", "mean", "sum")}
    days = events.bids.key_by("auction", hf.window("date_time", "1d"))
    return days.aggregate(emit="changes", **bid_counts(), **prices)


def q18(events: Events) -> hf.Stream:
    """SELECT * FROM bid QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) = 1"""
    return events.bids.key_by("bidder", "auction").last(by="date_time")


def q19(events: Events) -> hf.Stream:
    """SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank FROM bid QUALIFY rank <= 10"""
    return events.bids.key_by("auction").top(10, by="price")


def q20(events: Events) -> hf.Stream:
    """SELECT * FROM bid JOIN auction ON auction = id WHERE category = 10"""
    auctions = events.auctions.where(pc.field("category") == 10)
    return events.bids.key_by("auction").join(auctions.key_by("id"), suffix="_of_auction")


def q21(events: Events) -> hf.Stream:
    """SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' … ELSE
    regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM bid WHERE channel_id <> ''"""
    found = pc.struct_field(pc.extract_regex(pc.field("url"), "(?:&|^)channel_id=(?P<id>[^&]*)"), "id")
    place = pc.index_in(
        pc.utf8_lower(pc.field("channel")), value_set=pa.array(["apple", "google", "facebook", "baidu"])
    )
    made = pc.coalesce(place.cast("string"), found)
    return events.bids.select("auction", "bidder", "price", "channel", channel_id=made).where(CHANNEL != "")


def q22(events: Events) -> hf.Stream:
    """SELECT auction, bidder, price, channel, split(url, '/')[3], split(url, '/')[4], split(url, '/')[5] FROM bid"""
    if not TEXTS:
        parts = pc.split_pattern(pc.field("url"), "/")
        of_arrow = {f"dir{place}": pc.list_element(parts, place + 2) for place in (1, 2, 3)}
        return events.bids.select("auction", "bidder", "price", "channel", **of_arrow)
    folders = [f"split(url, '/')[{place + 2}] AS dir{place}" for place in (1, 2, 3)]
    return events.bids.select("auction", "bidder", "price", "channel", *folders)


@dataclass(frozen=True)
class NexmarkQuery:
    """A query: its function, the streams that it reads, and how its results are to be taken.

    `keys`: the columns by which later results replace earlier ones; empty: each result stays. `folders`: the columns
    by whose values results are written to folders; empty: they are discarded where only the rate counts.
    """

    build: Callable[[Events], hf.Stream]
    reads: tuple[str, ...] = ("bids",)
    keys: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def sink(self, folder: str) -> "hf.Sink":  # earlier commits have no such name
        """Return the sink of a measurement."""
        return hf.ParquetSink(f"file://{folder}", partition_by=list(self.folders)) if self.folders else hf.NoopSink()

    @property
    def stateful(self) -> bool:
        return self.build not in (q0, q1, q2, q10, q14, q21, q22)


AUCTIONS_BIDS, PERSONS_AUCTIONS = ("auctions", "bids"), ("persons", "auctions")
QUERIES = {
    "q0": NexmarkQuery(q0),
    "q1": NexmarkQuery(q1),
    "q2": NexmarkQuery(q2),
    "q3": NexmarkQuery(q3, PERSONS_AUCTIONS),
    "q4": NexmarkQuery(q4, AUCTIONS_BIDS, ("category",)),
    "q5": NexmarkQuery(q5),
    "q6": NexmarkQuery(q6, AUCTIONS_BIDS, ("seller",)),
    "q7": NexmarkQuery(q7),
    "q8": NexmarkQuery(q8, PERSONS_AUCTIONS),
    "q9": NexmarkQuery(q9, AUCTIONS_BIDS),
    "q10": NexmarkQuery(q10, folders=("day", "minute")),
    "q11": NexmarkQuery(q11),
    "q12": NexmarkQuery(q12),
    "q13": NexmarkQuery(q13, ("bids", "side")),
    "q14": NexmarkQuery(q14),
    "q15": NexmarkQuery(q15, keys=("window_start",)),
    "q16": NexmarkQuery(q16, keys=("channel", "window_start")),
    "q17": NexmarkQuery(q17, keys=("auction", "window_start")),
    "q18": NexmarkQuery(q18, keys=("bidder", "auction")),
    "q19": NexmarkQuery(q19, keys=("auction", "rank")),
    "q20": NexmarkQuery(q20, AUCTIONS_BIDS),
    "q21": NexmarkQuery(q21),
    "q22": NexmarkQuery(q22),
}
