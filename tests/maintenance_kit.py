"""A job with an object of every kind in its storage, and the `holdfast` command run in this process."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner, Result

import holdfast as hf
from holdfast.cli import app
from holdfast.testing import start

KEYS = 40
BATCH_ROWS = 200
CHECKPOINTS_MAX = 30


class Longest(hf.ProcessFunction):
    """Values, a list and a map: three tables."""

    longest = hf.ValueState(pa.string(), default="")
    seen = hf.ListState(pa.int64())
    by_length = hf.MapState(pa.int64(), pa.int64())

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        self.longest.update(max(self.longest.value(), row.text, key=len))
        self.seen.add(len(row.text))
        self.by_length.put(len(row.text), 1)
        yield {"k": row.k, "text": row.text}


def write_files(folder: Path, files: int, seed: int = 1) -> None:
    """Rows of 200 random characters, so that output is staged as objects of its own."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        rows = [{"k": rng.randrange(KEYS), "text": rng.randbytes(100).hex()} for _ in range(BATCH_ROWS)]
        table = pa.Table.from_pylist(rows, pa.schema([("k", pa.int64()), ("text", pa.string())]))
        path = folder / f"{len(list(folder.iterdir())):04d}-{number}.parquet"
        pq.write_table(table, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)  # a running job must not see a part of it


def unreachable(table: pa.Table, number: int) -> None:
    raise ConnectionError("not now")


def job_of_every_kind(folder: Path, **settings: Any) -> hf.Job:
    """Two backends would be two jobs: RocksDB's has files of its base, and parts of rows beside them."""
    settings.setdefault(
        "checkpoint",
        hf.CheckpointConfig(trigger=hf.manual(), changelog=hf.ChangelogConfig(log_handles_max=2, gathered_size_max=0)),
    )
    settings.setdefault("state", hf.RocksDBState(cache_max_entries=10))
    job = hf.Job(
        None,
        name="every-kind",
        storage=(folder / "storage").as_uri(),
        parallelism=2,
        task_managers=2,
        max_rows_per_batch=BATCH_ROWS,
        **settings,
    )
    (folder / "in").mkdir(parents=True, exist_ok=True)
    source = hf.FileSource(str(folder / "in" / "*.parquet"), schema="k BIGINT, text STRING", name="files")
    stream = job.read(source)
    keyed = stream.key_by("k")
    keyed.process(Longest(), "k BIGINT, text STRING", name="longest").write(hf.CallbackSink(unreachable, name="later"))
    keyed.aggregate(n=hf.count(), name="counts").write(hf.MemorySink(name="memory"))
    return job


def run_every_kind(
    folder: Path, checkpoints: int = 5, until: Callable[[Path], bool] = lambda storage: True, **settings: Any
) -> None:
    """Run the job through so many checkpoints, and on until its storage is as the test needs it.

    A table is materialized beside the batches: in which checkpoint that shows depends on the machine.
    """
    job = job_of_every_kind(folder, **settings)
    for number in range(CHECKPOINTS_MAX):
        if number >= checkpoints and until(folder / "storage"):
            break
        write_files(folder / "in", 1, seed=number)
        if number == 0:
            query = start(job, hf.processing_time())
        while sum(query.totals.batch_rows) < (number + 1) * BATCH_ROWS:
            assert query.isActive, query.exception()
            query.awaitTermination(0.005)
        query.trigger_checkpoint(60)
    else:
        raise AssertionError(f"no checkpoint of {CHECKPOINTS_MAX} is as the test needs it")
    query.stop()


def holdfast(*arguments: object, env: dict[str, str] | None = None) -> Result:
    """Run the command; return its exit code and its output."""
    return CliRunner().invoke(app, [str(each) for each in arguments], env=env)


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def stored(storage: Path) -> dict[str, tuple[int, int]]:
    """Every file of a storage, with size and time of its last change."""
    files = [path for path in storage.rglob("*") if path.is_file()]
    return {str(path.relative_to(storage)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}
