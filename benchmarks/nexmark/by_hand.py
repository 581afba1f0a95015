"""Queries 5 and 7 as functions that users write by hand, beside the same queries in a line of the public API.

    python -m benchmarks.nexmark.by_hand --events 500000 --json

Figures are microseconds of the process's CPU time for each bid, all of Holdfast in a single process, without Spark, as
the best of three runs has them: so other load on the machine counts less. Results are compared with those of DuckDB.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from benchmarks.nexmark.expected import difference
from benchmarks.nexmark.measure import events_folder, rows_of
from benchmarks.nexmark.queries import Events, q5, q7
from holdfast.testing import start

SIZE_S, SLIDE_S = 10, 2
SIZE, MICROS = timedelta(seconds=SIZE_S), 1_000_000
TIME = pa.timestamp("us", "UTC")
COUNTED = "auction BIGINT, window_start TIMESTAMP, window_end TIMESTAMP, num BIGINT"
HOTTEST = "window_start TIMESTAMP, auction BIGINT, window_end TIMESTAMP, num BIGINT"
BID = "auction BIGINT, price BIGINT, bidder BIGINT, date_time TIMESTAMP, extra STRING"
WINDOW = "window_start TIMESTAMP, window_end TIMESTAMP"
RUNS = 3


class Counts(hf.ProcessFunction):
    """How many bids an auction has in each window, of counts for every two seconds by their start."""

    bids = hf.MapState(pa.int64(), pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> None:
        start = int(row.date_time.timestamp()) // SLIDE_S * SLIDE_S
        before = self.bids.get(start)
        if not before:
            for end in range(start + SLIDE_S, start + SLIDE_S + SIZE_S, SLIDE_S):
                ctx.timers.register_event_time(datetime.fromtimestamp(end, UTC))
        self.bids.put(start, before + 1)

    def on_timer(self, timestamp: datetime, ctx: Any) -> Iterator[Any]:
        end = int(timestamp.timestamp())
        yield ctx.key, timestamp - SIZE, timestamp, sum(count for start, count in self.bids.items() if start < end)
        self.bids.remove(end - SIZE_S)


class CountsByArrays(hf.BatchFunction):
    """The same for many auctions at once, with a count for each window by its end."""

    bids = hf.MapState(pa.int64(), pa.int64(), default=0)

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Any) -> pa.RecordBatch:
        seconds = batch["date_time"].cast(pa.int64()).to_numpy() // MICROS
        ends = (seconds // SLIDE_S * SLIDE_S + SLIDE_S)[:, None] + np.arange(0, SIZE_S, SLIDE_S)
        pairs = np.asarray(groups, np.int64)[:, None] << 32 | ends
        pairs, added = np.unique(pairs, return_counts=True)
        owners, of_windows = pairs >> 32, pa.array(pairs & 0xFFFFFFFF)
        self.bids.put(of_windows, np.asarray(self.bids.get(of_windows, owners)) + added, owners)
        ctx.timers.register_event_time(times(of_windows), owners)
        return pa.record_batch([pa.array([], kind) for kind in (pa.int64(), TIME, TIME, pa.int64())], names=COLUMNS)

    def on_timers(self, keys: pa.RecordBatch, timestamps: pa.Array, ctx: Any) -> pa.RecordBatch:
        ends = pa.array(timestamps.cast(pa.int64()).to_numpy() // MICROS)
        counts = self.bids.get(ends)
        self.bids.remove(ends)
        starts = times(pa.array(ends.to_numpy() - SIZE_S))
        return pa.record_batch([keys["auction"], starts, timestamps, counts], names=COLUMNS)


COLUMNS = [column.split()[0] for column in COUNTED.split(", ")]


def times(seconds: pa.Array) -> pa.Array:
    return pa.array(seconds.to_numpy() * MICROS).cast(TIME)


class Hottest(hf.ProcessFunction):
    """The auctions of a window that have the most bids."""

    most = hf.ValueState(pa.int64(), default=0)
    auctions = hf.ListState(pa.int64())

    def process(self, row: Any, ctx: Any) -> None:
        most = self.most.value()
        if row.num > most:
            self.most.update(row.num)
            self.auctions.clear()
            ctx.timers.register_event_time(row.window_end)
        if row.num >= most:
            self.auctions.add(row.auction)

    def on_timer(self, timestamp: datetime, ctx: Any) -> Iterator[Any]:
        for auction in self.auctions.get():
            yield ctx.key, auction, timestamp, self.most.value()
        self.most.clear()
        self.auctions.clear()


class Highest(hf.ProcessFunction):
    """The bids of a window that have the highest price."""

    price = hf.ValueState(pa.int64(), default=0)
    bids = hf.ListState()

    def process(self, row: Any, ctx: Any) -> None:
        price = self.price.value()
        if row.price > price:
            self.price.update(row.price)
            self.bids.clear()
            ctx.timers.register_event_time(row.window_end)
        if row.price >= price:
            self.bids.add([row.auction, row.price, row.bidder, row.date_time, row.extra])

    def on_timer(self, timestamp: datetime, ctx: Any) -> Iterator[Any]:
        for bid in self.bids.get():
            yield ctx.key, timestamp, *bid
        self.price.clear()
        self.bids.clear()


def with_window(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bids with the bounds of their windows of ten seconds."""
    seconds = batch["date_time"].cast(pa.int64()).to_numpy() // MICROS // SIZE_S * SIZE_S
    bounds = [times(pa.array(seconds)), times(pa.array(seconds + SIZE_S))]
    return pa.RecordBatch.from_arrays([*batch.columns, *bounds], [*batch.schema.names, "window_start", "window_end"])


def q5_of(function: Any, events: Events) -> hf.Stream:
    counts = events.bids.select("auction", "date_time").key_by("auction").process(function, COUNTED)
    return counts.key_by("window_start").process(Hottest(), HOTTEST)


def q7_of(events: Events) -> hf.Stream:
    bids = events.bids.select("auction", "price", "bidder", "date_time", "extra")
    timed = bids.map_batches(with_window, f"{BID}, {WINDOW}")
    return timed.key_by("window_start").process(Highest(), f"{WINDOW}, {BID}")


WAYS: dict[str, Callable[[Events], hf.Stream]] = {
    "q5": q5,
    "q5 by row": lambda events: q5_of(Counts(), events),
    "q5 by arrays": lambda events: q5_of(CountsByArrays(), events),
    "q7": q7,
    "q7 by row": q7_of,
}


def run(way: str, folder: Path, rows_per_batch: int) -> tuple[float, str]:
    """Run a query; the seconds of CPU time, and how its results differ from the database's."""
    sink = hf.MemorySink()
    job = hf.Job(None, name="by-hand", storage=f"memory://{time.monotonic_ns()}", max_rows_per_batch=rows_per_batch)
    WAYS[way](Events(job, str(folder))).write(sink)
    begun_s = time.process_time()
    start(job, hf.available_now(drain=True)).awaitTermination()
    return time.process_time() - begun_s, difference(way[:2], sink.table(), folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--rows-per-batch", type=int, default=50_000)
    parser.add_argument("--json", action="store_true", help="one JSON line instead of a table")
    options = parser.parse_args()
    folder = events_folder(options.events, 0)
    bids, figures = rows_of(folder)["bids"], dict[str, float]()
    for way in WAYS:
        seconds, differences = zip(*(run(way, folder, options.rows_per_batch) for _ in range(RUNS)), strict=True)
        if any(differences):
            sys.exit(f"{way}: {differences[0]}")
        figures[way] = round(1e6 * min(seconds) / bids, 2)
    if options.json:
        print(json.dumps(figures))
        return
    for way, micros in figures.items():
        print(f"{way:16} {micros:8.2f} µs")


if __name__ == "__main__":
    main()
