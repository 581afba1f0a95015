"""Any PySpark stream reader as a source, by its methods alone."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import datasource as pyspark_datasource
from pyspark.sql import types as pyspark_types
from pyspark.sql.streaming.datasource import ReadMaxRows as ReadMaxRowsOfSpark
from sources_kit import enumerator, read_one

from holdfast.code_shipping import pickled
from holdfast.errors import BadRecord, JobRefused
from holdfast.python_values import shown_values
from holdfast.sources.base import SplitRead
from holdfast.sources.pyspark_reader import DataSourceReaderSource

SCHEMA = pa.schema([("split", pa.string()), pa.field("n", pa.int64(), nullable=False)])


@dataclass
class Partition:
    split: str
    start: int
    stop: int


class Reader:
    """Two splits that grow."""

    def __init__(self) -> None:
        self.ends = {"a": 0, "b": 0}
        self.committed: list[dict] = []
        self.stopped = False

    def initialOffset(self):
        return {"a": 0, "b": 0}

    def latestOffset(self):
        return dict(self.ends)

    def partitions(self, start, end):
        return [Partition(split, start[split], end[split]) for split in end if end[split] > start[split]]

    def read(self, partition):
        for n in range(partition.start, partition.stop):
            yield (partition.split, n)

    def commit(self, end):
        self.committed.append(end)

    def stop(self):
        self.stopped = True


@dataclass
class ReadMaxRows:
    maxRows: int


class ReadAllAvailable:
    pass


class LimitedReader(Reader):
    limit = ReadMaxRows(3)

    def latestOffset(self, start, limit):
        if isinstance(limit, ReadAllAvailable):
            return dict(self.ends)
        return {split: min(self.ends[split], start[split] + limit.maxRows) for split in self.ends}

    def getDefaultReadLimit(self):
        return self.limit


def rows_of(source, planner, start, until):
    found, at = [], start
    while at != until:
        plan = planner.plan(at, until, 10, 10)
        found.append([row for read in plan.reads for row in read_one(source, read)[0]])
        at = plan.to
    return found


def test_a_batch_is_the_partitions_between_two_offsets():
    reader = Reader()
    source = DataSourceReaderSource(reader, SCHEMA)
    planner = enumerator(source)
    start = planner.initial()
    assert planner.plan(start, planner.latest(), 10, 10).reads == []
    reader.ends = {"a": 2, "b": 1}
    assert rows_of(source, planner, start, planner.latest()) == [[("a", 0), ("a", 1), ("b", 0)]]


def test_a_restart_reads_on_from_the_stored_offsets():
    reader = Reader()
    reader.ends = {"a": 5, "b": 0}
    source = DataSourceReaderSource(reader, SCHEMA)
    planner = enumerator(source)
    planner.restore({"a": 3, "b": 0}, [])
    assert rows_of(source, planner, {"a": 3, "b": 0}, planner.latest()) == [[("a", 3), ("a", 4)]]


def test_the_readers_own_limit_is_kept_in_every_batch():
    reader = LimitedReader()
    reader.ends = {"a": 7, "b": 2}
    source = DataSourceReaderSource(reader, SCHEMA)
    planner = enumerator(source)
    start = planner.initial()
    until = planner.latest()
    assert until == reader.ends
    assert [len(batch) for batch in rows_of(source, planner, start, until)] == [5, 3, 1]
    planner.completed({"a": 6, "b": 2})
    assert [len(batch) for batch in rows_of(source, planner, {"a": 6, "b": 2}, until)] == [1]


def test_steps_after_a_restore_start_from_the_stored_offsets():
    reader = LimitedReader()
    reader.ends = {"a": 7, "b": 0}
    source = DataSourceReaderSource(reader, SCHEMA)
    planner = enumerator(source)
    planner.restore({"a": 2, "b": 0}, [])
    assert [len(batch) for batch in rows_of(source, planner, {"a": 2, "b": 0}, planner.latest())] == [3, 2]


def test_a_reader_without_a_limit_is_asked_once():
    reader = LimitedReader()
    reader.limit = ReadAllAvailable()
    reader.ends = {"a": 7, "b": 2}
    source = DataSourceReaderSource(reader, SCHEMA)
    planner = enumerator(source)
    assert [len(batch) for batch in rows_of(source, planner, planner.initial(), planner.latest())] == [9]


def test_completed_checkpoints_are_committed_and_closing_stops_the_reader():
    reader = Reader()
    planner = enumerator(DataSourceReaderSource(reader, SCHEMA))
    planner.completed({"a": 1, "b": 1})
    planner.close()
    assert reader.committed == [{"a": 1, "b": 1}]
    assert reader.stopped


def test_rows_that_do_not_fit_are_reported_and_the_others_keep_their_positions():
    class Odd(Reader):
        def read(self, partition):
            yield from [("x", 0), ("x", 1), ("x",), ("x", 3), ("x", None), ("x", "five"), 6, ("x", 7)]

    reader = Odd()
    source = DataSourceReaderSource(reader, SCHEMA, name="odd")
    planner = enumerator(source)
    start = planner.initial()
    reader.ends = {"a": 8, "b": 0}
    [read] = planner.plan(start, planner.latest(), 10, 10).reads
    rows, bad = read_one(source, read)
    assert rows == [("x", 0), ("x", 1), ("x", 3), ("x", 7)]
    assert [(row.source, row.split, row.position) for row in bad] == [
        ("odd", "partition 0", position) for position in ("2", "4", "5", "6")
    ]
    assert [row.payload for row in bad] == ['["x"]', '["x", null]', '["x", "five"]', "6"]
    for batch in source.read(read):
        for index, row in enumerate(batch.rows.to_pylist()):
            assert row["n"] == batch.position + index


def test_the_payload_of_an_unfit_row_has_times_as_all_dead_letters_do_and_any_value():
    class Strange:
        def __str__(self) -> str:
            return "strange"

    class Timed(Reader):
        def read(self, partition):
            late = pa.array([253402300800000000, 0], pa.timestamp("us", "UTC"))
            columns = [late, pa.array([0, 0], pa.date32()), pa.array([None, 1]), pa.array([1.0, 2.0])]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema([f.with_nullable(True) for f in schema]))
            at = datetime(2026, 3, 4, 5, 6, 7, 80, tzinfo=UTC)
            yield (at, at.date(), "no number", float("nan"))
            yield (None, Strange(), {(1, 2): at}, b"\xff")
            yield {"at": at}

    schema = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            pa.field("n", pa.int64(), nullable=False),
            ("x", pa.float64()),
        ]
    )
    reader = Timed()
    source = DataSourceReaderSource(reader, schema, name="timed")
    planner = enumerator(source)
    start = planner.initial()
    reader.ends = {"a": 5, "b": 0}
    [read] = planner.plan(start, planner.latest(), 10, 10).reads
    rows, bad = read_one(source, read)
    assert [row[2] for row in rows] == [1]
    at = shown_values(pa.array([datetime(2026, 3, 4, 5, 6, 7, 80, tzinfo=UTC)], pa.timestamp("us", "UTC")))[0]
    payloads = [json.loads(row.payload, parse_constant=pytest.fail) for row in bad]
    assert payloads[1] == [at, "2026-03-04", "no number", "NaN"]
    assert payloads[2][:2] == [None, "strange"] and "2026" in payloads[2][2]
    assert payloads[3] == {"at": at}
    assert payloads[0] == ["253402300800000000", "1970-01-01", None, 1.0]


def test_a_reader_may_give_record_batches():
    class Batches(Reader):
        def read(self, partition):
            yield pa.record_batch({"n": pa.array([1, 2], pa.int32()), "split": ["x", "y"]})
            yield pa.record_batch({"n": pa.array([None, 4]), "split": ["x", "y"]})

    reader = Batches()
    source = DataSourceReaderSource(reader, SCHEMA)
    planner = enumerator(source)
    start = planner.initial()
    reader.ends = {"a": 1, "b": 0}
    [read] = planner.plan(start, planner.latest(), 10, 10).reads
    rows, bad = read_one(source, read)
    assert rows == [("x", 1), ("y", 2), ("y", 4)]
    assert [row.position for row in bad] == ["2"]


def test_a_record_batch_of_another_schema_is_refused():
    class Wrong(Reader):
        def read(self, partition):
            yield pa.record_batch({"m": [1]})

    reader = Wrong()
    source = DataSourceReaderSource(reader, SCHEMA)
    planner = enumerator(source)
    start = planner.initial()
    reader.ends = {"a": 1, "b": 0}
    [read] = planner.plan(start, planner.latest(), 10, 10).reads
    with pytest.raises(BadRecord, match=r"(?s)Wrong.*columns \['m', 'n', 'split'\] differ"):
        list(source.read(read))


def test_nested_offsets_are_refused_with_split_and_value():
    class Nested(Reader):
        def initialOffset(self):
            return {"a": {"index": 1}}

    with pytest.raises(JobRefused, match=r"Nested.initialOffset\(\).*split 'a' is \{'index': 1\}.*flatten"):
        enumerator(DataSourceReaderSource(Nested(), SCHEMA)).initial()


class Struct:
    def jsonValue(self):
        fields = [
            {"name": "split", "type": "string", "nullable": True, "metadata": {}},
            {"name": "n", "type": "long", "nullable": False, "metadata": {}},
        ]
        return {"type": "struct", "fields": fields}


class Source:
    """A PySpark `DataSource`, as far as it is used."""

    def __init__(self, options):
        self.options = options

    def schema(self):
        return Struct()

    def streamReader(self, schema):
        assert isinstance(schema, Struct)
        reader = Reader()
        reader.ends = {"a": int(self.options["rows"]), "b": 0}
        return reader


@pytest.mark.parametrize("given", ["class", "instance"])
def test_a_data_source_gives_its_reader_and_schema(given):
    options = {"rows": "2"}
    source = DataSourceReaderSource(Source if given == "class" else Source(options), options=options)
    planner = enumerator(source)
    assert source.schema() == SCHEMA
    assert rows_of(source, planner, planner.initial(), planner.latest()) == [[("a", 0), ("a", 1)]]


def test_starting_offsets_replace_the_readers_own():
    source = DataSourceReaderSource(Reader(), SCHEMA, starting={"a": 1, "b": 1})
    assert enumerator(source).initial() == {"a": 1, "b": 1}


def test_a_reader_that_cannot_be_planned_is_refused_with_the_alternative():
    class Simple:
        def initialOffset(self): ...

        def read(self, start): ...

        def readBetweenOffsets(self, start, end): ...

    class OnlySimple(Source):
        def streamReader(self, schema):
            raise RuntimeError("streamReader is not implemented")

    with pytest.raises(JobRefused, match=r"planned before it is read.*DataSourceStreamReader"):
        DataSourceReaderSource(Simple(), SCHEMA)
    with pytest.raises(JobRefused, match=r"OnlySimple: gives no stream reader.*simpleStreamReader"):
        DataSourceReaderSource(OnlySimple({}))
    with pytest.raises(JobRefused, match="give schema="):
        DataSourceReaderSource(Reader())


class SparkReader(pyspark_datasource.DataSourceStreamReader):
    """A reader written against PySpark itself; no session is needed to use it."""

    def initialOffset(self):
        return {"numbers": 0}

    def latestOffset(self, start, limit):
        return {"numbers": min(10, start["numbers"] + limit.max_rows)}

    def getDefaultReadLimit(self):
        return ReadMaxRowsOfSpark(4)

    def partitions(self, start, end):
        return [pyspark_datasource.InputPartition((start["numbers"], end["numbers"]))]

    def read(self, partition):
        yield from ((pyspark_types.Row(split="numbers", n=n)) for n in range(*partition.value))


class SparkSource(pyspark_datasource.DataSource):
    def schema(self):
        return pyspark_types.StructType().add("split", "string").add("n", "long", False)

    def streamReader(self, schema):
        return SparkReader()


def test_a_reader_written_for_pyspark_works_as_it_is():
    source = DataSourceReaderSource(SparkSource)
    assert source.schema() == SCHEMA
    planner = enumerator(source)
    batches = rows_of(source, planner, planner.initial(), planner.latest())
    assert [[n for _, n in batch] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_pysparks_simple_readers_are_refused():
    class Simple(pyspark_datasource.SimpleDataSourceStreamReader):
        def initialOffset(self):
            return {}

    class OnlySimple(pyspark_datasource.DataSource):
        def schema(self):
            return pyspark_types.StructType().add("n", "long")

        def simpleStreamReader(self, schema):
            return Simple()

    with pytest.raises(JobRefused, match="Simple: "):
        DataSourceReaderSource(Simple(), SCHEMA)
    with pytest.raises(JobRefused, match="OnlySimple: gives no stream reader"):
        DataSourceReaderSource(OnlySimple)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.list_(pa.int64()), [1.5]),
        (pa.float32(), 1e300),
        (pa.string(), "\ud800"),
        (pa.date32(), datetime(2026, 1, 1, 5)),
        (pa.timestamp("us", "UTC"), 5),
    ],
    ids=repr,
)
def test_a_row_with_a_value_that_would_be_cut_is_bad_alone(kind, value):
    class Odd(Reader):
        def read(self, partition):
            yield from [(None,), (value,), (None,)]

    source = DataSourceReaderSource(Odd(), pa.schema([("v", kind)]), name="numbers")
    rows, bad = read_one(source, SplitRead("a", 0, 1, detail=pickled(None)))
    assert rows == [(None,), (None,)]
    assert [(row.position, "is no" in row.reason) for row in bad] == [("1", True)]


def test_a_row_of_a_batch_with_a_time_that_its_column_cannot_hold_is_bad_alone():
    seconds = pa.array([0, 2**60, None, 1], pa.int64()).cast(pa.timestamp("s"))
    given = pa.record_batch([seconds, pa.array([1, 2, None, 4])], names=["at", "n"])

    class Far(Reader):
        def read(self, partition):
            yield given

    schema = pa.schema([("at", pa.timestamp("us")), pa.field("n", pa.int64(), nullable=False)])
    rows, bad = read_one(
        DataSourceReaderSource(Far(), schema, name="times"), SplitRead("a", 0, 1, detail=pickled(None))
    )
    assert [n for _, n in rows] == [1, 4]
    assert [row.position for row in bad] == ["1", "2"]
