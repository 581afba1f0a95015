"""The program that is killed: a driver without Spark, whose job reads a topic of Kafka until it is ended.

    python kills_topics.py counting|hourly <host:port> <topic> <folder>

    counting    key_by(k) → count, a row for each message               into the topic `<topic>-out`
    hourly      as it is, by hour of its time                           into Parquet folders, `_SUCCESS` when finished

Splits that are named in `<folder>/broken` cannot be read. Ends with 4 when another driver has taken over.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from kills_ends import FENCED, end_with_parent

import holdfast as hf
from holdfast.errors import Fenced, QueryFailed
from holdfast.sources.base import SourceBatch, SplitRead
from holdfast.testing import start

KILLED_OFTEN = hf.FailoverConfig(restarts_max=1000, losses_max=1000, backoff_first="10ms", backoff_max="200ms")
EVERY_SECOND = "* * * * * *"
"""The trigger of the hourly job, whose hours take less than a second: it stands for "0 * * * *"."""


class BreakableSource(hf.KafkaSource):
    """A source with partitions that fail in the midst of a read, while a file names them."""

    broken = Path("broken")

    def read_columns(self, read: SplitRead, columns: Sequence[str]) -> Iterator[SourceBatch]:
        for batch in super().read_columns(read, columns):
            yield batch
            if self.broken.exists() and read.split in self.broken.read_text().split():
                raise RuntimeError(f"partition {read.split} is offline")


def counting(servers: str, topic: str, folder: Path) -> hf.Job:
    """Each message's key with the number of its messages so far."""
    job = hf.Job(
        None,
        name="counting",
        storage=(folder / "storage").as_uri(),
        parallelism=2,
        max_rows_per_batch=200,
        checkpoint=hf.CheckpointConfig(trigger=hf.every(0.05), tolerable_failed_checkpoints=1000),
        failover=KILLED_OFTEN,
    )
    source = hf.KafkaSource(servers, topic, value="json", schema="k BIGINT, n BIGINT", metadata=[], group=topic)
    job.read(source).key_by("k").aggregate("every", seen=hf.count()).write(
        hf.KafkaSink(servers, f"{topic}-out", key="k")
    )
    return job


def hourly(servers: str, topic: str, folder: Path) -> hf.Job:
    """Messages into a folder for each hour of their time; a partition that fails stays behind by itself."""
    job = hf.Job(
        None,
        name="hourly",
        storage=(folder / "storage").as_uri(),
        max_rows_per_batch=400,
        checkpoint=hf.CheckpointConfig(trigger=hf.cron(EVERY_SECOND), tolerable_failed_checkpoints=1000),
        regions=hf.RegionConfig(max_consecutive_failures=1000),
        failover=KILLED_OFTEN,
    )
    BreakableSource.broken = folder / "broken"
    source = BreakableSource(servers, topic, value="json", schema="n BIGINT", metadata=["timestamp"], name="events")
    rows = job.read(source).with_watermark("timestamp", "0s").map_batches(by_hour, "day STRING, hour INT, n BIGINT")
    finished = hf.PartitionTime("%Y-%m-%d/%H", "1h")
    rows.write(hf.ParquetSink((folder / "out").as_uri(), ("day", "hour"), finished=finished))
    return job


def by_hour(rows: pa.RecordBatch) -> pa.RecordBatch:
    times = rows.column("timestamp")
    columns = [pc.strftime(times, "%Y-%m-%d"), pc.cast(pc.hour(times), pa.int32()), rows.column("n")]
    return pa.record_batch(columns, names=["day", "hour", "n"])


class TopicDriver:
    """A driver of such a job, as a process."""

    def __init__(self, job: str, servers: str, topic: str, folder: Path) -> None:
        self.log = folder / "driver.log"
        with self.log.open("a") as out:
            self._process = subprocess.Popen(
                [sys.executable, __file__, job, servers, topic, str(folder)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            )

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def suspend(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def main(name: str, servers: str, topic: str, folder: Path) -> int:
    end_with_parent()
    job = {"counting": counting, "hourly": hourly}[name](servers, topic, folder)
    try:
        start(job, hf.processing_time("50ms")).awaitTermination()
    except QueryFailed as error:
        print(f"failed: {error}", flush=True)
        return FENCED if isinstance(error.__cause__, Fenced) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
