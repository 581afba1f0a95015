"""Helpers that tests of joins share: rows of two sides, random batches under a watermark, restarts."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from functions_kit import divided

from holdfast.functions.joins import kept_rows
from holdfast.functions.joins.declared import JoinSpec
from holdfast.functions.joins.declaring import JoinSettings
from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorResult
from holdfast.functions.timing import key_order

TIME = pa.timestamp("us", "UTC")
CLICKS = pa.schema([("user", pa.string()), ("clicked", TIME), ("page", pa.string()), ("n", pa.int64())])
VISITS = pa.schema([("id", pa.string()), ("begun", TIME), ("ended", TIME), ("agent", pa.string())])
EVERYTHING_US = 253_402_300_799_999_999

Rows = list[tuple[Any, ...]]


def settings(how: Any = "inner", **given: Any) -> JoinSettings:
    named = {
        "within": None,
        "between": None,
        "ttl": None,
        "tolerance": None,
        "suffix": None,
        "late": "drop",
        "bad_records": "fail",
    }
    return JoinSettings(**(named | given), how=how)


def batch_of(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def run_batch(
    operator: Operator, number: int, clicks: Rows, visits: Rows, marks: tuple[int | None, int | None], now_us: int = 0
) -> OperatorResult:
    """`marks`: the watermark, and that of the batch before; `now_us`: the time of the batch; all in microseconds."""
    parts = [(0, batch_of(clicks[::2], CLICKS)), (1, batch_of(visits, VISITS)), (0, batch_of(clicks[1::2], CLICKS))]
    for table in operator.tables.values():
        table.begin(number)
    return operator.process(divided(operator, number, parts), BatchContext(number, now_us, "joined", 0, *marks))


def restored(operator: Operator, spec: JoinSpec, tables: NewTable) -> Operator:
    made = spec.create(0, 128, tables)
    for name, table in operator.tables.items():
        made.tables[name].apply(table.snapshot(), 0, 128)
        table.close()
    return made


def shown(batches: Sequence[pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())


class Feed:
    """Rows in random batches, some of them late, under a watermark that follows."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 100
        self.watermark: int | None = None
        self.closed: int | None = None
        self.count = 0

    @property
    def now_us(self) -> int:
        return self.now_s * 1_000_000

    def rows(self) -> tuple[Rows, Rows]:
        self.now_s += self.chance.choice([0, 1, 2, 6, 20])
        return self._some(self._click), self._some(self._visit)

    def move(self) -> tuple[int | None, int | None]:
        self.closed = self.watermark
        if self.chance.random() < 0.7:
            reached = (self.now_s - self.chance.randrange(5, 25)) * 1_000_000
            self.watermark = max(self.watermark or 0, reached)
        return self.watermark, self.closed

    def _some(self, make: Any) -> Rows:
        return [make() for _ in range(self.chance.choice([0, 0, 1, 4, 12]))]

    def _time(self) -> int:
        return (self.now_s + self.chance.randrange(-20, 4)) * 1_000_000

    def _click(self) -> tuple[Any, ...]:
        self.count += 1
        return self.chance.choice("abcde"), self._time(), self.chance.choice(["/", None, "/basket"]), self.count

    def _visit(self) -> tuple[Any, ...]:
        begun = self._time()
        ended = self.chance.choice([begun + self.chance.randrange(30_000_000), begun - 5, None])
        return self.chance.choice("abcde"), begun, ended, self.chance.choice(["curl", None])


def order_short_keys(patch: pytest.MonkeyPatch) -> None:
    """Have keys get an order from two rows on, in small parts."""
    patch.setattr(kept_rows, "LONG_KEY", 2)
    patch.setattr(key_order, "BLOCK", 2)
    patch.setattr(key_order, "LATE_MAX", 3)
