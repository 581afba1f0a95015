"""Training samples from impressions and clicks: an event-time join that survives the death of a TaskManager.

    python -m examples.click_join --rows 200000 --kill

Impressions and clicks lie in Parquet files, somewhat out of order. Each impression is joined with the clicks of the
same user on the same ad within ten minutes; an impression without a click is a sample as well, with nulls. Some users
see a hundred times as many ads as others. Some clicks come hours too late: they are put aside among the dead letters.
The samples are compared with a direct join over the same files.
"""

import itertools
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from pyspark.sql import SparkSession

import holdfast as hf

FILES = 12
BEGIN_US = 1_767_225_600_000_000
SPAN_US = 6 * 3_600_000_000
DISORDER_US = 60_000_000
JOINED_WITHIN_US = 600_000_000
LATE_BY_US = 3 * 3_600_000_000
TIME = pa.timestamp("us", "UTC")


def write_input(folder: Path, rows: int, seed: int) -> int:
    """Write impressions and clicks, with the same times in files of the same number; how many clicks come too late."""
    chance = np.random.default_rng(seed)
    shown = np.sort(BEGIN_US + chance.integers(0, SPAN_US, rows))
    users, ads = chance.zipf(1.3, rows) % 5_000, chance.integers(0, 20, rows)
    clicked = np.flatnonzero(chance.random(rows) < 0.3)
    delays = chance.integers(0, 2 * JOINED_WITHIN_US, len(clicked))
    impressions = pa.table(
        {"user": users, "ad": ads, "shown": pa.array(shown, TIME), "page": [f"/page/{n % 97}" for n in range(rows)]}
    )
    times = shown[clicked] + delays
    order = np.argsort(times, kind="stable")
    clicked, times = clicked[order], times[order]
    late = (times > BEGIN_US + SPAN_US // 2 + LATE_BY_US // 3) & (chance.random(len(times)) < 0.02)
    clicks = pa.table(
        {"user": users[clicked], "ad": ads[clicked], "clicked": pa.array(times - late * LATE_BY_US, TIME)}
    )
    for name, table, arrivals in (("impressions", impressions, shown), ("clicks", clicks, times)):
        (folder / name).mkdir()
        table = table.take(pa.array(np.argsort(arrivals + chance.integers(0, DISORDER_US, len(arrivals)))))
        bounds = np.searchsorted(arrivals, BEGIN_US + np.arange(FILES + 1) * (SPAN_US // FILES))
        bounds[-1] = len(arrivals)
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            pq.write_table(table.slice(start, stop - start), folder / name / f"{number:03}.parquet")
    return int(late.sum())


def samples_job(spark: SparkSession, folder: Path, rows: int) -> hf.Job:
    """The job: two streams and their join."""
    job = hf.Job(
        spark,
        name="samples",
        storage=(folder / "storage").as_uri(),
        parallelism=2,
        task_managers=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("500ms")),
        max_rows_per_batch=max(100, rows // 20),
        max_event_time_skew="10min",
        bad_records="dead_letter",
        dead_letters=(folder / "too-late").as_uri(),
    )
    impressions = job.read(hf.FileSource(str(folder / "impressions/*.parquet"), name="impressions"))
    clicks = job.read(hf.FileSource(str(folder / "clicks/*.parquet"), name="clicks"))
    shown = impressions.with_watermark("shown", "30min").key_by("user", "ad")
    clicked = clicks.with_watermark("clicked", "30min").key_by("user", "ad")
    samples = shown.join(clicked, within=("0s", "10min"), how="left", late="dead_letter", name="samples")
    samples.write(hf.ParquetSink((folder / "samples").as_uri(), name="samples-out"))
    return job


def directly(folder: Path) -> Counter[Any]:
    """The same join over the whole files, without the clicks that come hours too late."""
    impressions, clicks = (pq.read_table(folder / name) for name in ("impressions", "clicks"))
    impressions = impressions.append_column("number", pa.array(np.arange(impressions.num_rows)))
    pairs = impressions.join(on_time(folder, clicks), ["user", "ad"], join_type="inner")
    later = pc.subtract(pc.cast(pairs["clicked"], pa.int64()), pc.cast(pairs["shown"], pa.int64()))
    pairs = pairs.filter(pc.and_(pc.greater_equal(later, 0), pc.less_equal(later, JOINED_WITHIN_US)))
    alone = impressions.filter(pc.invert(pc.is_in(impressions["number"], pairs["number"])))
    alone = alone.append_column("clicked", pa.nulls(alone.num_rows, TIME))
    columns = ["user", "ad", "shown", "page", "clicked"]
    return counted(pa.concat_tables([pairs.select(columns), alone.select(columns)]))


def on_time(folder: Path, clicks: pa.Table) -> pa.Table:
    """The clicks that are not hours behind those before them in their files."""
    kept = []
    for path in sorted((folder / "clicks").glob("*.parquet")):
        times = pc.cast(pq.read_table(path)["clicked"], pa.int64()).to_numpy()
        kept.append(times > np.median(times) - LATE_BY_US // 2)
    return clicks.filter(pa.array(np.concatenate(kept)))


def counted(table: pa.Table) -> Counter[Any]:
    """How often each row is there."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns]
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def kill_a_task_manager(query: hf.Query, folder: Path) -> None:
    """SIGKILL to a TaskManager's Python worker, once the job has published something."""
    while query.isActive and not any((folder / "samples").glob("*.parquet")):
        time.sleep(0.05)
    for address in [task_manager["address"] for task_manager in query.taskManagers]:
        port = int(address.rsplit(":", 1)[1])
        for process in psutil.Process().children(recursive=True):
            if any(each.laddr and each.laddr.port == port for each in process.net_connections("tcp")):
                process.kill()
                print(f"kill -9 of the TaskManager at {address}, process {process.pid}")
                return


def join_and_compare(folder: Path, rows: int, kill: bool, seed: int) -> bool:
    """True if the samples are those of a direct join, and exactly the late clicks were put aside."""
    late = write_input(folder, rows, seed)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[4]").config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    begun_s = time.monotonic()
    query = samples_job(spark, folder, rows).start(trigger=hf.available_now(drain=True))
    if kill:
        threading.Thread(target=kill_a_task_manager, args=(query, folder), daemon=True).start()
    query.awaitTermination()
    print(f"{time.monotonic() - begun_s:.1f} s, {len(query.restarts)} restarts")
    spark.stop()
    found, expected = counted(pq.read_table(folder / "samples")), directly(folder)
    aside = pq.read_table(folder / "too-late").num_rows
    print(f"{found.total():,} samples; {aside:,} clicks came too late and were put aside")
    well = found == expected and aside == late and (not kill or len(query.restarts) > 0)
    if well:
        print("Equal to a direct join over the same files.")
    else:
        missing, surplus = (expected - found).total(), (found - expected).total()
        print(f"NOT equal: {surplus} samples too many, {missing} missing; {late} clicks should be late.")
    return well


def main(
    rows: Annotated[int, typer.Option(help="So many impressions.")] = 200_000,
    kill: Annotated[bool, typer.Option(help="Kill a TaskManager on the way.")] = False,
    seed: Annotated[int, typer.Option(help="Of the input.")] = 1,
) -> None:
    """Join impressions and clicks into training samples, and compare them with a direct join."""
    with tempfile.TemporaryDirectory(prefix="holdfast-click-join-") as temporary:
        raise typer.Exit(0 if join_and_compare(Path(temporary), rows, kill, seed) else 1)


if __name__ == "__main__":
    typer.run(main)
