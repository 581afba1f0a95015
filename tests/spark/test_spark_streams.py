"""Jobs on Spark: the same pipelines as in process, and features of Spark alone: transforms, its own readers."""

import asyncio
import json
import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import spark_kit
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from spark_kit import new_job, newest, run, tuples, write_rows

import holdfast as hf
from sampling import quick
from waiting import until


@pytest.fixture
def how(request, monkeypatch):
    """How many senders of a job stay: every pipeline gives the same, wherever its units are worked off."""
    monkeypatch.setattr(spark_kit, "SENDERS", request.param)
    return request.param


WAYS = {"short jobs": 0, "senders that stay": None}


def in_both_ways(*names: str) -> pytest.MarkDecorator:
    """Run a test with units as short Spark jobs and in senders that stay; `make test` takes the named ways alone."""
    return pytest.mark.parametrize("how", quick(*names, of=WAYS), indirect=True)


def by_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    value = batch.column("value")
    return pa.record_batch([pc.bit_wise_and(value, 7), value], names=["k", "v"])


def numbers(job: hf.Job, rows: int, splits: int = 3) -> hf.Stream:
    """0 to rows - 1 as (k, v), k from 0 to 7."""
    return job.read(hf.SequenceSource(rows, splits=splits)).map_batches(by_key, "k BIGINT, v BIGINT")


def sums(values) -> dict[int, int]:
    found: dict[int, int] = {}
    for value in values:
        found[value % 8] = found.get(value % 8, 0) + value
    return found


class Total(hf.ProcessFunction):
    total = hf.ValueState(pa.int64(), default=0)

    def process(self, row, ctx):
        self.total.update(self.total.value() + row.v)
        yield {"k": row.k, "total": self.total.value()}


@in_both_ways("short jobs", "senders that stay")
def test_aggregates_and_functions_on_two_task_managers(spark, tmp_path, how):
    job = new_job(spark, tmp_path, parallelism=3, task_managers=2, max_rows_per_batch=400)
    stream, every, changes, total = numbers(job, 1000), hf.MemorySink(), hf.MemorySink(), hf.MemorySink()
    keyed = stream.key_by("k")
    keyed.aggregate("every", n=hf.count()).write(every)
    keyed.aggregate(total=hf.sum("v")).write(changes)
    keyed.process(Total(), "k BIGINT, total BIGINT").write(total)
    query = run(job)
    assert tuples(every) == [(k, n) for k in range(8) for n in range(1, 126)]
    assert newest(changes) == newest(total) == sums(range(1000))
    assert query.lastProgress["sources"][0]["endOffset"] == {"0": 334, "1": 333, "2": 333}
    assert len(query.recentProgress) == 3


@in_both_ways("short jobs", "senders that stay")
def test_the_files_that_units_stage_are_requests_of_senders(spark, tmp_path, how):
    job = new_job(spark, tmp_path)
    job.read(hf.SequenceSource(100_000, splits=2)).write(hf.ParquetSink(f"file://{tmp_path}/out", name="out"))
    query = run(job)
    files = list((tmp_path / "out").glob("part-*"))
    [senders] = [each for each in query.view().store_use.lanes if each.lane == "senders"]
    assert (senders.requests, senders.size_bytes) == (len(files), sum(each.stat().st_size for each in files))
    assert len(files) == 2


@in_both_ways("short jobs")
def test_the_notes_of_legs_through_spark_are_requests_of_senders(spark, tmp_path, how):
    job, sink = new_job(spark, tmp_path, max_rows_per_batch=10), hf.MemorySink()
    numbers(job, 100).transform(lambda df: df.where("v % 2 = 0")).write(sink)
    query = run(job)
    lanes = {each.lane: each.requests for each in query.view().store_use.lanes}
    assert len(sink.rows()) == 50
    assert lanes["senders"] >= 2, "the notes of a batch are told with the next unit of their process"


def half_now_and_then(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Ones, and every 20,000th value half of the largest int64."""
    value = batch.column("value")
    rare = pc.equal(pc.multiply(pc.divide(value, 20_000), 20_000), value)
    return pa.record_batch([pc.bit_wise_and(value, 7), pc.if_else(rare, 2**62, 1)], names=["k", "v"])


@in_both_ways("senders that stay")
def test_tasks_combine_the_rows_of_a_key_until_a_sum_overflows(spark, tmp_path, how):
    bad = tmp_path / "bad"
    job = new_job(spark, tmp_path, max_rows_per_batch=20_000, bad_records="dead_letter", dead_letters=f"file://{bad}")
    sink = hf.MemorySink()
    stream = job.read(hf.SequenceSource(40_000, splits=2)).map_batches(half_now_and_then, "k BIGINT, v BIGINT")
    stream.key_by("k").aggregate(total=hf.sum("v")).write(sink)
    query = run(job)
    assert newest(sink) == {0: 2**62 + 4998} | dict.fromkeys(range(1, 8), 5000)
    first, second = query.recentProgress
    assert (first["badRows"], second["badRows"]) == (0, 1)
    # Of each split its four keys; of the batch that overflows perhaps a subtask's, and then all rows as they are.
    assert first["metrics"]["numRecordsIn"] == 8
    assert 20_008 <= second["metrics"]["numRecordsIn"] <= 20_016
    assert query.restarts == []


@in_both_ways("short jobs")
def test_operators_one_behind_another_with_steps_of_both_kinds_between(spark, tmp_path, how):
    job, sink = new_job(spark, tmp_path), hf.MemorySink()
    stream = numbers(job, 800).transform(lambda df: df.where("v % 2 = 0"))
    stream = stream.map_batches(lambda batch: batch, "k BIGINT, v BIGINT").transform(lambda df: df.select("k", "v"))
    counts = stream.key_by("k").aggregate("every", n=hf.count(), v=hf.last("v"))
    big = counts.transform(lambda df: df.where("n > 50").selectExpr("n % 5 AS rest", "v"))
    big.map_batches(lambda batch: batch, "rest BIGINT, v BIGINT").key_by("rest").aggregate(m=hf.count()).write(sink)
    run(job)
    # keys 0, 2, 4, 6 are counted from 51 to 100 each
    assert newest(sink) == dict.fromkeys(range(5), 40)


@pytest.mark.parametrize("spark_reads", [False, True])
def test_a_row_for_which_an_expression_fails_beside_a_transform_is_a_bad_record(spark, tmp_path, spark_reads):
    """Expressions before, between and behind Spark's steps, over rows of either kind of source."""
    letters = tmp_path / "letters"
    job, sink = new_job(spark, tmp_path, bad_records="dead_letter", dead_letters=letters.as_uri()), hf.MemorySink()
    if spark_reads:
        stream = job.read(hf.DataFrameSource(ids, lambda session: {"id": 100}, "v BIGINT", name="numbers"))
    else:
        stream = numbers(job, 100).select("v")
    divided = [pc.divide(pc.scalar(1), pc.subtract(pc.field("v"), pc.scalar(bad))) for bad in (3, 50, 98)]
    stream = stream.where(divided[0] < 9).transform(lambda df: df.where("v % 10 != 7"))
    stream = stream.where(divided[1] < 9).transform(lambda df: df.selectExpr("v", "v + 1 AS w"))
    stream.select("v", "w", quotient=divided[2]).write(sink)
    query = run(job)
    wanted = {v for v in range(100) if v % 10 != 7 and v not in (3, 50, 98)}
    assert sorted(row[0] for row in tuples(sink)) == sorted(wanted)
    found = pq.read_table(letters).to_pylist()
    assert sorted(int(json.loads(each["payload"])["v"]) for each in found) == [3, 50, 98]
    assert all("divide by zero" in each["reason"] and each["source"] for each in found)
    assert sum(progress["badRows"] for progress in query.recentProgress) == 3


def ids(session, start, end):
    return session.range(0, end["id"]).selectExpr("id AS v")


@in_both_ways("senders that stay")
def test_a_transform_may_use_functions_views_and_static_tables_of_the_users_session(spark, tmp_path, how):
    names = spark.createDataFrame([(k, f"key {k}") for k in range(8)], "k BIGINT, name STRING")
    spark.range(4).selectExpr("id AS k").createOrReplaceTempView("holdfast_low_keys")
    twice = F.udf(lambda value: value * 2, "bigint")

    def enrich(df):
        low = df.sparkSession.table("holdfast_low_keys")
        joined = df.where("v >= 0").join(F.broadcast(names), "k").join(F.broadcast(low), "k", "left_semi")
        return joined.select("name", twice("v").alias("v"))

    job, sink, raw = new_job(spark, tmp_path), hf.MemorySink(), hf.MemorySink()
    stream = numbers(job, 800).transform(enrich)
    stream.write(raw)
    stream.key_by("name").aggregate(total=hf.sum("v")).write(sink)
    run(job)
    assert newest(sink) == {f"key {k}": 2 * total for k, total in sums(range(800)).items() if k < 4}
    assert len(raw.rows()) == 400


@in_both_ways("senders that stay")
def test_a_static_table_larger_than_the_batch_is_still_the_side_that_is_broadcast(spark, tmp_path, how):
    names = spark.range(0, 5000, 1, 3).selectExpr("id AS v", "id * 10 AS w")
    job, sink = new_job(spark, tmp_path), hf.MemorySink()
    numbers(job, 30).transform(lambda df: df.join(names, "v").select("k", "w")).write(sink)
    run(job)
    assert tuples(sink) == sorted((v % 8, v * 10) for v in range(30))


@in_both_ways("senders that stay")
def test_a_job_without_key_by_has_no_task_manager_and_uses_all_slots(spark, tmp_path, how):
    job, sink = new_job(spark, tmp_path, task_managers=2), hf.MemorySink()
    numbers(job, 100, splits=4).transform(lambda df: df.where("v < 10")).write(sink)
    query = job.start(hf.available_now())
    assert query.taskManagers == []
    query.awaitTermination()
    assert [v for _, v in sorted(tuples(sink), key=lambda row: row[1])] == list(range(10))


@in_both_ways("senders that stay")
def test_a_transform_that_keeps_no_row_gives_an_empty_result(spark, tmp_path, how):
    job, sink = new_job(spark, tmp_path), hf.MemorySink()
    numbers(job, 100).transform(lambda df: df.where("false")).key_by("k").aggregate(n=hf.count()).write(sink)
    query = run(job)
    assert sink.rows() == []
    assert query.lastProgress["sources"][0]["endOffset"] == {"0": 34, "1": 33, "2": 33}


@in_both_ways("senders that stay")
def test_files_that_arrive_while_the_job_runs_are_read(spark, tmp_path, how):
    folder = tmp_path / "in"
    write_rows(folder / "a.parquet", [{"k": k, "v": 1} for k in range(4)])
    job, sink = new_job(spark, tmp_path), hf.MemorySink()
    stream = job.read(hf.FileSource(f"{folder}/*.parquet")).transform(lambda df: df.where("k < 3"))
    stream.key_by("k").aggregate(n=hf.count()).write(sink)
    query = job.start(hf.processing_time())
    try:
        query.processAllAvailable()
        assert newest(sink) == {0: 1, 1: 1, 2: 1}
        write_rows(folder / "b.parquet", [{"k": k, "v": 1} for k in range(2)])
        query.processAllAvailable()
        assert newest(sink) == {0: 2, 1: 2, 2: 1}
        assert query.status["isDataAvailable"] is False
    finally:
        query.stop()
    write_rows(folder / "c.parquet", [{"k": 2, "v": 1}])
    run(job)
    assert newest(sink) == {0: 2, 1: 2, 2: 2}


@in_both_ways("short jobs")
def test_a_dataframe_source_reads_with_sparks_own_readers(spark, tmp_path, how):
    def read(session, start, end):
        return session.range(start["id"], end["id"], 1, 5).selectExpr("id AS v", "id % 8 AS k")

    source = hf.DataFrameSource(read, lambda session: {"id": 100}, "v BIGINT, k BIGINT", initial_offset={"id": 0})
    job, sink, every = new_job(spark, tmp_path), hf.MemorySink(), hf.MemorySink()
    stream = job.read(source)
    stream.transform(lambda df: df.where("v >= 8")).key_by("k").aggregate(total=hf.sum("v")).write(sink)
    stream.map_batches(lambda batch: batch.select(["v"]), "v BIGINT").write(every)
    run(job)
    assert newest(sink) == sums(range(8, 100))
    assert tuples(every) == [(v,) for v in range(100)]


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "v BIGINT, k BIGINT"

    def streamReader(self, schema):
        return NumbersReader()


class NumbersReader(DataSourceStreamReader):
    def initialOffset(self):
        return {"0": 0}

    def latestOffset(self, *limit):
        return {"0": 60}

    def partitions(self, start, end):
        middle = (start["0"] + end["0"]) // 2
        return [InputPartition((start["0"], middle)), InputPartition((middle, end["0"]))]

    def read(self, partition):
        first, stop = partition.value
        for value in range(first, stop):
            yield (value, value % 8)


@in_both_ways("senders that stay")
def test_a_pyspark_data_source_is_read_partition_by_partition(spark, tmp_path, how):
    job, sink = new_job(spark, tmp_path), hf.MemorySink()
    job.read(hf.DataSourceReaderSource(Numbers)).key_by("k").aggregate(total=hf.sum("v")).write(sink)
    query = run(job)
    assert newest(sink) == sums(range(60))
    assert query.lastProgress["sources"][0]["endOffset"] == {"0": 60}


@pytest.mark.parametrize("through_spark", [False, True])
@in_both_ways("short jobs", "senders that stay")
def test_malformed_rows_and_null_keys_become_dead_letters_with_their_place(spark, tmp_path, through_spark, how):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("k,v\n1,10\nbroken\n,30\n2,40\n")
    letters = tmp_path / "letters"
    job = new_job(spark, tmp_path, bad_records="dead_letter", dead_letters=f"file://{letters}")
    sink = hf.MemorySink()
    stream = job.read(hf.FileSource(f"{folder}/*.csv", schema="k BIGINT, v BIGINT", name="files"))
    if through_spark:
        stream = stream.transform(lambda df: df.where("v > 0"))
    stream.key_by("k").aggregate(total=hf.sum("v")).write(sink)
    query = run(job)
    assert newest(sink) == {1: 10, 2: 40}
    import pyarrow.parquet as pq

    found = pq.read_table(letters, schema=pa.schema([(name, pa.string()) for name in LETTER])).to_pylist()
    found.sort(key=lambda row: row["reason"])
    null, malformed = sorted(found, key=lambda row: row["operator"], reverse=True)
    assert malformed["source"] == null["source"] == "files"
    assert malformed["payload"].startswith("broken") and malformed["position"]
    assert null["split"].endswith("a.csv") and malformed["split"].endswith("a.csv")
    assert (null["operator"], null["payload"]) == ("aggregate-1", '{"k":null,"v":30}')
    assert query.lastProgress["badRows"] == 2


LETTER = ("source", "split", "position", "operator", "reason", "payload")


@in_both_ways("senders that stay")
def test_the_users_session_stays_as_it_was_and_spark_jobs_say_what_they_are(spark, tmp_path, how):
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    before = dict(spark.sparkContext.getConf().getAll()), spark.sql("SET").collect()
    spark.sparkContext.setJobGroup("the user's", "the user's own")
    name = "delays" if how is None else "delays-0"
    job, sink = new_job(spark, tmp_path, name=name), hf.MemorySink()
    numbers(job, 100).transform(lambda df: df.where("v < 50")).key_by("k").aggregate(n=hf.count()).write(sink)
    query = job.start(hf.processing_time())
    query.processAllAvailable()
    descriptions = {str(job_data.description().get()) for job_data in jobs(spark) if job_data.description().isDefined()}
    query.stop()
    assert f"{name}: TaskManager 0, incarnation 1" in descriptions
    assert f"{name}: batch 1, push 0" in descriptions, "a transform runs in Spark"
    stays = how is None
    sender = re.compile(f"{name}: sender 0, incarnation \\d: reads, runs Python steps, sends and stages")
    assert any(map(sender.fullmatch, descriptions)) == stays
    assert (f"{name}: batch 1, pull 1" in descriptions) != stays
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "the user's"
    assert spark.sparkContext.getLocalProperty("spark.job.description") == "the user's own"
    assert (dict(spark.sparkContext.getConf().getAll()), spark.sql("SET").collect()) == before
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    assert spark.range(3).count() == 3, "the session still runs"
    until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    spark.sparkContext.setLocalProperty("spark.job.description", None)


def jobs(spark):
    found = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return [found.apply(index) for index in range(found.size())]


def test_explain_analyses_the_transforms_of_a_job_and_keeps_its_splits_as_regions(spark, tmp_path, capsys):
    job = hf.Job(spark, name="explained", storage=f"file://{tmp_path}/storage")
    numbers = job.read(hf.SequenceSource(8, splits=2, name="numbers"))
    numbers.transform(lambda df: df.where("value > 3")).write(hf.NoopSink(name="nowhere"))
    job.explain()
    assert capsys.readouterr().out == (
        "legs\n"
        "  level 0: sequence source 'numbers' → transform → NoopSink 'nowhere'\n"
        "engines\n"
        "  transform: Spark SQL, a Spark job for each batch, because it is a function over a DataFrame\n"
        "regions\n"
        "  source 'numbers': each split is a region\n"
    )


class Squares(hf.AsyncFunction):
    """Gives the square of a row's value, and the share of the capacity of the process that was asked."""

    async def open(self, ctx):
        self.capacity = ctx.capacity

    async def call(self, row):
        await asyncio.sleep(0.001)
        if row.v == 7:
            raise ValueError("seven is not squared")
        return row.k, row.v * row.v, self.capacity


def test_calls_share_their_capacity_among_senders_and_come_before_and_behind_a_transform(spark, tmp_path):
    letters = {"bad_records": "dead_letter", "dead_letters": f"file://{tmp_path}/letters"}
    job = new_job(spark, tmp_path, **letters)
    schema = "k BIGINT, square BIGINT, share BIGINT"
    alone, behind = hf.MemorySink(), hf.MemorySink()
    numbers(job, 30).map_async(Squares(), schema, capacity=10, retries=0).write(alone)
    transformed = numbers(job, 30).transform(lambda rows: rows.where("v < 20"))
    transformed.map_async(Squares(), schema, capacity=10, retries=0).write(behind)
    query = run(job)
    squares = sorted(v * v for v in range(30) if v != 7)
    assert sorted(row["square"] for row in alone.rows()) == squares
    assert sorted(row["square"] for row in behind.rows()) == [each for each in squares if each < 400]
    assert {row["share"] for row in alone.rows()} <= {3, 5, 10}
    assert query.totals.bad_rows == 2
