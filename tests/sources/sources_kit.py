"""Helpers for the tests of sources: a driver that plans and reads, and files to read."""

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from holdfast.clock import ManualClock
from holdfast.sources.base import BadRow, Enumerator, EnumeratorContext, Offsets, Source
from holdfast.sources.files.file_source import FileSource
from holdfast.storage.store import ObjectStore, open_store

_store_numbers = itertools.count()
_times = itertools.count(1_000_000_000)
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def new_store() -> ObjectStore:
    return open_store(f"memory://sources-{next(_store_numbers)}")


def enumerator(source: Source, store: ObjectStore | None = None, epoch: int = 1, name: str = "files") -> Enumerator:
    return source.enumerator(EnumeratorContext(store or new_store(), name, epoch, ManualClock()))


def rows_between(source: FileSource, start: Offsets, until: Offsets, planner: Enumerator, rows_max: int = 100):
    """(rows, bad rows) of the batches between two offsets."""
    at, rows, bad = start, [], []
    while True:
        plan = planner.plan(at, until, rows_max, 10**9)
        if not plan.reads:
            assert plan.to == at
            return rows, bad
        for read in plan.reads:
            got, wrong = read_one(source, read)
            rows += got
            bad += wrong
        assert plan.to != at
        at = plan.to


def read_one(source: Source, read) -> tuple[list[tuple], list[BadRow]]:
    rows: list[tuple] = []
    bad: list[BadRow] = []
    for batch in source.read(read):
        assert batch.rows.schema.equals(source.schema())
        rows += [tuple(row.values()) for row in batch.rows.to_pylist()]
        bad += batch.bad
    return rows, bad


def read_all(source: FileSource, rows_max: int = 100) -> tuple[list[tuple], list[BadRow]]:
    source.schema()
    planner = enumerator(source)
    return rows_between(source, planner.initial(), planner.latest(), planner, rows_max)


def ids(count: int, first: int = 0) -> list[tuple[int, str]]:
    return [(number, f"word {number}") for number in range(first, first + count)]


def write(path: Path, rows: Iterable[tuple], group_rows: int = 10) -> Path:
    """A file of `SCHEMA` in the format of its suffix, moved into place, a second newer than the file before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name("_" + path.name)
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
    if path.suffix == ".parquet":
        pq.write_table(table, hidden, row_group_size=group_rows)
    elif path.suffix == ".arrow":
        with ipc.new_file(hidden, SCHEMA) as writer:
            writer.write_table(table, max_chunksize=group_rows)
    elif path.suffix == ".csv":
        hidden.write_text("id,word\n" + "".join(f"{row['id']},{row['word']}\n" for row in table.to_pylist()))
    else:
        import json

        hidden.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return place(hidden, path)


def place(hidden: Path, path: Path) -> Path:
    moment = next(_times)
    os.utime(hidden, (moment, moment))
    return hidden.rename(path)


def put_text(path: Path, text: str | bytes) -> Path:
    hidden = path.with_name("_" + path.name)
    hidden.write_bytes(text.encode() if isinstance(text, str) else text)
    return place(hidden, path)
