"""A bench for each kind of source: the source, a way to give it more rows, and a way to make it fail."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import cloudpickle
import pyarrow as pa
from sources_kit import SCHEMA, ids, new_store, write
from sources_postgres_server import Database
from sources_stream_kit import Rows, SparkCheckpoint

import kafka_kit
from holdfast.clock import ManualClock
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, Source, SplitRead
from holdfast.sources.dataframe import DataFrameSource
from holdfast.sources.files.file_source import FileSource
from holdfast.sources.kafka.kafka_source import KafkaSource
from holdfast.sources.pyspark_reader import DataSourceReaderSource
from holdfast.sources.sequence import SequenceSource
from holdfast.sources.spark_stream.stream_source import StreamingDataFrameSource
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing.source import TestSource
from waiting import until

Read = Callable[[Source, SplitRead], list[tuple]]


def read_in_a_task(source: Source, read: SplitRead) -> list[tuple]:
    """Rows with their positions and the bad rows, read by a source that has travelled as to a task."""
    shipped = cloudpickle.loads(cloudpickle.dumps(source))
    found: list[tuple] = []
    for batch in shipped.read(read):
        assert batch.rows.schema.equals(source.schema())
        assert batch.bad == []
        found += [tuple(row.values()) for row in batch.rows.to_pylist()]
    return found


@dataclass
class SourceBench:
    """`declare` makes the source as a new driver would; `rows` are all that exist once `all_there` was called."""

    declare: Callable[[], Source]
    more: Callable[[], None]
    rows: Callable[[], list[tuple]]
    all_there: Callable[[], None] = lambda: None
    fail: Callable[[bool], None] | None = None
    """Make looking for new data fail (True), or work again (False); None for a source that no test can make fail so."""
    read: Read = read_in_a_task
    has_lag: bool = True
    is_there: Callable[[Offsets], bool] = lambda latest: True
    """True if `latest` includes all rows so far: the enumerator of a slot or of a stream reads them on a thread."""
    is_alone: bool = False
    """True: a new enumerator takes the place of all earlier ones, and deletes what lies before its position."""
    rounds: int = 20
    """Looks for new rows while the source is read: enough for a file source to merge its discovery chunks."""
    clock: ManualClock = field(default_factory=ManualClock)
    store: ObjectStore = field(default_factory=new_store)

    _alone: Enumerator | None = None

    def enumerator(self, source: Source, epoch: int = 1) -> Enumerator:
        self.close()
        describe(source)
        made = source.enumerator(EnumeratorContext(self.store, "source", epoch, self.clock))
        self._alone = made if self.is_alone else None
        return made

    def latest(self, planner: Enumerator) -> Offsets:
        """Return the latest offsets once they include all rows so far."""
        until(lambda: self.is_there(planner.latest()), lambda: f"all rows; there are those before {planner.latest()}")
        return planner.latest()

    def close(self) -> None:
        """Close the enumerator that is alone, as the death of its driver would."""
        if self._alone is not None:
            self._alone.close()


def describe(source: Source) -> None:
    """Let a source look at its schemas, as the driver does before anything else."""
    source.outputs() if source.has_outputs else source.schema()


def sequence(folder: Path) -> SourceBench:
    clock = ManualClock()
    return SourceBench(
        declare=lambda: SequenceSource(90, splits=3, rows_per_second=1),
        more=lambda: clock.advance(20),
        rows=lambda: [(n,) for n in range(90)],
        all_there=lambda: clock.advance(1_000),
        clock=clock,
    )


def script(folder: Path) -> SourceBench:
    return SourceBench(
        declare=lambda: TestSource([[{"n": n}, {"n": n + 1}] for n in range(0, 20, 2)], "n BIGINT"),
        more=lambda: None,
        rows=lambda: [(n,) for n in range(20)],
        has_lag=False,
    )


def files(suffix: str, **settings: Any) -> Callable[[Path], SourceBench]:
    def make(folder: Path) -> SourceBench:
        written: list[tuple] = []

        def more() -> None:
            for count in (1, 12):
                write(folder / "in" / f"{len(written)}.{suffix}", ids(count, len(written)), group_rows=7)
                written.extend(ids(count, len(written)))

        def fail(now: bool) -> None:
            (folder / ("in" if now else "away")).rename(folder / ("away" if now else "in"))

        more()
        return SourceBench(
            lambda: FileSource(str(folder / "in"), format=suffix, schema=SCHEMA, **settings),
            more,
            lambda: written,
            fail=fail,
        )

    return make


def files_in_a_store(folder: Path) -> SourceBench:
    bucket_url, written = f"memory://bucket-{uuid4().hex}", []
    bucket = open_store(bucket_url)

    def more() -> None:
        path = write(folder / "one.parquet", ids(15, len(written)), group_rows=7)
        bucket.put(f"in/{len(written)}.parquet", path.read_bytes())
        written.extend(ids(15, len(written)))

    more()
    return SourceBench(lambda: FileSource(f"{bucket_url}/in", schema=SCHEMA), more, lambda: written)


@dataclass
class Stand:
    """The system that a user's reader or function reads from."""

    end: int = 10
    broken: bool = False
    committed: list[dict] = field(default_factory=list)
    stopped: int = 0

    def more(self) -> None:
        self.end += 10

    def fail(self, now: bool) -> None:
        self.broken = now

    def look(self) -> int:
        if self.broken:
            raise ConnectionError("the system is away")
        return self.end


class Reader:
    """A PySpark stream reader of numbers in two splits."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand

    def initialOffset(self):
        return {"a": 0, "b": 0}

    def latestOffset(self):
        return dict.fromkeys("ab", self.stand.look())

    def partitions(self, start, end):
        return [(split, start[split], end[split]) for split in end if end[split] > start[split]]

    def read(self, partition):
        split, start, stop = partition
        yield from ((split, n) for n in range(start, stop))

    def commit(self, end):
        assert all(end[split] >= before[split] for before in self.stand.committed for split in end)
        self.stand.committed.append(end)

    def stop(self):
        self.stand.stopped += 1
        assert self.stand.stopped == 1


@dataclass
class ReadMaxRows:
    maxRows: int


class LimitedReader(Reader):
    def latestOffset(self, start, limit):
        return {split: min(self.stand.look(), at + limit.maxRows) for split, at in start.items()}

    def getDefaultReadLimit(self):
        return ReadMaxRows(3)


def datasource(reader: type[Reader]) -> Callable[[Path], SourceBench]:
    def make(folder: Path) -> SourceBench:
        stand = Stand()

        def declare() -> Source:
            stand.stopped = 0
            return DataSourceReaderSource(reader(stand), pa.schema([("split", pa.string()), ("n", pa.int64())]))

        rows = lambda: [(split, n) for split in "ab" for n in range(stand.end)]  # noqa: E731
        return SourceBench(declare, stand.more, rows, fail=stand.fail, has_lag=False)

    return make


def dataframe(folder: Path) -> SourceBench:
    """Spark is left out: the user's functions get the system in place of the session, and give rows."""
    stand = Stand()

    def declare() -> Source:
        source = DataFrameSource(
            lambda stand, start, end: [(n,) for n in range(start["n"], end["n"])],
            lambda stand: {"n": stand.look()},
            "n BIGINT",
            initial_offset={"n": 0},
        )
        source.bind(stand)
        return source

    def read(source: Source, planned: SplitRead) -> list[tuple]:
        assert isinstance(source, DataFrameSource)
        return source.dataframe_of(stand, planned)

    return SourceBench(
        declare, stand.more, lambda: [(n,) for n in range(stand.end)], fail=stand.fail, read=read, has_lag=False
    )


def kafka(folder: Path) -> SourceBench:
    """Three partitions, with transactions that are committed and aborted."""
    topic = kafka_kit.new_topic(partitions=3)
    writer = kafka_kit.Writer(transactional=True)
    written: list[tuple] = []

    def more() -> None:
        for end in (writer.commit, writer.abort, writer.commit) if len(written) < 40 else ():
            writer.begin()
            values = [f"value {len(written) + place}" for place in range(4)]
            for place, value in enumerate(values):
                writer.put(topic, [value], partition=place % 3)
            end()
            if end == writer.commit:
                written.extend((value, place % 3) for place, value in enumerate(values))

    more()
    return SourceBench(
        lambda: KafkaSource(kafka_kit.address(), topic, value="string", metadata=["partition"]), more, lambda: written
    )


def streaming_dataframe(folder: Path) -> SourceBench:
    """Spark's own query is left out: a stand-in gives its epochs, each in partitions, some of them empty."""
    storage, spark = f"file://{folder}/storage", SparkCheckpoint()
    store = open_store(storage)

    def declare() -> Source:
        source = StreamingDataFrameSource(Rows(spark))
        source.bind(storage, {})
        return source

    def more() -> None:
        first = 10 * len(spark.epochs)
        spark.epochs.append([range(first, first + 3), [], range(first + 3, first + 10)])

    def read(source: Source, planned: SplitRead) -> list[tuple]:
        return output_rows(source, "", planned, store)

    more()
    return SourceBench(
        declare,
        more,
        lambda: [(n,) for n in range(10 * len(spark.epochs))],
        read=read,
        is_there=lambda latest: latest["segment"] == len(spark.epochs),
        is_alone=True,
        rounds=8,
        store=store,
    )


def output_rows(source: Source, output: str, planned: SplitRead, store: ObjectStore, *columns: str) -> list[tuple]:
    """The rows of an output of a source, read from the job's storage as by a task."""
    shipped = cloudpickle.loads(cloudpickle.dumps(source))
    batches = [batch.rows for batch in shipped.read_output(output, planned, store, columns or None)]
    return [tuple(row.values()) for rows in batches for row in rows.to_pylist()]


def postgres(snapshot: str) -> Callable[[Database], SourceBench]:
    """Two tables, with rows that come in transactions of both; some are rolled back."""

    def make(database: Database) -> SourceBench:
        tables = database.create("a", "b", columns="id int PRIMARY KEY")
        numbers, written = itertools.count(), []
        reached = [0]

        def more() -> None:
            for end in ("COMMIT", "ROLLBACK", "COMMIT"):
                rows = [(table, next(numbers)) for table in tables for _ in range(3)]
                inserts = "; ".join(f"INSERT INTO {table} VALUES ({number})" for table, number in rows)
                database.execute(f"BEGIN; {inserts}; {end}")
                written.extend(rows if end == "COMMIT" else [])
            # A place in the log before the end of the last transaction, and behind the ends of all others.
            insert = f"INSERT INTO {tables[0]} VALUES ({next(numbers)})"
            number, lsn = database.execute(f"{insert} RETURNING id, pg_current_wal_insert_lsn() - '0/0'")[0]
            written.append((tables[0], number))
            reached[0] = int(lsn)

        def read(source: Source, planned: SplitRead) -> list[tuple]:
            return [(table, *row) for table in tables for row in output_rows(source, table, planned, bench.store, "id")]

        if snapshot == "never":
            database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.slot,))
        more()
        bench = SourceBench(
            lambda: database.source(snapshot=snapshot),
            more,
            lambda: written,
            read=read,
            is_there=lambda latest: latest["lsn"] > reached[0],
            is_alone=True,
            rounds=5,
        )
        return bench

    return make


BENCHES: dict[str, Callable[[Path], SourceBench]] = {
    "sequence": sequence,
    "script": script,
    "csv": files("csv"),
    "csv-multiline": files("csv", multiline=True),
    "json": files("json"),
    "parquet": files("parquet"),
    "arrow": files("arrow"),
    "files-in-a-store": files_in_a_store,
    "datasource": datasource(Reader),
    "datasource-limited": datasource(LimitedReader),
    "dataframe": dataframe,
    "kafka": kafka,
    "streaming-dataframe": streaming_dataframe,
}

BENCHES_OF_A_DATABASE: dict[str, Callable[[Database], SourceBench]] = {
    "postgres": postgres("never"),
    "postgres-initial": postgres("initial"),
    "postgres-chunked": postgres("chunked"),
}
