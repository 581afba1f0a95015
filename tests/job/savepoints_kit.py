"""Jobs that sum values by key, and the folders of their storages and savepoints."""

from pathlib import Path
from typing import Any

from job_kit import Feed, new_job, newest, pairs

import holdfast as hf
from holdfast.storage.store import ObjectInfo, open_store
from holdfast.testing import start

LIVE = hf.processing_time()


class Folders:
    """URLs of folders below a test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, name: str) -> str:
        return (self.root / name).as_uri()


def made(
    storage: str,
    feed: Feed,
    sink: hf.MemorySink,
    *,
    more: bool = False,
    changelog: bool | hf.ChangelogConfig = True,
    **settings: Any,
):
    config = hf.CheckpointConfig(trigger=hf.manual(), changelog=changelog)
    job = new_job(storage, checkpoint=config, **settings)
    rows = job.read(feed)
    rows.key_by("k").aggregate(total=hf.sum("v"), name="sums").write(sink)
    if more:
        rows.key_by("k").aggregate(rows=hf.count(), name="counts").write(hf.MemorySink(name="counted"))
    return job


def put(query: hf.Query, feed: Feed, *values: int) -> None:
    for value in values:
        feed.put(pairs((1, value)))
    query.processAllAvailable()


def sums(sink: hf.MemorySink) -> Any:
    return newest(sink.rows(), "k")[1]["total"]


def with_savepoint(url: Folders, feed: Feed, **settings: Any) -> None:
    """Write a savepoint of the sum 3, and stop."""
    query = start(made(url("one"), feed, hf.MemorySink(name="out"), **settings), LIVE)
    put(query, feed, 1, 2)
    query.savepoint(url("save"))
    query.stop()


def files_of(url: Folders, name: str) -> list[ObjectInfo]:
    return list(open_store(url(name)).list(""))
