"""Helpers for the tests of jobs in process: new jobs on new storages, a source that tests feed, waiting."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.cleanup.observation import observe
from holdfast.references import object_of
from holdfast.schema import to_arrow_schema
from holdfast.sources.base import (
    BadRow,
    Enumerator,
    EnumeratorContext,
    Offsets,
    Source,
    SourceBatch,
    SourcePlan,
    SplitRead,
)
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing.source import ScriptRows, TestSource

_numbers = itertools.count()
WAIT_S_MAX = 30.0
SOON = hf.CheckpointConfig(trigger=hf.every("20ms"))


def new_storage() -> str:
    """The URL of an empty storage of this process."""
    return f"memory://job-{next(_numbers)}"


def own_logs(**changelog: Any) -> hf.CheckpointConfig:
    """Checkpoints that somebody asks for, whose logs each TaskManager stores itself, each apart from its manifest."""
    changelog = {"gathered_size_max": 0, "object_size_max": 200} | changelog
    return hf.CheckpointConfig(trigger=hf.manual(), changelog=hf.ChangelogConfig(**changelog))


def manifests_and_logs(store: ObjectStore) -> tuple[list[str], list[str]]:
    """Names of the objects that hold manifests of the newest checkpoint, and of other objects of logs."""
    observed = observe(store)
    assert observed is not None and observed.taken.base is not None
    manifests = list(dict.fromkeys(map(object_of, observed.taken.base.manifests)))
    return manifests, [info.name for info in store.list("dstl/") if info.name not in manifests]


def new_job(storage: str | None = None, **settings: Any) -> hf.Job:
    """A job without Spark; checkpoints only where somebody asks for one, unless `checkpoint` says otherwise."""
    settings.setdefault("checkpoint", hf.CheckpointConfig(trigger=hf.manual()))
    settings.setdefault("name", "test")
    return hf.Job(None, storage=storage or new_storage(), **settings)


def store_of(job: hf.Job) -> ObjectStore:
    return open_store(job.storage)


def script(*batches: ScriptRows, schema: str = "k BIGINT, v BIGINT", name: str | None = None) -> TestSource:
    """Each argument is a batch."""
    return TestSource(list(batches), schema, name=name)


def pairs(*rows: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v} for k, v in rows]


def tuples(sink: hf.MemorySink) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in sink.rows()]


def newest(rows: Iterable[Mapping[str, Any]], *keys: str) -> dict[Any, dict[str, Any]]:
    """The last row of each key, without the key columns."""
    found = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        found[key[0] if len(keys) == 1 else key] = {name: row[name] for name in row if name not in keys}
    return found


class Feed(Source):
    """A source without an end: rows come when the test calls `put`. A single split, positions from 0."""

    kind = "feed"

    def __init__(self, schema: str = "k BIGINT, v BIGINT", *, name: str | None = None) -> None:
        self.name = name
        self._schema = to_arrow_schema(schema)
        self.rows: list[Mapping[str, Any] | str] = []

    def put(self, rows: Iterable[Mapping[str, Any] | str]) -> None:
        """A string is a malformed row."""
        self.rows += rows

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"rows": []}

    def schema(self) -> pa.Schema:
        return self._schema

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        return _FeedEnumerator(self)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        assert isinstance(read.start, int) and isinstance(read.stop, int)
        for position, row in enumerate(self.rows[read.start : read.stop], read.start):
            if isinstance(row, str):
                bad = [BadRow(self.name or "feed-1", "0", str(position), "is text", row)]
                yield SourceBatch(pa.RecordBatch.from_pylist([], self._schema), position, bad)
            else:
                yield SourceBatch(pa.RecordBatch.from_pylist([dict(row)], self._schema), position)


class _FeedEnumerator(Enumerator):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def initial(self) -> Offsets:
        return {"0": 0}

    def latest(self) -> Offsets:
        return {"0": len(self._feed.rows)}

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        first, stop = int(start["0"] or 0), int(until["0"] or 0)
        stop = min(stop, first + rows_max)
        if first >= stop:
            return SourcePlan(dict(start), [])
        return SourcePlan({"0": stop}, [SplitRead("0", first, stop, stop - first)])

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        return {"0": len(self._feed.rows) - int(offsets["0"] or 0)}
