"""A sink into a table in the driver's memory: for tests, notebooks and examples.

Invariants: the instance that the user holds has the data; copies sent to tasks are empty. A number is applied once. The
table is lost when the driver ends.
"""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.python_values import exact_rows
from holdfast.sinks.base import PublishContext, Sink, SinkContext, StageContext
from holdfast.sinks.staging import decode_rows, discard_rows, pieces, read_rows, stage_rows


@dataclass
class _Published:
    """Published rows of a sink in the driver."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    schema: pa.Schema | None = None
    tables: list[pa.Table] = field(default_factory=list)
    last: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(repr=False)
class MemorySink(Sink):
    """Published rows are appended to a table in the driver, in order; read it with `table()` or `rows()`."""

    _published: _Published = field(default_factory=_Published, init=False, repr=False, compare=False)

    @property
    def kind(self) -> str:
        return "memory"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_published": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _published=_Published())

    def prepare(self, schema: pa.Schema, context: SinkContext) -> None:
        with self._published.lock:
            self._published.schema = schema

    def last_number(self, context: SinkContext) -> int:
        with self._published.lock:
            return self._published.last.get((context.job_id, context.sink), 0)

    def stage(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> list[bytes]:
        return stage_rows(pieces(batches), context)

    def publish(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        rows = read_rows(decode_rows(committables, context.owner), context)
        key = (context.job_id, context.sink)
        with self._published.lock:
            if number <= self._published.last.get(key, -1):
                return
            self._published.last[key] = number
            if rows.num_rows:
                self._published.tables.append(rows)

    def discard(self, committables: Iterable[bytes], context: PublishContext) -> None:
        discard_rows(decode_rows(committables, context.owner), context)

    def table(self) -> pa.Table:
        """Everything published so far, in order."""
        with self._published.lock:
            tables = list(self._published.tables)
            schema = self._published.schema
        if tables:
            return pa.concat_tables(tables, promote_options="default")
        return (schema or pa.schema([])).empty_table()

    def rows(self) -> list[dict[str, Any]]:
        """Everything published so far as Python dictionaries, in order."""
        return exact_rows(self.table())
