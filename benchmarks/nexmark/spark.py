"""Nexmark's queries on Structured Streaming, in a process of its own: RocksDB state with changelog checkpointing.

Queries that it has no operators for are missing: 4, 6 (an aggregate of an aggregate that changes), 12 (windows of
processing time), 15, 16 (distinct counts), 19 (ranks). 5 and 7 give a single winner of each window, and no ties.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.nexmark.measure import run_peer

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FILES_PER_BATCH = 4
"""A million rows of bids, as many as a batch of Holdfast has by default here."""

WINDOW = "window(date_time, '10 seconds')"
BANDS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
COUNTS = ["count(*) AS bids", *(f"count_if({where}) AS {band}_bids" for band, where in BANDS.items())]
PRICES = [f"{name}(price) AS {name}_price" for name in ("min", "max", "avg", "sum")]
WHOLE = "named_struct('price', price, 'channel', channel, 'url', url, 'date_time', date_time, 'extra', extra)"


def q3(persons: Any, auctions: Any) -> Any:
    sellers = persons.where("state IN ('OR', 'ID', 'CA')").selectExpr("id AS person", "name", "city", "state")
    return sellers.join(auctions.where("category = 10").select("seller", "id"), sellers.person == auctions.seller)


def q5(bids: Any) -> Any:
    counts = _grouped(bids, "auction", "window(date_time, '10 seconds', '2 seconds') AS window", ["count(*) AS num"])
    return _grouped(counts, "window", ["max_by(auction, num) AS auction", "max(num) AS num"])


def q8(persons: Any, auctions: Any) -> Any:
    from pyspark.sql import functions

    windows = [each.withColumn("window", functions.window("date_time", "10 seconds")) for each in (persons, auctions)]
    sellers = windows[1].dropDuplicates(["seller", "window"]).selectExpr("seller", "window AS other")
    found = windows[0].select("id", "name", "window")
    return found.join(sellers, (found.id == sellers.seller) & (found.window == sellers.other))


def q20(bids: Any, auctions: Any) -> Any:
    chosen = auctions.where("category = 10").withColumnsRenamed({"date_time": "begun", "extra": "more"})
    return bids.join(chosen, bids.auction == chosen.id)


def _grouped(rows: Any, *keys_and_aggregates: Any) -> Any:
    from pyspark.sql import functions

    *keys, aggregates = keys_and_aggregates
    return rows.groupBy(*map(functions.expr, keys)).agg(*map(functions.expr, aggregates))


BIDS = ("bids",)
QUERIES: dict[str, tuple[tuple[str, ...], str, Callable[..., Any]]] = {
    "q0": (BIDS, "append", lambda bids: bids),
    "q1": (
        BIDS,
        "append",
        lambda bids: bids.selectExpr("auction", "bidder", "date_time", "extra", "price * 0.908D AS price"),
    ),
    "q2": (BIDS, "append", lambda bids: bids.where("auction % 123 = 0").select("auction", "price")),
    "q3": (("persons", "auctions"), "append", q3),
    "q5": (BIDS, "append", q5),
    "q7": (
        BIDS,
        "append",
        lambda bids: _grouped(
            bids, f"{WINDOW} AS window", [f"max_by(named_struct('bidder', bidder, 'rest', {WHOLE}), price) AS best"]
        ),
    ),
    "q8": (("persons", "auctions"), "append", q8),
    "q11": (
        BIDS,
        "append",
        lambda bids: _grouped(bids, "bidder", "session_window(date_time, '10 seconds') AS w", ["count(*) AS bids"]),
    ),
    "q14": (
        BIDS,
        "append",
        lambda bids: bids.where("price * 0.908D > 1000000 AND price * 0.908D < 50000000").selectExpr(
            "auction",
            "bidder",
            "date_time",
            "extra",
            "price * 0.908D AS euro",
            "hour(date_time) AS part",
            "length(extra) - length(replace(extra, 'c', '')) AS cs",
        ),
    ),
    "q17": (
        BIDS,
        "update",
        lambda bids: _grouped(bids, "auction", "date_trunc('day', date_time) AS day", [*COUNTS, *PRICES]),
    ),
    "q18": (
        BIDS,
        "update",
        lambda bids: _grouped(bids, "bidder", "auction", [f"max_by({WHOLE}, date_time) AS last"]),
    ),
    "q20": (("bids", "auctions"), "append", q20),
    "q22": (
        BIDS,
        "append",
        lambda bids: bids.selectExpr(
            "auction", "bidder", "price", "channel", *(f"split(url, '/')[{place}] AS dir{place}" for place in (3, 4, 5))
        ),
    ),
}


def run(query: str, folder: Path, parallelism: int) -> Iterator[tuple[str, float]]:
    """Yield the only variant, whose name is empty, with its seconds; nothing if Structured Streaming lacks the query.

    Raises:
        PeerFailed: Spark ended with an error.
    """
    if query in QUERIES:
        command = [sys.executable, "-m", "benchmarks.nexmark.spark", query, str(folder), str(parallelism)]
        yield "", float(run_peer(f"Spark's {query}", command))


def run_here(query: str, folder: Path, parallelism: int) -> float:
    """Run a query in a session of this process; the seconds from its first batch to its end."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{parallelism}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(parallelism))
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    kinds, mode, build = QUERIES[query]
    streams = []
    for kind in kinds:
        schema = spark.read.parquet(str(folder / kind)).schema
        files = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH)
        streams.append(files.parquet(str(folder / kind)).withWatermark("date_time", "1 second"))
    with tempfile.TemporaryDirectory(prefix="holdfast-spark-") as checkpoints:
        writer = build(*streams).writeStream.format("noop").outputMode(mode)
        started_s = time.monotonic()
        running = writer.option("checkpointLocation", checkpoints).trigger(availableNow=True).start()
        running.awaitTermination()
        return time.monotonic() - started_s


if __name__ == "__main__":
    print(run_here(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
