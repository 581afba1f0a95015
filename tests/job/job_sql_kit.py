"""Queries in SQL over a few bids and people, and their rows."""

from datetime import UTC, datetime, timedelta
from typing import Any

from job_kit import new_job, script

import holdfast as hf
from holdfast.testing import run


def second(number: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)


BIDS = [
    {"auction": 1, "bidder": 7, "price": 10, "at": second(1)},
    {"auction": 1, "bidder": 8, "price": 30, "at": second(5)},
    {"auction": 2, "bidder": 7, "price": 20, "at": second(7)},
    {"auction": 2, "bidder": 9, "price": 5, "at": second(15)},
    {"auction": 1, "bidder": 7, "price": 50, "at": second(40)},
]
PEOPLE = [{"id": 7, "name": "ann", "at": second(0)}, {"id": 9, "name": "bob", "at": second(14)}]
END = 10_000
"""Time of the last rows, which close all windows; they are in no result, for `auction` and `id` are below nothing."""


def rows_of(text: str, emit: Any = None) -> list[tuple[Any, ...]]:
    """The rows of a query over bids and people, without those of the last rows."""
    job, sink = new_job(), hf.MemorySink()
    last = [{"auction": -1, "bidder": -1, "price": -1, "at": second(END)}]
    bids = script(BIDS, last, schema="auction BIGINT, bidder BIGINT, price BIGINT, at TIMESTAMP", name="bids")
    streams = {"bids": job.read(bids).with_watermark("at", "0s")}
    if "people" in text:
        ends = [{"id": -2, "name": "end", "at": second(END)}]
        people = script(PEOPLE, ends, schema="id BIGINT, name STRING, at TIMESTAMP", name="people")
        streams["people"] = job.read(people).with_watermark("at", "0s")
    job.sql(text, emit=emit, **streams).write(sink)
    run(job)
    kept = [tuple(row.values()) for row in sink.rows()]
    return sorted((row for row in kept if not {-1, -2, "end"} & set(row) and not _late(row)), key=order_of)


def order_of(row: tuple[Any, ...]) -> list[str]:
    return [str(each) for each in row]


def _late(row: tuple[Any, ...]) -> bool:
    return any(isinstance(each, datetime) and each > second(END // 2) for each in row)


WITHIN = "p.at BETWEEN b.at - INTERVAL 10 SECONDS AND b.at"
