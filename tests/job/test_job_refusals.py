"""Bad input: refusals when a job is declared or started, and ends of a query; each names the remedy."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_kit import Feed, manifests_and_logs, new_job, new_storage, newest, own_logs, pairs, script, store_of, tuples

import holdfast as hf
from holdfast.functions.ranking.window_top import TopSpec
from holdfast.settings import MEMORY_BYTES_MIN
from holdfast.storage.store import open_store
from holdfast.testing import run, start

ROWS = pairs((1, 10), (2, 20), (1, 5))
BIG = 2**63 - 1


def ends_with(job: hf.Job, kind: type[hf.HoldfastError], match: str) -> None:
    """The query ends with this error, having published nothing; the stored state is as it was."""
    before = {info.name for info in store_of(job).list("journal/")}
    with pytest.raises(hf.QueryFailed, match=match) as caught:
        run(job)
    assert type(caught.value.__cause__) is kind
    after = {info.name for info in store_of(job).list("journal/")}
    assert len(after - before) == 1, "a takeover, no checkpoint"


# --- refusals of declarations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"name": ""}, "name=''"),
        ({"name": 3}, "name=3 is not allowed: a string"),
        ({"storage": 3}, "storage=3 is not allowed: a string"),
        ({"parallelism": 0}, "parallelism=0 is not allowed: a whole number from 1"),
        ({"task_managers": 0}, "task_managers=0"),
        ({"task_managers": 3, "parallelism": 2}, "task_managers=3 is above parallelism=2"),
        ({"parallelism": 9, "max_parallelism": 8}, "parallelism=9 is above max_parallelism=8"),
        ({"max_rows_per_batch": 0}, "max_rows_per_batch=0"),
        ({"max_bytes_per_batch": "much"}, "max_bytes_per_batch='much'"),
        ({"bad_records": "ignore"}, "bad_records='ignore' is not allowed: 'fail' or 'dead_letter'"),
        ({"bad_records": "dead_letter"}, "dead_letters=<url of a folder> belong together"),
        ({"dead_letters": "file:///tmp/x"}, "belong together"),
        ({"state": "rocksdb"}, "state='rocksdb' is not allowed"),
        ({"ship_modules": ["mine"]}, r"ship_modules=\['mine'\] is not allowed: give imported modules"),
    ],
)
def test_a_wrong_setting_of_a_job_is_named_with_what_is_allowed(settings, match):
    with pytest.raises(hf.SettingsError, match=match):
        new_job(**({"storage": "memory://x"} | settings))


def test_a_stream_refuses_what_is_no_column_sink_or_aggregate():
    stream = new_job().read(script(ROWS))
    with pytest.raises(hf.SettingsError, match="name at least one column"):
        stream.key_by()
    with pytest.raises(hf.SettingsError, match="names a column twice"):
        stream.key_by("k", "k")
    with pytest.raises(hf.SettingsError, match="expected a sink"):
        stream.write(print)
    with pytest.raises(hf.SettingsError, match=r"aggregate 'n' is 5; expected an aggregate such as hf.count"):
        stream.key_by("k").aggregate(n=5)
    with pytest.raises(hf.SettingsError, match="emit is 'all'"):
        stream.key_by("k").aggregate("all", n=hf.count())
    with pytest.raises(hf.SettingsError, match="at least one aggregate"):
        stream.key_by("k").aggregate()
    with pytest.raises(hf.JobRefused, match="expected a source such as FileSource"):
        new_job().read([1, 2])


def test_a_name_is_used_once_and_is_fit_for_a_path():
    job = new_job()
    stream = job.read(Feed(name="a"))
    with pytest.raises(hf.JobRefused, match="name 'a' is used twice"):
        job.read(Feed(name="a"))
    stream.key_by("k").aggregate(n=hf.count(), name="b")
    with pytest.raises(hf.JobRefused, match="name 'b' is used twice"):
        stream.key_by("k").aggregate(n=hf.count(), name="b")
    with pytest.raises(hf.JobRefused, match="name 'b' is used twice"):
        stream.write(hf.NoopSink(name="b"))
    for name in ("", "a/b", ".a", "a b"):
        with pytest.raises(hf.JobRefused, match="letters, digits"):
            stream.write(hf.NoopSink(name=name))
    with pytest.raises(hf.JobRefused, match="that of the dead letters' own sink"):
        stream.write(hf.NoopSink(name="dead-letters"))


def test_streams_of_two_jobs_cannot_be_united():
    with pytest.raises(hf.JobRefused, match="different jobs"):
        new_job().read(Feed()).union(new_job().read(Feed()))


# --- refusals of start() ----------------------------------------------------------------------------------------------


def refused(job: hf.Job, match: str, kind: type[hf.HoldfastError] = hf.JobRefused) -> None:
    with pytest.raises(kind, match=match):
        run(job)
    if job.storage.startswith("memory:"):
        assert store_of(job).list("journal/") == []


def test_an_empty_job_is_refused():
    refused(new_job(), "the job writes nothing")
    job = new_job()
    job.read(script(ROWS)).write(hf.NoopSink())
    job.read(Feed(name="idle"))
    refused(job, "the output of source 'idle' is used nowhere; write it to a sink")


def test_a_key_that_is_no_column_is_refused_with_the_columns_there_are():
    job = new_job()
    job.read(script(ROWS)).key_by("key").aggregate(n=hf.count()).write(hf.NoopSink())
    refused(job, r"operator 'aggregate-1': key column 'key' is not among the columns of its input: k, v")


def test_a_key_of_a_type_that_cannot_be_one_is_refused_with_the_operator():
    job = new_job()
    job.read(Feed("k ARRAY<BIGINT>, v BIGINT")).key_by("k").aggregate(n=hf.count(), name="per-key").write(hf.NoopSink())
    refused(job, r"operator 'per-key': key column 'k' has type list.*; a key is made of integers.*Cast the column")


def test_an_aggregate_of_a_column_that_does_not_fit_is_refused():
    for schema, aggregate, match in [
        ("k BIGINT, v STRING", hf.sum("v"), r"sum\(v\), and column 'v' has type string; expected an integer"),
        ("k BIGINT, v BIGINT", hf.max("w"), r"reads column 'w', but there is no such column in its input \(k, v\)"),
    ]:
        job = new_job()
        job.read(Feed(schema)).key_by("k").aggregate(x=aggregate).write(hf.NoopSink())
        refused(job, match)


def test_united_streams_of_different_schemas_are_refused_with_both():
    job = new_job()
    job.read(Feed()).union(job.read(Feed("k BIGINT, v STRING"))).write(hf.NoopSink())
    refused(job, "unites streams of different schemas: k int64, v int64 and k int64, v string")


def test_an_operator_that_cannot_take_rows_back_refuses_a_stream_of_changes(monkeypatch):
    monkeypatch.setattr(TopSpec, "takes", ("append",))
    job = new_job()
    rows = job.read(Feed("k BIGINT, at TIMESTAMP, _change_type STRING")).with_watermark("at", 0)
    rows.key_by("k", hf.window("at", "1s")).top(1, by="k").write(hf.NoopSink())
    refused(job, "has the column '_change_type' of a stream of changes, and this operator cannot take rows back")


def test_bounds_of_time_are_refused_where_rows_may_go():
    for made, match in (
        (lambda stream: stream.drop_duplicates("k", within="1h"), "'k'\\) over a stream of changes has within="),
        (lambda stream: stream.key_by("k").join(stream.key_by("k"), ttl="1h"), "a join of changes has ttl"),
        (lambda stream: stream.key_by("k").join(stream.key_by("k"), how="asof"), "a join of changes has how='asof'"),
        (lambda stream: stream.key_by("k").last(by="_change_type"), "reads '_change_type' as a key or an order"),
    ):
        job = new_job()
        rows = job.read(Feed("k BIGINT, at TIMESTAMP, _change_type STRING")).with_watermark("at", 0)
        made(rows).write(hf.NoopSink())
        refused(job, match)


def test_upserts_cannot_be_taken_back():
    job = new_job()
    changes = job.read(Feed("k BIGINT, v BIGINT, _change_type STRING"))
    changes.key_by("k").aggregate(n=hf.sum("v")).key_by("n").aggregate(of=hf.count()).write(hf.NoopSink())
    refused(job, "its input is a stream of upserts, .* give the operator before it changes=True")
    job = new_job()
    last = job.read(Feed("k BIGINT, v BIGINT, _change_type STRING")).key_by("k").last(by="v")
    last.key_by("k").join(last.key_by("k"), suffix="_2").write(hf.NoopSink())
    refused(job, "its input is a stream of upserts, .* give the operator before it changes=True")


def test_changes_and_rows_that_count_for_ever_are_not_united():
    job = new_job()
    changes = job.read(Feed("k BIGINT, _change_type STRING"))
    changes.union(changes.as_append()).write(hf.NoopSink())
    refused(job, "a union of a stream of kind 'changes' with a stream of kind 'append'")


def test_a_transform_needs_spark():
    job = new_job()
    job.read(Feed()).transform(lambda df: df).write(hf.NoopSink())
    refused(job, "needs Spark; without it use map_batches")


def test_a_job_without_a_session_cannot_be_started_on_spark():
    job = new_job()
    job.read(Feed()).write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match="made without a Spark session"):
        job.start()


def test_a_trigger_that_is_none_is_refused():
    job = new_job()
    job.read(Feed()).write(hf.NoopSink())
    with pytest.raises(hf.SettingsError, match="trigger='1s' is not allowed"):
        start(job, "1s")


def test_a_job_that_runs_is_not_started_a_second_time():
    job, feed, sink = new_job(), Feed(), hf.MemorySink()
    job.read(feed).write(sink)
    query = start(job, hf.processing_time())
    with pytest.raises(hf.JobRefused, match=r"job 'test' runs already.*Stop that query first"):
        start(job, hf.processing_time())
    feed.put(ROWS)
    query.processAllAvailable()
    query.stop()
    feed.put(ROWS)
    run(job)
    assert len(sink.rows()) == 6


def test_a_target_that_does_not_fit_is_refused(tmp_path):
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path), pa.table({"k": ["a"], "n": [1]}))
    job = new_job()
    stream = job.read(script(ROWS)).key_by("k").aggregate(n=hf.count())
    stream.write(hf.DeltaSink(f"file://{tmp_path}", mode="upsert"))
    refused(job, r"'k'.*(string|int64|long|bigint).*(string|int64|long|bigint)")


def test_storage_that_cannot_be_reached_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    job = new_job(f"file://{tmp_path}/file/storage")
    job.read(script(ROWS)).write(hf.NoopSink())
    refused(job, "file/storage", hf.StorageError)
    job = new_job("ftp://somewhere/else")
    job.read(script(ROWS)).write(hf.NoopSink())
    refused(job, "ftp", hf.HoldfastError)


def test_the_storage_of_another_job_is_refused_and_that_job_runs_on():
    first, feed, sink = new_job(name="first"), Feed(), hf.MemorySink()
    first.read(feed).write(sink)
    query = start(first, hf.processing_time())
    second = new_job(first.storage, name="second")
    second.read(Feed()).write(hf.MemorySink())
    with pytest.raises(
        hf.JobRefused, match=r"belongs to job 'first', this is job 'second': give job 'second' a folder"
    ):
        start(second, hf.processing_time())
    feed.put(ROWS)
    query.processAllAvailable()
    query.stop()
    assert len(sink.rows()) == 3


@pytest.mark.long
def test_an_object_store_that_does_not_answer_is_named_without_its_credentials():
    closed = {"aws_endpoint": "http://127.0.0.1:1", "aws_access_key_id": "key", "aws_secret_access_key": "hush"}
    job = new_job("s3://bucket/folder", storage_options=closed | {"aws_region": "x", "aws_allow_http": "true"})
    job.read(script(ROWS)).write(hf.NoopSink())
    refused(job, r"s3://bucket/folder(?!.*hush)", hf.StorageError)


def test_a_folder_of_something_else_is_refused_and_left_as_it_is():
    storage = new_storage()
    store = open_store(storage)
    store.put("job", b"somebody's own file")
    job = new_job(storage)
    job.read(script(ROWS)).write(hf.NoopSink())
    refused(job, "does not belong to a job this version of Holdfast can read.*expected an empty folder")
    assert [info.name for info in store.list("")] == ["job"]


@pytest.mark.parametrize("name", ["job", "journal/", "gathered/"])
def test_a_stored_object_of_an_unknown_format_is_named_and_nothing_is_changed(name):
    storage = new_storage()
    for attempt in (1, 2):
        job = new_job(storage)
        stream = job.read(script(ROWS, ROWS, name="script")).key_by("k").aggregate(n=hf.count())
        stream.write(hf.MemorySink(name="out"))
        if attempt == 1:
            run(job)
            store = open_store(storage)
            found = (
                [info.name for info in store.list(name) if not info.name.endswith("begun")][-1]
                if name != "job"
                else name
            )
            data = bytearray(store.get(found))
            start = data.index(b"HFMF") if name == "gathered/" else 0
            data[start + 4] = 200  # the version, after the magic
            store.put(found, bytes(data))
            before = {info.name for info in store.list("")}
    with pytest.raises((hf.CorruptObject, hf.JobRefused), match=found):
        run(job)
    assert {info.name for info in store.list("")} - before <= {"journal/000000000004"}


# --- ends of a query, and dead letters --------------------------------------------------------------------------------


def dead_letters(tmp_path) -> list[dict]:
    names = ("source", "split", "position", "operator", "reason", "payload")
    schema = pa.schema([(name, pa.string()) for name in names])
    return pq.read_table(tmp_path, schema=schema).to_pylist()


def test_a_malformed_row_ends_the_query_naming_source_split_and_position():
    job, feed = new_job(), Feed(name="feed")
    feed.put([*ROWS, "what?"])
    job.read(feed).write(hf.MemorySink())
    ends_with(job, hf.BadRecord, r"source 'feed', split '0', position 3: is text; the row is 'what\?'.*dead_letter")


def test_a_null_key_ends_the_query_naming_source_split_position_and_row():
    job, feed, sink = new_job(), Feed(name="feed"), hf.MemorySink()
    feed.put([*ROWS, {"k": None, "v": 7}])
    job.read(feed).key_by("k").aggregate(n=hf.count()).write(sink)
    ends_with(
        job,
        hf.BadRecord,
        r"source 'feed', split '0', position 3: null in a key column \(k\) of operator 'aggregate-1'; the row is "
        r"\{'k': None\}",
    )
    assert sink.rows() == []


def test_a_null_key_behind_an_operator_names_the_subtask_it_came_from():
    job = new_job()
    counts = job.read(script(pairs((1, None)))).key_by("k").aggregate(most=hf.max("v"), name="first")
    counts.key_by("most").aggregate(n=hf.count(), name="second").write(hf.NoopSink())
    ends_with(job, hf.BadRecord, r"split 'first/0'.*null in a key column \(most\) of operator 'second'")


def test_bad_rows_become_dead_letters_and_the_rest_goes_on(tmp_path):
    class Picky(hf.ProcessFunction):
        n = hf.ValueState(pa.int64(), default=0)

        def process(self, row, ctx):
            self.n.update(self.n.value() + 1)
            if row.v == 13:
                raise ValueError("unlucky")
            yield {"k": row.k, "n": self.n.value()}

    job = new_job(bad_records="dead_letter", dead_letters=f"file://{tmp_path}")
    feed, counted, summed = Feed(name="feed"), hf.MemorySink(), hf.MemorySink()
    feed.put(["what?", {"k": None, "v": 1}, {"k": 1, "v": 13}, {"k": 1, "v": BIG}, {"k": 1, "v": 1}])
    keyed = job.read(feed).key_by("k")
    keyed.process(Picky(), "k BIGINT, n BIGINT", name="picky").write(counted)
    keyed.aggregate(total=hf.sum("v"), name="sum").write(summed)
    query = run(job)
    assert tuples(counted) == [(1, 1), (1, 2)]
    found = dead_letters(tmp_path)
    by_operator = {
        name: [row for row in found if row["operator"] == name] for name in ("", "picky", "sum", "picky, sum")
    }
    assert {(row["source"], row["split"], row["position"], row["payload"]) for row in by_operator[""]} == {
        ("feed", "0", "0", "what?")
    }
    (null,) = by_operator["picky, sum"]
    assert "of operator 'picky'; null in a key column (k) of operator 'sum'" in null["reason"]
    assert (null["source"], null["position"], null["payload"]) == ("feed", "1", '{"k":null,"v":1}')
    raised = next(row for row in by_operator["picky"] if "unlucky" in row["reason"])
    assert "ValueError" in raised["reason"] and '"v": 13' in raised["payload"].replace('":', '": ').replace("  ", " ")
    assert by_operator["sum"] and all("does not fit int64" in row["reason"] for row in by_operator["sum"])
    left_out = sum(json.loads(row["payload"])["v"] for row in by_operator["sum"])
    assert tuples(summed) == [(1, 13 + BIG + 1 - left_out)], "each row is in the sum, or a dead letter"
    assert query.lastProgress["badRows"] == len(found)


def test_a_sum_that_overflows_ends_the_query_and_state_stays_as_it_was():
    storage, sink = new_storage(), hf.MemorySink(name="out")

    def job_of(*batches):
        job = new_job(storage)
        job.read(script(*batches, name="script")).key_by("k").aggregate(total=hf.sum("v")).write(sink)
        return job

    run(job_of(pairs((1, BIG))))
    job = job_of(pairs((1, BIG)), pairs((2, 1), (1, 1)))
    ends_with(job, hf.BadRecord, r"operator 'aggregate-1': aggregate 'total' = sum\(v\) does not fit int64.*\{'k': 1\}")
    assert tuples(sink) == [(1, BIG)]
    run(job_of(pairs((1, BIG)), pairs((2, 1), (1, -1))))
    assert newest(sink.rows(), "k") == {1: {"total": BIG - 1}, 2: {"total": 1}}


def test_a_function_that_raises_ends_the_query_naming_operator_key_batch_and_row():
    class Raising(hf.ProcessFunction):
        def process(self, row, ctx):
            return [{"k": row.k // (row.v - 5)}]

    job = new_job()
    job.read(script(ROWS)).key_by("k").process(Raising(), "k BIGINT", name="raising").write(hf.MemorySink())
    ends_with(
        job,
        hf.UserFunctionError,
        r"operator 'raising', key \{'k': 1\}, row 2 of batch 1, subtask 0: process\(\) raised ZeroDivisionError",
    )


def test_a_value_that_does_not_fit_its_state_ends_the_query_naming_state_and_type():
    class Small(hf.ProcessFunction):
        last = hf.ValueState(pa.int8())

        def process(self, row, ctx):
            self.last.update(row.v)
            return ()

    job = new_job()
    job.read(script(pairs((1, 300)))).key_by("k").process(Small(), "k BIGINT").write(hf.NoopSink())
    ends_with(job, hf.UserFunctionError, r"'process-1', key \{'k': 1\}, row 0.*state 'last' of type int8: found 300")


def test_map_batches_that_raises_or_gives_something_else_names_the_function_and_the_place():
    def broken(batch):
        raise KeyError("lost")

    def other(batch):
        return batch.select(["k"])

    def nothing(batch):
        return [3]

    for fn, match in [
        (
            broken,
            r"map_batches\(broken\) raised KeyError: 'lost' \(test_job_refusals.py, line \d+\) at source 'script', ",
        ),
        (other, r"map_batches\(other\) gave the columns \['k'\], declared are \['k', 'v'\]"),
        (nothing, r"map_batches\(nothing\) gave a int, not a pyarrow.RecordBatch"),
    ]:
        job = new_job()
        job.read(script(ROWS, name="script")).map_batches(fn, "k BIGINT, v BIGINT").write(hf.MemorySink())
        ends_with(job, hf.UserFunctionError, match)


def test_a_callback_that_raises_ends_the_query_and_gets_the_same_rows_again():
    storage, calls = new_storage(), []

    def callback(table, number):
        calls.append((number, table.num_rows))
        if len(calls) == 1:
            raise ValueError("not yet")

    def job():
        made = new_job(storage)
        made.read(script(ROWS, name="script")).write(hf.CallbackSink(callback, name="callback"))
        return made

    with pytest.raises(hf.QueryFailed, match=r"sink 'callback'.*ValueError.*not yet.*same rows and number"):
        run(job())
    run(job())
    assert len(calls) == 2 and calls[0] == calls[1]


def test_state_that_outgrows_its_memory_ends_the_query_with_advice():
    job = new_job(task_manager=hf.TaskManagerConfig(memory="16MB"))
    job.read(hf.SequenceSource(1_000_000)).key_by("value").aggregate(n=hf.count()).write(hf.MemorySink())
    ends_with(job, hf.StateTooLarge, r"TaskManager 0: its state takes [\d,]+ bytes.*TaskManagerConfig\(memory=")


@pytest.mark.parametrize(
    "state", [hf.HashMapState(), pytest.param(hf.RocksDBState(1000), marks=pytest.mark.long)], ids=repr
)
def test_the_least_memory_that_is_allowed_is_enough_for_many_subtasks_with_many_tables(state):
    class Every(hf.ProcessFunction):
        one, several, by_name = hf.ValueState(), hf.ListState(), hf.MapState(pa.string())

        def process(self, row, ctx):
            self.several.add(row.value)
            self.by_name.put("name", row.value)
            self.one.update(row.value)
            return ()

    job = new_job(state=state, parallelism=64, task_manager=hf.TaskManagerConfig(memory=MEMORY_BYTES_MIN))
    job.read(hf.SequenceSource(1_000)).key_by("value").process(Every(), "k BIGINT").write(hf.NoopSink())
    assert run(job).totals.rows == 1_000


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_damaged_or_missing_object_of_a_table_names_who_needs_it_and_what_to_do(damage):
    storage = new_storage()
    store = open_store(storage)

    def counting():
        job = new_job(storage, checkpoint=own_logs())
        job.read(script(ROWS, name="script")).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
        return job

    run(counting())
    [name, *_] = manifests_and_logs(store)[1]
    if damage == "missing":
        store.delete([name])
    else:
        store.put(name, bytes(len(store.get(name))))
    message = rf"operator 'counts', subtask 0: the state table .* of checkpoint 1 .*{name}.*holdfast verify.*drop_state"
    with pytest.raises(hf.HoldfastError, match=message):
        run(counting())
