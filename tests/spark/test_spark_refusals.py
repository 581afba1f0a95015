"""Bad input on Spark: refusals of `start()` there, and errors that come back from tasks and TaskManagers."""

import importlib
import sys
import types
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType
from spark_kit import new_job, newest, run, tuples
from test_spark_streams import numbers

import holdfast as hf


def refused(job: hf.Job, match: str) -> None:
    """Refused before anything runs or is stored."""
    with pytest.raises(hf.JobRefused, match=match):
        job.start(hf.available_now())
    folder = Path(job.storage.removeprefix("file://"))
    assert [path for path in folder.rglob("*") if path.is_file()] == []


@F.udf(LongType())
def dice(value):
    return value


STATIC = {
    "static table": lambda spark: spark.range(100).selectExpr("id AS k", "id AS w"),
    "local table": lambda spark: spark.createDataFrame([(k, k) for k in range(8)], "k BIGINT, w BIGINT"),
}

SHUFFLES = {
    "groups": lambda df, _: df.groupBy("k").count(),
    "distinct": lambda df, _: df.distinct(),
    "sorts": lambda df, _: df.orderBy("v"),
    "repartitions": lambda df, _: df.repartition(3),
    "joins what Spark does not broadcast": lambda df, static: df.join(static["local table"], "k"),
}
NONDETERMINISTIC = {
    "rand": lambda df, _: df.withColumn("x", F.rand(1)),
    "uuid": lambda df, _: df.selectExpr("k", "uuid() AS x"),
    "current_timestamp": lambda df, _: df.withColumn("x", F.current_timestamp()),
    "current_date": lambda df, _: df.selectExpr("k", "current_date() AS x"),
    "now": lambda df, _: df.selectExpr("k", "unix_timestamp() AS x"),
    "monotonically_increasing_id": lambda df, _: df.withColumn("x", F.monotonically_increasing_id()),
    "sample": lambda df, _: df.sample(0.5, seed=1),
    "dice": lambda df, _: df.withColumn("x", dice.asNondeterministic()("v")),
    "rand in a subquery": lambda df, _: df.where("v IN (SELECT CAST(rand() * 5 AS BIGINT) FROM range(3))"),
}
PARTITIONS = {
    "coalesces": lambda df, _: df.coalesce(1),
    "coalesces to two": lambda df, _: df.coalesce(2),
    "limits": lambda df, _: df.limit(5),
}
OTHER_ROWS = {
    "unites with itself": lambda df, _: df.union(df),
    "unites with a table": lambda df, static: df.union(static["static table"]),
    "keeps all of the table": lambda df, static: F.broadcast(df).join(static["static table"], "k", "right"),
    "broadcasts the stream": lambda df, static: static["static table"].join(F.broadcast(df), "k"),
    "caches": lambda df, _: df.cache(),
    "ignores its input": lambda df, static: static["static table"],
}


@pytest.fixture(scope="module")
def static(spark):
    return {name: make(spark) for name, make in STATIC.items()}


@pytest.mark.parametrize(
    ("name", "fn", "match"),
    [
        *[(name, fn, r"needs a shuffle \(.*Group by key with \.key_by") for name, fn in SHUFFLES.items()],
        *[(name, fn, "which gives another value when a batch is repeated") for name, fn in NONDETERMINISTIC.items()],
        *[(name, fn, "changes the number of partitions") for name, fn in PARTITIONS.items()],
        *[(name, fn, "must take its rows from the DataFrame it is given, once") for name, fn in OTHER_ROWS.items()],
    ],
    ids=[*SHUFFLES, *NONDETERMINISTIC, *PARTITIONS, *OTHER_ROWS],
)
def test_a_transform_that_cannot_be_repeated_part_by_part_is_refused(spark, tmp_path, static, name, fn, match):
    job = new_job(spark, tmp_path)

    def mine(df):
        return fn(df, static)

    numbers(job, 10).transform(mine).write(hf.NoopSink())
    refused(job, rf"transform\(mine\).*{match}")


def test_a_transform_that_raises_or_returns_no_dataframe_is_refused(spark, tmp_path):
    for fn, match in [
        (lambda df: df.select("missing"), "raised AnalysisException when it was analysed"),
        (lambda df: None, "returned a NoneType; it must return a DataFrame"),
        (lambda df: spark.readStream.format("rate").load(), "returned a streaming DataFrame"),
    ]:
        job = new_job(spark, tmp_path)
        numbers(job, 10).transform(fn).write(hf.NoopSink())
        refused(job, match)


def test_too_few_slots_are_refused_with_both_numbers_and_the_settings(spark, tmp_path):
    job = new_job(spark, tmp_path, task_managers=4, parallelism=4)
    numbers(job, 10).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    refused(job, r"needs 5 slots at least \(4 for TaskManagers, .*one for a sender.*\), Spark has 4.*local\[N\]")


def test_storage_that_executors_do_not_share_is_refused(spark, tmp_path):
    job = new_job(spark, tmp_path, storage="memory://of-the-driver-alone")
    numbers(job, 10).write(hf.NoopSink())
    with pytest.raises(
        hf.JobRefused, match=r"cannot read the object that the driver wrote.*must be shared by driver and executors"
    ):
        job.start()


def test_a_driver_in_the_cluster_needs_a_session_of_spark_connect(spark):
    with pytest.raises(hf.JobRefused, match="With a classic session, Spark's driver is in this program"):
        hf.Job(spark, name="x", storage="memory://no-connect", driver="cluster")
    with pytest.raises(hf.SettingsError, match="this job was made without a session"):
        hf.Job(None, name="x", storage="memory://no-connect", driver="cluster")
    with pytest.raises(hf.SettingsError, match="driver='executor' is not allowed: 'client' or 'cluster'"):
        hf.Job(None, name="x", storage="memory://no-connect", driver="executor")
    with pytest.raises(hf.HoldfastError, match="this session is classic"):
        hf.attach("memory://no-connect", spark=spark)


def test_an_object_that_is_no_session_is_refused():
    with pytest.raises(hf.JobRefused, match="takes a SparkSession, found int"):
        hf.Job(5, name="test", storage="memory://x")


def test_a_batch_dataframe_is_no_source(spark, tmp_path):
    job = new_job(spark, tmp_path)
    with pytest.raises(hf.JobRefused, match=r"read\(DataFrame\): expected a source .* or a streaming DataFrame"):
        job.read(spark.range(3))
    with pytest.raises(hf.SettingsError, match="expected a streaming DataFrame"):
        hf.StreamingDataFrameSource(spark.range(3))


def test_what_cannot_be_sent_to_executors_is_refused_at_the_start(spark, tmp_path):
    context = spark.sparkContext
    job = new_job(spark, tmp_path)
    numbers(job, 10).map_batches(lambda batch: context and batch, "k BIGINT, v BIGINT").write(hf.NoopSink())
    refused(job, "the job's functions cannot be sent to executors.*open them in open")


@pytest.fixture
def mine(tmp_path):
    """A module that only the driver can import."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "holdfast_test_mine.py").write_text(
        "import pyarrow as pa\nimport pyarrow.compute as pc\n\n"
        "def plus_one(batch):\n    return batch.set_column(1, 'v', pc.add(batch.column('v'), 1))\n\n"
        "def twice(value):\n    return 2 * value\n"
    )
    sys.path.insert(0, str(folder))
    yield importlib.import_module("holdfast_test_mine")
    sys.path.remove(str(folder))
    del sys.modules["holdfast_test_mine"]


def test_a_module_that_executors_lack_is_named_and_can_be_shipped(spark, tmp_path, mine):
    for modules in ([], [mine]):
        job, sink = new_job(spark, tmp_path, ship_modules=modules), hf.MemorySink()
        stream = numbers(job, 8).map_batches(mine.plus_one, "k BIGINT, v BIGINT")
        twice = F.udf(mine.twice, "bigint")
        stream = stream.transform(lambda df, twice=twice: df.select("k", twice("v").alias("v")))
        stream.map_batches(mine.plus_one, "k BIGINT, v BIGINT").write(sink)
        if not modules:
            refused(job, r"No module named 'holdfast_test_mine'.*Install it.*Job\(ship_modules=\[\.\.\.\]\)")
    run(job)
    assert tuples(sink) == [(v, 2 * (v + 1) + 1) for v in range(8)]
    assert isinstance(mine, types.ModuleType)


class Raising(hf.ProcessFunction):
    def process(self, row, ctx):
        return [{"k": row.k // (row.v - 5)}]


def ends_with(job: hf.Job, kind: type[hf.HoldfastError], match: str) -> None:
    with pytest.raises(hf.QueryFailed, match=match) as caught:
        run(job)
    assert type(caught.value.__cause__) is kind


@F.udf(LongType())
def picky(value):
    if value == 7:
        raise ValueError("I do not take sevens")
    return value


def test_errors_of_functions_come_back_from_wherever_they_run(spark, tmp_path):
    for step, kind, match in [
        (
            lambda stream: stream.key_by("k").process(Raising(), "k BIGINT", name="raising"),
            hf.UserFunctionError,
            r"operator 'raising', key \{'k': 5\}.*batch 1.*ZeroDivisionError",
        ),
        (
            lambda stream: stream.map_batches(lambda batch: 1 / 0, "k BIGINT"),
            hf.UserFunctionError,
            r"map_batches\(<lambda>\) raised ZeroDivisionError.*source 'sequence-1', split '\d'",
        ),
        (
            lambda stream: stream.transform(lambda df: df.select(picky("v").alias("v"))),
            hf.UserFunctionError,
            r"between 'sequence-1' and 'memory-1', a step .*transform\(<lambda>\)\) raised in Spark: "
            r"ValueError: I do not take sevens",
        ),
        (
            lambda stream: stream.transform(lambda df: df.selectExpr("10 / (v - 7) AS v")),
            hf.UserFunctionError,
            r"raised in Spark: \[DIVIDE_BY_ZERO\]",
        ),
    ]:
        job, sink = new_job(spark, tmp_path), hf.MemorySink()
        step(numbers(job, 10)).write(sink)
        ends_with(job, kind, match)
        assert sink.rows() == []


def test_state_that_outgrows_its_memory_ends_the_query_with_advice(spark, tmp_path):
    job = new_job(spark, tmp_path, task_manager=hf.TaskManagerConfig(memory="16MB"))
    job.read(hf.SequenceSource(1_000_000)).key_by("value").aggregate(n=hf.count()).write(hf.NoopSink())
    ends_with(job, hf.StateTooLarge, r"its state takes [\d,]+ bytes of memory.*TaskManagerConfig\(memory=")


def test_memory_that_spark_does_not_grant_is_refused(spark, tmp_path, monkeypatch):
    from holdfast.spark import memory

    conf = spark.sparkContext.getConf().set("spark.executor.pyspark.memory", "512m")
    job = new_job(spark, tmp_path, task_manager=hf.TaskManagerConfig(memory="1GB"))
    numbers(job, 10).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    monkeypatch.setattr(spark.sparkContext, "_conf", conf)
    assert memory.spark_bytes("512m") == 512 * 1024 * 1024
    refused(job, r"memory='1GB'\) is more than spark\.executor\.pyspark\.memory=512m")


def test_a_dataframe_source_that_gives_other_columns_is_named(spark, tmp_path):
    def read(session, start, end):
        return session.range(end["id"]).selectExpr("CAST(id AS INT) AS k")

    job = new_job(spark, tmp_path)
    job.read(hf.DataFrameSource(read, lambda session: {"id": 3}, "k BIGINT", name="ids")).write(hf.NoopSink())
    ends_with(job, hf.JobRefused, r"DataFrameSource\(name='ids'\).*struct<k:int>.*struct<k:bigint>.*k differ")


def test_a_table_that_has_become_too_large_to_broadcast_ends_the_query(spark, tmp_path):
    sizes = iter([1, 1, 2_000_000])

    def grown(df):
        static = spark.range(next(sizes)).selectExpr("id AS k", "id AS w")
        return df.join(static, "k")

    job, sink = new_job(spark, tmp_path, max_rows_per_batch=5), hf.MemorySink()
    numbers(job, 10).transform(grown).write(sink)
    ends_with(job, hf.JobRefused, "a transform now changes the partitions.*functions.broadcast")
    assert sink.rows() == []


def test_a_job_that_was_refused_can_be_corrected_and_started(spark, tmp_path):
    job, sink = new_job(spark, tmp_path, task_managers=4, parallelism=4), hf.MemorySink()
    numbers(job, 16).key_by("k").aggregate(n=hf.count()).write(sink)
    refused(job, "needs 5 slots")
    job.task_managers = 1
    run(job)
    assert newest(sink) == dict.fromkeys(range(8), 2)
    assert pa.types.is_int64(sink.table().schema.field("n").type)
