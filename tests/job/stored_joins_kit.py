"""A job with joins and a count by windows, and savepoints of it that code from before the commit b93a6f5 wrote.

Until then the times of kept rows were in columns of the state (`__at`, `__from`, `__until`), and each key had a head. A
savepoint in `golden/` holds whole tables of the first two batches, and the log of two more. To write the savepoints
anew, check out a commit of before, such as b11baba, into a folder OLD:

    PYTHONPATH=OLD/src scripts/run.sh python tests/job/stored_joins_kit.py
"""

import io
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.storage.store import open_store
from holdfast.testing import Eof, TestSource, run, start

GOLDEN = Path(__file__).parent / "golden"
OLD_COLUMNS = (b"__at", b"__from", b"__until")
"""State columns that only code from before that commit makes."""
STATES = {"hashmap": hf.HashMapState(), "rocksdb": hf.RocksDBState(cache_max_entries=2)}
OPERATORS = ("within", "between", "asof", "counts")
STORED_BATCHES = 4
"""Number of the first `BATCHES` that a savepoint has seen."""


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def ads(*rows: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"user": user, "shown": at(second), "ad": second} for user, second in rows]


def visits(*rows: tuple[int, int, int]) -> list[dict[str, Any]]:
    return [{"who": who, "begun": at(begun), "ended": at(ended), "visit": begun} for who, begun, ended in rows]


BATCHES = [
    (ads((1, 100), (1, 103), (2, 104), (3, 105)), visits((1, 102, 130), (4, 105, 200))),
    (ads((2, 112), (5, 113)), visits((2, 108, 120), (3, 111, 111))),
    (ads((1, 125)), visits((1, 124, 140))),
    (ads((3, 126)), visits((4, 127, 128))),
    (ads((1, 128), (1, 131), (6, 140)), visits((3, 130, 150), (5, 122, 123))),
    (ads((2, 145), (4, 150)), visits((1, 141, 142))),
]


def new_sources() -> tuple[TestSource, TestSource]:
    left, right = ([batch[side] for batch in BATCHES] for side in (0, 1))
    return (
        TestSource([*left, Eof(drain=True)], "user BIGINT, shown TIMESTAMP, ad BIGINT", name="ads"),
        TestSource(
            [*right, Eof(drain=True)], "who BIGINT, begun TIMESTAMP, ended TIMESTAMP, visit BIGINT", name="visits"
        ),
    )


def new_sinks() -> dict[str, hf.MemorySink]:
    return {name: hf.MemorySink(name=f"{name}_out") for name in OPERATORS}


def made(
    storage: str, sources: tuple[TestSource, TestSource], sinks: Mapping[str, hf.MemorySink], **settings: Any
) -> hf.Job:
    settings.setdefault("checkpoint", hf.CheckpointConfig(trigger=hf.manual()))
    job = hf.Job(None, name="stored", storage=storage, **settings)
    shown, visited = (
        job.read(source).with_watermark(column, "5s")
        for source, column in zip(sources, ("shown", "begun"), strict=True)
    )
    left, right = shown.key_by("user"), visited.key_by("who")
    left.join(right, ("-5s", "10s"), how="outer", name="within").write(sinks["within"])
    left.join(right, between=("begun", "ended"), how="left", name="between").write(sinks["between"])
    left.join(right, how="asof", name="asof").write(sinks["asof"])
    counts = shown.key_by("user", hf.window("shown", "20s")).aggregate(n=hf.count(), name="counts")
    counts.write(sinks["counts"])
    return job


def file_of(backend: str) -> Path:
    return GOLDEN / f"joins-1-{backend}.tar.xz"


def unpack(backend: str, url: str) -> None:
    """Put the savepoint of a backend into an empty store."""
    unpack_file(file_of(backend), url)


def unpack_file(file: Path, url: str) -> None:
    """Put a packed savepoint into an empty store."""
    store = open_store(url)
    with tarfile.open(file) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            assert content is not None
            store.put(entry.name, content.read())


def write(backend: str) -> None:
    """Run the first batches, and pack a savepoint of their end."""
    storage, saved = f"memory://joins-{backend}", f"memory://savepoint-{backend}"
    sources, sinks = new_sources(), new_sinks()
    for source in sources:
        source.length, source.drains = STORED_BATCHES // 2, False
    whole = hf.CheckpointConfig(trigger=hf.manual(), changelog=False)
    run(made(storage, sources, sinks, state=STATES[backend], checkpoint=whole))
    for source in sources:
        source.length = STORED_BATCHES
    query = start(made(storage, sources, sinks, state=STATES[backend]), hf.processing_time("0s"))
    query.processAllAvailable()
    query.stop(with_savepoint=saved)
    is_old = all(column in open_store(saved).get("savepoint") for column in OLD_COLUMNS)
    assert is_old, "the code that runs is of after the commit"
    pack(saved, file_of(backend))


def pack(url: str, file: Path) -> None:
    """Pack the objects of a savepoint."""
    store = open_store(url)
    with tarfile.open(file, "w:xz") as archive:
        for each in store.list(""):
            entry, data = tarfile.TarInfo(each.name), store.get(each.name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    for each_backend in STATES:
        write(each_backend)
